"""Run one script in network and process namespaces of its own, and measure it from outside, alike for all rivals.

It is process 1 of the namespace: whatever a script starts ends with it. Seconds count from the start of the script,
CPU-seconds are those of all processes, bytes are what the loopback device received (TCP's headers too; what goes
through shared memory is not seen), memory is the largest sum of proportional set sizes, looked at once a second. All
that up to the moment when the worst node's last test had reached the target. With `kill`, a node's process (or the
server's) is killed after three rounds of all, and the run ends when the others have made ten more, or at the limit.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

TICKS, BEFORE, AFTER = os.sysconf("SC_CLK_TCK"), 3, 10


def main() -> None:
    cell = json.loads(os.environ["RIVAL_CELL"])
    folder, command = Path(cell["folder"]), sys.argv[1:]
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)  # noqa: S607
    began, received = time.time(), loopback()
    with (folder / "output.txt").open("wb") as output:
        script = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=folder, start_new_session=True)
    run, peaks = Run(cell), [0]
    threading.Thread(target=look_at_memory, args=(peaks,), daemon=True).start()
    ends = began + cell["limit_s"]
    while time.time() < ends and not run.arrived:
        gone = script.poll() is not None  # its last words are read all the same
        run.read(folder / "events.jsonl")
        if gone:
            break
        time.sleep(0.05)
    cpu_s, received = processor(), loopback() - received
    first = min(run.begun, default=None)
    print(
        json.dumps(
            {
                "seconds": run.arrived and round(run.arrived - began, 2),
                "learning_s": run.arrived and first and round(run.arrived - first, 2),
                "start_s": first and round(first - began, 2),
                "ran_s": round(time.time() - began, 2),
                "cpu_s": round(cpu_s, 2),
                "bytes": received,
                "peak_bytes": max(peaks),
                "worst": min(run.accuracy.values(), default=None),
                "rounds": max(run.rounds.values(), default=0),
                "killed": run.killed,
                "after": {node: count - run.before.get(node, 0) for node, count in run.rounds.items()},
                "exit": script.poll(),
            }
        )
    )


class Run:
    """What a script has told so far."""

    def __init__(self, cell: dict[str, Any]) -> None:
        self.cell, self.offset, self.arrived = cell, 0, 0.0
        self.killed: Any = None
        self.begun: list[float] = []
        self.accuracy: dict[Any, float] = {}
        self.rounds: dict[Any, int] = {}
        self.before: dict[Any, int] = {}
        self.processes: dict[Any, int] = {}

    def read(self, path: Path) -> None:
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self.offset)
            lines = [line for line in file if line.endswith(b"\n")]
        self.offset += sum(map(len, lines))
        for event in map(json.loads, lines):
            node = event.get("node")
            if "pid" in event:
                self.processes.setdefault(node, event["pid"])  # what was started for it, not what that starts
            if event.get("event") == "begun":
                self.begun.append(event["time"])
            if "accuracy" in event and node != self.killed and not self.arrived:
                self.accuracy[node] = event["accuracy"]
                self.rounds[node] = self.rounds.get(node, 0) + 1
                self.look(event["time"])

    def look(self, now: float) -> None:
        whole, victim = len(self.accuracy) == self.cell["nodes"], self.cell.get("kill")
        if victim is None:
            self.arrived = self.arrived or now * (whole and min(self.accuracy.values()) >= self.cell["target"])
        elif self.killed is None and whole and min(self.rounds.values()) >= BEFORE and victim in self.processes:
            os.kill(self.processes[victim], signal.SIGKILL)
            self.killed, self.before = victim, dict(self.rounds)
            self.rounds.pop(victim, None), self.accuracy.pop(victim, None)
        elif self.killed is not None and all(self.rounds[n] >= self.before[n] + AFTER for n in self.rounds):
            self.arrived = now


def loopback() -> int:
    lines = Path("/proc/net/dev").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.strip().startswith("lo:"))


def processor() -> float:
    """Return the CPU-seconds of all other processes of the namespace, gone ones too."""
    used = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            used += sum(int(each) for each in (fields[13:15] if path.parent.name == "1" else fields[11:15]))
    return used / TICKS


def look_at_memory(sizes: list[int]) -> None:
    """Add once a second the sum of proportional set sizes in bytes, but for this process."""
    while True:
        sizes.append(memory())
        time.sleep(1)


def memory() -> int:
    total = 0
    for path in Path("/proc").glob("[0-9]*/smaps_rollup"):
        with suppress(OSError, StopIteration):
            if path.parent.name != "1":
                lines = path.read_text().splitlines()
                total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
    return total


if __name__ == "__main__":
    main()
