"""What one member's messages may cost another: bytes by author, and time by neighbor."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import Counter
from itertools import count
from pathlib import Path
from types import FunctionType, ModuleType

import msgspec
import pytest
from sum_world import SumWorld, complete, posted, settings_of

from p2pfl.errors import PeerFault
from p2pfl.features.sums import (
    HELD_UP,
    MOST_EARLY_BYTES,
    MOST_SETUPS_IN_ALL,
    WINDOW,
    Ack,
    BranchPart,
    Credit,
    Have,
    Incoming,
    MemberList,
    Parcel,
    Reveal,
    SetupOpening,
    SetupSecrets,
    SlotVote,
    SumTalk,
    VectorReady,
    Wave,
    bits_of,
    encode_statement,
    id_of,
)

COUNT, LIAR = 5, 4
MOST_BYTES = 2**20
"""Of one author, in federations as small as this one: its statements in twelve set-ups, and what waits for others."""


def bytes_of(root):
    """The bytes that are reached from an object."""
    seen, todo, total = set(), [root], 0
    while todo:
        each = todo.pop()
        if id(each) in seen or isinstance(each, type | ModuleType | FunctionType):
            continue
        seen.add(id(each))
        total += sys.getsizeof(each)
        todo += [getattr(each, name) for name in each.__struct_fields__] if isinstance(each, msgspec.Struct) else []
        todo += gc.get_referents(each)
    return total


def set_up(number):
    return number.to_bytes(16, "little")


def opened(world, number, author):
    """New keys, and an opening that names them."""
    keys = SetupSecrets(world.random.randbytes, 3).keys(1, 10 + number)
    named = dict(world.nodes[0].records.latest) | {author: id_of(author, encode_statement(keys))}
    return keys, SetupOpening(members=bits_of(named), keys=b"".join(named[member] for member in sorted(named)))


def openings(world, number):
    """New keys, an opening that names them, and all that can be said of it."""
    keys, opening = opened(world, number, LIAR)
    setup = id_of(LIAR, encode_statement(opening))
    parcels = [Parcel(setup=setup, to=to, sealed=bytes(208), spread=True) for to in range(COUNT - 1)]
    return [keys, opening, *parcels, *everything(setup, number)]


def everything(setup, number):
    at, bits = {"setup": setup, "number": number % 3}, bits_of(range(COUNT))
    name = number.to_bytes(32, "big")
    shares = tuple((member, name) for member in range(1000))
    return [
        VectorReady(terms=name, **at),
        Wave(epoch=number % 1000, terms=name, **at),
        MemberList(members=bits, terms=name, total=name, **at),
        SlotVote(chosen=name[:16], **at),
        Reveal(own=name, shares=shares if number % 2 else (), **at),
    ]


FLOODS = {
    "parcels for who is no member": lambda _, n: [Parcel(setup=set_up(0), to=n, sealed=bytes(30_000), spread=True)],
    "parcels of unknown set-ups": lambda _, n: [Parcel(setup=set_up(n), to=1, sealed=bytes(208), spread=True)],
    "acks of unknown set-ups": lambda _, n: [Ack(setup=set_up(n), holds=b"\x1f")],
    "set-ups": openings,
    "one set-up": lambda world, n: everything(world.nodes[0].setup.id, n),
}


@pytest.mark.parametrize("name", list(FLOODS))
def test_what_is_kept_of_one_author_is_bounded_whatever_it_signs(name):
    world = SumWorld(COUNT, complete(COUNT))
    world.ask_all("one")
    world.run()
    node, sizes = world.nodes[0], [bytes_of(world.nodes[0])]
    passed_on = 0
    for number in range(200):
        for statement in FLOODS[name](world, number):
            effects = node.hear(LIAR, posted(LIAR, statement), world.now)
            passed_on += sum(type(each).__name__ == "SendToNeighbor" for each in effects)
        if number in {99, 199}:
            sizes.append(bytes_of(node))
    before, half, whole = sizes
    assert whole - half < 100_000, "it does not grow"
    assert whole - before < MOST_BYTES


def test_an_opening_that_is_taken_is_kept_however_many_members_have_opened_one():
    """One of the others' goes."""
    world = SumWorld(16, complete(16))
    world.ask_all("one")
    world.run()
    log = world.nodes[0]._log
    for author in range(1, 15):
        for statement in opened(world, 0, author):
            world.nodes[0].hear(author, posted(author, statement, {"count": 16}), world.now)
        assert author in {by for by, _ in log.opened_by.values()}
    assert len(log.opened_by) == MOST_SETUPS_IN_ALL


def test_a_set_of_more_members_than_there_are_is_a_fault():
    world = SumWorld(COUNT, complete(COUNT))
    for size in (1, 512):
        with pytest.raises(PeerFault, match="whom the federation does not have"):
            world.nodes[0].hear(LIAR, BranchPart(wave=bytes(16), members=b"\xff" * size, vector=b""), 0.0)


def test_messages_without_credit_are_a_fault():
    incoming = Incoming()
    for _ in range(WINDOW):
        incoming.count(Have(digest=1))
    with pytest.raises(PeerFault, match="no credit"):
        incoming.count(Have(digest=1))
    incoming = Incoming()
    for _ in range(10 * WINDOW):
        if incoming.count(Have(digest=1)):
            incoming.credit()


def test_a_neighbor_whose_questions_take_more_than_its_share_of_time_is_named_and_waits_for_credit():
    """It has no credit for more then: what it sends all the same is a fault, so its work ends."""

    async def flood(cost_s):
        world, said, alarms, clock = SumWorld(COUNT, complete(COUNT)), [], [], count()
        talk = SumTalk(
            world.nodes[0],
            lambda peer, _, message: said.append((peer, message)) or True,
            keep=lambda *_: None,
            alarm=lambda *alarm: alarms.append(alarm),
            meter=lambda: next(clock) * cost_s,
        )
        talk.opened(1)
        talk.opened(LIAR)
        heard = 0
        try:
            for heard in range(4000):
                talk.hear(LIAR, Have(digest=heard, ids=heard.to_bytes(8, "little")))
                if heard % 10 == 0:
                    talk.hear(1, Have(digest=heard))
        except PeerFault:
            pass
        credited = Counter(peer for peer, message in said if isinstance(message, Credit))
        talk.close()
        return heard, credited, {(kind, peer) for kind, peer, _ in alarms}

    heard, credited, alarms = asyncio.run(flood(0.006))
    assert alarms == {(HELD_UP, LIAR)}
    assert heard < 1000, "four seconds of work, and what there was credit for"
    assert credited[1] >= heard // 10 // WINDOW
    heard, _, alarms = asyncio.run(flood(0.00001))
    assert (heard, alarms) == (3999, set())


def test_settings_say_which_sets_have_members_alone():
    settings = settings_of(0, 9)
    assert all(settings.are_members(bits_of(range(n))) for n in range(10))
    assert not settings.are_members(bits_of(range(10)))
    assert not settings.are_members(b"\x01\x00\x00")


def test_the_page_says_how_much_waits_for_an_opening():
    page = Path(__file__).parents[2] / "docs" / "explanation" / "sums.md"
    said = " ".join(page.read_text().split())
    assert f"{MOST_EARLY_BYTES // 1024} KiB of set-ups whose opening it lacks" in said
