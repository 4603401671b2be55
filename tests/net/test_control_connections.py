"""Who may have no session may still bring the charter, once; who may know it may ask for it; others hear nothing."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from p2pfl.crypto.identity import Identity
from p2pfl.crypto.session import FederationBinding
from p2pfl.errors import PeerFault
from p2pfl.limits import MOST_CHARTER_BYTES
from p2pfl.net import (
    BOOT_BYTES,
    CONTROL_BURST,
    PIECE_BYTES,
    GoneError,
    Notice,
    OneShotClient,
    UnreachableError,
    Word,
    bring,
    say,
)

NEWCOMER, ADMIN, STRANGER = (Identity(bytes([number]) * 32) for number in (99, 98, 97))


class Charters:
    """A charter is its version in eight bytes, repeated; `on_bring` is what taking one leads to."""

    def __init__(self, version=0, on_bring=lambda: None):
        self.version, self.on_bring = version, on_bring
        self.brought = []
        self.left_at = []

    @property
    def packed(self):
        return charter(self.version) if self.version else b""

    def bring(self, raw):
        self.brought.append(raw)
        version = int.from_bytes(raw[:8], "big")
        if raw != charter(version):
            raise PeerFault("a charter that cannot be taken: it is none")
        if version > self.version:
            self.version = version
            self.on_bring()

    def left_behind(self, version, peer):
        self.left_at.append((version, peer))

    def may_ask(self, public):
        return public == ADMIN.public


def charter(version):
    return version.to_bytes(8, "big") * 20_000


def errand(identity, binding):
    return OneShotClient(identity=identity, binding=binding)


@pytest.fixture
def other_model():
    """The binding of who does not know the model's shape."""

    def other_model(federation):
        binding = federation.new(0).links._greeter.binding
        sections = (*binding.sections[:-1], (binding.sections[-1][0], bytes([9]) * 32))
        return FederationBinding(federation_id=binding.federation_id, sections=sections)

    return other_model


async def test_a_newcomer_hands_the_charter_that_lists_it_to_a_lagging_neighbor_and_gets_in(federation):
    members = dict(federation.members)
    lagging = Charters(1, on_bring=lambda: members.update({NEWCOMER.public: 99}))
    everybody = {**federation.members, NEWCOMER.public: 99}
    neighbors = frozenset({1, 99})
    async with federation.node(0, members=members, neighbors=neighbors, charters=lagging) as a:
        a.links.counters.peers[99] = type(a.links.counters.peers[1])()
        new = {"identity": NEWCOMER, "members": everybody, "neighbors": frozenset({0}), "charters": Charters(2)}
        async with federation.node(99, {0: a.address()}, **new) as b:
            await b.until(lambda: b.open)
            await a.until(lambda: 99 in a.open)
    assert lagging.brought == [charter(2)]


async def test_a_lagging_dialer_asks_the_node_that_has_no_edge_to_it_any_more(federation):
    lagging = Charters(1)
    async with (
        federation.node(0, neighbors=frozenset({2}), charters=Charters(5)) as a,
        federation.node(1, {0: a.address()}, neighbors=frozenset({0}), charters=lagging) as b,
    ):
        await b.until(lambda: lagging.version == 5)
        assert not a.open


async def test_who_was_removed_is_refused_and_learns_only_that_there_is_a_newer_version(federation, caplog):
    members = {key: index for key, index in federation.members.items() if index != 1}
    caplog.set_level(logging.INFO)
    newer, older = Charters(3), Charters(2)
    async with (
        federation.node(0, members=members, neighbors=frozenset({2}), charters=newer) as a,
        federation.node(1, {0: a.address()}, neighbors=frozenset({0}), charters=older) as b,
    ):
        await b.until(lambda: b.links.counters.peers[0].refusals)
        assert "does not list this node" not in caplog.text, "the alarm says it"
        assert (newer.version, older.version, older.brought) == (3, 2, [])
        assert set(older.left_at) == {(3, 0)}
        assert not a.open


async def test_a_version_that_cannot_be_is_the_fault_of_who_says_it(federation):
    """An admin's laptop, or a node that was left behind, must not believe in 2^60."""
    async with federation.node(0, charters=Charters(2**60)) as a:
        there, laptop = (a.address(), key_of(federation, 0)), errand(ADMIN, binding_of(a))
        for act in (laptop.bring(*there, charter(2)), laptop.ask(*there, 2**60)):
            with pytest.raises(UnreachableError, match="which is impossible"):
                await act


