"""The results of a study, read from its folder: each run with its place in the sweep, figures over seeds, and the
contenders in the same order everywhere: all data in one place, a server, every graph, each node alone.

A run's place is written next to its sweep when it is planned (`PLACES`), so that tables and pictures can be made from a
folder even if the code has changed since.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from p2pfl.reporting.measures import Reference
from p2pfl.reporting.report import Report
from sim.sweeps.job import Job, build
from sim.sweeps.plan import SweepPlan
from sim.worlds.settling import settle
from sim.worlds.timeline import node_speeds

PLACES = "places.json"
SERVED = "served"
COMPRESSOR = "q4"
PARTITIONS = {
    "iid": "IID",
    "dirichlet:0.5": "Dirichlet .5",
    "dirichlet:0.1": "Dirichlet .1",
    "shards:2": "two classes",
    "classes:2": "two digits",
}
GRAPHS = {
    "complete": "complete",
    "exponential": "exponential",
    "random-regular:degree=6": "6-regular",
    "torus": "torus",
    "ring": "ring",
    "base:k=1": "Base-2",
}
POOLED, POOLED_LONG, ALONE = "all data, one node's steps", "all data, all steps", "alone"
SERVER, SQUEEZED = "server (FedAvg)", f"server, {COMPRESSOR}"


class Served(msgspec.Struct):
    """The result of a server that compresses. `cost` is as in a report; `identity` is its inputs."""

    cost: dict[str, float]
    fedavg: Reference
    compressor: str
    identity: dict[str, Any]


def served_file(folder: Path, part: str, values: Mapping[str, Any], seed: int) -> Path:
    """Name the file by the content of the run, so that pictures can be made even if the code has changed."""
    split = str(values.get("partition", "")).replace(":", "-")
    return folder / "runs" / f"{part}-{split}-{seed}.json"


def read_served(path: Path) -> Served | None:
    return msgspec.json.decode(path.read_bytes(), type=Served) if path.exists() else None


@dataclass(frozen=True, slots=True)
class Curve:
    """Accuracy as a function of something, ascending: `x` and `y` have equal length."""

    x: Sequence[float]
    y: Sequence[float]

    def first(self, target: float) -> float | None:
        """Return where the accuracy first reaches `target`, linearly between points; None if it never does."""
        before: tuple[float, float] | None = None
        for x, y in zip(self.x, self.y, strict=True):
            if y >= target:
                return x if before is None else before[0] + (x - before[0]) * (target - before[1]) / (y - before[1])
            before = (x, y)
        return None


@dataclass(frozen=True)
class Run:
    """One run of a sweep. `values` are the axes' values; `slowest_s` is the slowest node's local round.

    `served` is the same run with a server that compresses, if that was run.
    """

    values: Mapping[str, Any]
    seed: int
    slowest_s: float
    latency_s: float
    report: Report
    served: Reference | None = None

    @property
    def fedavg(self) -> Reference | None:
        return self.report.reference.fedavg if self.report.reference else None

    @property
    def nodes(self) -> int:
        return len(self.report.nodes)

    def curve(self, over: str) -> Curve:
        """Return the nodes' mean accuracy over "rounds", "bytes" that a node has sent, or virtual "time"."""
        x_of = {
            "rounds": lambda point: point.rounds.mean if point.rounds else 0.0,
            "bytes": lambda point: (point.bytes_sent or 0) / self.nodes,
            "time": lambda point: point.time_s,
        }[over]
        points = [point for point in self.report.history if point.accuracy is not None]
        return Curve([x_of(point) for point in points], [point.accuracy.mean for point in points if point.accuracy])

    def server(self, over: str, slowest_s: float | None = None, *, compressed: bool = False) -> Curve:
        """Return the curve of a server that averages each round. A round waits for the slowest node, in this world or
        another, and a model is sent both ways.

        Bytes are the total traffic divided by the number of nodes, as in a run with peers.
        """
        reference = self.served if compressed else self.fedavg
        step = {
            "rounds": lambda point: point.rounds or 0,
            "bytes": lambda point: (point.bytes_sent or 0) / self.nodes,
            "time": lambda point: (point.rounds or 0) * ((slowest_s or self.slowest_s) + 2 * self.latency_s),
        }[over]
        known = [point for point in (reference.history if reference else ()) if point.accuracy is not None]
        return Curve([float(step(point)) for point in known], [point.accuracy or 0.0 for point in known])


@dataclass(frozen=True, slots=True)
class Over:
    """A figure over seeds: mean, smallest, largest, and the number of seeds."""

    mean: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Over | None:
        """Return None if any seed has none, because a mean over the others would flatter."""
        every = list(values)
        known = [value for value in every if value is not None and math.isfinite(value)]
        if not known or len(known) < len(every):
            return None
        return cls(fmean(known), min(known), max(known), len(known))


