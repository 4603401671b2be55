"""A federation of real processes for hours: what grows? Figures of each minute as they come, and a verdict at the end.

Five nodes on this machine, with an admin key, some of them by the code of an earlier commit (--old), learn without end,
a round a second, 10,000 numbers, no torch. At a third of the time one is killed and started again; at half of it one
gets a new key on a new "machine" (`invite --replace`, `join`, `member replace`). Each minute appends one line of JSON a
node to --out: rounds, resident memory, threads, open files, files and bytes in its folder, bytes of its log.

At the end, for each process of at least 14 minutes: growth an hour after its first quarter, by least squares. Ends with
1 if memory grew by more than 2 MB an hour, threads, open files or files in the folder by more than 2, or a node died.

Usage: python benchmarks/soak.py [--minutes 60] [--old v0.2.0] [--old-nodes 2] [--out soak.jsonl]
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from p2pfl.net.address import free_ports

ROOT = Path(__file__).absolute().parents[1]
NODES = ["pi1", "pi2", "pi3", "pi4", "pi5"]
KILLED, REPLACED = "pi2", "pi3"
ROUNDS = 1_000_000
LIMITS = {"rss_mb": 2.0, "threads": 2.0, "open_files": 2.0, "files": 2.0}
TASK = """
import time
import numpy as np
from p2pfl.learn.interface import LocalRound

SIZE = 10_000


class Slow:
    size, personal, shape_digest, samples = SIZE, 0, b"slow-soak-task-0", 10

    def __init__(self, node):
        self.node = node

    def initial(self):
        return np.zeros(SIZE, np.float32)

    def train(self, start, round_index):
        time.sleep(1.0)
        pull = np.random.default_rng([self.node, round_index]).standard_normal(SIZE) - start.model
        vector = (start.model + 0.1 * pull).astype(np.float32)
        return LocalRound(vector=vector, steps=1, learning_rate=0.0, samples=self.samples, loss=0.0)

    def evaluate(self, vector, part):
        return None

    def local_state(self):
        return {}

    def load_local_state(self, state):
        pass

    def state_dict(self, vector):
        return {"w": vector}


class Task:
    def learner(self, context, training):
        return Slow(context.node)


