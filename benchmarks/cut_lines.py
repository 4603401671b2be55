"""Bodies over lines that are slow, lossy, or cut again and again: bytes sent over bytes needed, seconds, sessions.

Two processes exchange bodies over TCP as two nodes do, through a process that shapes the line: a rate, a delay, lost
segments, cuts. A lost segment stalls its direction for a round trip, and twice as long each time that it is lost again,
as TCP does; nothing is reordered. With `--before CHECKOUT` the same runs with the code in another working tree; with
`--beside CHECKOUT` only the dialing end has it.

python benchmarks/cut_lines.py
    12.5 MB (25 million parameters, q4) over 1 Mbit/s, cut every 40 s
python benchmarks/cut_lines.py --mb 1 --kbit-s 50 --rtt-s 2 --loss 0.05 --cut-s 0
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from p2pfl.core.messages import Hello, Message, Reply, Request, request_digest
from p2pfl.crypto.handshake import FederationBinding
from p2pfl.crypto.identity import Identity
from p2pfl.net.links import Links, Membership
from p2pfl.net.session_table import Callbacks

ROOT = Path(__file__).parents[1]
SEGMENT_BYTES = 1460
SOCKET_BYTES = 16 * 1024
"""The buffers of the shaped line's sockets: it has little room of its own."""
STEP_S = 0.02
LONGEST_STALL_S = 30.0


@dataclass
class Shape:
    kbit_s: float
    rtt_s: float
    loss: float
    cut_s: float


@dataclass
class ShapedLine:
    """Forwards TCP from `port` to `target`, with a rate in each direction, and ends every connection after a time."""

    shape: Shape
    target: int
    chance: random.Random
    port: int = 0
    passed: list[int] = field(default_factory=lambda: [0, 0])
    """The bytes that left the line in each direction: from the dialing end, and to it."""
    cuts: int = 0

    async def serve(self) -> asyncio.Server:
        server = await asyncio.start_server(self._accept, sock=small_socket(("127.0.0.1", 0)), limit=SOCKET_BYTES)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _accept(self, near: asyncio.StreamReader, to_near: asyncio.StreamWriter) -> None:
        place = small_socket(None)
        place.settimeout(0.0)
        try:
            await asyncio.get_running_loop().sock_connect(place, ("127.0.0.1", self.target))
        except OSError:
            to_near.transport.abort()
            return
        far, to_far = await asyncio.open_connection(sock=place, limit=SOCKET_BYTES)
        to_near.transport.set_write_buffer_limits(high=SOCKET_BYTES)
        to_far.transport.set_write_buffer_limits(high=SOCKET_BYTES)
        both = [asyncio.create_task(self._pump(near, to_far, 0)), asyncio.create_task(self._pump(far, to_near, 1))]
        await asyncio.wait(both, timeout=self.shape.cut_s or None, return_when=asyncio.FIRST_COMPLETED)
        self.cuts += not any(task.done() for task in both)
        for task in both:
            task.cancel()
        to_near.transport.abort()
        to_far.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, way: int) -> None:
        clock, shape = asyncio.get_running_loop().time, self.shape
        room = asyncio.Semaphore(max(8, round(2 * shape.rtt_s * shape.kbit_s * 125 / SEGMENT_BYTES)))
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        leaving = asyncio.create_task(self._leave(under_way, sink, way, room))
        free_s = clock()
        try:
            while data := await source.read(SEGMENT_BYTES):
                await room.acquire()
                free_s = max(free_s, clock()) + len(data) / (shape.kbit_s * 125)
                stall_s = shape.rtt_s
                while self.chance.random() < shape.loss:
                    free_s, stall_s = free_s + stall_s, min(2 * stall_s, LONGEST_STALL_S)
                under_way.put_nowait((free_s + shape.rtt_s / 2, data))
                if free_s - clock() > STEP_S:
                    await asyncio.sleep(free_s - clock())
            await asyncio.sleep(shape.rtt_s)
        except OSError:
            pass
        finally:
            leaving.cancel()

    async def _leave(
        self,
        under_way: asyncio.Queue[tuple[float, bytes]],
        sink: asyncio.StreamWriter,
        way: int,
        room: asyncio.Semaphore,
    ) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            due_s, data = await under_way.get()
            if due_s - clock() > STEP_S:
                await asyncio.sleep(due_s - clock())
            with suppress(OSError):
                sink.write(data)
                await sink.drain()
            self.passed[way] += len(data)
            room.release()


