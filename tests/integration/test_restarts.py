"""A node that was stopped or broken off goes on where its disk stands."""

from __future__ import annotations

import asyncio
import logging

import numpy as np
import pytest

from p2pfl.errors import UserError
from p2pfl.node import read_learned
from p2pfl.storage import peek

PACED = {"step_s": 0.02}
DEADLINE_S = 30


def all_resyncs(result):
    return [neighbor.resyncs for neighbor in result.neighbors]


@pytest.mark.usefixtures("lone")
async def test_a_node_that_was_stopped_resumes_at_its_round_and_nothing_is_lost(ward, start, finish):
    field = ward(3, training={"rounds": 40}, task=PACED)
    nodes = start(field)
    await nodes[1].until(lambda: nodes[1].rounds >= 10)
    stopped = await nodes[1].stop()
    assert not stopped.finished
    assert 10 <= stopped.rounds < 40
    again = start(field, 1)
    results = await finish([nodes[0], *again, nodes[2]], rounds=40)
    assert results[1].steps == 2 * (results[1].rounds - stopped.rounds)  # it may train on with the others
    assert [all_resyncs(result) for result in results] == [[0, 0]] * 3


async def test_a_node_that_was_broken_off_loses_no_exchange(ward, start, finish):
    field = ward(3, training={"rounds": 40}, task=PACED)
    nodes = start(field)
    for at in (5, 12, 20):
        await nodes[0].until(lambda at=at: nodes[0].rounds >= at)
        await nodes[0].break_off()
        nodes[0] = start(field, 0)[0]
        await nodes[0].until(lambda: nodes[0].status)
        assert nodes[0].rounds >= at - 1
    assert [all_resyncs(result) for result in await finish(nodes, rounds=40)] == [[0, 0]] * 3


@pytest.mark.long
async def test_in_snapshot_durability_a_restart_resynchronizes_every_edge_and_counts_it(ward, start, finish):
    field = ward(3, training={"rounds": 60}, task=PACED)
    field.write_node("node1", durability="snapshot", snapshot_s=0.1)
    nodes = start(field)
    state = field.folder / "node1" / "state"
    await nodes[1].until(lambda: state.exists() and (loaded := peek(state)) and loaded.state.header["rounds"] > 0)
    await nodes[1].break_off()
    again = start(field, 1)
    await again[0].until(lambda: again[0].rounds > 0)
    results = await finish([nodes[0], *again, nodes[2]], rounds=60)
    assert all_resyncs(results[1]) == [1, 1]
    assert results[1].alarms == {}, "who chooses this durability knows it"
    for other in (results[0], results[2]):
        assert {neighbor.name: neighbor.resyncs for neighbor in other.neighbors}["node1"] == 1
        assert sum(all_resyncs(other)) == 1


PLANNED = {
    "more rounds": {"training": {"rounds": 100_001}},
    "another compressor": {"gossip": {"compressor": "q8"}},
    "no variate": {"training": {"method": "plain"}},
    "other durability": {},
    "another graph": {"federation": {"topology": "path"}},
}


@pytest.mark.long
@pytest.mark.parametrize("change", PLANNED)
@pytest.mark.usefixtures("patient")
async def test_a_change_of_the_file_and_a_restart_are_no_warning(ward, start, caplog, change):
    """Nor is the return of all: a warning that follows from what a person did hides those that do not."""
    caplog.set_level(logging.INFO)
    field = ward(3, training={"rounds": 100_000}, task=PACED)
    nodes = start(field)
    await _exchange_with_all(nodes)
    for node in nodes:
        await node.stop()
    for name, values in PLANNED[change].items():
        field.tables[name] |= values
    field.write()
    if change == "other durability":
        for name in field.names:
            field.write_node(name, durability="snapshot")
    again = start(field)
    await _exchange_with_all(again)
    for node in again:
        assert (await node.stop()).alarms == {}
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


async def _exchange_with_all(nodes):
    for node in nodes:
        await node.until(lambda node=node: node.status and all(row.exchanges for row in node.status.neighbors))


async def test_what_is_on_disk_can_be_read_while_the_node_runs(ward, start):
    field = ward(3, training={"rounds": 100_000}, task=PACED)
    nodes = start(field)
    await nodes[0].until(lambda: nodes[0].rounds > 0)
    seen = []
    async with asyncio.timeout(DEADLINE_S):
        while len(set(seen)) < 5:
            seen.append((await asyncio.to_thread(read_learned, field.folder / "node0")).rounds)
    results = [await node.stop() for node in nodes]
    assert seen == sorted(seen)
    assert [all_resyncs(result) for result in results] == [[0, 0]] * 3


@pytest.mark.long
@pytest.mark.usefixtures("patient")
async def test_bytes_and_messages_are_told_by_neighbor(ward, start, finish):
    """Both ends of an edge count the same; its override makes it cheaper than the others."""
    field = ward(3, training={"rounds": 30}, task={"size": 500} | PACED)
    field.edges = {("node0", "node1"): "q8"}
    field.write()
    results = await finish(start(field), rounds=30)
    rows = {(result.node, row.name): row for result in results for row in result.neighbors}
    for (one, other), row in rows.items():
        assert row.bytes_sent == pytest.approx(
            rows[other, one].bytes_received, abs=600
        )  # who says how it is, and goodbye, last
    for result in results:
        assert sum(row.bytes_sent for row in result.neighbors) == pytest.approx(result.bytes_sent, abs=2_000)
    each = {pair: row.bytes_sent / row.messages_sent for pair, row in rows.items()}
    assert 2 * each["node0", "node1"] < each["node0", "node2"]


async def test_the_state_of_another_federation_is_refused_and_left_alone(ward, start, finish):
    field = ward(2, federation={"topology": "complete"})
    await finish(start(field), rounds=20)
    before = field.model(0)
    field.tables["federation"]["name"] = "other"
    field.write("other.toml")
    with pytest.raises(UserError, match="another federation"):
        await start(field, 0, file="other.toml")[0].result()
    np.testing.assert_array_equal(field.model(0), before)


@pytest.mark.usefixtures("lone")
async def test_a_node_that_is_stopped_in_a_long_round_leaves_the_learner_alone(ward, start, monkeypatch):
    """Its module is that round's: to test another model in it would test neither."""
    monkeypatch.setattr("p2pfl.node.application.LAST_ROUND_S", 0.0)
    node = start(ward(2, training={"evaluate_every": 1}, gossip={"start_wait_s": 0.0}), 0)[0]
    learner = node.hold()
    try:
        await node.until(learner.trains.is_set)
        learner.meanwhile.clear()
        result = await node.stop()
        assert set(learner.meanwhile) <= {"size", "device", "measures"}
    finally:
        learner.let_go.set()
    assert result.rounds == 0
    assert result.test_loss is not None
    assert result.local_loss is None
