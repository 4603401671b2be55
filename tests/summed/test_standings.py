"""Where members stand, and how a state is fetched: liars and old copies change nothing."""

from __future__ import annotations

import asyncio
from asyncio.events import _get_running_loop, _set_running_loop
from dataclasses import replace
from types import SimpleNamespace

import pytest

from p2pfl import Federation
from p2pfl.errors import PeerFault
from p2pfl.features.sums import (
    LOST_S,
    MOST_VAIN,
    PATIENCE_S,
    PIECE_BYTES,
    CommonState,
    Place,
    Standings,
    StandingsTalk,
    StatePiece,
    StateWanted,
    SumStanding,
    state_digest,
)
from p2pfl.fleet import _with_keys
from p2pfl.limits import STANDINGS_KEPT
from sim import Kernel, VirtualLoop

FEDERATION, IDENTITIES = _with_keys(Federation(nodes=6, topology="complete").config)
OLD, NEW, OTHER = (bytes([number]) * 32 for number in range(3))
NOW = 1_000_000


def standings(own=0, needed=2, federation=FEDERATION, number=b"id"):
    return Standings(federation, number, IDENTITIES[own], own, needed)


def signed(member, sums, digest, serial=NOW, number=b"id"):
    return standings(member, number=number).state(Place(sums, digest), serial)


def view(own, *others, needed=2):
    """Make what member 0 knows if it is at one place and the others, in order, at these."""
    mine = standings(needed=needed)
    mine.state(own, NOW)
    for member, place in enumerate(others, 1):
        mine.hear(signed(member, place.sums, place.digest))
    return mine


# -- signatures -------------------------------------------------------------------------------------------------------


def test_a_standing_counts_once_if_its_member_has_signed_it():
    mine, told = standings(), signed(1, 3, NEW)
    assert mine.hear(told)
    assert not mine.hear(told)
    assert mine.place_of(1) == Place(3, NEW)
    assert mine.who(lambda place: place.sums == 3) == {1}


@pytest.mark.parametrize(
    "change", [{"sums": 4}, {"digest": OLD}, {"member": 2}, {"serial": NOW + 1}, {"signature": bytes(64)}]
)
def test_whatever_its_member_did_not_sign_is_a_fault(change):
    told = signed(1, 3, NEW)
    forged = type(told)(**{name: getattr(told, name) for name in told.__struct_fields__} | change)
    mine = standings()
    with pytest.raises(PeerFault):
        mine.hear(forged)
    assert not mine.latest


def test_a_standing_of_another_federation_or_of_nobody_is_a_fault():
    nobody = SumStanding(member=6, serial=NOW, sums=3, digest=NEW, signature=bytes(64))
    for told in (signed(1, 3, NEW, number=b"another"), nobody):
        with pytest.raises(PeerFault):
            standings().hear(told)


def test_an_older_standing_changes_nothing_so_nobody_can_send_a_member_back_and_forth():
    mine, first, second = standings(), signed(1, 3, OLD), signed(1, 4, NEW, serial=NOW + 1)
    assert mine.hear(second)
    assert not mine.hear(first)
    assert mine.place_of(1) == Place(4, NEW)


def test_a_removed_member_does_not_count():
    members = tuple(replace(one, retired=one.index == 1) for one in FEDERATION.members)
    mine = standings(federation=replace(FEDERATION, members=members))
    assert not mine.hear(signed(1, 3, NEW))
    assert not mine.latest


def test_a_node_that_begins_from_an_old_copy_of_its_folder_is_heard_all_the_same():
    others, before = standings(1), signed(0, 3, OLD, serial=NOW)
    others.hear(before)
    again = standings(0)
    told = again.state(Place(4, NEW), NOW - 1000)
    assert not others.hear(told)
    assert not again.hear(before)  # a neighbor tells it what it said in its earlier life
    assert again.is_outdated
    assert others.hear(again.state(again.place, 0))
    assert not again.is_outdated
    assert others.place_of(0) == again.place_of(0) == Place(4, NEW)


