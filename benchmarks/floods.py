"""The cost to a training node of a flood from strangers without a key: rounds and exchanges per second, in alternating
runs.

Real processes: a node, its neighbors, and another that floods the node over loopback. The floods are pings: 2,600 empty
pings after each WebSocket request, 76 connections a second; junk: WebSocket requests with an invalid first message,
1,000 a second; chunks: POST to the page in chunks of one byte, 20 MB/s, by a name that needs the token; quiet:
connections that send nothing, 2,000 a second. `own` floods come from the neighbors' address, `many` from 200. Rounds
"train" by waiting. Figures are medians over the repeats; rounds and exchanges are also given relative to a
run without a flood, and the CPU time of the node and of the flooding process in % of a core. `--core` gives the node a
share of a core, by a control group: as root. Linux only; nothing leaves this machine.

Usage: python benchmarks/floods.py [--floods none,pings,chunks,junk,quiet] [--from own,many]
       [--seconds 6] [--repeats 3] [--nodes 3] [--round-s 0.02] [--core 0.2]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from p2pfl.net.address import free_ports

UPGRADE = (
    b"GET /p2pfl HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
PING = b"\x89\x80\0\0\0\0"
JUNK = b"\x82\xb0" + bytes(4 + 48)
POST = b"POST /status HTTP/1.1\r\nHost: 192.0.2.1\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKS = b"1\r\nx\r\n" * 10_000
RESET = struct.pack("ii", 1, 0)
SOURCES: dict[str, list[str]] = {"own": ["127.0.0.1"], "many": [f"127.0.1.{number}" for number in range(1, 201)]}
RATES = {"pings": 76, "chunks": 2000, "junk": 1000, "quiet": 2000}
"""For each flood, the number of units begun per second; a unit is a connection, or 10,000 bytes."""
ABREAST = {"pings": 4, "chunks": 4}
MOST_ABREAST = 32
FIRST_ROUNDS = 20
"""The number of rounds within which the nodes have met."""
PERIOD_US = 100_000
"""The time in which a share of a core is counted, in microseconds."""
SETTLE_S = 4.0
"""The time between two runs for the node to recover, in seconds."""


def node(folder: Path, name: str, figures_fd: int) -> None:
    """Run a node that writes its figures to the descriptor, one line for each line that it reads."""
    import asyncio  # noqa: PLC0415 - in the process of a node

    from p2pfl.cli.run import be_node  # noqa: PLC0415 - as above
    from p2pfl.node.application import Application  # noqa: PLC0415 - as above

    class Telling(Application):
        def _begin(self, driver: Any, links: Any) -> None:
            super()._begin(driver, links)

            def tell() -> None:
                if not os.read(0, 1):
                    return
                figures = {
                    "rounds": driver.core.facts.rounds,
                    "exchanges": sum(edge.service.exchanges for edge in driver.core.edges.values()),
                    "sessions": links.counters.total.sessions,
                    "cpu_s": time.process_time(),
                    "at": time.monotonic(),
                }
                os.write(figures_fd, json.dumps(figures).encode() + b"\n")

            if name == "node0":
                asyncio.get_running_loop().add_reader(0, tell)

    be_node(folder, name, config=None, launched=False, verbose=False, form="json", maker=lambda: Telling)


class Flood:
    """Threads that begin units at a given rate, from each source in turn, at most `rate * seconds` times."""

    def __init__(self, kind: str, sources: list[str], ports: dict[str, int], seconds: float) -> None:
        self.kind, self.sources, self.port = kind, sources, ports[kind]
        self.most, self.rate = int(RATES[kind] * seconds), RATES[kind]
        self.begun = self.sent_bytes = 0
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._ends = self._began + seconds

    def run(self) -> dict[str, float]:
        work = self._stream if self.kind == "chunks" else self._connect
        threads = [threading.Thread(target=work) for _ in range(ABREAST.get(self.kind, MOST_ABREAST))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took_s = time.monotonic() - self._began
        return {"came/s": self.begun / took_s, "MB/s": self.sent_bytes / took_s / 1e6}

    def _turn(self) -> int | None:
        """Return the number of the next unit when it is due; None at the end."""
        with self._lock:
            number, self.begun = self.begun, self.begun + 1
        due = self._began + number / self.rate
        if number >= self.most or due >= self._ends or time.monotonic() >= self._ends:
            with self._lock:
                self.begun -= 1
            return None
        time.sleep(max(0.0, due - time.monotonic()))
        return number

    def _open(self, number: int) -> socket.socket:
        opened = socket.socket()
        opened.settimeout(1.0)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        opened.bind((self.sources[number % len(self.sources)], 0))
        opened.connect(("127.0.0.1", self.port))
        return opened

    def _connect(self) -> None:
        said = {"pings": UPGRADE + PING * 2600, "junk": UPGRADE + JUNK}.get(self.kind, b"")
        while (number := self._turn()) is not None:
            with suppress(OSError), self._open(number) as opened:
                opened.sendall(said)
                self.sent_bytes += len(said)
                for _ in range({"pings": 2, "junk": 1}.get(self.kind, 0)):
                    opened.recv(65536)

    def _stream(self) -> None:
        opened: socket.socket | None = None
        while (number := self._turn()) is not None:
            try:
                if opened is None:
                    opened = self._open(number)
                    opened.sendall(POST)
                opened.sendall(CHUNKS[:10_002])
                self.sent_bytes += 10_002
            except OSError:
                if opened is not None:
                    opened.close()
                opened = None


def flood(pipe: Any, *arguments: Any) -> None:
    pipe.send("ready")
    pipe.recv()
    began_s = time.process_time()
    came = Flood(*arguments).run()
    pipe.send(came | {"cpu_s": time.process_time() - began_s})


def bound(pid: int, core: float) -> Path:
    """Give a process at most a share of a core, and that much however busy the machine is; return its control group."""
    first = Path("/sys/fs/cgroup/cpu")
    group = (first if first.is_dir() else first.parent) / f"p2pfl-floods-{pid}"
    group.mkdir()
    quota = int(core * PERIOD_US)
    limits = {"cpu.cfs_quota_us": quota, "cpu.shares": 10_240}
    for name, value in (limits if first.is_dir() else {"cpu.max": f"{quota} {PERIOD_US}", "cpu.weight": 1000}).items():
        (group / name).write_text(str(value))
    (group / "cgroup.procs").write_text(str(pid))
    return group


class Nodes:
    """The processes of a federation; the first one reports its figures."""

    def __init__(self, ward: Path, count: int, core: float | None = None) -> None:
        figures, answers = os.pipe()
        self._asked, asks = os.pipe()
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self._processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--node", str(ward), f"node{index}", str(answers)],
                stdin=self._asked if index == 0 else None,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[answers],
                env=environment,
            )
            for index in range(count)
        ]
        os.close(answers)
        self._asks, self._figures = asks, os.fdopen(figures)
        self._group = None if core is None else bound(self._processes[0].pid, core)

    def ask(self) -> dict[str, float]:
        os.write(self._asks, b"\n")
        row: dict[str, float] = json.loads(self._figures.readline())
        return row

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        if self._group is not None:
            self._group.rmdir()


def once(nodes: Nodes, kind: str, origin: str, ports: dict[str, int], seconds: float) -> dict[str, float]:
    """Return the node's figures while the flood lasts."""
    context = multiprocessing.get_context("spawn")
    near, far = context.Pipe()
    came = {"came/s": 0.0, "MB/s": 0.0, "cpu_s": 0.0}
    process = None
    if kind != "none":
        process = context.Process(target=flood, args=(far, kind, SOURCES[origin], ports, seconds), daemon=True)
        process.start()
        near.recv()
    before = nodes.ask()
    near.send("go")
    if process is None:
        time.sleep(seconds)
    elif near.poll(seconds + 30.0):
        came = near.recv()
    after = nodes.ask()
    if process is not None:
        process.kill()
        process.join()
    took_s = after["at"] - before["at"]
    return {
        "rounds/s": (after["rounds"] - before["rounds"]) / took_s,
        "exchanges/s": (after["exchanges"] - before["exchanges"]) / took_s,
        "node CPU %": 100 * (after["cpu_s"] - before["cpu_s"]) / took_s,
        "flood CPU %": 100 * came["cpu_s"] / took_s,
        "came/s": came["came/s"],
        "MB/s": came["MB/s"],
        "new sessions": after["sessions"] - before["sessions"],
    }