async def test_without_admin_keys_a_stranger_is_refused_at_once(federation):
    async with federation.node(0) as a:
        with pytest.raises(UnreachableError):
            await errand(STRANGER, binding_of(a)).bring(a.address(), key_of(federation, 0), charter(9))


def binding_of(node):
    return node.links._greeter.binding


def key_of(federation, index):
    return federation.identities[index].public


async def test_anybody_may_bring_a_charter_and_is_told_which_one_is_held(federation, other_model):
    held = Charters(4)
    async with federation.node(0, charters=held) as a:
        there = a.address(), key_of(federation, 0)
        laptop = errand(STRANGER, other_model(federation))
        assert await laptop.bring(*there, charter(5)) == 5
        assert await laptop.bring(*there, charter(3)) == 5
        assert held.version == 5


async def test_an_admin_and_a_listed_key_may_ask_and_a_stranger_may_not(federation, other_model):
    async with federation.node(0, charters=Charters(4)) as a:
        there, binding = (a.address(), key_of(federation, 0)), other_model(federation)
        for identity in (ADMIN, federation.identities[1]):
            assert await errand(identity, binding).ask(*there, 3) == charter(4)
            assert await errand(identity, binding).ask(*there, 4) is None
        with pytest.raises(UnreachableError):
            await errand(STRANGER, binding).ask(*there, 0)
        assert a.alarms == [], "a visitor need not know the model"


async def test_another_node_than_the_one_that_was_dialed_gets_nothing(federation):
    held = Charters(1)
    async with federation.node(0, charters=held) as a:
        with pytest.raises(UnreachableError):
            await errand(STRANGER, binding_of(a)).bring(a.address(), key_of(federation, 3), charter(2))
    assert held.brought == []


async def test_what_is_no_charter_is_refused_in_the_log(federation, caplog):
    held = Charters(1)
    async with federation.node(0, charters=held) as a:
        with pytest.raises(UnreachableError):
            await errand(STRANGER, binding_of(a)).bring(a.address(), key_of(federation, 0), b"forged" * 100)
        await a.until(lambda: "cannot be taken" in caplog.text)
    assert held.version == 1


@pytest.fixture
def visit(federation):
    """A connection on which `act(channel, session)` says what it likes; True if the node hangs up in answer."""

    async def visit(node, act, identity=STRANGER):
        errands = errand(identity, binding_of(node))

        async def act_and_wait(channel, session):
            await act(channel, session)
            await channel.receive()

        try:
            await errands.visit(node.address(), key_of(federation, node.index), act_and_wait)
        except UnreachableError:
            return True
        return False

    return visit


@pytest.mark.parametrize("size", [0, MOST_CHARTER_BYTES + 1, 2**63])
async def test_a_charter_of_an_impossible_size_is_not_waited_for(size, federation, visit, caplog):
    async with federation.node(0, charters=Charters(1)) as a:
        assert await visit(a, lambda channel, session: say(channel, session, Word.CHARTER, size))
    assert f"a charter of {size} bytes" in caplog.text


async def test_a_charter_in_crumbs_is_refused(federation, visit, caplog):
    async def crumbs(channel, session):
        await say(channel, session, Word.CHARTER, 2 * PIECE_BYTES)
        await channel.send(session.seal(b"x"))

    held = Charters(1)
    async with federation.node(0, charters=held) as a:
        assert await visit(a, crumbs)
    assert held.brought == []
    assert "split differently from how honest nodes" in caplog.text


@pytest.mark.parametrize("word", [Word.OPEN, Word.HELD, Word.NO_EDGE, Word.STRANGER, Word.DUPLICATE])
async def test_a_stranger_with_any_other_word_is_refused(word, federation, visit):
    async with federation.node(0, charters=Charters(1)) as a:
        assert await visit(a, lambda channel, session: say(channel, session, word, 1))
        assert a.links.counters.unknown.refusals == 1


