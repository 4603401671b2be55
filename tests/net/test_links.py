"""Sessions between nodes: opened, used, closed, found again."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from dataclasses import replace

import pytest
from message_kit import REQUEST
from msgspec import structs

from p2pfl.core import Busy, Ready, Request, Resync
from p2pfl.errors import PeerFault, UserError
from p2pfl.net import BATCH_CHUNKS, IDLE_BYTES, GoneError, Inbox, PeerLink
from p2pfl.wire import split


def request_of(body: bytes) -> Request:
    return structs.replace(REQUEST, body=body)


async def test_a_message_sent_as_the_session_opens_arrives_after_the_other_end_opened(federation):
    """Whoever is told first that the session is open may speak at once."""
    a = federation.new(0)
    a.links._table.callbacks = replace(
        a.links._table.callbacks,
        on_open=lambda peer, session: (a.on_open(peer, session), a.send(peer, Ready(version=7))),
    )
    async with a.links, federation.node(1, {0: a.address()}) as b:
        await b.until(b.messages)
        assert b.kinds() == ["open", "message"]


async def test_a_large_message_arrives_intact_while_the_loop_stays_responsive(federation):
    body = os.urandom(5_000_000)
    async with federation.node(0) as a, federation.node(1, {0: a.address()}) as b:
        await b.until(lambda: b.open and a.open)
        a.send(1, request_of(body))
        a.send(1, Ready(version=1))
        turns = 0
        async with asyncio.timeout(20):
            while len(b.messages()) < 2:
                await asyncio.sleep(0)
                turns += 1
        large, small = b.messages()
        assert bytes(large.body) == body
        assert small == Ready(version=1)
        assert turns > 5_000_000 // (256 * 1024), "other work went on between any two chunks"
        assert a.links.counters.peers[1].bytes_sent > len(body)
        assert b.links.counters.peers[0].bytes_received == a.links.counters.peers[1].bytes_sent
        assert a.links.counters.total.messages_sent == 2


async def test_the_memory_of_a_long_message_that_nobody_holds_serves_the_next(federation):
    memory = []
    b = federation.new(1)

    def on_message(peer, _session, message):
        del message
        memory.append(b.links._table.places[peer].link._inbox._assembler._buffer)

    b.links._table.callbacks = replace(b.links._table.callbacks, on_message=on_message)
    async with b.links, federation.node(0, {1: b.address()}) as a:
        await a.until(lambda: a.open)
        for seq in range(3):
            a.send(1, structs.replace(request_of(os.urandom(1_000_000)), seq=seq))
            await a.until(lambda seq=seq: len(memory) > seq)
    assert memory[0] is memory[1] is memory[2]


async def test_a_peer_that_is_busy_may_be_sent_the_same_again(federation):
    large = request_of(os.urandom(5_000_000))
    async with federation.node(0) as a, federation.node(1, {0: a.address()}) as b:
        await b.until(lambda: b.open and a.open)
        a.send(1, large)
        await b.until(b.messages)
        a.send(1, large)
        b.send(0, Busy(incarnation=1, seq=2, retry_after_s=0.0))
        await a.until(a.messages)
        a.send(1, large)
        await b.until(lambda: len(b.messages()) == 2)
        a.send(1, Resync(incarnation=1))
        await b.until(lambda: len(b.messages()) == 3)
        assert [type(message) for message in b.messages()] == [Request, Request, Resync]


async def test_a_line_that_is_cut_off_is_told_from_a_session_that_its_end_closes(federation):
    async with federation.node(0) as a, federation.node(1, {0: a.address()}) as b:
        await a.until(lambda: a.open and b.open)
        b.links.close(0, b.open[0], "asked to")
        await a.until(lambda: a.reasons() and a.open and b.open)
        b.sockets()[0].abort()
        await a.until(lambda: len(a.reasons()) == 2)
        closed, lost = a.reasons()
        assert closed == "closed by the peer"
        assert lost.startswith("connection lost")


async def test_messages_in_a_batch_with_a_fault_are_still_delivered(federation):
    """Whatever came before the fault was in order."""
    async with federation.node(0) as a, federation.node(1, {0: a.address()}) as b:
        await b.until(lambda: b.open and a.open)
        link = a.links._table.places[1].link
        while link._version is None or b.links._table.places[0].link._version is None:  # noqa: ASYNC110
            await asyncio.sleep(0)  # until the offers have been sealed and opened
        sealed = [
            link.connection.session.seal(chunk)
            for chunk in (*split(Resync(incarnation=1)), *split(request_of(bytes(9))))
        ]
        messages, reason = b.links._table.places[0].link._inbox._unseal(
            [*sealed, link.connection.session.seal(b"nonsense"), b"never"]
        )
        assert [type(message) for message in messages] == [Resync, Request]
        assert isinstance(reason, PeerFault)


async def test_a_session_holds_one_body_and_a_few_chunks_whatever_the_peer_sends(federation, monkeypatch):
    """The receiver is slow, the sender fast: neither piles up what the other has sent or will."""
    sizes = []
    unseal, seal = Inbox._unseal, PeerLink._seal

    def watched_unseal(inbox, batch):
        sizes.append(len(batch) + inbox._arrived.qsize())
        return unseal(inbox, batch)

    def watched_seal(link, chunks, *, final):
        sizes.append(len(chunks))
        return seal(link, chunks, final=final)

    monkeypatch.setattr(Inbox, "_unseal", watched_unseal)
    monkeypatch.setattr(PeerLink, "_seal", watched_seal)
    async with federation.node(0) as a, federation.node(1, {0: a.address()}) as b:
        await b.until(lambda: b.open and a.open)
        for seq in range(3):
            a.send(1, structs.replace(request_of(os.urandom(7_000_000)), seq=seq))
            await b.until(lambda: len(b.messages()) == seq + 1)  # noqa: B023 - awaited here
        assert max(sizes) <= 2 * BATCH_CHUNKS
        assert max(sizes) > 1, "several chunks went to the worker thread at once"


@pytest.mark.parametrize("flooding", [0, 1])
@pytest.mark.parametrize("code", [0x89, 0x8A], ids=["pings", "pongs"])
async def test_a_flood_of_pings_ends_the_session_and_proves_nothing(federation, flooding, code):
    """They are not sealed, so whoever is on the way can send them; each of them costs more than the bytes it takes."""
    async with federation.node(0) as listener, federation.node(1, {0: listener.address()}) as dialer:
        await dialer.until(lambda: dialer.open and listener.open)
        source, target = (listener, dialer) if flooding == 0 else (dialer, listener)
        (transport,) = source.sockets()
        masked = bytes([code, 0x80, 0, 0, 0, 0]) if source is dialer else bytes([code, 0])
        transport.write(masked * 1000)
        await target.until(lambda: "close" in target.kinds())
        assert target.reasons() == ["protocol fault: more pings than an honest end sends"]


@pytest.mark.parametrize("flooding", [0, 1])
async def test_empty_fragments_without_end_end_the_session_and_prove_nothing(federation, flooding):
    """Aiohttp counts none of them, and tells nobody."""
    async with federation.node(0) as listener, federation.node(1, {0: listener.address()}) as dialer:
        await dialer.until(lambda: dialer.open and listener.open)
        source, target = (listener, dialer) if flooding == 0 else (dialer, listener)
        (transport,) = source.sockets()
        size = bytes([0x80, 0, 0, 0, 0]) if source is dialer else bytes(1)
        transport.write(b"\x02" + size + (b"\x00" + size) * (2 * IDLE_BYTES // (1 + len(size))))
        await target.until(lambda: "close" in target.kinds())
        assert target.reasons() == ["protocol fault: WebSocket frames without end that make no message"]


@pytest.mark.long
async def test_a_session_in_which_nothing_is_said_stays_open(federation, quick):
    """Each end seals an empty chunk now and then, which is no message."""
    often = replace(quick, silence_s=0.9)
    async with federation.node(0, limits=often) as a, federation.node(1, {0: a.address()}, limits=often) as b:
        await b.until(lambda: b.open and a.open)
        said = a.links.counters.total.bytes_sent
        await a.until(lambda: a.links.counters.total.bytes_sent > said + 6 * 17)
        assert a.kinds() == b.kinds() == ["open"]
        assert a.alarms == b.alarms == []


@pytest.mark.parametrize("answers_pings", [False, True])
async def test_a_session_over_a_line_that_holds_all_back_is_closed_by_both_ends(
    federation, quick, relay, answers_pings
):
    """Only what is sealed proves that the other end is there: a pulled cable is noticed, too. Nobody is blamed: it need
    not be the neighbor's fault.
    """
    often = replace(quick, silence_s=0.9)
    async with (
        federation.node(0, limits=often) as a,
        relay(a.address()) as wire,
        federation.node(1, {0: wire.address}, limits=often) as b,
    ):
        await b.until(lambda: b.open and a.open)
        wire.stop_accepting()
        wire.pull_cable()
        while answers_pings and (a.open or b.open):
            for to_dialer, to_listener in zip(wire.near, wire.far, strict=True):
                to_dialer.write(b"\x8a\x00")  # an empty pong; what a client sends is masked
                to_listener.write(b"\x8a\x80abcd")
            await asyncio.sleep(0.15)
        for node, peer in ((a, 1), (b, 0)):
            await node.until(lambda: not node.open)  # noqa: B023 - awaited here
            assert node.reasons()[-1].startswith("no sealed chunk has come for 1 s or more")
            assert [alarm[:2] for alarm in node.alarms] == [("silent-session", peer)]
            assert node.links.counters.peers[peer].faults == 0


@pytest.mark.long
async def test_a_process_that_was_stopped_first_reads_what_has_come_meanwhile(federation, quick):
    often = replace(quick, silence_s=0.9)
    async with federation.node(0, limits=often) as a, federation.node(1, {0: a.address()}, limits=often) as b:
        await b.until(lambda: b.open and a.open)
        for _ in range(3):
            time.sleep(1.2)  # noqa: ASYNC251 - both ends stand still
            await asyncio.sleep(0.2)
        assert a.kinds() == b.kinds() == ["open"]


async def test_empty_chunks_are_worth_no_more_than_an_honest_end_sends(federation):
    """They are sealed, so they are the neighbor's own."""
    async with federation.node(0) as a, federation.node(1, {0: a.address()}) as b:
        await b.until(lambda: b.open and a.open)
        link = b.links._table.places[0].link
        with suppress(GoneError, ValueError):
            for _ in range(100):
                await link._say(b"")
        await a.until(lambda: "close" in a.kinds())
        assert "more empty chunks than an honest end sends" in a.reasons()[0]
        assert a.links.counters.peers[1].faults == 1


