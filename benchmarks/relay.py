"""What a relay costs: memory for registered members that are idle, CPU-seconds per GB, bytes of an idle member, how
long a quiet federation waits beside one that floods, and what a stranger can make it spend.

python benchmarks/relay.py [--members 1000] [--gb 1] [--seconds 5]
python benchmarks/relay.py --edge holds|narrow [--seconds 60]

The relay is a process of its own; its memory and time are read from /proc.

With --edge: what becomes of an edge whose relay holds each frame with data for a second and answers the rest at once,
or passes on .2 Mbit/s, while another relay is idle. Two members exchange bodies of 20 kB as fast as they can. It prints
how many exchanges a second there were in each five seconds, and by which relay. Looks at other relays are 5 s apart in
place of 30.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from logging import Logger, getLogger
from pathlib import Path
from typing import Any

import aiohttp
from msgspec import structs

from p2pfl.core.messages import Reply, Request, request_digest
from p2pfl.crypto.handshake import FederationBinding
from p2pfl.crypto.identity import Identity
from p2pfl.features.relay.admissions import Admissions, ListedFederation
from p2pfl.features.relay.by_relay import ByRelayTransport
from p2pfl.features.relay.relay_frames import (
    BEAT_S,
    PASSED_ON,
    Challenge,
    Closing,
    FrameKind,
    pack_number,
    pack_struct,
    struct_in,
    unpack,
)
from p2pfl.features.relay.relay_line import RelayLine
from p2pfl.features.relay.relay_link import LinkParts, RelayLink
from p2pfl.features.relay.relay_server import RelayServer
from p2pfl.features.relay.switchboard import Switchboard
from p2pfl.features.relay.tickets import make_token, read_token, register
from p2pfl.net.address import Address, free_ports
from p2pfl.net.limits import Limits
from p2pfl.net.line import Counters, GoneError, Line
from p2pfl.net.links import Links, Membership
from p2pfl.net.refusals import Refusals
from p2pfl.net.session_table import Callbacks
from p2pfl.net.transport import Visit
from p2pfl.net.websocket import WebSocketTransport, dial_url, open_browserless

CHUNK = bytes(1 << 18)
AT_ONCE = 20
LIMITS = Limits(connect_s=60.0, handshake_s=60.0)
SMALL_LINES = 8
STRANGERS = 200
REGISTERS, SAYS_NOTHING, SENDS = "register with a wrong token", "say nothing more", "send 300 messages of a byte"
PASSED = "p2pfl_relay_passed_bytes_total"
SPAWN = multiprocessing.get_context("spawn")
HELD_S, BODY_BYTES, WINDOW_S = 1.0, 20_520, 5.0
HEADERS_BYTES = 52
"""IPv4 and TCP with timestamps."""


class Process:
    """A relay, and what it has used."""

    def __init__(self, folder: Path, tokens: list[Path], *options: str) -> None:
        self.port, metrics = free_ports(2)
        self.metrics = f"http://127.0.0.1:{metrics}/metrics"
        command = [sys.executable, "-m", "p2pfl.cli.main", "relay", "--listen", f"127.0.0.1:{self.port}"]
        command += [word for token in tokens for word in ("--token", str(token))]
        command += ["--members", "5000", "--metrics", f"127.0.0.1:{metrics}", *options]
        with (folder / "relay.log").open("w") as log:
            self.popen = subprocess.Popen(command, stdout=log, stderr=log)

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/p2pfl"

    def resident_mb(self) -> float:
        status = Path(f"/proc/{self.popen.pid}/status").read_text(encoding="ascii")
        found = re.search(r"VmRSS:\s+(\d+)", status)
        return int(found[1]) / 1024 if found else 0.0

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.popen.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def sockets(self) -> int:
        """Return how many it holds beyond those of registered members and of the metrics."""
        held = 0
        for place in Path(f"/proc/{self.popen.pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                held += "socket:" in str(place.readlink())
        return held - int(self.figure("p2pfl_relay_members"))

    def figure(self, name: str) -> float:
        with urllib.request.urlopen(self.metrics, timeout=10) as answer:  # noqa: S310 - our own process
            text = answer.read().decode()
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))


class Members:
    """Members of one federation, all in this process."""

    def __init__(self, url: str, token: bytes, count: int, dialed: asyncio.Queue[RelayLine]) -> None:
        self.url, self.token, self.dialed = url, token, dialed
        self.identities = [Identity.generate() for _ in range(count)]
        self.links: list[RelayLink] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def come(self) -> None:
        http = self.http = open_browserless()
        for identity in self.identities:
            parts = LinkParts(
                dial=lambda url: dial_url(http, url),
                answer=lambda name, challenge, identity=identity: register(
                    identity, challenge, relay=name, token=self.token
                ),
                limits=LIMITS,
                log=getLogger("benchmark"),
            )
            self.links.append(RelayLink(self.url, parts))
            self.tasks.append(asyncio.create_task(self.links[-1].keep(self._meet)))
            while sum(not link.is_registered for link in self.links) >= AT_ONCE:  # noqa: ASYNC110 - a benchmark
                await asyncio.sleep(0.01)
        while not all(link.is_registered for link in self.links):  # noqa: ASYNC110 - a benchmark
            await asyncio.sleep(0.05)

    def _meet(self, line: RelayLine, visit: Visit) -> asyncio.Task[None]:
        del visit
        self.dialed.put_nowait(line)
        return asyncio.create_task(asyncio.sleep(0))

    async def go(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.http.close()

    async def pair(self, one: int, other: int) -> tuple[RelayLine, RelayLine]:
        return await self.links[one].dial(self.identities[other].public), await self.dialed.get()


async def stream(line: RelayLine, count: int) -> None:
    for _ in range(count):
        await line.send(CHUNK)


async def drain(line: RelayLine, count: int) -> None:
    for _ in range(count):
        await line.receive()


async def echo(line: RelayLine) -> None:
    while True:
        await line.send(await line.receive())


async def waits(line: RelayLine, times: int) -> list[float]:
    """Return the seconds of some round trips of a small message."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        await line.send(b"x" * 100)
        await line.receive()
        found.append(time.perf_counter() - began)
        await asyncio.sleep(0.02)
    return sorted(found)


