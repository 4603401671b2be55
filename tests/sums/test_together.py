"""Real nodes with real sessions get the sum of those who are named, or one clear refusal."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from sum_sessions import open_talk

from p2pfl import Federation
from p2pfl.errors import PeerFault, StorageError
from p2pfl.features.sums import (
    KeptSums,
    Piece,
    Post,
    Reveal,
    SumDone,
    SumTalk,
    Total,
    decode_statement,
    settings_of,
    talk,
)
from p2pfl.features.sums.talk import CHANNEL
from p2pfl.fleet import _with_keys
from p2pfl.net import WebSocketTransport
from tests.memory_kit import MemoryNetwork


class Sites:
    """Nodes that sum in one event loop, each in a task of its own, so that each may die alone."""

    def __init__(self, count, topology="complete", entries=10, transport="memory"):
        self.federation, self.identities = _with_keys(Federation(nodes=count, topology=topology).config)
        self.vectors = [np.arange(entries, dtype="<u8") + 1000 * n for n in range(count)]
        self.transport = MemoryNetwork().transport if transport == "memory" else WebSocketTransport
        self.over, self.outcomes = asyncio.Event(), {}
        self.first_wait_s, self.limit_s = 4.0, 100
        self.talks, self.folders, self.changed = {}, {}, asyncio.Event()
        self.says_farewell = False

    async def one(self, index, terms=bytes(32)):
        async with open_talk(
            self.federation,
            settings_of(self.federation, index, sums=2),
            self.identities[index],
            listen=self.federation.members[index].address,
            folder=self.folders.get(index),
            transport=self.transport,
            first_wait_s=self.first_wait_s,
        ) as self.talks[index]:
            self.changed.set()
            outcome = await self.talks[index].sum("x", self.vectors[index], terms)
            if self.says_farewell:
                await self.talks[index].farewell(range(len(self.vectors)))
            self.outcomes[index] = outcome
            self.changed.set()
            if not self.says_farewell:
                await self.over.wait()

    async def until(self, is_so):
        async with asyncio.timeout(self.limit_s):
            while not is_so():
                self.changed.clear()
                await self.changed.wait()

    async def run(self, count):
        """Until all have an outcome that are still there."""
        self.tasks = [asyncio.create_task(self.one(index)) for index in range(count)]
        for task in self.tasks:
            task.add_done_callback(lambda _: self.changed.set())
        await self.until(lambda: all(task.done() or n in self.outcomes for n, task in enumerate(self.tasks)))
        self.over.set()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def check(self, alive):
        for index in alive:
            outcome = self.outcomes[index]
            if isinstance(outcome, SumDone):
                assert np.array_equal(outcome.total, sum(self.vectors[member] for member in outcome.members))


@pytest.mark.parametrize("transport", ["memory", "sockets"])
async def test_large_vectors_travel_in_pieces(transport):
    sites = Sites(4, "ring", entries=110_000, transport=transport)
    await sites.run(4)
    sites.check(range(4))
    assert {outcome.members for outcome in sites.outcomes.values()} == {(0, 1, 2, 3)}


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_sixty_four_nodes_of_one_thread_have_the_sum_of_all():
    sites = Sites(64, "ring")
    sites.first_wait_s, sites.limit_s = 30.0, 500
    await sites.run(64)
    sites.check(range(64))
    assert {outcome.members for outcome in sites.outcomes.values()} == {tuple(range(64))}


@pytest.mark.parametrize(
    ("step", "transport"),
    [("Ack", "memory"), ("Wave", "memory"), ("Wave", "sockets"), ("SlotVote", "memory"), ("Reveal", "memory")],
)
async def test_a_node_that_dies_in_the_middle_is_in_the_sum_or_left_out_and_the_others_get_it(
    step, transport, monkeypatch
):
    sites, victim = Sites(5, transport=transport), 2
    hear = SumTalk._take

    def look(talk, peer, message):
        is_step = isinstance(message, Post) and type(decode_statement(message.body)).__name__ == step
        if is_step and talk is sites.talks.get(victim):
            sites.tasks[victim].cancel()
        hear(talk, peer, message)

    monkeypatch.setattr(SumTalk, "_take", look)
    await sites.run(5)
    assert sites.tasks[victim].cancelled()
    others = [0, 1, 3, 4]
    sites.check(others)
    assert all(isinstance(sites.outcomes[index], SumDone) for index in others)
    assert len({sites.outcomes[index].members for index in others}) == 1


async def test_what_is_signed_is_on_the_disk_and_a_disk_that_refuses_ends_the_sum_there(tmp_path, monkeypatch):
    sites = Sites(4)
    sites.folders = {0: tmp_path / "zero", 1: tmp_path / "one"}
    add = KeptSums.add

    def refuse(kept, data, members):
        if kept._path.parent.name == "one":
            raise StorageError("the disk is full")
        add(kept, data, members)

    monkeypatch.setattr(KeptSums, "add", refuse)
    await sites.run(4)
    assert [members for _, members in KeptSums(tmp_path / "zero").past] == [frozenset(range(4))]
    with pytest.raises(StorageError, match="the disk is full"):
        sites.tasks[1].result()
    sites.check([0, 2, 3])


async def test_a_neighbor_that_talks_nonsense_is_hung_up_on_and_the_sum_goes_on(monkeypatch):
    sites, faults = Sites(4), []
    hear, opened = SumTalk.hear, SumTalk.opened

    def listen(talk, peer, message):
        try:
            hear(talk, peer, message)
        except PeerFault as fault:
            faults.append((peer, str(fault)))
            raise

    def lie(talk, peer):
        opened(talk, peer)
        if talk is sites.talks[1] and peer == 0:
            talk._say(0, CHANNEL, Piece(size=10**6, offset=777, part=b"?"))

    monkeypatch.setattr(SumTalk, "hear", listen)
    monkeypatch.setattr(SumTalk, "opened", lie)
    await sites.run(4)
    assert faults == [(1, "a piece without those before it")]
    sites.check(range(4))
    assert all(isinstance(outcome, SumDone) for outcome in sites.outcomes.values())


async def test_those_who_have_the_sum_stay_until_a_slow_neighbor_has_it(monkeypatch):
    """The last one hears neither the total nor any secret before the others have theirs."""
    sites = Sites(4, "ring")
    sites.says_farewell = True
    hear, farewell, through, held, stays = SumTalk._take, SumTalk.farewell, set(), [], {}

    def late(talk, peer, message):
        is_last = isinstance(message, Total) or (
            isinstance(message, Post) and isinstance(decode_statement(message.body), Reveal)
        )
        if is_last and talk._sums.settings.index == 3 and len(through) < 3:
            held.append((talk, peer, message))
        else:
            hear(talk, peer, message)

    async def stay(talk, members):
        through.add(talk._sums.settings.index)
        if len(through) == 3:
            for each in held:
                hear(*each)
        await farewell(talk, members)
        stays[talk._sums.settings.index] = set(talk._gone)

    monkeypatch.setattr(talk, "LAST_S", 0.05)
    monkeypatch.setattr(SumTalk, "_take", late)
    monkeypatch.setattr(SumTalk, "farewell", stay)
    await sites.run(4)
    sites.check(range(4))
    assert {outcome.members for outcome in sites.outcomes.values()} == {(0, 1, 2, 3)}
    assert stays == {0: {1, 3}, 1: {0, 2}, 2: {1, 3}, 3: {0, 2}}


async def test_a_neighbor_that_dies_after_the_sum_is_not_waited_for_long(monkeypatch):
    sites = Sites(4, "ring")
    sites.says_farewell, sites.limit_s = True, 20
    farewell = SumTalk.farewell

    async def die(talk, members):
        if talk._sums.settings.index == 3:
            sites.tasks[3].cancel()
        await farewell(talk, members)

    monkeypatch.setattr(SumTalk, "farewell", die)
    monkeypatch.setattr(talk, "GONE_S", 0.2)
    await sites.run(4)
    sites.check(range(3))
    assert sites.tasks[3].cancelled()
