"""What a relay costs: memory for registered members that are idle, CPU-seconds per GB, bytes of an idle member, and how
long a quiet federation waits beside one that floods.

python benchmarks/relay.py [--members 1000] [--gb 1]

The relay is a process of its own; its memory and time are read from /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from logging import getLogger
from pathlib import Path

from p2pfl.crypto.identity import Identity
from p2pfl.features.relay.relay_frames import BEAT_S
from p2pfl.features.relay.relay_line import RelayLine
from p2pfl.features.relay.relay_link import LinkParts, RelayLink
from p2pfl.features.relay.tickets import make_token, read_token, register
from p2pfl.net.address import free_ports
from p2pfl.net.limits import Limits
from p2pfl.net.transport import Visit
from p2pfl.net.websocket import dial_url, open_browserless

CHUNK = bytes(1 << 18)
AT_ONCE = 20
LIMITS = Limits(connect_s=60.0, handshake_s=60.0)
HEADERS_BYTES = 52
"""IPv4 and TCP with timestamps."""


class Process:
    """A relay, and what it has used."""

    def __init__(self, folder: Path, tokens: list[Path]) -> None:
        self.port, metrics = free_ports(2)
        self.metrics = f"http://127.0.0.1:{metrics}/metrics"
        command = [sys.executable, "-m", "p2pfl.cli.main", "relay", "--listen", f"127.0.0.1:{self.port}"]
        command += [word for token in tokens for word in ("--token", str(token))]
        command += ["--members", "5000", "--metrics", f"127.0.0.1:{metrics}"]
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


async def measure(members: int, gigabytes: float, folder: Path) -> None:
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
        beside = await waits(asking, 50)
        await asyncio.gather(*flood)
        wall_s, used_s = time.perf_counter() - began, process.cpu_s() - before_s
        passed = count * len(lines) * len(CHUNK) / 1e9
        speed = f"{used_s / passed:.2f} CPU-seconds per GB, {1000 * passed / wall_s:.0f} MB/s"
        print(f"{passed:.2f} GB on {len(lines)} lines: {speed}")
        print(f"most memory: {process.resident_mb():.0f} MB")
        for name, found in (("alone", alone), ("beside the flood", beside)):
            median_ms, longest_ms = 1e3 * found[len(found) // 2], 1e3 * found[-1]
            print(f"round trip of a quiet federation {name}: median {median_ms:.1f} ms, longest {longest_ms:.1f} ms")
        task.cancel()
        await quiet.go()
        await busy.go()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=1000)
    parser.add_argument("--gb", type=float, default=1.0)
    options = parser.parse_args()
    needed = 2 * options.members + 200
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(needed, hard)), hard))
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(options.members, options.gb, Path(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
