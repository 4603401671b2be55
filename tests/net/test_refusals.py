"""Whom a node turns away, what it says about it, and that it goes on."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from contextlib import AsyncExitStack, suppress
from dataclasses import replace

import aiohttp
import pytest

from p2pfl.core import Request
from p2pfl.crypto.identity import Identity, public_text
from p2pfl.crypto.session import MAX_SEALED_BYTES, Initiator, Session
from p2pfl.errors import PeerFault
from p2pfl.net import BOOT_BYTES, LOUD_FAULTS, MALFORMED, PATH, Notice, Word
from p2pfl.wire import split

UPGRADE = (
    b"GET /p2pfl HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %s\r\n"
)


def refused(caplog, text):
    return [record for record in caplog.records if record.levelno >= logging.WARNING and text in record.getMessage()]


async def read_to_end(reader) -> bytes:
    async with asyncio.timeout(20):
        return await reader.read()


async def test_an_unlisted_key_is_refused_and_logged_once(federation, caplog):
    stranger = Identity.generate()
    members = {**federation.members, stranger.public: 99}
    async with (
        federation.node(0) as a,
        federation.node(99, {0: a.address()}, identity=stranger, members=members, neighbors=frozenset({0})),
        federation.node(1, {0: a.address()}) as b,
    ):
        await a.until(lambda: a.links.counters.unknown.refusals >= 3)
        await b.until(lambda: b.open)
        assert len(refused(caplog, public_text(stranger.public))) == 1
        assert a.links.counters.total.refusals >= 3
        assert list(a.open) == [1]


async def test_another_federation_is_refused_by_both_ends_with_one_alarm_that_names_the_key(
    federation, other_binding, caplog
):
    caplog.set_level(logging.INFO)
    async with (
        federation.node(0) as a,
        federation.node(1, {0: a.address()}, binding=other_binding) as b,
        federation.node(2, {0: a.address()}) as c,
    ):
        await a.until(lambda: a.links.counters.peers[1].refusals >= 2 and b.links.counters.peers[0].refusals >= 2)
        await c.until(lambda: c.open)
        text = "its federation file differs from ours in: training.rounds"
        assert a.alarms == [("federation-differs", 1, text)]
        assert b.alarms == [("federation-differs", 0, text)]
        assert [record.levelname for record in caplog.records if text in record.getMessage()] == ["INFO"] * 2
        assert refused(caplog, "refused") == []
        assert list(a.open) == [2]


async def test_a_member_without_an_edge_is_refused_and_told_so(federation, caplog):
    async with federation.node(0, neighbors=frozenset({2})) as a, federation.node(1, {0: a.address()}) as b:
        await a.until(lambda: a.links.counters.peers[1].refusals >= 2 and b.links.counters.peers[0].refusals >= 2)
        assert len(refused(caplog, "listed, but not a neighbor")) == 1
        assert len(refused(caplog, "that node does not take this one for a neighbor")) == 1
        assert not a.events
        assert not b.events


async def test_another_node_at_the_address_is_refused(federation, caplog):
    async with federation.node(0) as a, federation.node(1, {2: a.address()}) as b:
        await a.until(lambda: a.links.counters.unknown.refusals >= 2)
        assert len(refused(caplog, "opening tag is wrong")) == 1
        assert not b.events


@pytest.mark.parametrize(
    "noise",
    [
        bytes(range(256)) * 40,
        b"GET / HTTP/1.1\r\n" + b"x" * 100_000,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /p2pfl HTTP/1.1\r\nHost: a\r\nbad header\r\n\r\n",
        UPGRADE % "\u00e9".encode() + b"\r\n",
        UPGRADE % b"AAAAAAAAAAAAAAAAAAAAAA==" + b"Sec-WebSocket-Protocol: soap\r\n\r\n",
        b"POST /p2pfl HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=["bytes", "endless line", "TLS", "bad header", "bad key", "subprotocol", "bad chunk"],
)
async def test_what_is_no_request_gets_no_answer(federation, quick, caplog, noise):
    limits = replace(quick, handshake_s=0.2)
    async with federation.node(0, limits=limits) as a:
        reader, writer = await asyncio.open_connection("127.0.0.1", a.links.port)
        writer.write(noise)
        try:
            answer = await read_to_end(reader)
        except ConnectionError:
            answer = b""
        writer.transport.abort()
        assert not answer or answer.startswith(b"HTTP/1.1 404 Not Found\r\n")
        assert b"ython" not in answer
        assert not refused(caplog, "")
        async with federation.node(1, {0: a.address()}) as b:
            await b.until(lambda: b.open)


@pytest.mark.parametrize("path", ["/", "/p2pfl", "/status", "/p2pfl/../etc/passwd"])
async def test_a_web_request_gets_a_bare_404(federation, path):
    async with federation.node(0) as a:
        reader, writer = await asyncio.open_connection("127.0.0.1", a.links.port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        head, _, body = (await read_to_end(reader)).partition(b"\r\n\r\n")
        writer.close()
        lines = head.split(b"\r\n")
        assert lines[0] == b"HTTP/1.1 404 Not Found"
        assert body == b""
        assert b"aiohttp" not in head


@pytest.mark.parametrize(
    "start",
    [b"", b"GET /p2pfl HT", b"GET /p2pfl HTTP/1.1\r\nHost: a\r\n"],
    ids=["silence", "half a line", "half a head"],
)
async def test_a_connection_that_dawdles_is_closed(federation, quick, start):
    async with federation.node(0, limits=replace(quick, handshake_s=0.1)) as a:
        reader, writer = await asyncio.open_connection("127.0.0.1", a.links.port)
        writer.write(start)
        with suppress(ConnectionError):
            assert await read_to_end(reader) == b""
        writer.close()
        assert a.links._transport.pending.waiting == 0


async def test_whoever_leaves_at_once_leaves_no_trace(federation, caplog):
    async with federation.node(0) as a:
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", a.links.port)) as raw:
                raw.sendall(UPGRADE % b"AAAAAAAAAAAAAAAAAAAAAA==" + b"\r\n")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await a.until(lambda: a.links._transport.pending.waiting == 0)
        async with federation.node(1, {0: a.address()}) as b:
            await b.until(lambda: b.open)
        assert not refused(caplog, "")


async def half_a_handshake(http, node, initiator) -> aiohttp.WSMsgType | None:
    """What follows the answer to the first message; None where there was no answer."""
    with suppress(aiohttp.ClientError, ConnectionError):
        async with http.ws_connect(f"ws://{node.address()}{PATH}") as web_socket:
            await web_socket.send_bytes(initiator.first())
            if (await web_socket.receive(timeout=20)).type is aiohttp.WSMsgType.BINARY:
                return (await web_socket.receive(timeout=20)).type
    return None


async def test_half_a_handshake_is_closed(federation, quick):
    """A machine may be too busy to answer in the time that it gives: then it is given more."""
    for handshake_s in (0.1, 0.4, 1.6, 6.4):
        async with (
            federation.node(0, limits=replace(quick, handshake_s=handshake_s)) as a,
            aiohttp.ClientSession() as http,
        ):
            initiator = Initiator(federation.identities[1], federation.identities[0].public, federation_binding(a))
            then = await half_a_handshake(http, a, initiator)
            await a.until(lambda a=a: a.links._transport.pending.waiting == 0)
        if then is not None:
            break
    assert then in {aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR}


async def test_an_opening_is_answered_once_however_often_it_comes(federation, caplog):
    """Who has recorded it needs no key to make a node sign."""
    async with federation.node(0) as a, aiohttp.ClientSession() as http:
        first = Initiator(federation.identities[1], federation.identities[0].public, federation_binding(a)).first()
        kinds = []
        for _ in range(3):
            async with http.ws_connect(f"ws://{a.address()}{PATH}") as web_socket:
                await web_socket.send_bytes(first)
                kinds.append((await web_socket.receive(timeout=20)).type is aiohttp.WSMsgType.BINARY)
        assert kinds == [True, False, False]
        assert len(refused(caplog, "an opening that has been answered")) == 1


@pytest.mark.parametrize("message", [b"", bytes(48), bytes(MAX_SEALED_BYTES), bytes(MAX_SEALED_BYTES + 1), "text"])
async def test_a_false_first_message_is_refused(federation, message):
    async with federation.node(0) as a, aiohttp.ClientSession() as http:
        async with http.ws_connect(f"ws://{a.address()}{PATH}") as web_socket:
            await (web_socket.send_str if isinstance(message, str) else web_socket.send_bytes)(message)
            assert (await web_socket.receive(timeout=20)).type is not aiohttp.WSMsgType.BINARY
        await a.until(lambda: a.links.counters.unknown.refusals)


async def test_strangers_are_limited_by_address_and_do_not_shut_neighbors_out(federation, quick):
    """A neighbor gets in while the idlers hold their places, which is longer than this test would wait."""
    limits = replace(quick, pending_per_address=3, handshake_s=60.0)
    async with federation.node(0, limits=limits) as a:
        crowd = [await asyncio.open_connection("127.0.0.1", a.links.port) for _ in range(10)]
        pending = a.links._transport.pending
        await a.until(lambda: pending.turned_away >= 7)
        assert (pending.turned_away, pending.waiting) == (7, 3)
        async with federation.node(1, {0: a.address()}) as b:
            await b.until(lambda: b.open)
            await a.until(lambda: pending.waiting == 2)
        for _, writer in crowd:
            writer.transport.abort()


def federation_binding(node):
    return node.links._greeter.binding


class Liar:
    """A member that speaks the handshake and then whatever it likes."""

    def __init__(self, federation, node, socket, index=1) -> None:
        self._initiator = Initiator(
            federation.identities[index], federation.identities[node.index].public, federation_binding(node)
        )
        self.socket = socket
        self.session: Session

    async def shake_hands(self) -> None:
        await self.socket.send_bytes(self._initiator.first())
        await self.socket.send_bytes(self._initiator.second(await self.socket.receive_bytes(timeout=20)))
        self.session = Session(self._initiator.keys)

    async def open(self) -> None:
        await self.shake_hands()
        await self.say(Notice(Word.GREETING, bytes(BOOT_BYTES)).pack())
        for _ in ("greeting", "verdict"):
            self.session.open(await self.socket.receive_bytes(timeout=20))

    async def say(self, plain: bytes) -> None:
        await self.socket.send_bytes(self.session.seal(plain))


@pytest.mark.parametrize("greeting", [b"", bytes(25), bytes(26), Notice(Word.OPEN, bytes(BOOT_BYTES), 1).pack()])
async def test_a_false_greeting_is_refused(federation, greeting):
    async with federation.node(0) as a, aiohttp.ClientSession() as http:
        async with http.ws_connect(f"ws://{a.address()}{PATH}") as web_socket:
            liar = Liar(federation, a, web_socket)
            await liar.shake_hands()
            await liar.say(greeting)
            await a.until(lambda: a.links.counters.peers[1].refusals == 1)
        assert not a.events


@pytest.mark.parametrize("boot", [bytes(BOOT_BYTES), b"x" * BOOT_BYTES])
async def test_a_verdict_is_of_the_process_that_greeted(federation, boot):
    async with (
        federation.node(2) as a,
        aiohttp.ClientSession() as http,
        http.ws_connect(f"ws://{a.address()}{PATH}") as web_socket,
    ):
        liar = Liar(federation, a, web_socket)
        await liar.shake_hands()
        await liar.say(Notice(Word.GREETING, bytes(BOOT_BYTES)).pack())
        await liar.say(Notice(Word.OPEN, boot, 1).pack())
        await a.until(lambda: a.open or a.links.counters.peers[1].refusals)
        assert bool(a.events) == (boot == bytes(BOOT_BYTES))


@pytest.mark.parametrize("lie", ["garbage in the clear", "garbage sealed", "text", "oversize", "replay"])
async def test_a_fault_in_a_session_is_logged_counted_and_ends_it(federation, caplog, lie):
    async with federation.node(0) as a, aiohttp.ClientSession() as http:
        async with http.ws_connect(f"ws://{a.address()}{PATH}") as web_socket:
            liar = Liar(federation, a, web_socket)
            await liar.open()
            await a.until(lambda: a.open)
            match lie:
                case "garbage in the clear":
                    await web_socket.send_bytes(bytes(300))
                case "garbage sealed":
                    await liar.say(b"\xff" * 300)
                case "text":
                    await web_socket.send_str("hello")
                case "oversize":
                    await web_socket.send_bytes(bytes(MAX_SEALED_BYTES + 1))
                case "replay":
                    await web_socket.send_bytes(sealed := liar.session.seal(b""))
                    await web_socket.send_bytes(sealed)
            await a.until(a.reasons)
        assert a.links.counters.peers[1].faults == 1
        assert a.reasons()[0].startswith("protocol fault")
        # What somebody on the way may have broken is nothing that the peer has done.
        assert a.reasons()[0].startswith(MALFORMED) == (lie == "garbage sealed")
        assert len(refused(caplog, "session 1 with node 1")) == 1
        async with federation.node(1, {0: a.address()}) as b:
            await b.until(lambda: b.open and a.open)
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_message_that_stops_coming_is_a_fault(federation, quick, part_of_a_message):
    limits = replace(quick, rate_window_s=0.05)
    async with (
        federation.node(0, limits=limits) as a,
        aiohttp.ClientSession() as http,
        http.ws_connect(f"ws://{a.address()}{PATH}") as web_socket,
    ):
        liar = Liar(federation, a, web_socket)
        await liar.open()
        await liar.say(part_of_a_message)
        await a.until(a.reasons)
        assert a.reasons() == ["protocol fault: a message arrives too slowly"]
        assert a.links.counters.peers[1].faults == 1


async def test_many_neighbors_that_announce_at_once_hold_no_more_than_the_budget(federation, quick, part_of_a_message):
    """Each within the limit of a body: those for whom there is no room are turned away, the others go on."""
    limits = replace(quick, partial_bytes=1_300_000)
    async with (
        federation.node(0, limits=limits) as a,
        aiohttp.ClientSession() as http,
        AsyncExitStack() as sockets,
    ):
        for index in range(1, 7):
            url = f"ws://{a.address()}{PATH}"
            liar = Liar(federation, a, await sockets.enter_async_context(http.ws_connect(url)), index)
            await liar.open()
            await liar.say(part_of_a_message)
        await a.until(lambda: len(a.reasons()) == 4)
        assert all("bytes of unfinished messages" in reason for reason in a.reasons())
        assert len(a.open) == 2
        assert a.links._table.shared.budget.used == 1_200_000
    assert a.links._table.shared.budget.used == 0


async def test_bytes_that_came_as_a_session_ended_hold_no_memory(federation, part_of_a_message):
    """A worker thread may put them together while the loop ends the session."""
    async with federation.node(0) as a, federation.node(1, {0: a.address()}) as b:
        await b.until(lambda: b.open and a.open)
        link = a.links._table.places[1].link
        inbox = link._inbox
        inbox._assembler.feed(part_of_a_message)
        link.end("enough")
        inbox._note_progress(len(part_of_a_message))
        assert inbox.pending_bytes > 0
        assert a.links._table.shared.budget.used == 0


async def test_only_the_first_faults_of_a_neighbor_are_logged(federation, caplog):
    async with federation.node(0) as a, federation.node(1, {0: a.address()}) as b:
        for faults in (LOUD_FAULTS - 1, LOUD_FAULTS):
            await b.until(lambda: b.open and a.open)
            ended = len(a.reasons())
            a.links.counters.peers[1].faults = faults
            a.links._table.places[1].link._blame(PeerFault("made up"))
            await a.until(lambda: len(a.reasons()) > ended)  # noqa: B023 - awaited here
            await b.until(lambda: len(b.reasons()) > ended)  # noqa: B023 - awaited here
        assert len(refused(caplog, "made up")) == 1


async def test_who_is_refused_does_not_dial_again_soon(federation, other_binding, quick):
    """What was refused now will be refused in a second too."""
    patient = replace(quick, retry_ceiling_s=1000.0)
    async with federation.node(0) as a, federation.node(1, {0: a.address()}, binding=other_binding, limits=patient):
        await a.until(lambda: a.links.counters.peers[1].refusals)
        await asyncio.sleep(0.3)
        assert a.links.counters.peers[1].refusals == 1


async def test_nobody_at_a_neighbors_address_sends_a_dial_elsewhere(federation):
    asked = []
    async with federation.node(0) as a:

        async def answer(_, writer):
            asked.append(writer)
            writer.write(f"HTTP/1.1 302 Found\r\nLocation: http://{a.address()}{PATH}\r\n\r\n".encode())
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with federation.node(1, {0: address}) as b:
                await b.until(lambda: len(asked) >= 3)
                assert not b.events


@pytest.fixture
def part_of_a_message():
    message = Request(
        incarnation=1, seq=1, version=1, echo=0, weight=1.0, staleness=1.0, pace_s=1.0, audit=b"", body=bytes(600_000)
    )
    return bytes(next(iter(split(message))))


@pytest.mark.parametrize(
    "interim", [b"HTTP/1.1 100 Wait\r\n\r\n", b"HTTP/1.1 103 Hints\r\n" + b"A: b\r\n" * 50 + b"\r\n"]
)
async def test_who_answers_a_dial_with_interim_responses_without_end_is_left_soon(federation, interim):
    """Whoever sits at a neighbor's address can: they would keep the loop busy for as long as a dial may take."""
    ends, piece = [], interim * (65536 // len(interim))

    async def answer(_, writer):
        try:
            for _ in range(128):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            ends.append("took it all")
        except ConnectionError:
            ends.append("left")
        finally:
            writer.transport.abort()  # also of a second dial, which the end of the test cuts off

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, federation.node(1, {0: address}) as dialer:
        await dialer.until(lambda: ends)
    assert ends[0] == "left"


def ping_and_vanish(port):
    """A blocking socket in a thread of its own: what asyncio sends is too well-behaved."""
    ping = b"\x89\xfd" + bytes(4) + b"a" * 125
    with socket.create_connection(("127.0.0.1", port), 5) as one:
        one.sendall(UPGRADE % b"dGhlIHNhbXBsZSBub25jZQ==" + b"\r\n" + ping * 400)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with suppress(ConnectionResetError):  # so many bytes before the first message may be too much already
            one.recv(1)


async def test_a_stranger_who_pings_and_vanishes_takes_nothing_down(federation):
    """A ping is answered inside `receive`, on a connection that is reset by then."""
    async with federation.node(0) as a:
        for _ in range(40):
            await asyncio.to_thread(ping_and_vanish, a.links.port)
        async with federation.node(1, {0: a.address()}) as b:
            await b.until(lambda: b.open)
