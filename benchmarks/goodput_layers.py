"""The layers below a link, each alone: a socket, the WebSocket, the sealing, the digest. For `goodput.py`."""

from __future__ import annotations

import asyncio
import socket
from multiprocessing.connection import Connection

import aiohttp
from aiohttp import web
from goodput_measures import Figures, Meter, Options, body_of
from msgspec.structs import replace

from p2pfl.core.messages import CHUNK_BYTES, Request, request_digest
from p2pfl.crypto.handshake import SessionKeys
from p2pfl.crypto.session import Session

KEYS = (bytes(32), bytes([1]) * 32)


def request_of(body: object, seq: int) -> Request:
    """Make a request as the engine freezes it."""
    request = Request(
        incarnation=1, seq=seq, version=seq, echo=None, weight=1.0, staleness=1.0, pace_s=0.1, audit=b"", body=body
    )
    return replace(request, digest=request_digest(request))


async def socket_scene(pipe: Connection, options: Options, *, far: bool) -> Figures:
    if far:
        return await asyncio.to_thread(drain_socket, pipe)
    return await asyncio.to_thread(fill_socket, pipe, options)


def fill_socket(pipe: Connection, options: Options) -> Figures:
    body = body_of(options)
    with socket.create_connection(("127.0.0.1", pipe.recv())) as connection:
        meter = Meter()
        meter.begin()
        for _ in range(options.messages):
            connection.sendall(body)
        return meter.end()


def drain_socket(pipe: Connection) -> Figures:
    with socket.create_server(("127.0.0.1", 0)) as server:
        pipe.send(server.getsockname()[1])
        connection, meter, buffer = server.accept()[0], Meter(), bytearray(CHUNK_BYTES)
        meter.begin()
        while connection.recv_into(buffer):
            pass
        connection.close()
        return meter.end()


async def websocket_scene(pipe: Connection, options: Options, *, far: bool) -> Figures:
    """Send chunks as they are, without sealing or assembling; the dialer sends, and masks."""
    return await take_websocket(pipe) if far else await fill_websocket(pipe, options)


async def fill_websocket(pipe: Connection, options: Options) -> Figures:
    chunk, meter = bytes(body_of(options)[:CHUNK_BYTES]), Meter()
    url = f"http://127.0.0.1:{pipe.recv()}/"
    async with aiohttp.ClientSession() as session, session.ws_connect(url, max_msg_size=2 * CHUNK_BYTES) as connection:
        meter.begin()
        for _ in range(options.messages * options.body_bytes // CHUNK_BYTES):
            await connection.send_bytes(chunk)
        return meter.end()


async def take_websocket(pipe: Connection) -> Figures:
    figures: asyncio.Future[Figures] = asyncio.get_running_loop().create_future()

    async def accept(request: web.BaseRequest) -> web.WebSocketResponse:
        connection, meter = web.WebSocketResponse(max_msg_size=2 * CHUNK_BYTES), Meter()
        await connection.prepare(request)
        meter.begin()
        async for _ in connection:
            pass
        figures.set_result(meter.end())
        return connection

    runner = web.ServerRunner(web.Server(accept))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    pipe.send(runner.addresses[0][1])
    try:
        return await figures
    finally:
        await runner.cleanup()


async def secretstream_scene(_pipe: Connection, options: Options, *, far: bool) -> Figures:
    """Seal and open in one process, chunk by chunk."""
    if far:
        return {}
    one, other = KEYS
    sealing = Session(SessionKeys(send=one, receive=other, session_id=b"", peer_public=b""))
    opening = Session(SessionKeys(send=other, receive=one, session_id=b"", peer_public=b""))
    body, meter = body_of(options), Meter()
    meter.begin()
    for _ in range(options.messages):
        for start in range(0, len(body), CHUNK_BYTES):
            opening.open(sealing.seal(body[start : start + CHUNK_BYTES]))
    return meter.end()


async def digest_scene(_pipe: Connection, options: Options, *, far: bool) -> Figures:
    """Compute the request's digest once at each end."""
    del far
    body, meter = body_of(options), Meter()
    meter.begin()
    for seq in range(options.messages):
        request_of(body, seq)
    return meter.end()