async def test_messages_to_no_session_or_an_old_one_are_dropped(federation):
    async with federation.node(0) as a, federation.node(1, {0: a.address()}) as b:
        a.links.send(1, 1, Ready(version=1))
        a.links.send(99, 1, Ready(version=1))
        await b.until(lambda: b.open and a.open)
        old = a.open[1]
        a.links.close(1, old, "asked to")
        await a.until(lambda: 1 in a.open and 0 in b.open)
        a.links.send(1, old, Ready(version=2))
        a.links.close(1, old, "asked again")
        a.send(1, Ready(version=3))
        await b.until(b.messages)
        assert b.messages() == [Ready(version=3)]
        assert a.reasons() == ["asked to"]


@pytest.mark.parametrize(("resting", "other"), [(0, 1), (1, 0)])
async def test_a_neighbor_that_is_given_a_rest_opens_no_session_until_it_is_over(federation, resting, other):
    async with federation.node(resting) as a, federation.node(other, {resting: a.address()}) as b:
        await a.until(lambda: a.open)
        table, tries = a.links._table, []
        admit = table.admit

        async def counted(candidate):
            tries.append(candidate.peer)
            return await admit(candidate)

        table.admit = counted
        a.links.close(other, a.open[other], "enough of it", rest_s=1e6)
        await a.until(lambda: len(tries) >= 3)
        assert a.kinds() == ["open", "close"]
        table.rest(other, 0.0)
        await a.until(lambda: a.open and b.open)


