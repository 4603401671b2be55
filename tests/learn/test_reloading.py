"""Data that are read again while a node runs: what is taken over, what is refused, and which files have changed."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from torch import nn

from p2pfl.config.model import TaskConfig, TrainingConfig
from p2pfl.errors import UserError
from p2pfl.learn.figures import files_of, mark_of, reloads
from p2pfl.learn.interface import RoundStart
from p2pfl.learn.load import make_learner
from p2pfl.learn.task import Task
from p2pfl.learn.tensors import DataSets, TensorSamples

RNG = np.random.default_rng(7)
X, Y = RNG.standard_normal((30, 4)).astype(np.float32), RNG.integers(0, 3, 30)
TEST = (X[:6], Y[:6])


class Counted(nn.Module):
    """Counts its calls, tests included."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1, dtype=torch.int64))

    def forward(self, inputs):
        self.calls += 1
        return inputs


def normed():
    """A module that remembers what passed through it, and draws."""
    return nn.Sequential(Counted(), nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))


@pytest.fixture
def box():
    """What the data are now."""
    return {"data": ((X[:20], Y[:20]), TEST)}


@pytest.fixture
def make(learner, box):
    return lambda **fields: learner(data=lambda _: box["data"], model=normed, **fields)


def outcome(mine, index=0):
    local = mine.train(RoundStart(np.full(mine.size, 0.1, np.float32)), index)
    return local.samples, local.vector.tobytes(), {name: one.tobytes() for name, one in mine.local_state().items()}


def test_after_data_have_grown_a_round_is_that_of_a_node_that_began_with_them(make, box):
    mine = make()
    before = outcome(mine)
    box["data"] = ((X, Y), TEST)
    found = mine.read_again()
    assert (mine.samples, found.differ_from(mine.data_sets)) == (20, True)
    mine.adopt(found)
    anew = make()
    outcome(anew, 1)
    anew.load_local_state(mine.local_state())
    after = outcome(mine)
    assert after == outcome(anew)
    assert (before[0], after[0], before[1] == after[1]) == (20, 30, False)


def not_finite():
    inputs = X.copy()
    inputs[4, 1] = np.nan
    return inputs


