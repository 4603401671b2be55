"""One federation file, twice: `p2pfl launch` starts real processes, `simulate` runs them under virtual time.

The rounds of the real nodes are slept (`paced.py`), and the simulated world is told how long they are.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from ports import free_ports

from p2pfl.reporting import Report
from sim import ComputeSpec, JoinSpec, LinkSpec, Spread, WorldSpec, describe, simulate

P2PFL = [sys.executable, "-m", "p2pfl.cli.main"]
BUSY = 0.5
"""the largest share of the processors that may be at work: above it nodes wait for each other's processor."""
STALLED_S = 0.5
"""so long may a node stand still, all in all: its neighbors go on without it, and exchange less than they would."""
LATENCY_S = 0.0005
ENGINE_S = 0.003
"""on loopback, and of one operation with its flush to the disk: about."""
STARVED = 0.9
"""from so much on, nodes that are not done in time may have had no processor; else they hang, and that is a failure."""
LEAVE_S = 15.0
"""for a launch that was told to stop and its nodes, which would outlive one that is killed."""
JITTER = 0.02
"""No two real rounds are equally long. Where all of them are, neighbors tick at one moment for ever, and one exchange
serves both: a third fewer of them than real nodes have.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is run twice. `pace_s` is how long a local round takes."""

    nodes: int
    topology: str
    seed: int
    rounds: int = 30
    pace_s: float = 0.5
    partition: str = "shards:2"


def make(folder: Path, setting: Setting) -> Path:
    """A federation of that setting in a new folder."""
    base = free_ports(setting.nodes)[0]
    options = ["--nodes", str(setting.nodes), "--topology", setting.topology, "--base-port", str(base)]
    subprocess.run([*P2PFL, "new", str(folder), *options], check=True, capture_output=True)
    shutil.copyfile(Path(__file__).with_name("paced.py"), folder / "task.py")
    file = folder / "federation.toml"
    text = file.read_text()
    for old, new in (
        ("seed = 0", f"seed = {setting.seed}"),
        ('name = "task.py:task"', f'name = "task.py:task"\npartition = "{setting.partition}"'),
        ("rounds = 40", f"rounds = {setting.rounds}"),
        ("# evaluate_every = 1", "evaluate_every = 1"),
        ("# vitals = true", "vitals = false"),  # what is simulated are models alone
    ):
        if old not in text:
            raise AssertionError(f"a new federation has no {old!r}")
        text = text.replace(old, new, 1)
    file.write_text(text)
    for node in range(setting.nodes):
        with (folder / f"node{node}" / "node.toml").open("a") as out:
            out.write(f'pace_s = {setting.pace_s}\nstalls_path = "stalls.txt"\n')
    return folder


class TooBusyError(Exception):
    """The machine had other things to do than to be eight or sixteen nodes."""


class Busy:
    """How much the processors of this machine had to do while the nodes learned."""

    def __init__(self) -> None:
        self._began: tuple[float, float] | None = None

    def begin(self) -> None:
        self._began = _ticks()

    def share(self) -> float:
        if self._began is None:
            raise AssertionError("it was never begun")
        work, whole = (now - before for now, before in zip(_ticks(), self._began, strict=True))
        return work / max(whole, 1.0)


