from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from p2pfl.config import TaskConfig, TrainingConfig
from p2pfl.errors import LearningError, UserError
from p2pfl.learn import QuadraticTask, RoundStart, Task, load_task, make_learner

WARD = """
import numpy as np
import torch
from p2pfl import Task

def data(node):
    table = np.loadtxt(node.path(), delimiter=",", dtype=np.float32)
    return (table[:, :-1], table[:, -1].astype(int)), None

def recall(outputs, targets):
    return (outputs.argmax(1) == targets)[targets == 1].float().mean()

task = Task(model=lambda: torch.nn.Linear(2, 2), data=data, metrics={"recall": recall})

def wide(*, hidden: int, dropout: float = 0.0):
    layers = [torch.nn.Linear(2, hidden), torch.nn.Dropout(dropout), torch.nn.Linear(hidden, 2)]
    return Task(model=lambda: torch.nn.Sequential(*layers), data=data)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((40, 2))
    np.savetxt(tmp_path / "mine.csv", np.column_stack([inputs, inputs[:, 0] > 0]), delimiter=",")
    (tmp_path / "ward.py").write_text(WARD)
    return tmp_path


def build(name, folder, *, local=None, **options):
    return make_learner(
        TaskConfig(name=name, options=options),
        TrainingConfig(),
        seed=0,
        node_index=0,
        node_count=4,
        node_name="pi1",
        base_dir=folder,
        local={"path": "mine.csv"} if local is None else local,
        local_dir=folder,
        file=folder / "federation.toml",
    )


def test_a_task_of_twenty_lines_in_a_file_learns(folder):
    learner = build("ward.py:task", folder)
    vector = learner.initial()
    for round_index in range(5):
        vector = learner.train(RoundStart(vector), round_index).vector
    score = learner.evaluate(vector, "local")
    assert score.accuracy > 0.9
    assert score.metrics["recall"] > 0.9


def test_a_function_takes_the_options_of_task_as_its_arguments(folder):
    assert build("ward.py:wide", folder, hidden=5).size == 2 * 5 + 5 + 5 * 2 + 2


def test_an_installed_module_can_be_named(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    (folder / "hospital.py").write_text(WARD)
    assert isinstance(load_task(TaskConfig(name="hospital:task"), Path("/")), Task)
    sys.modules.pop("hospital")


def test_a_file_may_import_its_neighbor(folder):
    (folder / "neighbor_of_ward.py").write_text(WARD)
    (folder / "other.py").write_text("from neighbor_of_ward import task")
    assert load_task(TaskConfig(name="other.py:task"), folder).name == "other.py:task"
    sys.modules.pop("neighbor_of_ward")


def test_a_task_may_bring_its_own_learner(folder):
    (folder / "own.py").write_text("from p2pfl.learn.task import QuadraticTask\ntask = QuadraticTask(size=3)")
    assert build("own.py:task", folder, local={}).size == 3


def test_built_in_names_load():
    assert isinstance(load_task(TaskConfig(name="quadratic"), Path()), QuadraticTask)
    assert load_task(TaskConfig(), Path()).name == "digits"


@pytest.mark.parametrize(
    ("name", "options", "texts"),
    [
        ("digit", {}, ["task.name", "'digit'", "digits, mnist-idx, csv, quadratic, lora, file.py:object"]),
        ("nowhere.py:task", {}, ["task.name", "there is no file", "nowhere.py"]),
        ("ward.py:taks", {}, ["ward.py has no 'taks'", "task", "wide"]),
        ("no_such_module_here:task", {}, ["there is no module no_such_module_here"]),
        ("ward.py:np", {}, ["task.name", "is not a task", "p2pfl.Task"]),
        ("ward.py:task", {"hidden": 3}, ["task.hidden", "takes no options"]),
        ("ward.py:wide", {}, ["task.hidden", "needs this option"]),
        ("ward.py:wide", {"hidden": 3, "depth": 1}, ["task.depth", "hidden, dropout"]),
        ("ward.py:wide", {"hidden": "3"}, ["task.hidden", "'3'", "a whole number"]),
        ("ward.py:wide", {"hidden": 3, "dropout": 7}, ["ward.py:wide failed: ValueError", "dropout", "ward.py, line"]),
        ("digits", {"hiden": 3}, ["task.hiden", "partition, hidden"]),
        ("digits", {"hidden": 0}, ["task.hidden", "at least 1"]),
        ("digits", {"partition": "halves"}, ["partition", "'halves'", "dirichlet:ALPHA"]),
        ("mnist-idx", {"model": "cnn"}, ["task.model", "is gone"]),
        ("quadratic", {"samples": ["a"]}, ["task.samples"]),
    ],
)
def test_a_wrong_task_is_refused_with_file_key_value_and_what_is_allowed(folder, name, options, texts):
    with pytest.raises(UserError) as caught:
        build(name, folder, local={}, **options)
    text = str(caught.value)
    assert text.startswith(str(folder / "federation.toml"))
    for part in texts:
        assert part in text


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("import torch\n\nboom = 1 / 0", "ZeroDivisionError: division by zero (bad.py, line 3)"),
        ("import torch\ntask = (", "SyntaxError: '(' was never closed (bad.py, line 2)"),
        ("import json\n\njson.loads('{')", "(bad.py, line 3)"),
        ("import sys\n\nsys.exit(4)", "SystemExit: 4 (bad.py, line 3)"),
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library' (bad.py, line 1)"),
    ],
)
def test_a_file_that_cannot_be_imported_is_named_with_the_users_own_text_and_line(folder, source, text):
    (folder / "bad.py").write_text(source)
    with pytest.raises(UserError) as caught:
        build("bad.py:task", folder)
    assert caught.value.file == str(folder / "bad.py")
    assert text in str(caught.value)


def test_a_missing_path_is_looked_for_in_the_node_file(folder):
    with pytest.raises(UserError, match=r"data\.path") as caught:
        build("ward.py:task", folder, local={})
    assert caught.value.file == str(folder / "node.toml")
    with pytest.raises(UserError, match=r"data\.path: not a path \(found 5\); allowed: path = "):
        build("ward.py:task", folder, local={"path": 5})
    with pytest.raises(UserError, match=r"data\.patth"):
        build("digits", folder, local={"patth": "x"})


def test_paths_of_a_node_are_relative_to_its_own_folder(folder):
    (folder / "node").mkdir()
    (folder / "mine.csv").rename(folder / "node" / "mine.csv")
    learner = build("ward.py:task", folder, local={"path": "node/mine.csv"})
    assert learner.samples == 40


def test_a_failure_while_training_is_a_learning_error(folder):
    source = WARD + "\ndef loss(o, t):\n    assert not o.requires_grad\n    return o.mean()\n"
    (folder / "late.py").write_text(source + "late = Task(model=task.model, data=data, loss=loss)\n")
    learner = build("late.py:late", folder)
    with pytest.raises(LearningError, match=r"late.py:late: training failed: AssertionError \(late.py, line \d+\)"):
        learner.train(RoundStart(learner.initial()), 0)


@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        ("made", UserError, "leaves.py:made failed: SystemExit: 3 "),
        ("with_data", UserError, "data failed: SystemExit: 3 "),
        ("with_model", UserError, "model failed: SystemExit: 3 "),
        ("with_loss", UserError, "model and loss fail on the first samples: SystemExit: 3 "),
        ("with_late_loss", LearningError, "training failed: SystemExit: 3 "),
        ("with_metric", LearningError, "evaluation failed: SystemExit: 3 "),
    ],
)
def test_a_task_that_would_end_the_process_has_failed(folder, function, error, words):
    source = """
