"""Whole nodes that grow trees together: all have those of the pooled rows, whoever crashes, lies or comes late."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from p2pfl.errors import StorageError, UserError
from p2pfl.features.sums import SumDone
from p2pfl.features.trees.rounds import FILE_NAME, TreeRounds
from p2pfl.learn.table import table_model
from p2pfl.learn.trees import SiteRows, TreeGrowth
from p2pfl.node import read_learned
from tests.rounds_kit import broken_off, crash_at
from tests.trees.conftest import ROUNDS, write_table

pytestmark = pytest.mark.usefixtures("hasty")


async def finished(nodes, rounds=ROUNDS):
    results = [await node.result() for node in nodes]
    assert all(result.finished and result.rounds == rounds for result in results)
    return results


def learner_of(field, index):
    return read_learned(field.folder / field.names[index]).learner


def alike(field):
    """Check that all nodes have the same trees on disk, bit by bit; return them packed."""
    packed = [learner_of(field, index).forest.pack() for index in range(len(field.names))]
    assert len(set(packed)) == 1
    return packed[0]


def pooled(field, nodes=None):
    """The trees of all these nodes' rows in one place, without any network."""
    learners = [learner_of(field, index) for index in range(len(field.names) if nodes is None else nodes)]
    first = learners[0]
    parts = [(one._parts["local"], one._parts["test"]) for one in learners]
    rows = [side[place] for place in (0, 1) for side in parts]
    cells = np.concatenate([one.cells for one in rows], axis=1)
    held = np.arange(cells.shape[1]) >= sum(len(local.targets) for local, _ in parts)
    site = SiteRows(cells, np.concatenate([one.targets for one in rows]), held)
    growth = TreeGrowth.begin(first.table.schema, first.settings, site)
    while not growth.done:
        growth.take(growth.next_part().arrays, 1)
    return growth.forest().pack()


KINDS = {
    "two classes": {},
    "three classes": {"classes": ["no", "yes", "other"], "class_weights": {"yes": 2.0}},
    "a number": {"classes": None, "target": "b", "numeric": ["a"]},
}


@pytest.mark.parametrize(
    "kind", [pytest.param(one, marks=[] if one in list(KINDS)[:1] else pytest.mark.long) for one in KINDS]
)
async def test_all_nodes_have_the_trees_of_the_pooled_rows(kind, tree_ward, start, seen):
    field = tree_ward(task=KINDS[kind])
    results = await finished(start(field))
    assert alike(field) == pooled(field)
    assert [result.alarms for result in results] == [{}] * 3
    labels = ["bins 1 of 3", "bins 2 of 3", "bins 3 of 3"]
    labels += [f"round {number + 1}, level {level + 1}" for number in range(ROUNDS) for level in range(2)] + ["loss"]
    assert set(map(tuple, seen.given.values())) == {tuple(labels)}


@pytest.mark.long
async def test_nodes_stop_together_once_the_held_out_loss_falls_no_more(tree_ward, start):
    field = tree_ward(task={"patience": 1, "eta": 1.0, "max_depth": 4}, training={"rounds": 30})
    nodes = start(field)
    results = [await node.result() for node in nodes]
    assert alike(field) == pooled(field)
    state = learner_of(field, 0).growth.state
    assert {result.rounds for result in results} == {len(state.rounds)}
    assert state.best == len(state.rounds) - 1 < 29
    why = f"no smaller loss in 1 rounds: {state.best} rounds are kept"
    assert {result.ended_by for result in results} == {why}
    write_table(field.folder / "node0" / "own.csv", 0, rows=61)
    nodes = start(field)  # the trees have grown, so that other rows tell nothing
    assert {(await node.result()).ended_by for node in nodes} == {why}


# -- crashes ----------------------------------------------------------------------------------------------------------


def crash_in(monkeypatch, method, index, label, *, after):
    """Break node `index` off, once, before or after it does something in the sum with this label."""
    return crash_at(
        monkeypatch, TreeRounds, method, index, lambda rounds: rounds.learner.growth.label == label, after=after
    )


POINTS = {
    "before its part": ("sum", "round 2, level 2", False),
    "with the sum": ("sum", "round 2, level 2", True),
    "between round and file": ("_keep", "round 2, level 1", False),
    "in the bins": ("sum", "bins 2 of 3", True),
    "at the end": ("_keep", "loss", False),
}


@pytest.mark.parametrize(
    "point", [pytest.param(one, marks=[] if one == "with the sum" else pytest.mark.long) for one in POINTS]
)
async def test_a_node_that_crashes_is_waited_for_and_nothing_is_lost(point, tree_ward, start, seen, monkeypatch):
    method, label, after = POINTS[point]
    crashed = crash_in(monkeypatch, method, 1, label, after=after)
    field = tree_ward(gossip={"linger_s": 20.0})
    nodes = start(field)
    await broken_off(nodes[1], crashed)
    (nodes[1],) = start(field, 1)
    await finished(nodes)
    assert alike(field) == pooled(field)


