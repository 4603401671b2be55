"""Bodies over lines that are slow, lossy, or cut again and again: bytes sent over bytes needed, seconds, sessions.

Two processes exchange bodies over TCP as two nodes do, through a process that shapes the line: a rate, a delay, lost
segments, cuts. A lost segment stalls its direction for a round trip, and twice as long each time that it is lost again,
as TCP does; nothing is reordered. With `--before CHECKOUT` the same runs with the code in another working tree; with
`--beside CHECKOUT` only the dialing end has it.

python benchmarks/cut_lines.py                                      12.5 MB (25 million parameters, q4), 1 Mbit/s, cut every 40 s
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
        place.setblocking(False)
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


async def be_end(index: int, dial: str, body_bytes: int, exchanges: int) -> None:
    """Exchange bodies with the other end: the lower end asks and dials, the upper one answers each request once."""
    from p2pfl.core.messages import Hello, Reply, Request, request_digest  # noqa: PLC0415 - of the checkout on the path
    from p2pfl.crypto.handshake import FederationBinding  # noqa: PLC0415
    from p2pfl.crypto.identity import Identity  # noqa: PLC0415
    from p2pfl.net.links import Links, Membership  # noqa: PLC0415
    from p2pfl.net.session_table import Callbacks  # noqa: PLC0415

    identities = [Identity(bytes([each + 1]) * 32) for each in range(2)]
    answered: list[Reply] = []
    done = 0
    over = asyncio.Event()

    def request(seq: int) -> Request:
        body = random.Random(seq).randbytes(body_bytes)
        fields = {"incarnation": 0, "seq": seq, "version": seq, "echo": None, "weight": 0.5, "staleness": 1.0}
        bare = Request(**fields, pace_s=0.1, audit=b"", body=body)
        return Request(**fields, pace_s=0.1, audit=b"", body=body, digest=request_digest(bare))

    pending = request(1) if index == 0 else None

    def opened(peer: int, session: int) -> None:
        tell(event="open")
        digest = answered[-1].request_digest if answered else b""
        hello = Hello(
            incarnation=0,
            seq=len(answered),
            pending=None,
            request_digest=digest,
            has_replicas=True,
            chain=bytes(16),
            chain_before=bytes(16),
            version=0,
            closing=None,
            level=None,
            done=False,
            have_yours=False,
        )
        links.send(peer, session, hello)

    def heard(peer: int, session: int, message: object) -> None:
        nonlocal pending, done
        if isinstance(message, Request):
            if message.seq == len(answered) + 1:
                if message.digest != request(message.seq).digest:
                    raise SystemExit("a request arrived changed")
                body = random.Random(-message.seq).randbytes(body_bytes)
                answered.append(reply_to(message, body))
                tell(event="applied")
            links.send(peer, session, answered[-1])
            return
        if isinstance(message, Reply) and pending is not None and message.request_digest == pending.digest:
            if bytes(message.body) != random.Random(-message.seq).randbytes(body_bytes):
                raise SystemExit("a reply arrived changed")
            done += 1
            tell(event="done")
            if done == exchanges:
                over.set()
                return
            pending = request(done + 1)
        if isinstance(message, Hello | Reply) and pending is not None:
            links.send(peer, session, pending)

    def reply_to(asked: Request, body: bytes) -> Reply:
        return Reply(
            incarnation=0,
            seq=asked.seq,
            request_digest=asked.digest,
            version=asked.seq,
            factor=0.0,
            pace_s=0.1,
            body=body,
        )

    links = Links(
        Membership(
            identity=identities[index],
            own_index=index,
            members={identity.public: place for place, identity in enumerate(identities)},
            neighbors=frozenset({1 - index}),
            dial={1: dial} if index == 0 else {},
            binding=FederationBinding(federation_id=bytes(32), sections=(("task", bytes(32)),)),
        ),
        Callbacks(on_open=opened, on_message=heard, on_close=lambda *closed: tell(event="closed", reason=closed[2])),
        listen="127.0.0.1:0",
        max_body_bytes=body_bytes,
        rng=random.Random(index),
    )
    async with links:
        tell(event="port", port=links.port)
        await over.wait()


def tell(**news: object) -> None:
    print(json.dumps(news), flush=True)


# -- one run -----------------------------------------------------------------------------------------------------------


async def measure(options: argparse.Namespace, codes: tuple[Path, Path], label: str) -> dict[str, object]:
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
    line = ShapedLine(Shape(options.kbit_s, options.rtt_s, options.loss, options.cut_s), port, random.Random(options.seed))
    server = await line.serve()
    listening = asyncio.create_task(follow(upper, 1))
    began = time.monotonic()
    lower = await start(0, f"127.0.0.1:{line.port}")
    try:
        await asyncio.wait_for(follow(lower, 0), options.limit_s)
    except TimeoutError:
        pass
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
        asyncio.run(be_end(int(index), dial, int(body_bytes), int(exchanges)))
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
            f"{row['code']}: {row['exchanges']} of {row['of']} exchanges in {row['seconds']} s, {row['sessions']} sessions,"
            f" {row['cuts']} cuts, {row['bytes_over_needed']} times the bytes needed; ends: {'; '.join(row['ends']) or 'none'}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