async def flood_small(url: str, token: bytes) -> int:
    """Send messages of one byte between members of one federation as fast as the relay takes them."""
    members = Members(url, token, 2 * SMALL_LINES, asyncio.Queue())
    await members.come()
    pairs = [await members.pair(2 * number, 2 * number + 1) for number in range(SMALL_LINES)]
    async with asyncio.TaskGroup() as tasks:
        for one, other in pairs:
            tasks.create_task(pour(one))
            tasks.create_task(drain(other, 2**62))
    return 0


async def pour(line: RelayLine) -> None:
    while True:
        for _ in range(32):
            await line.send(b"x")
        await asyncio.sleep(0)


async def flood_frames(url: str, token: bytes) -> None:
    """Register as a member, and send frames that serve nothing, as fast as the relay takes them."""
    async with aiohttp.ClientSession() as session, session.ws_connect(url) as socket:
        challenge = struct_in(unpack((await socket.receive()).data), FrameKind.CHALLENGE, Challenge)
        answer = register(Identity.generate(), challenge, relay=url.partition("://")[2], token=token)
        await socket.send_bytes(pack_struct(FrameKind.REGISTER, answer))
        await socket.receive()
        frame = pack_number(FrameKind.CLOSE, PASSED_ON, Closing.DONE)
        while True:
            await socket.send_bytes(frame)


async def flood_dials(url: str, how: str, addresses: int, tried: Any) -> None:
    """Dial the relay again and again as a stranger from some addresses, and go as far as `how` says."""
    identity = Identity.generate()

    async def dial(session: aiohttp.ClientSession) -> None:
        async with session.ws_connect(url) as socket:
            first = await socket.receive()
            if not isinstance(first.data, bytes):
                return
            challenge = struct_in(unpack(first.data), FrameKind.CHALLENGE, Challenge)
            if how == REGISTERS:
                answer = register(identity, challenge, relay=url.partition("://")[2], token=bytes(32))
                await socket.send_bytes(pack_struct(FrameKind.REGISTER, answer))
            for _ in range(300 if how == SENDS else 0):
                await socket.send_bytes(b"x")
            tried[1] += isinstance((await socket.receive()).data, bytes)

    async def again_and_again(session: aiohttp.ClientSession) -> None:
        while True:
            tried[0] += 1
            try:
                async with asyncio.timeout(15.0):
                    await dial(session)
            except (aiohttp.ClientError, OSError, TimeoutError):
                await asyncio.sleep(0.01)

    places = [(f"127.0.1.{number + 1}", 0) for number in range(addresses)]
    sessions = [
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(local_addr=place, limit=0, force_close=True))
        for place in places
    ]
    async with asyncio.TaskGroup() as tasks:
        for number in range(STRANGERS):
            tasks.create_task(again_and_again(sessions[number % addresses]))