def test_a_node_that_hears_of_its_earlier_life_before_it_says_anything_begins_later():
    again = standings(0)
    assert not again.hear(signed(0, 3, OLD))
    assert again.state(Place(4, NEW), NOW - 1000).serial > NOW


# -- whom to follow ---------------------------------------------------------------------------------------------------

P0, P1, FORK, P2 = Place(0, OLD), Place(1, NEW), Place(1, OTHER), Place(2, NEW)


def test_t_liars_are_not_enough_and_one_more_is():
    assert view(P0, P2).ahead_of(P0) is None
    assert view(P0, P2, P2).ahead_of(P0) == P2
    assert view(P0, P2, P2, needed=3).ahead_of(P0) is None
    assert view(P0, P1, P1, P2).ahead_of(P0) == P1
    assert view(P2, P1, P1, P1).ahead_of(P2) is None


def test_of_two_states_after_equally_many_sums_all_go_to_the_same_one():
    """Three have one and three the other: whoever looks, and whoever goes first, they meet."""
    places = [P1, P1, P1, FORK, FORK, FORK]
    for _ in range(6):
        moved = [(view(own, *places[:n], *places[n + 1 :]).ahead_of(own), n) for n, own in enumerate(places)]
        to = {place for place, _ in moved if place is not None}
        if not to:
            break
        assert len(to) == 1
        place, who = next(one for one in moved if one[0] is not None)
        places[who] = place
    assert len(set(places)) == 1


def test_the_state_that_more_members_have_wins_and_a_tie_does_not_swing():
    assert view(P1, FORK, FORK).ahead_of(P1) == FORK
    assert view(P1, P1, FORK, FORK, P1).ahead_of(P1) is None
    assert (view(P1, P1, FORK, FORK).ahead_of(P1) is None) != (view(FORK, FORK, P1, P1).ahead_of(FORK) is None)


def test_a_state_that_nobody_gives_any_more_is_passed_over():
    assert view(P0, P2, P2, P1, P1).ahead_of(P0, but=[P2]) == P1
    assert view(P0, P2, P2).ahead_of(P0, but=[P2]) is None


def test_a_node_ahead_that_nobody_will_follow_goes_back_and_nobody_else_does():
    assert view(P1, P0, P0).common_before(P1) == P0
    assert view(P1, P1, P0, P0).common_before(P1) is None
    assert view(P1, P1, P0, P0, P0, needed=3).common_before(P1) == P0
    assert view(P1, P0).common_before(P1) is None
    assert view(P0, P1, P1).common_before(P0) is None
    assert view(P1, FORK, FORK).common_before(P1) is None


def test_a_node_goes_back_only_after_a_refused_sum_and_forgets_that_once_it_has_another_state():
    following = view(P1, P0, P0)
    assert following.next_place(0.0) is None
    following.was_refused = True
    assert following.next_place(0.0) == P0
    following.state(P1, NOW)
    assert following.next_place(0.0) == P0
    following.state(FORK, NOW)
    assert following.next_place(0.0) is None


def test_a_state_asked_for_in_vain_time_and_again_is_left_alone_for_a_while():
    following = view(P0, P2, P2)
    for _ in range(MOST_VAIN):
        assert following.next_place(0.0) == P2
        following.asked_in_vain(P2, 0.0)
    assert following.next_place(LOST_S - 1) is None
    assert following.next_place(LOST_S + 1) == P2


# -- states -----------------------------------------------------------------------------------------------------------

STATE = bytes(range(256)) * 500
DIGEST = state_digest([STATE])


class Peers:
    """Neighbors that answer as `answers` say, by number: a function of what is wanted, or None for silence."""

    def __init__(self, *answers, late_s=0.0):
        """What the first one answers comes so late."""
        self.answers, self.faults, self.asked, self.late_s = answers, [], [], late_s
        self.talk = StandingsTalk(standings(), lambda peer, _, message: self.say(peer, message), 2 * len(STATE))

    def say(self, peer, message):
        self.asked.append(peer)
        answer = self.answers[peer]
        if answer is not None:
            asyncio.get_running_loop().call_later(0.0 if peer else self.late_s, self.give, peer, answer(message))
        return answer is not False

    def give(self, peer, piece):
        try:
            self.talk.hear_piece(peer, piece)
        except PeerFault as fault:
            self.faults.append(str(fault))

    async def fetch(self):
        self.talk.peers = list(range(len(self.answers)))
        return await self.talk.fetch(Place(3, DIGEST))