def small_socket(place: tuple[str, int] | None) -> socket.socket:
    made = socket.socket()
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        made.setsockopt(socket.SOL_SOCKET, option, SOCKET_BYTES)
    if place is not None:
        made.bind(place)
    return made


# -- the two ends ------------------------------------------------------------------------------------------------------


class End:
    """One end: the lower one dials and asks, the upper one answers, and answers again what it has answered before."""

    def __init__(self, index: int, body_bytes: int, exchanges: int) -> None:
        self.index, self.body_bytes, self.exchanges = index, body_bytes, exchanges
        self.answered: list[Reply] = []
        self.pending = self.request(1) if index == 0 else None
        self.over = asyncio.Event()
        self.links: Links

    async def run(self, dial: str) -> None:
        identities = [Identity(bytes([each + 1]) * 32) for each in range(2)]
        membership = Membership(
            identity=identities[self.index],
            own_index=self.index,
            members={identity.public: place for place, identity in enumerate(identities)},
            neighbors=frozenset({1 - self.index}),
            dial={1: dial} if self.index == 0 else {},
            binding=FederationBinding(federation_id=bytes(32), sections=(("task", bytes(32)),)),
        )
        self.links = Links(
            membership,
            Callbacks(
                on_open=self.opened,
                on_message=self.hear,
                on_close=lambda _peer, _session, reason: tell(event="closed", reason=reason),
            ),
            listen="127.0.0.1:0",
            max_body_bytes=self.body_bytes,
            rng=random.Random(self.index),
        )
        async with self.links:
            tell(event="port", port=self.links.port)
            await self.over.wait()

    def opened(self, peer: int, session: int) -> None:
        tell(event="open")
        hello = Hello(
            incarnation=0,
            seq=len(self.answered),
            pending=None,
            request_digest=self.answered[-1].request_digest if self.answered else b"",
            has_replicas=True,
            chain=bytes(16),
            chain_before=bytes(16),
            version=0,
            closing=None,
            level=None,
            done=False,
            have_yours=False,
        )
        self.links.send(peer, session, hello)

    def hear(self, peer: int, session: int, message: Message) -> None:
        if isinstance(message, Request):
            self.answer(message)
            self.links.send(peer, session, self.answered[-1])
            return
        if isinstance(message, Reply) and self.pending is not None:
            self.take(message, self.pending)
        if isinstance(message, Hello | Reply) and self.pending is not None:
            self.links.send(peer, session, self.pending)

    def answer(self, asked: Request) -> None:
        if asked.seq != len(self.answered) + 1:
            return
        if asked.digest != self.request(asked.seq).digest:
            raise SystemExit("a request arrived changed")
        reply = Reply(
            incarnation=0,
            seq=asked.seq,
            request_digest=asked.digest,
            version=asked.seq,
            factor=0.0,
            pace_s=0.1,
            body=random.Random(-asked.seq).randbytes(self.body_bytes),
        )
        self.answered.append(reply)
        tell(event="applied")

    def take(self, reply: Reply, pending: Request) -> None:
        if reply.request_digest != pending.digest:
            return
        if bytes(reply.body) != random.Random(-reply.seq).randbytes(self.body_bytes):
            raise SystemExit("a reply arrived changed")
        tell(event="done")
        is_last = reply.seq == self.exchanges
        self.pending = None if is_last else self.request(reply.seq + 1)
        if is_last:
            self.over.set()

    def request(self, seq: int) -> Request:
        bare = Request(
            incarnation=0,
            seq=seq,
            version=seq,
            echo=None,
            weight=0.5,
            staleness=1.0,
            pace_s=0.1,
            audit=b"",
            body=random.Random(seq).randbytes(self.body_bytes),
        )
        return replace(bare, digest=request_digest(bare))


def tell(**news: object) -> None:
    print(json.dumps(news), flush=True)


# -- one run -----------------------------------------------------------------------------------------------------------