class Results:
    """All runs in a study's folder, by part; a part that was not run has none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._parts: dict[str, list[Run]] = {}

    def part(self, name: str) -> list[Run]:
        if name not in self._parts:
            self._parts[name] = _read(self.folder / name)
        return self._parts[name]

    def where(self, part: str, **values: Any) -> list[Run]:
        """Return one run per seed; a world is identified by its name without folder and extension."""
        return [run for run in self.part(part) if all(_plain(run.values.get(key)) == v for key, v in values.items())]

    def values(self, part: str, axis: str) -> list[str]:
        """Return the values in file order; empty if it is not an axis, or if nothing was run."""
        return list(dict.fromkeys(_plain(run.values[axis]) for run in self.part(part) if axis in run.values))


def note_places(folder: Path, plan: SweepPlan) -> None:
    """Record the place of each run. This builds each federation once."""
    rows = [
        {"values": dict(combination.values), "seed": job.seed, "key": job.key, **_times(job)}
        for combination in plan.combinations
        for job in combination.jobs
    ]
    (folder / PLACES).write_text(json.dumps(rows, indent=1), encoding="utf-8")


def _times(job: Job) -> dict[str, float]:
    federation, world = build(job)
    settled = settle(world, len(federation.members), federation.seed)
    steps = federation.training.local_steps or 1
    slowest_ns = max(speed.estimate_ns(steps) for speed in node_speeds(settled, federation))
    return {"slowest_s": slowest_ns / 1e9, "latency_s": world.links.latency_s.high}


def _read(folder: Path) -> list[Run]:
    places = folder / PLACES
    runs = []
    for row in json.loads(places.read_text(encoding="utf-8")) if places.exists() else ():
        path = folder / "runs" / f"{row['key']}.json"
        if path.exists():
            served = read_served(served_file(folder.parent / SERVED, folder.name, row["values"], row["seed"]))
            beside = served.fedavg if served and served.compressor == COMPRESSOR else None
            report = Report.from_json(path.read_bytes())
            runs.append(Run(row["values"], row["seed"], row["slowest_s"], row["latency_s"], report, beside))
    return runs


def _plain(value: Any) -> Any:
    return Path(value).stem if isinstance(value, str) and value.endswith(".toml") else value


@dataclass(frozen=True, slots=True)
class Setting:
    """The parts of the study that form one comparison. `world` is None if there is only one."""

    graphs: str
    references: str
    target: float
    world: str | None = None
    title: str = ""

    @property
    def where(self) -> dict[str, str]:
        return {} if self.world is None else {"world": self.world}

    def partitions(self, results: Results) -> list[str]:
        """Return the splits of the data; none if no graph was run in this world: references make no comparison."""
        splits = results.values(self.graphs, "partition") if results.where(self.graphs, **self.where) else []
        return [split for split in PARTITIONS if split in splits]


DIGITS = Setting("graphs", "references", 0.9, "tenfold", "digits, 16 nodes")
MNIST = Setting("mnist", "mnist-references", 0.9, None, "MNIST, 5 clients")
MNIST_GRAPHS = Setting("mnist-graphs", "mnist-graphs-references", 0.8, None, "MNIST, 16 nodes")
SETTINGS = {"digits": DIGITS, "mnist": MNIST, "mnist-graphs": MNIST_GRAPHS}


@dataclass(frozen=True, slots=True)
class Contender:
    """A contender on one split of the data: its runs, one a seed; `curve` is None if no messages are counted."""

    name: str
    runs: list[Run]
    accuracy: Callable[[Run], float | None]
    least: Callable[[Run], float | None]
    curve: Callable[[Run, str], Curve] | None = None

    @property
    def mean(self) -> Over | None:
        return Over.of(map(self.accuracy, self.runs))

    @property
    def worst(self) -> Over | None:
        return Over.of(map(self.least, self.runs))

    def until(self, target: float, over: str) -> Over | None:
        """Return the cost of reaching the accuracy; None if some seed never does."""
        if self.curve is None:
            return None
        return Over.of(self.curve(run, over).first(target) for run in self.runs)


def contenders(results: Results, setting: Setting, partition: str) -> list[Contender]:
    """Return the contenders for which there are runs."""
    references = results.where(setting.references, partition=partition)
    listed = [
        Contender(name, references, _pooled(which), _pooled(which))
        for name, which in ((POOLED_LONG, "all_nodes"), (POOLED, "one_node"))
    ]
    for name, compressed in ((SERVER, False), (SQUEEZED, True)):
        if not compressed or (references and all(run.served for run in references)):
            ends, curve = _server(compressed=compressed), _server_curve(compressed=compressed)
            listed.append(Contender(name, references, ends, ends, curve))
    for topology, name in GRAPHS.items():
        runs = results.where(setting.graphs, topology=topology, partition=partition, **setting.where)
        if not runs:
            runs = [run for run in references if run.report.topology == topology]
        listed.append(Contender(name, runs, final, worst, Run.curve))
    listed.append(Contender(ALONE, references, _alone("mean"), _alone("min")))
    return [contender for contender in listed if contender.runs]


def final(run: Run) -> float | None:
    return run.report.accuracy.mean if run.report.accuracy else None


def worst(run: Run) -> float | None:
    return run.report.accuracy.min if run.report.accuracy else None


def _pooled(which: str) -> Callable[[Run], float | None]:
    def accuracy(run: Run) -> float | None:
        reference = run.report.reference
        central = reference.centralized if reference else None
        score = getattr(central, which) if central else None
        return None if score is None else float(score.accuracy)

    return accuracy


def _server(*, compressed: bool) -> Callable[[Run], float | None]:
    def accuracy(run: Run) -> float | None:
        reference = run.served if compressed else run.fedavg
        return reference.accuracy if reference else None

    return accuracy


def _server_curve(*, compressed: bool) -> Callable[[Run, str], Curve]:
    return lambda run, over: run.server(over, compressed=compressed)


def _alone(which: str) -> Callable[[Run], float | None]:
    def accuracy(run: Run) -> float | None:
        alone = run.report.reference.alone if run.report.reference else None
        return float(getattr(alone.accuracy, which)) if alone and alone.accuracy else None

    return accuracy