def run_flood(flood: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> None:
    asyncio.run(flood(*arguments))


@contextmanager
def beside(flood: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> Iterator[None]:
    """Let a process of its own flood the relay."""
    process = SPAWN.Process(target=run_flood, args=(flood, *arguments), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


@asynccontextmanager
async def relay_with(folder: Path) -> AsyncIterator[tuple[Process, list[bytes]]]:
    files = [folder / f"{name}.token" for name in ("busy", "quiet")]
    for file in files:
        make_token(file)
    process = Process(folder, files)
    try:
        while True:
            try:
                process.figure("p2pfl_relay_faults_total")
                break
            except OSError:
                await asyncio.sleep(0.1)
        yield process, [read_token(file) for file in files]
    finally:
        process.popen.terminate()
        process.popen.wait(10)


async def measure(members: int, gigabytes: float, seconds: float, folder: Path) -> None:
    async with relay_with(folder) as (process, (busy_token, quiet_token)):
        before_mb, before_s = process.resident_mb(), process.cpu_s()
        busy = Members(process.url, busy_token, members, asyncio.Queue())
        await busy.come()
        await asyncio.sleep(2.0)
        grown = process.resident_mb() - before_mb
        print(
            f"{members} members registered: {before_mb:.0f} MB + {grown:.0f} MB, {1024 * grown / members:.1f} kB each"
        )
        print(f"registering: {1000 * (process.cpu_s() - before_s) / members:.1f} ms of the relay's processor each")
        before_s = process.cpu_s()
        await asyncio.sleep(3 * BEAT_S)
        a_day = 86_400 / (3 * BEAT_S) * (process.cpu_s() - before_s)
        ping = 2 * (13 + 6 + HEADERS_BYTES) + 2 * HEADERS_BYTES
        print(
            f"idle: {a_day:.0f} CPU-seconds a day in all, {ping * 86_400 / BEAT_S / 1e6:.2f} MB a day for each member"
        )
        quiet = Members(process.url, quiet_token, 2, asyncio.Queue())
        await quiet.come()
        asking, answering = await quiet.pair(0, 1)
        task = asyncio.create_task(echo(answering))
        alone = await waits(asking, 50)
        lines = [await busy.pair(2 * number, 2 * number + 1) for number in range(4)]
        count = int(gigabytes * 1e9 / len(CHUNK) / len(lines))
        before_s, began = process.cpu_s(), time.perf_counter()
        flood = [
            asyncio.create_task(work) for one, other in lines for work in (stream(one, count), drain(other, count))
        ]
        found = await waits(asking, 50)
        await asyncio.gather(*flood)
        wall_s, used_s = time.perf_counter() - began, process.cpu_s() - before_s
        passed = count * len(lines) * len(CHUNK) / 1e9
        speed = f"{used_s / passed:.2f} CPU-seconds per GB, {1000 * passed / wall_s:.0f} MB/s"
        print(f"{passed:.2f} GB on {len(lines)} lines: {speed}")
        print(f"most memory: {process.resident_mb():.0f} MB")
        say_waits("alone", alone)
        say_waits("beside the flood", found)
        with beside(flood_small, process.url, busy_token):
            await asyncio.sleep(2.0)
            before_s, before, began = process.cpu_s(), process.figure(PASSED), time.perf_counter()
            found = await waits(asking, 50)
            await asyncio.sleep(seconds)
            passed, wall_s = process.figure(PASSED) - before, time.perf_counter() - began
            used_ms = 1e3 * (process.cpu_s() - before_s)
        print(f"messages of one byte: {passed / wall_s:.0f} a second, {used_ms / max(1, passed):.2f} ms each")
        say_waits("beside them", found)
        with beside(flood_frames, process.url, busy_token):
            await asyncio.sleep(2.0)
            say_waits("beside a member that sends frames for no line", await waits(asking, 50))
        await measure_strangers(process, asking, seconds)
        task.cancel()
        await quiet.go()
        await busy.go()


def say_waits(name: str, found: list[float]) -> None:
    median_ms, longest_ms = 1e3 * found[len(found) // 2], 1e3 * found[-1]
    print(f"round trip of a quiet federation {name}: median {median_ms:.1f} ms, longest {longest_ms:.1f} ms")


async def measure_strangers(process: Process, asking: RelayLine, seconds: float) -> None:
    """Let strangers dial for some seconds in each of three ways, from one address and from twenty."""
    for how in (REGISTERS, SAYS_NOTHING, SENDS):
        for addresses in (1, 20):
            tried = SPAWN.Array("q", 2)
            with beside(flood_dials, process.url, how, addresses, tried):
                while not tried[0]:  # noqa: ASYNC110 - another process counts
                    await asyncio.sleep(0.05)
                await asyncio.sleep(seconds)  # what may be spent at once is spent
                before_s, before_mb, began, before = (
                    process.cpu_s(),
                    process.resident_mb(),
                    time.perf_counter(),
                    tried[:],
                )
                found, sockets = await waits(asking, 20), 0
                while time.perf_counter() - began < seconds:
                    await asyncio.sleep(0.05)
                    sockets = max(sockets, process.sockets())
                used_s, wall_s = process.cpu_s() - before_s, time.perf_counter() - began
                tries, answers = (now - then for now, then in zip(tried[:], before, strict=True))
                grown_kb = 1024 * (process.resident_mb() - before_mb)
            print(
                f"strangers that {how}, {addresses} addresses: {tries / wall_s:.0f} tries a second, "
                f"{answers / wall_s:.0f} answered, {100 * used_s / wall_s:.0f}% of a core, "
                f"{1e3 * used_s / max(1, tries):.2f} ms a try, {grown_kb:.0f} kB in all, at most {sockets} sockets"
            )
            say_waits("meanwhile", found)
            await asyncio.sleep(min(2.0, seconds))


class Holding(Line):
    """The relay's end of a member's connection, which holds each frame with data for a second."""

    def __init__(self, inner: Line) -> None:
        super().__init__()
        self.inner = inner
        self.held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        self.pump = asyncio.create_task(self._let_go())

    own_address = property(lambda self: self.inner.own_address)  # type: ignore[assignment]
    peer_address = property(lambda self: self.inner.peer_address)  # type: ignore[assignment]
    bytes_came = property(lambda self: self.inner.bytes_came)  # type: ignore[assignment]

    async def _push(self, data: bytes) -> None:
        if unpack(data).kind is FrameKind.DATA:
            self.held.put_nowait((time.monotonic() + HELD_S, data))
        else:
            await self.inner.send(data)

    async def _let_go(self) -> None:
        with suppress(GoneError):
            while True:
                at, data = await self.held.get()
                await asyncio.sleep(at - time.monotonic())
                await self.inner.send(data)

    async def _pull(self) -> bytes:
        return await self.inner.receive()

    async def close(self, within_s: float) -> None:
        self.pump.cancel()
        await self.inner.close(within_s)


def hold_relay(port: int, token: bytes) -> None:
    """Be a relay that holds data back."""

    async def run() -> None:
        log = getLogger("benchmark")
        refusals = Refusals(Counters.of(()), log, lambda *_: None)
        server = RelayServer(Admissions([ListedFederation(name="ward", token=token)], ()), Switchboard(), refusals)
        transport = WebSocketTransport(Limits(), refusals, log)
        await transport.open(Address("127.0.0.1", port), lambda line, visit: server.meet(Holding(line), visit))
        await server.run()

    asyncio.run(run())


class Member:
    """One end of an edge: the lower one asks as soon as it has an answer, the other one answers."""

    def __init__(self, index: int, identities: list[Identity], urls: list[str], token: bytes) -> None:
        self.index, self.done = index, 0
        body = os.urandom(BODY_BYTES)
        bare = Request(
            incarnation=0, seq=1, version=1, echo=None, weight=0.5, staleness=1.0, pace_s=0.1, audit=b"", body=body
        )
        self.request = structs.replace(bare, digest=request_digest(bare))

        def transport(limits: Limits, refusals: Refusals, log: Logger) -> ByRelayTransport:
            self.http = open_browserless()
            parts = LinkParts(
                dial=lambda url: dial_url(self.http, url),
                answer=lambda name, challenge: register(identities[index], challenge, relay=name, token=token),
                limits=limits,
                log=log,
            )
            direct = WebSocketTransport(limits, refusals, log)
            return ByRelayTransport(direct, [RelayLink(url, parts) for url in urls], at_end=self.http.close)

        self.links = Links(
            Membership(
                identity=identities[index],
                own_index=index,
                members={identity.public: number for number, identity in enumerate(identities)},
                neighbors=frozenset({1 - index}),
                dial={},
                binding=FederationBinding(federation_id=bytes(32), sections=()),
            ),
            Callbacks(on_open=self.ask, on_message=self.hear, on_close=lambda *_: None),
            listen="127.0.0.1:0",
            max_body_bytes=2 * BODY_BYTES,
            rng=random.Random(index),
            limits=Limits(direct_again_s=5.0),
            transport=transport,
        )
        said: Any = self.links.transport
        said.on_slow = lambda relay, _, text: print(f"relay-slow: {relay.url}: {text}")

    def ask(self, peer: int, session: int) -> None:
        if self.index < peer:
            bare = structs.replace(self.request, seq=self.done + 1)
            self.links.send(peer, session, structs.replace(bare, digest=request_digest(bare)))

    def hear(self, peer: int, session: int, message: Any) -> None:
        if isinstance(message, Request):
            answer = Reply(
                incarnation=0,
                seq=message.seq,
                request_digest=message.digest,
                version=message.seq,
                factor=0.0,
                pace_s=0.1,
                body=self.request.body,
            )
            self.links.send(peer, session, answer)
        elif isinstance(message, Reply) and message.seq == self.done + 1:
            self.done += 1
            self.ask(peer, session)


async def measure_edge(kind: str, seconds: float, folder: Path) -> None:
    """Print how many exchanges a second an edge makes that begins at a bad relay, before another one is there."""
    make_token(token_file := folder / "relay.token")
    token, identities = read_token(token_file), [Identity.generate(), Identity.generate()]
    bad_port = free_ports(1)[0]
    holder = SPAWN.Process(target=hold_relay, args=(bad_port, token), daemon=True)
    processes, url = [], f"ws://127.0.0.1:{bad_port}/p2pfl"
    if kind == "holds":
        holder.start()
    else:
        processes.append(Process(folder, [token_file], "--mbit", "0.2"))
        url = processes[0].url
    processes.append(idle := Process(folder, [token_file]))
    idle.popen.send_signal(signal.SIGSTOP)
    try:
        lower, upper = (Member(index, identities, [url, idle.url], token) for index in (0, 1))
        async with lower.links, upper.links:
            while lower.done < 1:  # noqa: ASYNC110 - a benchmark
                await asyncio.sleep(0.05)
            idle.popen.send_signal(signal.SIGCONT)
            for _ in range(round(seconds / WINDOW_S)):
                before = lower.done
                await asyncio.sleep(WINDOW_S)
                session = lower.links.session(1)
                way = None if session is None else {url: kind, idle.url: "idle"}.get(session[1].relay or "")
                print(
                    f"{(lower.done - before) / WINDOW_S:.1f} exchanges a second, by the relay that is: {way}",
                    flush=True,
                )
    finally:
        for process in processes:
            process.popen.kill()
            process.popen.wait(10)
        if holder.is_alive():
            holder.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=1000)
    parser.add_argument("--gb", type=float, default=1.0)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--edge", choices=["holds", "narrow"])
    options = parser.parse_args()
    if options.edge:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(measure_edge(options.edge, options.seconds or 60.0, Path(folder)))
        return 0
    needed = 2 * options.members + 200
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(needed, hard)), hard))
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(options.members, options.gb, options.seconds or 5.0, Path(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