def prepare(ward: Path, options: argparse.Namespace) -> dict[str, int]:
    """Make a federation in that folder; return the port that each flood targets."""
    ports = free_ports(options.nodes + 1)
    command = [sys.executable, "-m", "p2pfl.cli.main", "new", str(ward), "--task", "digits", "--topology", "complete"]
    command += ["--base-port", str(ports[0]), "--nodes", str(options.nodes)]
    subprocess.run(command, check=True, capture_output=True)
    file = ward / "federation.toml"
    text = file.read_text()
    for old, new in (
        ('name = "digits"', f'name = "quadratic"\nsize = {options.parameters}\nstep_s = {options.round_s}'),
        ("rounds = 40", "rounds = 1000000"),
        ("local_steps = 20", "local_steps = 1"),
        ("# method =", 'method = "plain"  #'),
    ):
        text = text.replace(old, new, 1)
    file.write_text(text)
    own = ward / "node0" / "node.toml"
    own.write_text(own.read_text().replace("[node]", f'[node]\nstatus_listen = "127.0.0.1:{ports[-1]}"', 1))
    return {kind: ports[-1] if kind == "chunks" else ports[0] for kind in ("none", *RATES)}


def measure(options: argparse.Namespace) -> None:
    runs = [
        (kind, origin)
        for kind in options.floods.split(",")
        for origin in (["own"] if kind == "none" else getattr(options, "from").split(","))
    ]
    rows: dict[tuple[str, str], list[dict[str, float]]] = {run: [] for run in runs}
    with tempfile.TemporaryDirectory() as place:
        ports = prepare(Path(place) / "ward", options)
        nodes = Nodes(Path(place) / "ward", options.nodes, options.core)
        try:
            while nodes.ask()["rounds"] < FIRST_ROUNDS:
                time.sleep(0.5)
            for _ in range(options.repeats):
                for run in runs:
                    rows[run].append(once(nodes, *run, ports, options.seconds))
                    time.sleep(SETTLE_S)
        finally:
            nodes.stop()
    show(rows)


def show(figures: dict[tuple[str, str], list[dict[str, float]]]) -> None:
    middles = {
        run: {key: statistics.median(row[key] for row in rows) for key in rows[0]} for run, rows in figures.items()
    }
    alone = next((row for (kind, _), row in middles.items() if kind == "none"), None)
    for number, ((kind, origin), row) in enumerate(middles.items()):
        shares = {} if alone is None else {f"of {key}": row[key] / alone[key] for key in ("rounds/s", "exchanges/s")}
        columns = {"flood": kind, "from": origin} | {key: f"{value:.2f}" for key, value in (row | shares).items()}
        if not number:
            print("  ".join(f"{key:>14}" for key in columns))
        print("  ".join(f"{value:>14}" for value in columns.values()), flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--node"]:
        node(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--floods", default="none,pings,chunks,junk", help="which (%(default)s)")
    parser.add_argument("--from", default="own,many", help="source addresses: own, many (%(default)s)")
    parser.add_argument("--seconds", type=float, default=6.0, help="seconds of each flood (%(default)s)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--parameters", type=int, default=1000)
    parser.add_argument("--round-s", type=float, default=0.02, help="how long a round waits in place of training")
    parser.add_argument("--core", type=float, help="the share of a core that the node gets; as root")
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