async def test_after_a_crash_of_all_they_go_on_in_the_middle_of_a_tree(tree_ward, start, seen):
    field = tree_ward(task={"max_depth": 4}, training={"rounds": 2})
    nodes = start(field)
    await nodes[0].until(lambda: "round 2, level 3" in seen.given.get(0, ()))
    for node in nodes:
        await node.break_off()
    steps = {index: rounds.learner.growth.state.step for index, rounds in seen.rounds.items()}
    assert max(steps.values()) in {3 + 4 + 2, 3 + 4 + 3}, "the next level may have begun meanwhile"
    seen.given.clear()
    await finished(start(field), 2)
    assert {labels[0] for labels in seen.given.values()} <= {f"round 2, level {level}" for level in (2, 3, 4)}
    assert alike(field) == pooled(field)


@pytest.mark.long
async def test_a_node_that_has_lost_its_state_gets_that_of_the_others(tree_ward, start, seen, monkeypatch):
    crashed = crash_in(monkeypatch, "sum", 2, "round 2, level 1", after=False)
    field = tree_ward()
    nodes = start(field)
    await broken_off(nodes[2], crashed)
    for file in (field.folder / "node2" / "state").iterdir():
        file.unlink()
    (nodes[2],) = start(field, 2)
    await finished(nodes)
    assert alike(field) == pooled(field)
    assert seen.rounds[2].status()["fetched"] == 1


# -- who takes part ---------------------------------------------------------------------------------------------------


@pytest.mark.long
async def test_nothing_is_summed_until_all_are_there(tree_ward, start, seen):
    field = tree_ward(4)
    nodes = start(field, 0, 1, 2)
    await nodes[0].until(lambda: 0 in seen.rounds and len(seen.rounds[0].state.standings.latest) == 3)
    await asyncio.sleep(0.2)
    assert not seen.given
    assert "1 more of node3" in seen.rounds[0].status()["waits_for"]
    nodes += start(field, 3)
    await finished(nodes)
    assert alike(field) == pooled(field)


@pytest.mark.long
async def test_a_member_that_comes_later_gets_the_trees_and_gives_no_part(tree_ward, start, seen, monkeypatch):
    """Its rows would be the difference of two sums."""
    crashed = crash_in(monkeypatch, "sum", 1, "round 2, level 1", after=False)
    field = tree_ward(4)
    names, ports = list(field.names), list(field.ports)
    del field.names[3], field.ports[3]
    field.write()
    nodes = start(field)
    await broken_off(nodes[1], crashed)
    for node in nodes:
        await node.break_off()
    seen.given.clear()
    field.names[:], field.ports[:] = names, ports
    field.write()
    await finished(start(field))
    assert set(seen.given) == {0, 1, 2}
    assert alike(field) == pooled(field, 3)


async def test_rows_that_have_changed_and_members_that_are_gone_are_refused_at_the_start(tree_ward, start, seen):
    field = tree_ward(4)
    nodes = start(field)
    await nodes[0].until(lambda: "round 1, level 2" in seen.given.get(0, ()))
    for node in nodes:
        await node.break_off()
    write_table(field.folder / "node1" / "own.csv", 1, rows=61)
    (node,) = start(field, 1)
    with pytest.raises(UserError, match="rows have changed since the trees began") as caught:
        await node.result()
    assert "begin anew" in caught.value.allowed
    del field.names[3], field.ports[3]
    field.write()
    (node,) = start(field, 0)
    with pytest.raises(UserError, match="begun with member 3"):
        await node.result()


@pytest.mark.long
async def test_rows_may_not_change_once_a_part_has_left_the_node(tree_ward, start, seen, monkeypatch):
    """Others may have the first sum, although this node has not kept that it was in it."""
    crashed = crash_in(monkeypatch, "_keep", 1, "bins 2 of 3", after=False)
    field = tree_ward()
    nodes = start(field)
    await broken_off(nodes[1], crashed)
    for node in nodes:
        await node.break_off()
    write_table(field.folder / "node1" / "own.csv", 1, rows=61)
    (node,) = start(field, 1)
    with pytest.raises(UserError, match="rows have changed since the trees began"):
        await node.result()


async def begun(field, start, seen, *indices):
    """Let these nodes begin, and break them off in the first tree."""
    nodes = start(field, *indices)
    await nodes[0].until(lambda: "round 1, level 2" in seen.given.get(0, ()))
    for node in nodes:
        await node.break_off()
    seen.given.clear()


