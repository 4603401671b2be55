"""What members and strangers may do to a relay, and to each other through it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from memory_kit import MemoryNetwork
from relay_kit import TOKEN, RelayHere, dialer, nobody, parts, until

from p2pfl.features.relay import (
    PASSED_ON,
    Challenge,
    FrameKind,
    Refusal,
    RelayLink,
    number_in,
    pack,
    pack_struct,
    register,
    struct_in,
    unpack,
)


@pytest.fixture
def network() -> MemoryNetwork:
    return MemoryNetwork()


@asynccontextmanager
async def linked(relay, network, *identities, meet=nobody):
    """Members that are registered."""
    links = [RelayLink(relay.url, parts(network, identity)) for identity in identities]
    tasks = [asyncio.create_task(link.keep(meet)) for link in links]
    await until(lambda: all(link.is_registered for link in links))
    yield links
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def take(*_):
    """Take each line, and do nothing with it."""
    return asyncio.create_task(asyncio.sleep(0))


async def registered(network, relay, identity, *, name="", token=TOKEN):
    """Return a bare connection, and the frame with which the relay has answered."""
    line = await dialer(network)(relay.url)
    challenge = struct_in(unpack(await line.receive()), FrameKind.CHALLENGE, Challenge)
    answer = register(identity, challenge, relay=name or f"{relay.name}/p2pfl", token=token)
    await line.send(pack_struct(FrameKind.REGISTER, answer))
    return line, unpack(await line.receive())


async def test_who_registers_again_and_again_is_told_to_wait_and_others_are_not(federation, network):
    async with RelayHere(network) as relay:
        for _ in range(30):
            _, answer = await registered(network, relay, federation.identities[0])
            assert answer.kind is FrameKind.WELCOME
        _, answer = await registered(network, relay, federation.identities[0])
        assert (answer.kind, Refusal(number_in(answer))) == (FrameKind.REFUSED, Refusal.TOO_OFTEN)
        _, answer = await registered(network, relay, federation.identities[1])
        assert answer.kind is FrameKind.WELCOME


async def test_a_registration_that_somebody_has_recorded_opens_no_other_line(federation, network):
    async with RelayHere(network) as relay:
        lines = [await dialer(network)(relay.url) for _ in range(2)]
        challenge, _ = [struct_in(unpack(await line.receive()), FrameKind.CHALLENGE, Challenge) for line in lines]
        recorded = register(federation.identities[0], challenge, relay=f"{relay.name}/p2pfl", token=TOKEN)
        for line in lines:
            await line.send(pack_struct(FrameKind.REGISTER, recorded))
        answers = [unpack(await line.receive()) for line in lines]
        assert [answer.kind for answer in answers] == [FrameKind.WELCOME, FrameKind.REFUSED]
        assert Refusal(number_in(answers[1])) is Refusal.FORGED


async def test_a_relay_that_passes_a_members_answer_on_to_another_relay_gains_nothing(federation, network):
    """Neither does it throw the member out there, nor does it get the lines that others open to it."""
    a, b = federation.identities[:2]
    met = []

    def meet(line, visit):
        met.append(line.key)
        return asyncio.create_task(asyncio.sleep(0))

    async with (
        RelayHere(network, "honest:1") as honest,
        linked(honest, network, a, b, meet=meet) as (link, other),
    ):
        double, answer = await registered(network, honest, a, name="liar:1/p2pfl")
        assert answer.kind is FrameKind.WELCOME
        await double.send(pack(FrameKind.OPEN, 1, b.public))
        assert unpack(await double.receive()).kind is FrameKind.CLOSE
        await other.dial(a.public)
        await until(lambda: met == [b.public])
        assert link.is_registered
        await double.close(0.1)


async def test_a_flood_of_small_frames_leaves_time_for_others(federation, network):
    """Between two frames of a quiet member at most a slice of the flood is read, however much has come already."""
    flooder, other, quiet = federation.identities[:3]
    async with RelayHere(network) as relay, linked(relay, network, other) as _:
        flood, _ = await registered(network, relay, flooder)
        asking, _ = await registered(network, relay, quiet)
        seats = {seat.key: seat for seat in relay.board.tenant("ward").seats.values()}
        taken, receive = [], relay.board.receive

        def watch(seat, frame, now):
            if len(taken) == 1:
                relay.lines[2].coming.append(pack(FrameKind.PING, 0, bytes(8)))
                relay.lines[2]._turned.set()
            taken.append(seat)
            receive(seat, frame, now)

        relay.board.receive = watch
        # What stands in the line's buffer is there without waiting, as in that of a WebSocket.
        await flood.send(pack(FrameKind.CLOSE, PASSED_ON, bytes(8)))
        relay.lines[1].coming.extend([pack(FrameKind.CLOSE, PASSED_ON, bytes(8))] * 4000)
        await asking.receive()
        assert taken.index(seats[quiet.public]) < 200
