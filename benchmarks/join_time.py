"""The time that a member takes to join and to leave: real processes on loopback, which train while their charter
changes.

    python benchmarks/join_time.py [--nodes 4] [--times 3] [--step-s 0.2]

A newcomer has joined already (`p2pfl join`, `p2pfl run`) and waits, as on a machine of its own. *Joins in* is from the
call of `p2pfl member add` to the newcomer's first exchange; *signed in* is the duration of that command. *Lost* are
rounds of the others in that time without a neighbor; *pause* is their longest time between two rounds, beside the
longest in as much time before. Then the newcomer is removed: *gone in* is from the call of `p2pfl member remove` until
its process has ended; *after* are its rounds and exchanges from when the first node uses the new charter.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from p2pfl.features.status import whereabouts
from p2pfl.features.status.asking import PageAddress, ask_status
from p2pfl.net.address import free_ports

P2PFL = (sys.executable, "-m", "p2pfl.cli.main")
DEADLINE_S = 120.0
POLL_S = 0.02
ROUNDS = 1_000_000


def call(*words: object) -> str:
    done = subprocess.run([*P2PFL, *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}: {done.stderr}")
    return done.stdout.strip()


class Field:
    """Nodes that train, and all their reports, watched all the time: (time, report) by name."""

    def __init__(self, folder: Path, nodes: int, step_s: float) -> None:
        self.folder = folder / "ward"
        self.folders: dict[str, Path] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.said: dict[str, list[tuple[float, dict[str, Any]]]] = defaultdict(list)
        names = [f"pi{number + 1}" for number in range(nodes)]
        call("new", self.folder, "--nodes", ",".join(names), "--task", "digits", "--admin")
        file = self.folder / "federation.toml"
        file.write_text(file.read_text().replace('name = "digits"', f'name = "quadratic"\nstep_s = {step_s}'))
        ports = free_ports(nodes)
        for name, port in zip(names, ports, strict=True):
            own = self.folder / name / "node.toml"
            own.write_text(f'[node]\nlisten = "127.0.0.1:{port}"\n')
        moved = [f"--address={name}=127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)]
        call("member", "set", self.folder, "--rounds", ROUNDS, "--offline", *moved)
        for name in names:
            self.start(name, self.folder)

    def start(self, name: str, folder: Path) -> None:
        self.folders[name] = folder / name / "state"
        with (self.folder / f"{name}.log").open("wb") as log:
            words = [*P2PFL, "run", str(folder), "--node", name]
            self.processes[name] = subprocess.Popen(words, stdout=log, stderr=log)
        threading.Thread(target=self._watch, args=(name, self.processes[name]), daemon=True).start()

    def _watch(self, name: str, process: subprocess.Popen[bytes]) -> None:
        while process.poll() is None:
            there = whereabouts.read(self.folders[name])
            if there is not None and there.status is not None:
                said = ask_status(PageAddress(netloc=there.status, token=""))
                if isinstance(said, dict):
                    self.said[name].append((time.monotonic(), said))
            time.sleep(POLL_S)

    def now(self, name: str) -> dict[str, Any]:
        return self.said[name][-1][1] if self.said[name] else {}

    def until(self, is_so: Any, what: str) -> None:
        end = time.monotonic() + DEADLINE_S
        while not is_so():
            if time.monotonic() > end:
                raise SystemExit(f"waited in vain until {what}")
            time.sleep(POLL_S)

    def longest_pause_s(self, names: list[str], start: float, end: float) -> float:
        """Return the longest time without a further round of one of them."""
        longest = 0.0
        for name in names:
            rounds, since = -1, start
            for when, said in list(self.said[name]):
                if start <= when <= end and said["rounds"] != rounds:
                    longest, rounds, since = max(longest, when - since), said["rounds"], when
            longest = max(longest, end - since)
        return longest

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()


def come_and_go(field: Field, others: list[str], name: str, folder: Path) -> dict[str, float]:
    line = call("invite", field.folder, name, "--no-qr")
    request = call("join", line, folder, "--from", field.folder)
    field.start(name, folder)
    log = field.folder / f"{name}.log"
    field.until(lambda: "waits until" in log.read_text(), f"{name} waits")
    alone = sum(field.now(one)["rounds_without_neighbor"] for one in others)
    time.sleep(4.0)  # an equally long time before, for comparison
    began = time.monotonic()
    call("member", "add", field.folder, request, "--yes")
    signed = time.monotonic()
    field.until(lambda: field.now(name).get("exchanges", 0) > 0, f"{name} exchanges")
    joined = time.monotonic()
    row = {
        "joins in": joined - began,
        "signed in": signed - began,
        "lost": sum(field.now(one)["rounds_without_neighbor"] for one in others) - alone,
        "pause": field.longest_pause_s(others, began, joined),
        "before": field.longest_pause_s(others, began - (joined - began), began),
    }
    version, began = field.now(others[0])["members_version"], time.monotonic()
    call("member", "remove", field.folder, name)
    field.until(lambda: field.processes[name].poll() is not None, f"{name} ends")
    row["gone in"] = time.monotonic() - began
    knows = min(
        when for one in [*others, name] for when, said in list(field.said[one]) if said["members_version"] > version
    )
    then = [said for when, said in field.said[name] if when < knows][-1]
    last = json.loads((field.folders[name] / "result.json").read_text())
    row |= {"rounds after": last["rounds"] - then["rounds"], "exchanges after": last["exchanges"] - then["exchanges"]}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--step-s", type=float, default=0.2, help="a local round of each node")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    others = [f"pi{number + 1}" for number in range(options.nodes)]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as kept:
        field = Field(Path(kept), options.nodes, options.step_s)
        try:
            field.until(lambda: all(field.now(one).get("rounds", 0) > 2 for one in others), "all train")
            for number in range(options.times):
                row = come_and_go(field, others, f"new{number + 1}", Path(kept) / f"machine{number + 1}")
                if not number:
                    print("| " + " | ".join(row) + " |\n" + "|---" * len(row) + "|")
                cells = (f"{value:.1f} s" if isinstance(value, float) else str(value) for value in row.values())
                print("| " + " | ".join(cells) + " |", flush=True)
        finally:
            field.close()


if __name__ == "__main__":
    main()