async def test_a_session_is_renewed_by_its_dialer(federation, quick):
    limits = replace(quick, session_s=0.05)
    async with federation.node(0) as a, federation.node(1, {0: a.address()}, limits=limits) as b:
        await b.until(lambda: b.kinds().count("open") >= 3)
        assert all("renewed" in reason for reason in b.reasons())
        assert a.reasons()[0] == "closed by the peer"


async def test_a_session_that_its_dialer_does_not_renew_is_ended_by_the_listener_a_little_later(
    federation, quick, monkeypatch
):
    monkeypatch.setattr("p2pfl.net.link.LISTENER_PATIENCE_S", 0.05)
    limits = replace(quick, session_s=0.05)
    async with federation.node(0, limits=limits) as a, federation.node(1, {0: a.address()}):
        await a.until(a.reasons)
        assert "renewed" in a.reasons()[0]


async def test_a_listener_takes_a_large_message_too(federation):
    """Whoever has come so far may say more than a stranger at its door."""
    async with federation.node(0) as a, federation.node(1, {0: a.address()}) as b:
        await b.until(lambda: b.open and a.open)
        b.send(0, request_of(body := os.urandom(1_000_000)))
        await a.until(a.messages)
        assert a.messages()[0].body == body


async def test_a_session_whose_peer_does_not_read_is_closed(federation, quick, relay):
    limits = replace(quick, queue_messages=3)
    async with (
        federation.node(0, limits=limits) as a,
        relay(a.address()) as wire,
        federation.node(1, {0: wire.address}) as b,
    ):
        await b.until(lambda: b.open and a.open)
        wire.pull_cable()
        a.send(1, request_of(bytes(7_000_000)))
        for incarnation in range(5):
            if a.open:
                a.send(1, Resync(incarnation=incarnation))
        assert a.reasons() == ["the peer does not read: 3 messages wait for it"]


