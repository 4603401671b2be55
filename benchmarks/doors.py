"""Neighbors on a slow line dial a node while strangers crowd its port; the node has its own process.

For each attack, and once without, connections arrive at a given rate and stop at the stage of the attack: idle sends
nothing, upgraded the WebSocket request, addressed also a first handshake message with a valid tag, whose sender knows
the node's public key; churn is a member that completes handshakes and opens session after session. At the same time
neighbors dial, once each unless there is --patience, and the line delays each of their messages in both directions. The
output shows the neighbors that get in, the maximum number of waiting connections, connections turned away, peers
refused, sessions opened, and for the node's process: descriptors and memory before and after, and CPU in % of a core.
Linux only.

Usage: python benchmarks/doors.py [--rate 100] [--seconds 10] [--delay 0.05] [--attacks idle,churn] `--sources
127.0.1.{}` gives the strangers 200 addresses, as does 2001:db8::{} if the machine has such addresses.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

import aiohttp

from p2pfl.crypto.handshake import FederationBinding, Initiator
from p2pfl.crypto.identity import Identity
from p2pfl.crypto.session import Session
from p2pfl.net.address import PATH
from p2pfl.net.limits import Limits
from p2pfl.net.links import Links, Membership
from p2pfl.net.notices import BOOT_BYTES, Notice, Word
from p2pfl.net.session_table import Callbacks

ATTACKS = ("none", "idle", "upgraded", "addressed", "churn")
SOURCES = 200
ABREAST = 5
CHURNER = 60
"""The index of the churning member; the members before it dial in turn, so that none opens a session more than once in
several seconds.
"""
NODES = CHURNER + 1
IDENTITIES = [Identity(bytes([number + 1]) * 32) for number in range(NODES)]
BINDING = FederationBinding(federation_id=bytes(32), sections=())
ONCE = Limits(retry_first_s=600.0, retry_ceiling_s=600.0)
WAIT_S = 3.0
"""The longest time for a dial beyond the line's delay."""
STEPS = 8
"""The maximum number of line delays in one dial."""


def links_of(
    index: int, listen: str, dial: dict[int, str | None], opened: asyncio.Event, limits: Limits = ONCE
) -> Links:
    return Links(
        Membership(
            identity=IDENTITIES[index],
            own_index=index,
            members={identity.public: number for number, identity in enumerate(IDENTITIES)},
            neighbors=frozenset(range(NODES)) - {index},
            dial=dial,
            binding=BINDING,
        ),
        Callbacks(
            on_open=lambda *_: opened.set(),
            on_message=lambda *_: None,
            on_close=lambda *_: None,
        ),
        listen=listen,
        max_body_bytes=2**20,
        rng=Random(index),
        limits=limits,
    )


def run_node(pipe: Connection, host: str) -> None:
    """Run the node: it sends its port, then its figures on each request, until the request is None."""
    asyncio.run(_run_node(pipe, host))


async def _run_node(pipe: Connection, host: str) -> None:
    async with links_of(0, f"{host}:0", {}, asyncio.Event()) as links:
        doorway, most_waiting = links._listener.doorway, 0  # noqa: SLF001 - a node shows nobody its door
        pipe.send(links.port)
        while True:
            most_waiting = max(most_waiting, doorway.waiting)
            if pipe.poll():
                if pipe.recv() is None:
                    return
                told = {"waited": most_waiting, "turned away": doorway.turned_away}
                sessions = {"refused": links.counters.total.refusals, "sessions": links.counters.total.sessions}
                pipe.send(process_figures() | told | sessions)
            await asyncio.sleep(0.01)


def process_figures() -> dict[str, float]:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "descriptors": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        "MB": pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
        "CPU s": time.process_time(),
    }


class Crowd:
    """Connections that arrive at a given rate and stay until they are dropped."""

    def __init__(self, attack: str, port: int, options: argparse.Namespace) -> None:
        self.attack, self.port, self.options = attack, port, options
        self.came = 0
        self._held: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        began = time.monotonic()
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            try:
                while True:
                    while self.came < (time.monotonic() - began) * self.options.rate:
                        self.came += 1
                        task = asyncio.create_task(self._come(http))
                        self._held.add(task)
                        task.add_done_callback(self._held.discard)
                    await asyncio.sleep(0.002)
            finally:
                for task in self._held:
                    task.cancel()
                await asyncio.gather(*self._held, return_exceptions=True)

    async def _come(self, http: aiohttp.ClientSession) -> None:
        with suppress(OSError, aiohttp.ClientError, TypeError):
            if self.attack in {"addressed", "churn"}:
                await self._shake_hands(http)
                return
            source = None if self.options.sources is None else self.options.sources.format(1 + self.came % SOURCES)
            reader, writer = await asyncio.open_connection(
                host_of(self.options), self.port, local_addr=None if source is None else (source, 0)
            )
            try:
                writer.write(UPGRADE if self.attack == "upgraded" else b"")
                while await reader.read(65536):
                    pass
            finally:
                writer.transport.abort()

    async def _shake_hands(self, http: aiohttp.ClientSession) -> None:
        initiator = Initiator(IDENTITIES[CHURNER], IDENTITIES[0].public, BINDING)
        host = host_of(self.options)
        url = f"ws://{f'[{host}]' if ':' in host else host}:{self.port}{PATH}"
        async with http.ws_connect(url, timeout=aiohttp.ClientWSTimeout(ws_close=0.1)) as web_socket:
            await web_socket.send_bytes(initiator.first())
            second = await web_socket.receive_bytes()
            if self.attack == "churn":
                await web_socket.send_bytes(initiator.second(second))
                session = Session(initiator.keys)
                await web_socket.send_bytes(session.seal(Notice(Word.GREETING, bytes(BOOT_BYTES)).pack()))
            while (await web_socket.receive()).type is aiohttp.WSMsgType.BINARY:
                pass