def leave(*_):
    raise SystemExit(3)

def made():
    leave()

def late(outputs, targets):
    return leave() if outputs.requires_grad else outputs.mean()

def with_data():
    return Task(model=task.model, data=leave)

def with_model():
    return Task(model=leave, data=data)

def with_loss():
    return Task(model=task.model, data=data, loss=leave)

def with_late_loss():
    return Task(model=task.model, data=data, loss=late)

def with_metric():
    return Task(model=task.model, data=data, metrics={"mine": leave})
"""
    (folder / "leaves.py").write_text(WARD + source)

    def live():
        learner = build(f"leaves.py:{function}", folder)
        learner.evaluate(learner.train(RoundStart(learner.initial()), 0).vector, "local")

    with pytest.raises(error, match=words):
        live()


@pytest.mark.parametrize("what", ["SystemExit(0)", "ValueError('no')"])
def test_a_learner_of_its_own_that_cannot_be_made_is_told_of(folder, what):
    source = f"class Made:\n    def learner(self, *_):\n        raise {what}\n\nmade = Made()\n"
    (folder / "own.py").write_text(source)
    with pytest.raises(
        UserError, match=r"the task's learner failed: (SystemExit: 0|ValueError: no) \(own.py, line 3\)"
    ):
        build("own.py:made", folder)


def test_a_module_that_would_end_the_process_could_not_be_imported(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    (folder / "leaving.py").write_text("raise SystemExit")
    with pytest.raises(UserError, match="leaving could not be imported: SystemExit"):
        load_task(TaskConfig(name="leaving:task"), Path("/"))


def test_a_task_that_needs_what_is_not_installed_is_told_of_with_the_extra(folder):
    (folder / "own.py").write_text("import os\nraise ModuleNotFoundError('No module named torch', name='torch')\n")
    with pytest.raises(UserError, match=r"this needs torch: pip install '\.\[torch\]' in a checkout \(own.py, line 2"):
        build("own.py:task", folder)


LIGHT = """
import sys
import p2pfl
assert not {"torch", "numpy"} & set(sys.modules), "import p2pfl is not light"
from pathlib import Path
from p2pfl.config.model import TaskConfig, TrainingConfig
from p2pfl.learn.load import make_learner
mine = make_learner(TaskConfig(name="quadratic"), TrainingConfig(), seed=0, node_index=0, node_count=2, node_name="a",
                    base_dir=Path(), local={}, local_dir=Path())
from p2pfl.learn.interface import RoundStart
mine.train(RoundStart(mine.initial()), 0)
assert p2pfl.Task.__name__ == "Task"
assert "torch" not in sys.modules, "the quadratic task imports torch"
"""


def test_importing_p2pfl_is_light_and_the_quadratic_task_does_without_torch():
    environment = {"PYTHONPATH": ":".join(sys.path)}
    subprocess.run([sys.executable, "-c", LIGHT], env=environment, check=True, timeout=60)