async def test_a_peer_that_never_reads_a_chunk_is_closed(federation, quick, relay):
    limits = replace(quick, drain_s=0.05)
    async with (
        federation.node(0, limits=limits) as a,
        relay(a.address()) as wire,
        federation.node(1, {0: wire.address}) as b,
    ):
        await b.until(lambda: b.open and a.open)
        wire.pull_cable()
        wire.stop_accepting()
        a.send(1, request_of(bytes(7_000_000)))
        await a.until(lambda: "the peer does not read" in a.reasons())


@pytest.mark.parametrize(
    "listen", ["nonsense", "127.0.0.1", ":7000", "127.0.0.1:70000", "::1:7000", "a b:1", "x" * 70 + ":1"]
)
async def test_a_bad_address_is_the_users_mistake(federation, listen):
    with pytest.raises(UserError, match="listen: not an address"):
        federation.new(0, listen=listen)
    with pytest.raises(UserError, match="address of node 1: not an address"):
        federation.new(0, {1: listen})


async def test_a_node_without_addresses_waits_to_be_dialed(federation):
    async with federation.node(1, {0: None}) as b, federation.node(0, {1: b.address()}) as a:
        await b.until(lambda: b.open and a.open)


async def test_a_bug_in_a_callback_comes_out_of_the_links(federation):
    """It is neither swallowed nor taken for the peer's fault."""

    async def run_into_it():
        async with asyncio.timeout(20), federation.node(0) as a:
            a.links._table.callbacks = replace(a.links._table.callbacks, on_message=lambda *_: 1 / 0)
            async with federation.node(1, {0: a.address()}) as b:
                await b.until(lambda: b.open and a.open)
                b.send(0, Ready(version=1))
                await b.until(lambda: False)

    with pytest.raises(ExceptionGroup) as caught:
        await run_into_it()
    assert caught.group_contains(ZeroDivisionError)