def honest(wanted, state=STATE, **changed):
    part = state[wanted.offset : wanted.offset + PIECE_BYTES]
    fields = {"digest": wanted.digest, "size": len(state), "offset": wanted.offset, "part": part} | changed
    return StatePiece(**fields)


def forgets(wanted):
    """Have the state no longer in the middle."""
    return honest(wanted) if wanted.offset == 0 else honest(wanted, size=0, part=b"")


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr("p2pfl.features.sums.standings.PATIENCE_S", 0.05)


async def test_a_state_comes_in_pieces_from_who_has_it():
    peers = Peers(lambda wanted: honest(wanted, state=b""), forgets, honest, honest)
    assert await peers.fetch() == STATE
    assert (peers.faults, set(peers.asked)) == ([], {0, 1, 2})
    assert len(STATE) > 2 * PIECE_BYTES


LIES = {
    "another state": lambda wanted: honest(wanted, state=STATE[::-1]),
    "another digest": lambda wanted: honest(wanted, digest=OLD),
    "another place": lambda wanted: honest(wanted, offset=wanted.offset + 1),
    "silence": None,
}
FAULTS = {
    "too large": lambda wanted: honest(wanted, size=2**50),
    "endless small pieces": lambda wanted: honest(wanted, part=b"x"),
    "growing": lambda wanted: honest(wanted, size=len(STATE) + wanted.offset),
    "nothing": lambda wanted: honest(wanted, part=b""),
    "too long": lambda wanted: honest(wanted, size=9, part=bytes(10)),
}


@pytest.mark.parametrize("name", [*LIES, *FAULTS])
async def test_a_liar_costs_a_wait_and_the_state_comes_from_another(name, impatient):
    peers = Peers((LIES | FAULTS)[name], honest)
    assert await peers.fetch() == STATE
    assert bool(peers.faults) == (name in FAULTS)
    assert name != "too large" or peers.asked.count(0) == 1


def in_virtual_time(coroutine):
    loop = VirtualLoop()
    kernel = loop.kernel = Kernel()
    before = _get_running_loop()
    _set_running_loop(loop)
    try:
        task = loop.create_task(coroutine)
        while not task.done():
            assert kernel.step()
        return task.result(), kernel.now
    finally:
        _set_running_loop(before)
        loop.close()


def small(wanted):
    return honest(wanted, part=STATE[wanted.offset :][:1000])


def test_a_neighbor_whose_every_piece_comes_just_in_time_is_left_for_another_and_asked_last(monkeypatch):
    monkeypatch.setattr("p2pfl.features.sums.standings.PIECE_BYTES", 1000)
    peers = Peers(small, small, late_s=0.9 * PATIENCE_S)
    (state, took_s) = in_virtual_time(peers.fetch())
    assert (state, peers.faults) == (STATE, [])
    assert took_s < 3 * PATIENCE_S
    peers.asked.clear()
    assert in_virtual_time(peers.fetch()) == (STATE, 0.0)
    assert {*peers.asked} == {1}


def test_a_slow_neighbor_that_is_the_only_one_gives_a_state_in_the_end(monkeypatch):
    monkeypatch.setattr("p2pfl.features.sums.standings.PIECE_BYTES", 1000)
    peers, tries = Peers(small, late_s=0.9 * PATIENCE_S), 1
    while in_virtual_time(peers.fetch())[0] is None:
        tries += 1
    assert 2 < tries < 10


async def test_pieces_that_nobody_asked_for_are_left_out(impatient):
    peers = Peers(None)
    peers.talk.hear_piece(0, StatePiece(digest=DIGEST, size=3, offset=0, part=b"abc"))
    assert await peers.fetch() is None
    peers.talk.hear_piece(0, StatePiece(digest=DIGEST, size=3, offset=0, part=b"abc"))