task = Task()
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--old", help="a commit or tag whose code some nodes run")
    parser.add_argument("--old-nodes", type=int, default=2, help="how many of the five, the last ones")
    parser.add_argument("--out", type=Path, default=Path("soak.jsonl"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        soak = Soak(Path(folder), options.old, options.old_nodes if options.old else 0)
        try:
            rows = soak.run(options.minutes, options.out)
        finally:
            soak.kill_all()
    return verdict(rows)


class Soak:
    def __init__(self, folder: Path, old: str | None, old_nodes: int) -> None:
        self.folder, self.ward = folder, folder / "ward"
        self.old = NODES[len(NODES) - old_nodes :]
        self.code = folder / "old"
        if old:
            tar = subprocess.run(
                ["git", "-C", ROOT, "archive", old, "p2pfl", "sim", "topologies"],  # noqa: S607 - as tests do
                capture_output=True,
                check=True,
            ).stdout
            with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
                archive.extractall(self.code, filter="data")
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.lives: dict[str, int] = dict.fromkeys(NODES, 0)
        self.command("new", self.ward, "--nodes", ",".join(NODES), "--admin")
        (self.ward / "task.py").write_text(TASK, encoding="utf-8")
        file = self.ward / "federation.toml"
        text = re.sub(r"(?ms)^\[task\]\n.*?(?=^\[)", '[task]\nname = "task.py:task"\n\n', file.read_text())
        file.write_text(text, encoding="utf-8")
        addresses = [f"--address={n}=127.0.0.1:{port}" for n, port in zip(NODES, free_ports(len(NODES)), strict=True)]
        self.command("member", "set", self.ward, "--offline", "--rounds", ROUNDS, *addresses)
        for name, address in zip(NODES, addresses, strict=True):
            node = self.ward / name / "node.toml"
            listen = f'listen = "{address.rpartition("=")[2]}"'
            node.write_text(re.sub(r"(?m)^(# )?listen = .*$", listen, node.read_text()))

    def command(self, *words: object) -> str:
        run = subprocess.run(self._words("", *words), capture_output=True, text=True, check=False, timeout=120)
        if run.returncode:
            raise SystemExit(f"{words}: {run.stdout}{run.stderr}")
        return run.stdout

    def _words(self, name: str, *words: object) -> list[str]:
        code = self.code if name in self.old else ROOT
        return ["env", f"PYTHONPATH={code}", sys.executable, "-m", "p2pfl.cli.main", *map(str, words)]

    def start(self, name: str, ward: Path | None = None) -> None:
        self.lives[name] += 1
        told = self.folder / f"{name}-{self.lives[name]}"
        with told.with_suffix(".log").open("wb") as log, told.with_suffix(".json").open("wb") as out:
            words = self._words(name, "run", ward or self.ward, "--node", name, "-v", "--format", "json")
            self.running[name] = subprocess.Popen(words, stdout=out, stderr=log)

    def kill_all(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()

    def replace(self) -> None:
        """A new machine with a new key takes the place of one that is gone."""
        self.running.pop(REPLACED).kill()
        other = self.folder / "other"
        copy = self.folder / "stick"
        copy.mkdir()
        for name in ("federation.toml", "task.py", "members.toml"):
            (copy / name).write_bytes((self.ward / name).read_bytes())
        line = self.command("invite", self.ward, REPLACED, "--replace").split()[0]
        address = f"127.0.0.1:{next(iter(free_ports(1)))}"
        said = self.command("join", line, other, "--from", copy, "--address", address)
        request = re.search(r"p2pfl-request:\S+", said)
        self.start(REPLACED, other)
        self.command("member", "replace", self.ward, request[0] if request else said, "--yes")

    def run(self, minutes: float, out: Path) -> list[dict[str, Any]]:
        began, rows = time.monotonic(), []
        for name in NODES:
            self.start(name)
        events = [(1 / 3, lambda: (self.running[KILLED].kill(), self.start(KILLED))), (1 / 2, self.replace)]
        with out.open("w", encoding="utf-8") as file:
            for minute in range(1, int(minutes) + 1):
                time.sleep(max(0.0, began + 60 * minute - time.monotonic()))
                for name in NODES:
                    rows.append(self.row(name, minute))
                    file.write(json.dumps(rows[-1]) + "\n")
                file.flush()
                print(f"minute {minute}: {', '.join(brief(row) for row in rows[-len(NODES) :])}", flush=True)
                while events and minute >= events[0][0] * minutes:
                    events.pop(0)[1]()
        return rows

    def row(self, name: str, minute: int) -> dict[str, Any]:
        process = self.running[name]
        found: dict[str, Any] = {"minute": minute, "node": name, "life": self.lives[name], "old": name in self.old}
        if process.poll() is not None:
            return found | {"died": process.returncode}
        proc = Path(f"/proc/{process.pid}")
        status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        own = (self.folder / "other" if name == REPLACED and self.lives[name] > 1 else self.ward) / name
        files = [path.stat().st_size for path in own.rglob("*") if path.is_file()]
        log = self.folder / f"{name}-{self.lives[name]}.log"
        rounds = re.findall(r'"rounds": ?(\d+)', log.with_suffix(".json").read_text()[-8000:])
        return found | {
            "rounds": int(rounds[-1]) if rounds else 0,
            "rss_mb": int(status["VmRSS"].split()[0]) / 1000,
            "threads": int(status["Threads"]),
            "open_files": len(list((proc / "fd").iterdir())),
            "files": len(files),
            "folder_kb": sum(files) // 1000,
            "log_kb": log.stat().st_size / 1000,
        }


def brief(row: dict[str, Any]) -> str:
    return f"{row['node']} " + ("died" if "died" in row else f"round {row['rounds']}, {row['rss_mb']:.0f} MB")


def verdict(rows: list[dict[str, Any]]) -> int:
    """Print growth an hour of each process; 1 if one of them grew too much, or died."""
    wrong = any("died" in row for row in rows)
    print(f"{'node':>8} {'code':>5} {'minutes':>7} " + " ".join(f"{key + '/h':>12}" for key in (*LIMITS, "log_kb")))
    for node, life in dict.fromkeys((row["node"], row["life"]) for row in rows):
        mine = [row for row in rows if (row["node"], row["life"]) == (node, life) and "died" not in row]
        late = mine[len(mine) // 4 :]
        if len(late) < 10:
            continue
        hours = np.array([row["minute"] for row in late]) / 60
        slopes = {key: np.polyfit(hours, [row[key] for row in late], 1)[0] for key in (*LIMITS, "log_kb")}
        wrong |= any(slopes[key] > limit for key, limit in LIMITS.items())
        code = "old" if late[0]["old"] else "new"
        print(f"{node:>8} {code:>5} {len(mine):7} " + " ".join(f"{slope:12.2f}" for slope in slopes.values()))
    print("grew, or died" if wrong else "flat")
    return int(wrong)


if __name__ == "__main__":
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    sys.exit(main())