async def test_one_charter_for_each_connection(federation):
    held = Charters(1)
    async with federation.node(0, charters=held) as a:

        async def twice(channel, session):
            for version in (2, 3):
                await say(channel, session, Word.CHARTER, len(charter(version)))
                raw = charter(version)
                for start in range(0, len(raw), PIECE_BYTES):
                    await channel.send(session.seal(raw[start : start + PIECE_BYTES]))
            while True:
                await channel.receive()

        with pytest.raises(UnreachableError):
            await errand(STRANGER, binding_of(a)).visit(a.address(), key_of(federation, 0), twice)
    assert held.brought == [charter(2)]


async def test_strangers_of_one_address_visit_so_often_and_members_are_not_held_up(federation):
    held = Charters(1)
    async with federation.node(0, charters=held) as a:
        stranger = errand(STRANGER, binding_of(a))
        there = a.address(), key_of(federation, 0)
        for _ in range(int(CONTROL_BURST)):
            await stranger.bring(*there, charter(2))
        with pytest.raises(UnreachableError):
            await stranger.bring(*there, charter(2))
        async with federation.node(1, {0: a.address()}, charters=Charters(2)) as b:
            await b.until(lambda: b.open)


async def test_a_member_visits_as_seldom_and_holds_up_no_other_member_and_no_session(federation):
    async with federation.node(0, neighbors=frozenset({1, 2}), charters=Charters(2)) as a:
        there = a.address(), key_of(federation, 0)
        one, other = (errand(federation.identities[index], binding_of(a)) for index in (1, 2))
        for _ in range(int(CONTROL_BURST)):
            await one.bring(*there, charter(2))
        with pytest.raises(UnreachableError):
            await one.bring(*there, charter(2))
        with pytest.raises(UnreachableError):
            await one.ask(*there, 1)
        assert await other.ask(*there, 1) == charter(2)
        async with federation.node(1, {0: a.address()}, charters=Charters(2)) as b:
            await b.until(lambda: b.open)


async def test_a_member_without_an_edge_hears_so_and_then_brings_charters_as_seldom(federation):
    held = Charters(2)
    async with federation.node(0, neighbors=frozenset({2}), charters=held) as a:

        async def greet_and_bring(channel, session):
            await channel.send(session.seal(Notice(Word.GREETING, bytes(BOOT_BYTES), 3).pack()))
            answer, _ = session.open(await channel.receive())
            assert answer[0] == Word.NO_EDGE
            return await bring(channel, session, charter(3))

        errands, there = errand(federation.identities[1], binding_of(a)), (a.address(), key_of(federation, 0))
        for _ in range(int(CONTROL_BURST)):
            assert await errands.visit(*there, greet_and_bring) == 3
        with pytest.raises(UnreachableError):
            await errands.visit(*there, greet_and_bring)
    assert len(held.brought) == int(CONTROL_BURST)


async def test_a_silent_visitor_is_let_go(federation, quick):
    limits = replace(quick, handshake_s=0.3)
    async with federation.node(0, charters=Charters(1), limits=limits) as a:
        errands = errand(STRANGER, binding_of(a))

        async def wait(channel, _session):
            with pytest.raises(GoneError):
                await channel.receive()

        await errands.visit(a.address(), key_of(federation, 0), wait)
        await a.until(lambda: a.links._transport.pending.waiting == 0)


async def test_a_greeting_tells_the_version_of_the_charter(federation):
    async with federation.node(0, charters=Charters(7)) as a:

        async def greet(channel, session):
            await channel.send(session.seal(Notice(Word.GREETING, bytes(BOOT_BYTES), 7).pack()))
            answer, _ = session.open(await channel.receive())
            return answer

        answer = await errand(federation.identities[1], binding_of(a)).visit(a.address(), key_of(federation, 0), greet)
        assert answer[0] == Word.GREETING
        assert int.from_bytes(answer[-8:], "little") == 7


async def test_a_dialer_that_trains_something_else_is_named_by_an_alarm_also_where_visits_are_allowed(
    federation, other_binding
):
    async with (
        federation.node(0, charters=Charters(1)) as a,
        federation.node(1, {0: a.address()}, binding=other_binding, charters=Charters(1)) as b,
    ):
        await b.until(lambda: b.alarms)
        await a.until(lambda: a.alarms)
        assert a.alarms[0][0] == b.alarms[0][0] == "federation-differs"
        assert not a.open
