"""Members come and go while whole nodes run, over real sockets and real files."""

from __future__ import annotations

from dataclasses import replace

import pytest

from p2pfl.core import Phase
from p2pfl.errors import UserError
from p2pfl.node import read_setup

PACED = {"step_s": 0.01}


def first(ward, count, file="before.toml"):
    """A file of the same federation with fewer members."""
    names, ports = ward.names, ward.ports
    ward.names, ward.ports = names[:count], ports[:count]
    ward.write(file)
    ward.names, ward.ports = names, ports
    return ward.federation(file)


def without(federation, index):
    """The same, that member removed; the others as a ring."""
    members = tuple(replace(one, retired=one.retired or one.index == index) for one in federation.members)
    there = [one.index for one in members if not one.retired]
    pairs = zip(there, [*there[1:], there[0]], strict=True)
    edges = tuple(sorted({(min(pair), max(pair)) for pair in pairs}))
    return replace(federation, members=members, edges=edges)


def edges_of(node):
    return list(node.application.status.core.edges)


def sessions(node, peer):
    return node.application.links.counters.peers[peer].sessions


async def test_a_newcomer_trains_with_the_others_and_nobody_is_interrupted(ward, start):
    field = ward(4, training={"rounds": 30}, task=PACED)
    first(field, 3)
    nodes = start(field, 0, 1, 2, file="before.toml")
    await nodes[0].until(lambda: min(node.rounds for node in nodes) >= 5)
    for node in nodes:
        node.application.amend(field.federation())
    (newcomer,) = start(field, 3)
    await newcomer.until(lambda: newcomer.rounds > 0 and newcomer.phase == Phase.TRAINING.value)
    await nodes[0].until(lambda: edges_of(nodes[0]) == [1, 3] and edges_of(nodes[2]) == [1, 3])
    results = [await node.result() for node in (*nodes, newcomer)]
    assert all(result.finished for result in results)
    assert newcomer.setup.learner.samples > 0
    assert results[3].exchanges > 0
    assert results[3].rounds >= 30
    assert [result.rounds_without_neighbor for result in results[:3]] == [0, 0, 0]
    assert [sessions(nodes[0], peer) for peer in (1, 2, 3)] == [1, 1, 1]
    assert [neighbor.resyncs for neighbor in results[1].neighbors] == [0, 0]
    assert [neighbor.name for neighbor in results[0].neighbors] == ["node1", "node3"]


@pytest.mark.long
async def test_who_was_removed_ends_and_the_others_neither_wait_nor_let_it_in(ward, start):
    field = ward(4, training={"rounds": 40}, task=PACED)
    nodes = start(field)
    await nodes[0].until(lambda: min(node.rounds for node in nodes) >= 5)
    after = without(field.federation(), 3)
    for node in nodes[:3]:
        node.application.amend(after)
    assert 3 not in {peer for node in nodes[:3] for peer, place in node.application.links._table.places.items()}
    await nodes[0].until(lambda: edges_of(nodes[0]) == [1, 2])
    await nodes[0].until(lambda: nodes[0].application.links.counters.unknown.refusals)
    assert nodes[3].status.peers == 0
    nodes[3].application.amend(after)
    gone = await nodes[3].result()
    assert gone.removed
    assert not gone.finished
    assert all([(await node.result()).finished for node in nodes[:3]])
    with pytest.raises(UserError, match="was removed from this federation"):
        read_setup(after, nodes[3].setup.node)


@pytest.mark.long
@pytest.mark.parametrize("file", ["federation.toml", "before.toml"])
@pytest.mark.parametrize("in_force", [False, True])
async def test_a_node_that_is_broken_off_around_a_change_loses_no_edge_that_stays(ward, start, file, in_force):
    """It starts again by the new federation, or by the old one where the new one was not written."""
    field = ward(4, training={"rounds": 30}, task=PACED)
    first(field, 3)
    nodes = start(field, 0, 1, 2, file="before.toml")
    await nodes[0].until(lambda: min(node.rounds for node in nodes) >= 5)
    life = nodes[1].application.status.core.lifetimes.own
    for node in nodes:
        node.application.amend(field.federation())
    if in_force:
        await nodes[1].until(lambda: all(node.goes_by_the_newest for node in nodes))
    await nodes[1].break_off()
    (again,) = start(field, 1, file=file)
    if file == "before.toml":
        await again.until(lambda: again.phase is not None)
        again.application.amend(field.federation())
    await again.until(lambda: again.rounds > 10 and again.status.peers == 2)
    assert again.application.status.core.lifetimes.own == life
    assert edges_of(again) == [0, 2]
    assert again.resyncs == 0


async def test_the_rounds_to_do_become_more_and_then_fewer(ward, start):
    field = ward(2, training={"rounds": 20}, task=PACED)
    nodes = start(field)
    federation = field.federation()
    more = replace(federation, training=replace(federation.training, rounds=10_000))
    await nodes[0].until(lambda: nodes[0].rounds >= 5)
    for node in nodes:
        node.application.amend(more)
    await nodes[0].until(lambda: min(node.rounds for node in nodes) >= 30)
    assert nodes[0].status.rounds_to_do == 10_000
    fewer = replace(federation, training=replace(federation.training, rounds=25))
    for node in nodes:
        node.application.amend(fewer)
    results = [await node.result() for node in nodes]
    assert all(result.finished and result.through for result in results)
    assert all(node.application.driver.core.facts.done for node in nodes)


async def test_what_a_running_node_cannot_take_over_is_refused_and_changes_nothing(ward, start):
    field = ward(2)
    (node,) = start(field, 0)
    await node.until(lambda: node.phase is not None)
    federation = field.federation()
    with pytest.raises(UserError, match="gossip"):
        node.application.amend(replace(federation, gossip=replace(federation.gossip, compressor="q8")))
    assert node.application.setup.federation == federation
    node.application.amend(federation)
    assert node.application.driver.core.amending.pending_change is None
