"""What one node costs the others: by being late, slow, absent, different, or none at all."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

DEADLINE_S = 20

OWN_TASK = """
from p2pfl.learn.task import QuadraticTask
task = QuadraticTask(size={size})
"""


def _assert_told(caplog, results, text, *, odd):
    """Each of the two ends of an edge has one alarm, and one warning that names the other end and what differs."""
    pairs = [
        (result.node, neighbor.name)
        for result in results
        for neighbor in result.neighbors
        if odd in (result.node, neighbor.name)
    ]
    for result in results:
        assert result.alarms.get("federation-differs", 0) == sum(node == result.node for node, _ in pairs)
    warned = Counter(record.getMessage() for record in caplog.records if "differs from ours" in record.getMessage())
    said = f"its federation file differs from ours in: {text}"
    assert warned == Counter(f"federation-differs ({other}): {said}" for _, other in pairs)


@pytest.mark.long
async def test_all_wait_for_a_node_that_comes_late_whatever_the_order(ward, start, finish):
    field = ward(4, federation={"topology": "complete"})
    first = start(field, 3, 1, 2)
    for node in first:
        await node.until(lambda node=node: node.status and node.status.uptime_s > 1.5)
    assert [(node.rounds, node.phase) for node in first] == [(0, "waiting")] * 3
    late = start(field, 0)
    for result in await finish(first + late, rounds=20):
        assert result.alarms == {}


@pytest.mark.usefixtures("patient")
async def test_a_neighbor_that_never_starts_costs_the_wait_at_the_start_and_no_round(ward, start, finish):
    nodes = start(ward(3), 0, 1)
    for phase in ("waiting", "lingering"):
        for node in nodes:
            await node.until(lambda node=node, phase=phase: _is_alone_with_one(node, phase))
        assert min(node.rounds for node in nodes) >= (0 if phase == "waiting" else 20)
        for node in nodes:
            node.end_wait()
    for result in await finish(nodes, rounds=20):
        exchanges = {neighbor.name: neighbor.exchanges for neighbor in result.neighbors}
        assert exchanges.pop("node2") == 0
        assert min(exchanges.values()) >= 20
    for node in nodes:
        assert node.application.driver.core.edges[2].service.patience.misses == 0, "a round has waited for it"


def _is_alone_with_one(node, phase):
    status = node.status
    return status is not None and status.phase == phase and status.peers == 1


@pytest.mark.long
async def test_a_very_slow_neighbor_does_not_slow_the_others(ward, start):
    """The others take sixty rounds in its first."""
    slow, *fast = start(ward(4, training={"rounds": 100_000}, task={"step_s": 0.005}))
    held = slow.hold()
    try:
        await slow.until(held.trains.is_set)
        for node in fast:
            await node.until(lambda node=node: node.rounds >= 60)
        assert slow.rounds == 0
    finally:
        held.let_go.set()
    for node in fast:
        assert (await node.stop()).alarms == {}
    await slow.stop()


async def test_a_node_of_another_federation_is_refused_and_named_once_and_the_others_finish(
    ward, start, finish, caplog
):
    field = ward(4, gossip={"start_wait_s": 0.5, "linger_s": 2.0})
    field.write("other.toml", training={"learning_rate": 0.2})
    nodes = start(field, 0, 1, 3)
    odd = start(field, 2, file="other.toml")
    results = await finish(nodes, rounds=20)
    left = await _left_alone(odd[0])
    assert all(neighbor.name != "node2" or not neighbor.exchanges for r in results for neighbor in r.neighbors)
    _assert_told(caplog, [*results, left], "training.learning_rate", odd="node2")


async def _left_alone(node):
    """The result of one that waits, untrained, for neighbors that refuse it."""
    await node.until(lambda: node.status and node.status.alarms.get("waiting-alone"))
    left = await node.stop()
    assert (left.rounds, left.peers, left.finished) == (0, 0, False)
    return left


@pytest.mark.long
async def test_a_node_with_another_model_is_refused_by_name_of_the_model(ward, start, finish, caplog):
    field = ward(3, task={"name": "own.py:task"}, gossip={"start_wait_s": 0.5, "linger_s": 2.0})
    field.write("other/federation.toml")
    (field.folder / "own.py").write_text(OWN_TASK.format(size=16), encoding="utf-8")
    (field.folder / "other" / "own.py").write_text(OWN_TASK.format(size=17), encoding="utf-8")
    nodes = start(field, 0, 1)
    odd = start(field, 2, file="other/federation.toml")
    results = await finish(nodes, rounds=20)
    _assert_told(caplog, [*results, await _left_alone(odd[0])], "the model's shape", odd="node2")


@pytest.mark.parametrize("opening", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01"])
async def test_garbage_on_the_port_stops_nobody(ward, start, opening):
    field = ward(3, training={"rounds": 100_000}, task={"step_s": 0.01})
    nodes = start(field)
    chance = random.Random(len(opening))
    for node in nodes:
        await node.until(lambda node=node: node.rounds > 0)
    for port in field.ports * 5:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(opening + chance.randbytes(4000))
        async with asyncio.timeout(DEADLINE_S):
            while await _read(reader):
                pass
        writer.close()
    await _assert_all_go_on(nodes)


async def _assert_all_go_on(nodes):
    for node in nodes:
        await node.until(lambda node=node, now=node.rounds: node.rounds >= now + 3)
    for node in nodes:
        assert (await node.stop()).alarms == {}


async def _read(reader):
    try:
        return await reader.read(4096)
    except ConnectionError:
        return b""