def _ticks() -> tuple[float, float]:
    """Of all processors since the machine started: those at work, and all. One that another machine had was at work."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    user, nice, system, idle, wait, interrupt, soft_interrupt, stolen = map(int, fields)
    work = user + nice + system + interrupt + soft_interrupt + stolen
    return work, work + idle + wait


def really(folders: list[Path], *, timeout_s: float) -> tuple[list[Report], float]:
    """The reports of real processes, all federations at once, and the share of the processors while they learned.

    Raises TooBusyError where they are not done in time and the processors had hardly a moment to spare.
    """
    started = [
        subprocess.Popen([*P2PFL, "launch", str(folder)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for folder in folders
    ]
    busy, end = Busy(), time.monotonic() + timeout_s
    with _ended(started):
        while not all(_learning(folder) for folder in folders):
            if time.monotonic() > end or any(one.poll() for one in started):
                break
            time.sleep(0.1)
        busy.begin()
        for one in started:
            try:
                _, said = one.communicate(timeout=max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                if busy.share() > STARVED:
                    raise TooBusyError(
                        f"not done in {timeout_s:g} s, the processors at work {busy.share():.0%}"
                    ) from None
                raise
            if one.returncode:
                raise AssertionError(said.decode())
    return [Report.from_json((folder / "report.json").read_bytes()) for folder in folders], busy.share()


def _learning(folder: Path) -> bool:
    """Whether every node has imported what it needs and opened its state: from here on little is computed."""
    nodes = [path.parent for path in folder.glob("node*/node.toml")]
    return all((node / "state" / "lock").exists() for node in nodes)


def stalled_s(folders: list[Path]) -> float:
    """Of the node that stood still for longest: how long in all, from when every node of all federations was there.

    A machine that is idle meanwhile does not show it: it may have stood still itself.
    """
    nodes = [path.parent for folder in folders for path in folder.glob("node*/node.toml")]
    began = max((node / "state" / "lock").stat().st_mtime for node in nodes)
    late: defaultdict[tuple[Path, str], float] = defaultdict(float)
    for node in nodes:
        file = node / "stalls.txt"
        for line in file.read_text().splitlines() if file.exists() else ():
            at, what, late_s = line.split()
            if float(at) > began:
                late[node, what] += float(late_s)
    return max(late.values(), default=0.0)


@contextlib.contextmanager
def _ended(started: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    try:
        yield
    finally:
        for one in started:
            if one.poll() is None:
                one.terminate()
        for one in started:
            try:
                one.wait(LEAVE_S)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()
            if one.stderr is not None:
                one.stderr.close()


def starts_s(folder: Path, setting: Setting) -> list[float]:
    """When each node was there, after the first one."""
    locks = [folder / f"node{node}" / "state" / "lock" for node in range(setting.nodes)]
    times = [lock.stat().st_mtime for lock in locks]
    return [time_s - min(times) for time_s in times]


def virtually(folder: Path, setting: Setting) -> Report:
    """The report of the same file, simulated; its nodes start when the real ones did."""
    starts = enumerate(starts_s(folder, setting))
    world = WorldSpec(
        joins=tuple(JoinSpec(nodes=(node,), at_s=at_s) for node, at_s in starts if at_s > 0),
        compute=ComputeSpec(round_s=setting.pace_s, engine_s=ENGINE_S, jitter=JITTER),
        links=LinkSpec(latency_s=Spread(low=LATENCY_S, high=LATENCY_S)),
    )
    return simulate(describe(file=folder), world=world, references=False)


def figures(report: Report) -> dict[str, float]:
    """What is compared; not a number where a busy machine left nothing to measure."""
    exchanges = sum(node.exchanges for node in report.nodes) / 2
    rounds = sum(node.rounds for node in report.nodes)
    measured = report.contraction.measured
    return {
        "accuracy": report.accuracy.mean,
        "contraction": math.nan if measured is None else measured,
        "bytes/exchange": report.bytes_sent / exchanges,
        "messages/exchange": report.messages_sent / exchanges,
        "exchanges/round": exchanges / rounds,
        "rounds": rounds / len(report.nodes),
        "staleness": report.staleness.mean,
        "distance": report.consensus_distance,
    }


def means(reports: list[Report]) -> dict[str, float]:
    every = [figures(report) for report in reports]
    return {key: fmean(one[key] for one in every) for key in every[0]}


LIMITS: Mapping[str, tuple[str, float]] = {
    "accuracy": ("absolute", 0.02),
    "contraction": ("relative", 0.05),
    "bytes/exchange": ("relative", 0.02),
    "rounds": ("relative", 0.2),
    "exchanges/round": ("relative", 0.05),
}


def apart(real: Mapping[str, float], simulated: Mapping[str, float], key: str) -> float:
    difference = abs(simulated[key] - real[key])
    return difference / abs(real[key]) if LIMITS[key][0] == "relative" else difference


def seeds_of(base: Setting, seeds: int) -> list[Setting]:
    return [replace(base, seed=seed) for seed in range(seeds)]
