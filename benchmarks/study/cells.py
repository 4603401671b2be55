"""The results of a study, read from its folder: each run with its place in the sweep, and figures over seeds.

A run's place is written beside its sweep when it is planned (`PLACES`), so that tables and pictures can be made from a
folder whatever has happened to the code since.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from served import read_served

from p2pfl.reporting.history import Reference
from p2pfl.reporting.report import Report
from sim.sweeps.model import Job, SweepPlan
from sim.sweeps.work import build
from sim.worlds.drawn import settle
from sim.worlds.speeds import node_speeds

PLACES = "places.json"
SERVED = "served"
FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Curve:
    """Accuracy over something, ascending: `x` and `y` are equally long."""

    x: Sequence[float]
    y: Sequence[float]

    def first(self, target: float) -> float | None:
        """Return where the accuracy first reaches `target`, on straight lines between the points; None: nowhere."""
        before: tuple[float, float] | None = None
        for x, y in zip(self.x, self.y, strict=True):
            if y >= target:
                return x if before is None else before[0] + (x - before[0]) * (target - before[1]) / (y - before[1])
            before = (x, y)
        return None


@dataclass(frozen=True)
class Run:
    """One run of a sweep. `values` are those of the axes; `slowest_s` is the local round of the slowest node.

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
        found = {
            "rounds": lambda point: point.rounds.mean if point.rounds else 0.0,
            "bytes": lambda point: (point.bytes_sent or 0) / self.nodes,
            "time": lambda point: point.time_s,
        }[over]
        points = [point for point in self.report.history if point.accuracy is not None]
        return Curve([found(point) for point in points], [point.accuracy.mean for point in points if point.accuracy])

    def server(self, over: str, slowest_s: float | None = None, *, compressed: bool = False) -> Curve:
        """Return the curve of a server that averages each round: a round waits for the slowest node, here or of another
        world, and a model goes both ways.

        Bytes are all traffic divided by the number of nodes, as for a run of peers.
        """
        reference = self.served if compressed else self.fedavg
        step = {
            "rounds": lambda point: point.rounds or 0,
            "bytes": lambda point: (point.bytes_sent or 0) / self.nodes,
            "time": lambda point: (point.rounds or 0) * ((slowest_s or self.slowest_s) + 2 * self.latency_s),
        }[over]
        known = [point for point in (reference.history if reference else ()) if point.accuracy is not None]
        return Curve([float(step(point)) for point in known], [point.accuracy or 0.0 for point in known])

    def pooled_after(self, steps: float) -> float | None:
        """Return the accuracy of the model that learns from all data, after `steps` steps; None: it took fewer."""
        reference = self.report.reference
        long = reference.centralized.all_nodes if reference and reference.centralized else None
        known = (
            [(point.steps or 0, point.accuracy) for point in long.history if point.accuracy is not None] if long else []
        )
        if not known or not known[0][0] <= steps <= known[-1][0]:
            return None
        return float(np.interp(steps, *zip(*known, strict=True)))

    @cached_property
    def uncompressed_bytes(self) -> float:
        """Return the bytes of a node that sends each neighbor its whole model, in float32, after each of its rounds."""
        names = self.report.config["names"]
        degree = dict.fromkeys(names, 0)
        for i, j in self.report.config["edges"]:
            degree[names[i]] += 1
            degree[names[j]] += 1
        sent = sum((self.report.rounds[name] or 0) * degree[name] for name in names)
        return sent * self.size * FLOAT_BYTES / len(names)

    @property
    def size(self) -> int:
        """Return the values of the model, from the server's bytes; those of the built-in digits without a server."""
        if self.fedavg is None or not self.fedavg.rounds:
            return 2410
        return (self.fedavg.bytes_sent or 0) // (2 * FLOAT_BYTES * self.nodes * self.fedavg.rounds)


@dataclass(frozen=True, slots=True)
class Over:
    """A figure over seeds: the mean, the smallest, the largest, and the number of seeds."""

    mean: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Over | None:
        """Return None where any seed has none: a mean over the others would flatter."""
        every = list(values)
        known = [value for value in every if value is not None and math.isfinite(value)]
        if not known or len(known) < len(every):
            return None
        return cls(fmean(known), min(known), max(known), len(known))


class Results:
    """All runs of a study's folder, by part; a part that was not run has none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._parts: dict[str, list[Run]] = {}

    def part(self, name: str) -> list[Run]:
        if name not in self._parts:
            self._parts[name] = _read(self.folder / name)
        return self._parts[name]

    def where(self, part: str, **values: Any) -> list[Run]:
        """Return one run for each seed; a world is known by its name without folder and ending."""
        return [run for run in self.part(part) if all(_plain(run.values.get(key)) == v for key, v in values.items())]

    def values(self, part: str, axis: str) -> list[str]:
        """Return the values in the order of the file; empty where it is no axis, or nothing was run."""
        return list(dict.fromkeys(_plain(run.values[axis]) for run in self.part(part) if axis in run.values))

    def over(self, runs: Sequence[Run], figure: Callable[[Run], float | None]) -> Over | None:
        return Over.of(figure(run) for run in runs)


def final(run: Run) -> float | None:
    return run.report.accuracy.mean if run.report.accuracy else None


def worst(run: Run) -> float | None:
    return run.report.accuracy.min if run.report.accuracy else None


def note_places(folder: Path, plan: SweepPlan) -> None:
    """Write down the place of each run. Builds each federation once."""
    rows = [
        {"values": dict(one.values), "seed": job.seed, "key": job.key, **_times(job)}
        for one in plan.combinations
        for job in one.possible
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
    found = []
    for row in json.loads(places.read_text(encoding="utf-8")) if places.exists() else ():
        path = folder / "runs" / f"{row['key']}.json"
        if path.exists():
            report = Report.from_json(path.read_bytes())
            served = read_served(folder.parent / SERVED, folder.name, row["values"], row["seed"])
            found.append(Run(row["values"], row["seed"], row["slowest_s"], row["latency_s"], report, served))
    return found


def _plain(value: Any) -> Any:
    return Path(value).stem if isinstance(value, str) and value.endswith(".toml") else value