WRONG = {
    "nothing": (None, "data returned NoneType"),
    "no row": (((X[:0], Y[:0]), TEST), "training set: it is empty"),
    "not finite": (((not_finite(), Y), TEST), "row 4 holds a value that is not finite"),
    "other columns": (((X[:, :3], Y), TEST), "fail on the first samples"),
    "another class": (((X, Y + 1), TEST), "a class label has no output"),
    "shares of classes": (
        ((X, np.eye(3, dtype=np.float32)[Y]), TEST),
        "of a different kind than when the node started",
    ),
    "no test set": (((X, Y), None), "test set: there is no longer one"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_could_not_be_learned_from_is_refused_and_changes_nothing(make, box, wrong):
    mine, undisturbed = make(), make()
    assert outcome(mine) == outcome(undisturbed)
    box["data"], text = WRONG[wrong]
    with pytest.raises(UserError, match=text):
        mine.read_again()
    assert mine.samples == 20
    assert outcome(mine, 1) == outcome(undisturbed, 1)


def test_data_that_are_the_same_do_not_differ_and_those_of_a_dataset_by_their_number(make, box):
    mine = make()
    assert not mine.read_again().differ_from(mine.data_sets)
    box["data"] = ((X[:20], np.roll(Y[:20], 1)), TEST)
    assert mine.read_again().differ_from(mine.data_sets)

    class Pictures(torch.utils.data.Dataset):
        def __init__(self, count):
            self.count = count

        def __len__(self):
            return self.count

        def __getitem__(self, row):
            return X[row], int(Y[row])

    box["data"] = Pictures(20), TEST
    mine = make()
    assert not mine.read_again().differ_from(mine.data_sets)
    box["data"] = Pictures(21), TEST
    assert mine.read_again().differ_from(mine.data_sets)


def sets(test):
    pair = None if test is None else TensorSamples(torch.tensor(test), torch.zeros(len(test)))
    return DataSets(train=TensorSamples(torch.zeros(1), torch.zeros(1)), test=pair)


@pytest.mark.parametrize(
    ("before", "after", "compare"),
    [
        ([1.0, 2.0], [1.0, 2.0], True),
        ([1.0, 2.0], [1.0, 2.0, 3.0], True),
        (None, [1.0], True),
        ([1.0, 2.0], [2.0, 1.0], False),
        ([1.0, 2.0], [0.0, 1.0, 2.0], False),
        ([1.0, 2.0], [1.0], False),
    ],
)
def test_scores_compare_where_the_test_set_has_only_grown_at_its_end(before, after, compare):
    assert sets(after).compare_with(sets(before)) is compare


def test_a_mark_changes_when_a_file_is_written_replaced_removed_or_there_again(tmp_path):
    file, other = tmp_path / "a.csv", tmp_path / "b.csv"
    marks = [mark_of([file])]
    file.write_text("one")
    marks.append(mark_of([file]))
    assert marks[-1] == mark_of([file])
    file.write_text("longer")
    marks.append(mark_of([file]))
    os.utime(file, ns=(1, 1))
    marks.append(mark_of([file]))
    other.write_text("longer")
    os.utime(other, ns=(1, 1))
    other.replace(file)
    marks.append(mark_of([file]))
    assert len(set(marks)) == len(marks)


def test_files_that_the_task_cannot_name_are_its_mistake(context):
    task = Task(model=normed, data=lambda _: TEST, files=lambda node: [node.local["nothing"]], name="mine")
    with pytest.raises(UserError, match="mine: files: files failed: KeyError"):
        files_of(task, context())
    with pytest.raises(UserError, match="this must be a function"):
        Task(model=normed, data=lambda _: TEST, files=["a.csv"])


def build(folder, name, local, **options):
    return make_learner(
        TaskConfig(name=name, options=options),
        TrainingConfig(),
        seed=0,
        node_index=0,
        node_count=2,
        node_name="pi1",
        base_dir=folder,
        local=local,
        local_dir=folder / "pi1",
        reload_s=60.0,
    )


TABLE = {"target": "y", "numeric": ["x"], "classes": ["no", "yes"]}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pi1").mkdir()
    for place in (tmp_path, tmp_path / "pi1"):
        (place / "mine.csv").write_text("x,y\n1,no\n2,yes\n3,yes\n4,no\n")
    return tmp_path


def test_the_files_of_a_table_task_are_those_of_this_node(folder):
    local = {"path": "mine.csv", "test_path": "../mine.csv"}
    files = build(folder, "csv", local, **TABLE).data_files()
    assert [file.resolve() for file in files] == [folder / "pi1" / "mine.csv", folder / "mine.csv"]


@pytest.mark.parametrize(
    ("name", "local", "options", "text"),
    [
        ("digits", {}, {}, "not read its data from files of this node alone"),
        ("csv", {}, TABLE | {"path": "mine.csv"}, "not read its data from files of this node alone"),
        ("csv", {"path": "mine.csv"}, TABLE | {"partition": "iid"}, "not read its data from files of this node alone"),
        ("quadratic", {}, {}, "cannot read its data again"),
    ],
)
def test_a_task_whose_data_cannot_grow_at_one_node_refuses_reload_s_at_the_start(folder, name, local, options, text):
    with pytest.raises(UserError, match=text) as caught:
        build(folder, name, local, **options)
    assert (caught.value.key, caught.value.value) == ("data.reload_s", 60.0)
    assert caught.value.file == str(folder / "pi1" / "node.toml")


def test_a_task_that_does_not_name_its_files_may_be_read_again(make):
    mine = make()
    assert reloads(mine, 1.0) is mine
    assert mine.data_files() is None


def test_rows_that_are_appended_leave_those_that_were_held_out_where_they_were(folder):
    table, rows = folder / "pi1" / "mine.csv", [f"{i},{'yes' if i % 3 else 'no'}" for i in range(60)]
    table.write_text("\n".join(["x,y", *rows[:40]]) + "\n")
    mine = build(folder, "csv", {"path": "mine.csv"}, holdout=0.25, **TABLE)
    before = mine.data_sets
    table.write_text("\n".join(["x,y", *rows]) + "\n")
    found = mine.read_again()
    assert found.compare_with(before)
    assert found.differ_from(before)
    held, learned = (set(some.inputs[:, 0].tolist()) for some in (found.test, found.train))
    assert not held & learned
    assert held | learned == set(range(60))
    assert set(before.test.inputs[:, 0].tolist()) <= held
    assert set(before.train.inputs[:, 0].tolist()) <= learned


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x,y\n", "the table has no rows"),
        ("", "the table has no header"),
        ("x,y\n1,no\n2,ye", "this value is not declared"),
        ("x,z\n1,no\n", "the table lacks this column"),
    ],
)
def test_a_table_that_has_shrunk_to_nothing_or_is_not_by_the_schema_is_refused(folder, text, said):
    mine = build(folder, "csv", {"path": "mine.csv"}, **TABLE)
    (folder / "pi1" / "mine.csv").write_text(text)
    with pytest.raises(UserError, match=said):
        mine.read_again()
    assert mine.samples == 4