async def test_the_members_of_the_beginning_stay_in_their_rows(tree_ward, start, seen):
    """A row that another member has got would be that member's in the next sum."""
    field = tree_ward()
    await begun(field, start, seen)
    field.names[1:], field.ports[1:] = field.names[:0:-1], field.ports[:0:-1]
    field.write()
    (node,) = start(field, 0)
    with pytest.raises(UserError, match="begun with node2, node1") as caught:
        await node.result()
    assert "in the same order" in caught.value.allowed


async def joined_by(field, start, seen, count):
    """Let the first three grow trees, and write a federation of so many."""
    names, ports = list(field.names), list(field.ports)
    del field.names[3:], field.ports[3:]
    field.write()
    await begun(field, start, seen)
    field.names[:], field.ports[:] = names[:count], ports[:count]
    field.write()


async def test_a_newcomer_that_is_away_is_not_waited_for(tree_ward, start, seen):
    field = tree_ward(4, gossip={"linger_s": 0.5})
    await joined_by(field, start, seen, 4)
    await finished(start(field, 0, 1, 2))
    assert set(seen.given) == {0, 1, 2}


async def test_more_newcomers_than_the_members_of_the_beginning_can_sign_for_are_refused(tree_ward, start, seen):
    """Each sum would be refused for ever: four of five must sign it, and three take part."""
    field = tree_ward(5)
    await joined_by(field, start, seen, 5)
    (node,) = start(field, 0)
    with pytest.raises(UserError, match="begun with 3 members, and 4 of now must sign") as caught:
        await node.result()
    assert "at most 4 members" in caught.value.allowed


@pytest.mark.long
async def test_without_its_file_a_node_does_not_forget_whose_rows_its_trees_are_of(tree_ward, start, seen):
    field = tree_ward()
    nodes = start(field)
    await nodes[0].until(lambda: "round 2, level 2" in seen.given.get(0, ()))
    for node in nodes:
        await node.break_off()
    folder = field.folder / "node1" / "state"
    (folder / FILE_NAME).unlink()
    nodes = start(field)
    with pytest.raises(StorageError, match="all but the file `sums`"):
        await nodes[1].result()
    for file in folder.iterdir():
        if file.name != "sums" and file.is_file():
            file.unlink()
    (nodes[1],) = start(field, 1)
    await finished(nodes)
    assert alike(field) == pooled(field)


@pytest.mark.long
async def test_a_part_beyond_all_bounds_spoils_the_sum_and_no_tree_grows_from_it(tree_ward, start, seen, monkeypatch):
    total = TreeRounds.sum

    async def lied(rounds, label, *arguments, **asked):
        done = await total(rounds, label, *arguments, **asked)
        if label == "round 1, level 1" and isinstance(done, SumDone) and not lied.over:
            wrong = done.total.copy()
            wrong[5] = 2**62
            return replace(done, total=wrong)
        return done

    lied.over = False
    monkeypatch.setattr(TreeRounds, "sum", lied)
    field = tree_ward()
    nodes = start(field)
    for node in nodes:
        await node.until(lambda node=node: node.status and "sum-spoiled" in node.status.alarms)
    assert all(not rounds.learner.growth.state.rounds for rounds in seen.rounds.values())
    lied.over = True
    await finished(nodes)
    assert alike(field) == pooled(field)


# -- the model --------------------------------------------------------------------------------------------------------


async def test_the_stored_model_predicts_what_the_trees_do_and_a_damaged_one_is_refused(tree_ward, start):
    field = tree_ward(training={"rounds": 2})
    await finished(start(field), 2)
    learned = read_learned(field.folder / "node0")
    state = learned.learner.state_dict(learned.vector)
    model = table_model(learned.preprocessing, state)
    outputs, _ = learned.learner.predictions(learned.vector)
    rows = learned.learner._parts["test"]
    np.testing.assert_array_equal(model.forest.outputs(rows.cells), outputs)
    score = learned.learner.evaluate(learned.vector, "test")
    assert score.samples == len(rows.targets)
    assert score.metrics["auc"] > 0.6 or len(np.unique(rows.targets)) < 2, (
        "which rows are held out depends on a new key"
    )
    exported = field.folder / "model.safetensors"
    exported.write_bytes(learned.export("test"))
    again = read_learned(exported, federation=field.folder / "federation.toml")
    assert again.learner.evaluate(again.vector, "test") == score
    wrong = {"forest": state["forest"][:-3]}
    with pytest.raises(UserError, match="no model of trees"):
        table_model(learned.preprocessing, wrong)
    file = field.folder / "node0" / "state" / FILE_NAME
    file.write_bytes(file.read_bytes()[:-3])
    (node,) = start(field, 0)
    with pytest.raises(Exception, match="is damaged"):
        await node.result()