UPGRADE = (
    b"GET /p2pfl HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


def host_of(options: argparse.Namespace) -> str:
    return "::1" if options.sources is not None and ":" in options.sources else "127.0.0.1"


async def stall(source: asyncio.StreamReader, sink: asyncio.StreamWriter, delay_s: float) -> None:
    with suppress(OSError):
        while data := await source.read(65536):
            await asyncio.sleep(delay_s)
            sink.write(data)
    sink.transport.abort()


@asynccontextmanager
async def slow_line(host: str, port: int, delay_s: float) -> AsyncIterator[str]:
    """Start a relay to the node and yield its address."""
    pumps: set[asyncio.Task[None]] = set()

    async def accept(near_reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            far_reader, far = await asyncio.open_connection(host, port)
            pumps.add(asyncio.create_task(stall(near_reader, far, delay_s)))
            pumps.add(asyncio.create_task(stall(far_reader, near, delay_s)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for pump in pumps:
            pump.cancel()


async def neighbors_in(address: str, first: int, options: argparse.Namespace) -> int:
    """Return how many of ABREAST neighbors, starting with the index `first`, get in."""
    limits = Limits() if options.patience else ONCE
    opened = [asyncio.Event() for _ in range(ABREAST)]
    async with AsyncExitStack() as stack:
        for index, event in enumerate(opened, first):
            await stack.enter_async_context(links_of(index, "127.0.0.1:0", {0: address}, event, limits))
        with suppress(TimeoutError):
            async with asyncio.timeout(options.patience or WAIT_S + STEPS * options.delay):
                await asyncio.gather(*(event.wait() for event in opened))
    return sum(event.is_set() for event in opened)


async def besiege(attack: str, port: int, options: argparse.Namespace) -> tuple[int, int, int]:
    """Return how many neighbors got in, how many dialed, and how many strangers came."""
    crowd = Crowd(attack, port, options)
    siege = None if attack == "none" else asyncio.create_task(crowd.run())
    came_in = tries = 0
    async with slow_line(host_of(options), port, options.delay) as address:
        began = time.monotonic()
        await asyncio.sleep(1.0)  # until the places are taken
        while time.monotonic() - began < options.seconds:
            came_in += await neighbors_in(address, 1 + tries % (CHURNER - ABREAST), options)
            tries += ABREAST
    if siege is not None:
        siege.cancel()
        await asyncio.wait({siege})
    return came_in, tries, crowd.came


def measure(attack: str, options: argparse.Namespace) -> dict[str, Any]:
    pipe, far = multiprocessing.Pipe()
    host = "[::1]" if ":" in host_of(options) else "127.0.0.1"
    node = multiprocessing.get_context("spawn").Process(target=run_node, args=(far, host), daemon=True)
    node.start()
    port = pipe.recv()
    before, began = ask(pipe), time.monotonic()
    came_in, tries, came = asyncio.run(besiege(attack, port, options))
    took_s = time.monotonic() - began
    during = ask(pipe)
    time.sleep(1.0)
    after = ask(pipe)
    pipe.send(None)
    node.join()
    return {
        "attack": attack,
        "came/s": f"{came / took_s:.0f}",
        "in": f"{came_in} of {tries}",
        "s each": f"{took_s / max(1, came_in):.1f}",
        "waited": during["waited"],
        "turned away": during["turned away"],
        "refused": during["refused"],
        "sessions": during["sessions"],
        "descriptors": f"{before['descriptors']} {after['descriptors']}",
        "MB": f"{before['MB']:.1f} {after['MB']:.1f}",
        "CPU %": f"{100 * (during['CPU s'] - before['CPU s']) / took_s:.1f}",
    }


def ask(pipe: Connection) -> dict[str, float]:
    pipe.send("figures")
    answer: dict[str, float] = pipe.recv()
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attacks", default=",".join(ATTACKS), help="which attacks (%(default)s)")
    parser.add_argument("--rate", type=float, default=100.0, help="connections a second (%(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds of each attack (%(default)s)")
    parser.add_argument("--delay", type=float, default=0.05, help="seconds that the line takes one way (%(default)s)")
    parser.add_argument("--sources", help="addresses of idle and upgraded strangers, {} a number; else the neighbors'")
    parser.add_argument("--patience", type=float, help="let neighbors dial again as nodes do, for so many seconds")
    options = parser.parse_args()
    attacks = options.attacks.split(",")
    if not set(attacks) <= set(ATTACKS):
        parser.error(f"attacks are {', '.join(ATTACKS)}")
    for number, attack in enumerate(attacks):
        row = measure(attack, options)
        if not number:
            print("  ".join(f"{key:>11}" for key in row))
        print("  ".join(f"{value:>11}" for value in row.values()), flush=True)


if __name__ == "__main__":
    main()
