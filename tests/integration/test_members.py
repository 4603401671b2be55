"""Members come and go: a charter that one node has, all have; who is started again goes on under the newest."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from charter_kit import ADMIN
from ports import free_ports

from p2pfl.config import (
    invite_of,
    load_config,
    load_node,
    members_text,
    signed,
    with_member,
    with_settings,
    without_member,
)
from p2pfl.crypto.identity import Identity, public_text
from p2pfl.errors import UserError
from p2pfl.features.members import CharterKeeper, ask_when_alone, hand, newest_from, wait_for_charter
from p2pfl.net import OneShotClient
from p2pfl.node import newest

PACED = {"step_s": 0.01}


@pytest.fixture
def chartered(ward):
    def chartered(nodes, **tables):
        head = {"admin": [public_text(ADMIN.public)], "topology": "complete"}
        return ward(nodes, federation=head, task=PACED, training={"rounds": 10_000}, **tables)

    return chartered


def sign(charter):
    return signed(charter, ADMIN.public, ADMIN.sign)


def version_of(node):
    return node.status.members_version if node.status else None


def on_disk(node):
    """What the node would be started with."""
    setup = node.setup
    return newest(load_config(setup.federation.path), setup.node.state_dir)


async def all_have(nodes, version):
    for node in nodes:
        await node.until(lambda node=node: version_of(node) == version)


async def reach_all(nodes, before, charter):
    """Hand a charter over until each node has it or has ended by it: a busy machine may answer an admin too late."""
    reached = set()
    while not all(node.setup.member.name in reached or node.task.done() for node in nodes):
        reached |= set((await hand(before, charter, ADMIN)).received_by)


async def under_way(nodes):
    for node in nodes:
        await node.until(lambda node=node: node.rounds >= 2)


async def test_what_is_handed_to_one_reaches_all_and_stays_with_them(chartered, start):
    field = chartered(3)
    nodes = start(field)
    await under_way(nodes)
    federation = field.federation()
    charter = sign(with_settings(federation, rounds=9_000))
    errand = OneShotClient.of(federation, ADMIN)
    assert await errand.bring(federation.members[0].address, federation.members[0].key, charter.packed()) == 1
    await all_have(nodes, 1)
    for node in nodes:
        assert on_disk(node).edition == charter.edition
        assert on_disk(node).training.rounds == 9_000
        assert node.status.alarms == {}
    found, answers = await newest_from(federation, ADMIN)
    assert (found.edition, answers) == (charter.edition, 3)


@pytest.mark.parametrize("privacy", [{}, {"hide": "models"}])
async def test_a_removed_node_stops_and_keeps_what_it_has_learned(privacy, chartered, start):
    field = chartered(3)
    field.tables |= {"privacy": privacy} if privacy else {}
    field.write()
    nodes = start(field)
    await under_way(nodes)
    federation = field.federation()
    charter = sign(without_member(federation, "node1"))
    await hand(federation, charter, ADMIN)
    result = await nodes[1].result()
    assert not result.finished
    assert result.rounds >= 2
    await all_have([nodes[0], nodes[2]], 1)
    with pytest.raises(UserError, match="was removed"):
        load_node(field.folder / "node1", on_disk(nodes[1]))


async def test_a_newcomer_waits_until_it_is_taken_in_and_then_has_the_charter(
    chartered, start, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr("p2pfl.features.members.arriving.PAUSE_S", (0.05, 0.05))
    caplog.set_level("INFO", "p2pfl.notice")
    field = chartered(2)
    nodes = start(field)
    await under_way(nodes)
    federation = field.federation()
    identity, state = Identity.generate(), tmp_path / "newcomer" / "state"
    invite = invite_of(federation, "node9", bytes(range(16)))
    waiting = asyncio.create_task(wait_for_charter(federation, identity, invite, state))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    assert "it answers, and does not list this key" in caplog.text
    charter = sign(with_member(federation, name="node9", key=identity.public, address=None))
    await hand(federation, charter, ADMIN)
    async with asyncio.timeout(20):
        found = await waiting
    assert found.member("node9").key == identity.public
    assert newest(federation, state).edition == charter.edition


@pytest.mark.long
async def test_under_a_newer_charter_nodes_go_on_with_the_edges_that_stay(chartered, start, finish):
    """One member more, behind the others: nobody's memory of an edge is lost."""
    field = chartered(3, gossip={"linger_s": 1.0, "start_wait_s": 1.0})
    nodes = start(field)
    await under_way(nodes)
    for node in nodes:
        await node.stop()
    federation = field.federation()
    more = with_member(
        federation, name="node3", key=Identity.generate().public, address=f"127.0.0.1:{free_ports(1)[0]}"
    )
    rounds = max(node.rounds for node in nodes) + 5
    charter = sign(replace(more, rounds=rounds))
    (field.folder / "members.toml").write_text(members_text(charter, "ward"), encoding="utf-8")
    assert field.federation().edition == charter.edition
    again = start(field)
    for result in await finish(again, rounds=rounds):
        assert [neighbor.resyncs for neighbor in result.neighbors] == [0, 0, 0]
        assert result.members_version == 1


async def test_a_node_without_a_neighbor_asks_other_members_for_a_newer_charter(chartered, start):
    """All of its neighbors were replaced while it was off, and nobody knows its address any more."""
    field = chartered(4)
    federation = replace(field.federation(), edges=((0, 1), (0, 2), (2, 3)))
    nodes = start(field, 2, 3)
    for node in nodes:
        await node.until(lambda node=node: node.status and node.status.peers)
    charter = sign(with_settings(federation, rounds=9_000))
    await hand(federation, charter, ADMIN)
    alone = replace(federation, edges=((0, 1),))
    heard = asyncio.Event()
    keeper = CharterKeeper(alone, field.folder / "kept", on_charter=lambda _: heard.set(), on_alarm=lambda *_: None)
    identity = Identity.load(field.folder / "node0" / "node.key")
    asking = asyncio.create_task(ask_when_alone(keeper, identity, lambda: True, alone_s=0.05))
    async with asyncio.timeout(20):
        await heard.wait()
    asking.cancel()
    assert keeper.edition == charter.edition