async def test_a_node_gives_its_latest_states_and_says_so_when_it_has_one_no_longer():
    said = []
    mine = StandingsTalk(standings(), lambda peer, _, message: said.append((peer, message)), 10**6)
    for number in range(STANDINGS_KEPT + 1):
        mine.keep([b"st", b"ate %d" % number], bytes([number]) * 32)
    for number, offset in ((0, 0), (1, 0), (STANDINGS_KEPT, 6), (STANDINGS_KEPT, 2**50)):
        mine.hear(4, StateWanted(digest=bytes([number]) * 32, offset=offset))
    assert [piece.part for _, piece in said] == [b"", b"state 1", b"%d" % STANDINGS_KEPT, b""]
    assert [piece.size for _, piece in said] == [0, 7, 7, 7]


async def test_a_large_state_is_given_from_its_owners_memory_until_that_is_written_to(monkeypatch):
    monkeypatch.setattr("p2pfl.features.sums.standings.MOST_KEPT_BYTES", len(STATE))
    said, memory = [], bytearray(STATE)
    mine = StandingsTalk(standings(), lambda _peer, _, message: said.append(message), 10**6)
    mine.keep([memoryview(memory)[:7], memoryview(memory)[7:50_000], memoryview(memory)[50_000:]], DIGEST)
    for offset in range(0, len(STATE), PIECE_BYTES):
        mine.hear(4, StateWanted(digest=DIGEST, offset=offset))
    assert b"".join(piece.part for piece in said) == STATE
    assert all(piece.size == len(STATE) for piece in said)
    mine.release()
    mine.hear(4, StateWanted(digest=DIGEST, offset=0))
    assert (said[-1].size, said[-1].part) == (0, b"")


# -- the channel ------------------------------------------------------------------------------------------------------


async def test_news_go_to_all_neighbors_but_the_one_who_brought_them_and_a_new_one_gets_all():
    said, mine = [], standings()
    talk = StandingsTalk(mine, lambda peer, _, message: said.append((peer, message)), 10**6)
    mine.state(P0, NOW)
    for peer in (1, 2, 3):
        talk.opened(peer)
    assert [peer for peer, _ in said] == [1, 2, 3]
    said.clear()
    told = signed(4, 1, NEW)
    talk.hear(2, told)
    talk.hear(3, told)
    assert said == [(1, told), (3, told)]
    assert talk.news.is_set()
    said.clear()
    talk.closed(1)
    talk.hear(2, signed(0, 9, OTHER, serial=NOW + 5))
    assert [(peer, message.serial) for peer, message in said] == [(2, NOW + 6), (3, NOW + 6)]


async def test_who_takes_a_state_over_gives_nothing_more_of_the_one_before_from_that_memory(monkeypatch):
    """It would be of both."""
    monkeypatch.setattr("p2pfl.features.sums.standings.MOST_KEPT_BYTES", 0)
    said, memory = [], bytearray(STATE)
    node = SimpleNamespace(say=lambda _peer, _, message: said.append(message), clock=lambda: 0.0)
    algorithm = SimpleNamespace(facts=SimpleNamespace(samples=1))
    common = CommonState(node, algorithm, SimpleNamespace(most_bytes=10**6), standings(), life=1)
    common.talk.keep([memoryview(memory)[:7], memoryview(memory)[7:]], DIGEST)

    async def look(_):
        raise InterruptedError

    common.look = look
    with pytest.raises(InterruptedError):
        await common.settle(None, 3)
    common.talk.hear(4, StateWanted(digest=DIGEST, offset=0))
    assert said[-1].size == 0


async def test_who_signs_standing_after_standing_has_few_of_them_passed_on():
    """Every node would verify them, and hand them to its neighbors."""
    said, mine = [], standings()
    talk = StandingsTalk(mine, lambda peer, _, message: said.append((peer, message)), 10**6)
    mine.state(P0, NOW)
    for peer in (1, 2):
        talk.opened(peer)
    for serial in range(1000):
        talk.hear(2, signed(4, 1, NEW, serial=NOW + serial))
    assert mine.latest[4].serial == NOW + 999
    assert len(said) < 500