async def measure(options: argparse.Namespace, codes: tuple[Path, Path], label: str) -> dict[str, Any]:
    """Run both ends with the code of two checkouts until all exchanges are done, or the time is over."""
    body_bytes = round(options.mb * 1e6)
    seen: list[dict[str, object]] = []

    async def start(index: int, dial: str) -> asyncio.subprocess.Process:
        words = [sys.executable, __file__, "end", str(index), dial, str(body_bytes), str(options.exchanges)]
        environment = os.environ | {"PYTHONPATH": str(codes[index])}
        return await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE, env=environment)

    async def follow(process: asyncio.subprocess.Process, index: int) -> None:
        assert process.stdout is not None  # noqa: S101
        while line := await process.stdout.readline():
            seen.append(json.loads(line) | {"end": index})

    upper = await start(1, "-")
    assert upper.stdout is not None  # noqa: S101
    port = json.loads(await upper.stdout.readline())["port"]
    shape = Shape(options.kbit_s, options.rtt_s, options.loss, options.cut_s)
    line = ShapedLine(shape, port, random.Random(options.seed))
    server = await line.serve()
    listening = asyncio.create_task(follow(upper, 1))
    began = time.monotonic()
    lower = await start(0, f"127.0.0.1:{line.port}")
    with suppress(TimeoutError):
        await asyncio.wait_for(follow(lower, 0), options.limit_s)
    took_s = time.monotonic() - began
    for process in (lower, upper):
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    listening.cancel()
    server.close()
    done = sum(news["event"] == "done" for news in seen)
    needed = 2 * body_bytes * options.exchanges
    reasons = sorted({str(news["reason"]) for news in seen if news["event"] == "closed"})
    return {
        "code": label,
        "mb": options.mb,
        "kbit_s": options.kbit_s,
        "rtt_s": options.rtt_s,
        "loss": options.loss,
        "cut_s": options.cut_s,
        "exchanges": done,
        "of": options.exchanges,
        "seconds": round(took_s, 1),
        "sessions": sum(news["event"] == "open" and news["end"] == 0 for news in seen),
        "cuts": line.cuts,
        "bytes_sent": sum(line.passed),
        "bytes_over_needed": round(sum(line.passed) / needed, 3),
        "ends": reasons,
    }


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, default=12.5, help="size of each body (default %(default)s)")
    parser.add_argument("--exchanges", type=int, default=1, help="a request and a reply each (default %(default)s)")
    parser.add_argument("--kbit-s", type=float, default=1000.0, help="in each direction (default %(default)s)")
    parser.add_argument("--rtt-s", type=float, default=0.1, help="round trip (default %(default)s)")
    parser.add_argument("--loss", type=float, default=0.0, help="lost segments of 1460 bytes (default %(default)s)")
    parser.add_argument("--cut-s", type=float, default=40.0, help="age at which a connection is cut; 0: never")
    parser.add_argument("--limit-s", type=float, default=900.0, help="give up after (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the losses")
    parser.add_argument("--before", type=Path, help="another checkout, to run too")
    parser.add_argument("--beside", type=Path, help="another checkout, of which the dialing end is, in one more run")
    parser.add_argument("--json", type=Path, help="write the figures there")
    return parser.parse_args()


def main() -> None:
    if sys.argv[1:2] == ["end"]:
        logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
        index, dial, body_bytes, exchanges = sys.argv[2:]
        asyncio.run(End(int(index), int(body_bytes), int(exchanges)).run(dial))
        return
    options = read_options()
    runs = [("this", (ROOT, ROOT))]
    runs += [("before", (options.before, options.before))] if options.before else []
    runs += [("dialing end before", (options.beside, ROOT))] if options.beside else []
    rows = []
    for label, codes in runs:
        row = asyncio.run(measure(options, codes, label))
        rows.append(row)
        print(
            f"{row['code']}: {row['exchanges']} of {row['of']} exchanges in {row['seconds']} s,"
            f" {row['sessions']} sessions, {row['cuts']} cuts, {row['bytes_over_needed']} times the bytes needed;"
            f" sessions ended by: {'; '.join(row['ends']) or 'nothing'}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
