"""The cost of a large message from one process to another: CPU and memory.

Two processes on loopback, each scene in fresh ones. `links` is the shipped path: digest, framing, sealing, WebSocket,
opening, assembling, digest. Layers below it run alone in the same rounds, to show this machine's lower bound;
`exchange` is a whole transaction between two shipped engines over links, and `logged` the same with each engine's log
on disk, as in a node. CPU-seconds are for both processes together;
GB are 10^9 bytes of body; peak_bodies is the peak memory of an end, including the body that it sends, as a multiple of
the body. Prints a table, and JSON with --json FILE. Linux only.

Usage: python benchmarks/goodput.py [--mb 100] [--messages 10] [--repeats 3] [--scenes links,socket]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import re
import socket
import statistics
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
from msgspec.structs import replace

from p2pfl.compress import make_compressor
from p2pfl.core.events import (
    ApplyReply,
    ApplyRequest,
    Event,
    Freeze,
    Operation,
    ReplyApplied,
    RequestApplied,
    RequestFrozen,
)
from p2pfl.core.messages import Message, Ready, Reply, Request, request_digest
from p2pfl.crypto.identity import Identity
from p2pfl.crypto.session import FederationBinding, Session, SessionKeys
from p2pfl.engine.changes import entry, image
from p2pfl.engine.engine import Engine
from p2pfl.engine.state import Codecs, NodeState
from p2pfl.limits import CHUNK_BYTES
from p2pfl.net.links import Links, Membership
from p2pfl.net.session_table import Callbacks
from p2pfl.storage import State, Store

T = TypeVar("T")
SAMPLES = 100
EXCHANGE_BYTES = 40_000_000
KEYS = (bytes(32), bytes([1]) * 32)
Figures = dict[str, float]


@dataclass(frozen=True)
class Options:
    body_bytes: int
    messages: int


def body_of(options: Options) -> memoryview:
    """Make values like a model's, which do not compress."""
    return np.random.default_rng(0).standard_normal(options.body_bytes // 4, dtype=np.float32).data.cast("B")


class Meter:
    """Measures CPU time between `begin` and `end`, and the peak memory since the meter was made."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")
        self._held_mb = memory_mb("VmRSS")

    def begin(self) -> None:
        self._cpu_s, self._wall_s = time.process_time(), time.perf_counter()

    def end(self) -> Figures:
        return {
            "cpu_s": time.process_time() - self._cpu_s,
            "wall_s": time.perf_counter() - self._wall_s,
            "peak_mb": memory_mb("VmHWM") - self._held_mb,
        }


def memory_mb(kind: str) -> float:
    """Read memory: VmRSS is what the process holds now, VmHWM the peak since `clear_refs`. Linux only."""
    match = re.search(rf"{kind}:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(match[1]) * 1024 / 1e6 if match else float("nan")


@dataclass
class End:
    """One end of a session; `inbox` holds the other end's messages."""

    links: Links
    peer: int
    session: int = 0
    inbox: asyncio.Queue[Message] = field(default_factory=asyncio.Queue)
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    def say(self, message: Message) -> None:
        self.links.send(self.peer, self.session, message)


@asynccontextmanager
async def end_of_session(pipe: Connection, options: Options, *, far: bool) -> AsyncIterator[End]:
    """Open a session: node 0 listens and sends its port, node 1 dials."""
    own = 0 if far else 1
    identities = [Identity(bytes([index + 1]) * 32) for index in range(2)]
    end: End

    def on_open(_peer: int, session: int) -> None:
        end.session = session
        end.opened.set()

    links = Links(
        Membership(
            identity=identities[own],
            own_index=own,
            members={identity.public: index for index, identity in enumerate(identities)},
            neighbors=frozenset({1 - own}),
            dial={} if far else {0: f"127.0.0.1:{pipe.recv()}"},
            binding=FederationBinding(federation_id=bytes(32), sections=(("training", bytes(32)),)),
        ),
        Callbacks(
            on_open=on_open,
            on_message=lambda _peer, _session, message: end.inbox.put_nowait(message),
            on_close=lambda *_: None,
        ),
        listen="127.0.0.1:0",
        max_body_bytes=options.body_bytes + 2**20,
        rng=Random(own),
    )
    end = End(links, 1 - own)
    async with links:
        if far:
            pipe.send(links.port)
        await end.opened.wait()
        yield end
        # If one end left first, it would be missing to the other.
        pipe.send("through")
        await asyncio.to_thread(pipe.recv)


async def send_requests(end: End, options: Options) -> Figures:
    """Send one request at a time and await each, like an edge's transactions; the first is a warm-up."""
    meter = Meter()
    body = body_of(options)
    for seq in range(options.messages + 1):
        if seq == 1:
            meter.begin()
        end.say(await asyncio.to_thread(request_of, body, seq))
        await end.inbox.get()
    return meter.end()


async def take_requests(end: End, options: Options) -> Figures:
    meter = Meter()
    for seq in range(options.messages + 1):
        await end.inbox.get()
        if seq == 0:
            meter.begin()
        end.say(Ready(version=seq))
    return meter.end()


async def links_scene(pipe: Connection, options: Options, *, far: bool, far_sends: bool = False) -> Figures:
    async with end_of_session(pipe, options, far=far) as end:
        return await (send_requests if far == far_sends else take_requests)(end, options)


class LoggedEngine:
    """An engine, and the log of what it did in a folder; without one nothing is written."""

    def __init__(self, engine: Engine, folder: Path | None) -> None:
        self.engine, self.store = engine, None if folder is None else Store.open(folder, durability="exchange")
        if self.store is not None:
            self.store.load()
            self.checkpoint()

    def checkpoint(self) -> None:
        if self.store is not None:
            picture = image(self.engine.state, with_replicas=True, copied=False)
            self.store.checkpoint(State(header=picture.header, arrays=picture.arrays, blobs=picture.blobs))

    def run(self, operation: Operation) -> Event | None:
        """Run an operation; what it changed is on disk when this returns, if it must be."""
        outcome = self.engine.run(operation)
        if self.store is not None and outcome.change is not None:
            self.store.append(*entry(outcome.change))
            if outcome.urgent:
                self.store.flush()
        return outcome.event


async def exchange_scene(
    pipe: Connection, options: Options, *, far: bool, compressor: str, logged: bool = False
) -> Figures:
    """Run transactions of two shipped engines, each beside its loop: freeze, request, apply, reply, apply.

    The first transaction fills the replicas and is not counted. Between transactions each model moves as training would
    move it. Memory includes model, replicas and variate. A log is not replaced by a snapshot, as a node does from time
    to time.
    """
    async with end_of_session(pipe, options, far=far) as end:
        meter = Meter()
        model = np.random.default_rng(far).standard_normal(options.body_bytes // 4, dtype=np.float32)
        state = NodeState.new(model, SAMPLES, (end.peer,))
        with TemporaryDirectory() as folder:
            bare = Engine(index=int(not far), state=state, codecs=Codecs(make_compressor(compressor)))
            engine = LoggedEngine(bare, Path(folder) / "state" if logged else None)
            del model
            for seq in range(options.messages + 1):
                if seq == 1:
                    meter.begin()
                await (initiate if far else respond)(end, engine, seq + 1)
                state.channels *= np.float32(0.99)
            return meter.end()


async def initiate(end: End, engine: LoggedEngine, seq: int) -> None:
    freeze = Freeze(
        peer=end.peer,
        incarnation=0,
        seq=seq,
        version=seq,
        echo=None,
        weight=SAMPLES / 2,
        staleness=1.0,
        pace_s=0.1,
        audit=False,
    )
    frozen = await asyncio.to_thread(engine.run, freeze)
    end.say(expect(RequestFrozen, frozen).request)
    reply = expect(Reply, await end.inbox.get())
    expect(ReplyApplied, await asyncio.to_thread(engine.run, ApplyReply(peer=end.peer, reply=reply)))
    end.say(Ready(version=seq))


async def respond(end: End, engine: LoggedEngine, seq: int) -> None:
    request = expect(Request, await end.inbox.get())
    half = SAMPLES / 2
    apply = ApplyRequest(peer=end.peer, request=request, factor=half, weight=half, version=seq, pace_s=0.1)
    end.say(expect(RequestApplied, await asyncio.to_thread(engine.run, apply)).reply)
    await end.inbox.get()


def expect(kind: type[T], value: object) -> T:
    if not isinstance(value, kind):
        raise TypeError(value)
    return value


# -- layers alone -----------------------------------------------------------------------------------------------------


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


async def secretstream_scene(_pipe: Connection, options: Options, *, far: bool) -> Figures:
    """Seal and open in one process, chunk by chunk."""
    if far:
        return {}
    ours, theirs = KEYS
    sealing = Session(SessionKeys(send=ours, receive=theirs, session_id=b"", peer_public=b""))
    opening = Session(SessionKeys(send=theirs, receive=ours, session_id=b"", peer_public=b""))
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


# -- all scenes -------------------------------------------------------------------------------------------------------

Scene = Callable[..., Coroutine[Any, Any, Figures]]
SCENES: dict[str, Scene] = {
    "links": links_scene,
    "links, listener sends": partial(links_scene, far_sends=True),
    "secretstream": secretstream_scene,
    "digest": digest_scene,
    "socket": socket_scene,
    "exchange: none": partial(exchange_scene, compressor="none"),
    "exchange: q4": partial(exchange_scene, compressor="q4"),
    "logged: none": partial(exchange_scene, compressor="none", logged=True),
    "logged: q4": partial(exchange_scene, compressor="q4", logged=True),
}


def enter(scene: Scene, options: Options, pipe: Connection, result: Connection, *, far: bool) -> None:
    result.send(asyncio.run(scene(pipe, options, far=far)))


def play(scene: Scene, options: Options) -> dict[str, Figures]:
    """Return the figures of the two ends, each in a fresh process. Raises RuntimeError if one of them ends without
    any.
    """
    spawn = multiprocessing.get_context("spawn")
    running = {}
    for name, pipe in zip(("far", "near"), spawn.Pipe(), strict=True):
        result, there = spawn.Pipe(duplex=False)
        process = spawn.Process(target=enter, args=(scene, options, pipe, there), kwargs={"far": name == "far"})
        process.start()
        pipe.close()
        there.close()
        running[name] = (process, result)
    figures = {}
    while len(figures) < len(running):
        waiting = {name: ends for name, ends in running.items() if name not in figures}
        wait([result for _, result in waiting.values()])
        for name, (_, result) in waiting.items():
            if not result.poll():
                continue
            try:
                figures[name] = result.recv()
            except EOFError:  # otherwise the other end would wait forever
                for process, _ in running.values():
                    process.terminate()
                raise RuntimeError(f"the {name} end failed") from None
    for process, _ in running.values():
        process.join()
    return figures


def together(ends: dict[str, Figures], options: Options) -> Figures:
    figures: Figures = {}
    timed = [end for end in ends.values() if "cpu_s" in end]
    if timed:
        cpu_s = sum(end["cpu_s"] for end in timed) / options.messages
        figures["cpu_s_per_message"] = cpu_s
        figures["cpu_s_per_gb"] = cpu_s / options.body_bytes * 1e9
        figures["wall_s_per_message"] = max(end["wall_s"] for end in timed) / options.messages
    for name, end in ends.items():
        figures |= {f"{name}_{key}": value for key, value in end.items() if key not in ("wall_s", "cpu_s")}
        if "peak_mb" in end:
            figures[f"{name}_peak_bodies"] = end["peak_mb"] * 1e6 / options.body_bytes
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, default=100.0, help="10^6 bytes of one body")
    parser.add_argument("--messages", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scenes", default="", help="only those whose name begins with one of these, by semicolon")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    words = tuple(word.strip() for word in options.scenes.split(";"))
    chosen = {name: scene for name, scene in SCENES.items() if name.startswith(words)}
    runs: dict[str, list[Figures]] = {name: [] for name in chosen}
    for _ in range(options.repeats):
        for name, scene in chosen.items():
            size_bytes = int(options.mb * 1e6) // 4 * 4
            size_bytes = min(size_bytes, EXCHANGE_BYTES) if name.startswith(("exchange", "logged")) else size_bytes
            sizes = Options(size_bytes, options.messages)
            runs[name].append(together(play(scene, sizes), sizes))
    report = {
        name: {key: statistics.median(run[key] for run in many) for key in many[0]} for name, many in runs.items()
    }
    for name, figures in report.items():
        print(f"{name}:", ", ".join(f"{key} {value:.3g}" for key, value in figures.items()))
    if options.json:
        about = {"mb": options.mb, "messages": options.messages, "cores": os.cpu_count()}
        options.json.write_text(json.dumps({"about": about, "median": report, "runs": runs}, indent=1))


if __name__ == "__main__":
    main()
