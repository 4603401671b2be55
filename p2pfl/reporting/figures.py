"""The parts of a report that do not depend on where the run took place."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from p2pfl.config.model import FederationConfig
from p2pfl.config.rule import liars_of
from p2pfl.reporting.contraction import predicted
from p2pfl.reporting.history import Statistic
from p2pfl.reporting.report import Contraction, EdgeTraffic
from p2pfl.reporting.sketch import consensus_distance
from p2pfl.reporting.status import ClosedRound, MeanAndMax

FLOOR = 1e-3
"""Closing rounds count for the measured contraction until the distance is this share of the first."""


class ClosingPoint(NamedTuple):
    """Of one round without training: how far apart the nodes are, and exchanges so far, per end of an edge."""

    distance: float
    exchanges: float


def spread(values: Iterable[float | None]) -> Statistic | None:
    """Mean, minimum, maximum; None where nobody has a value, NaN where one value is."""
    known = [float(value) for value in values if value is not None]
    if not known:
        return None
    return Statistic(mean=float(np.mean(known)), min=float(np.min(known)), max=float(np.max(known)))


def overall_staleness(nodes: Iterable[MeanAndMax | None]) -> MeanAndMax | None:
    """From each node's own mean and maximum."""
    known = [one for one in nodes if one]
    if not known:
        return None
    return MeanAndMax(mean=float(np.mean([one.mean for one in known])), max=max(one.max for one in known))


def contraction(
    federation: FederationConfig,
    samples: Sequence[float | None],
    closing: Sequence[Mapping[int, ClosedRound]],
    *,
    ends: float | None = None,
    size: int | None = None,
) -> Contraction:
    """Predicted for one synchronous exchange on every edge; measured in the closing rounds, per exchange on an edge.

    In a schedule: on every edge of one of its rounds. `closing` has each node's line after each of its closing rounds,
    by number, with `sketch` and `exchanges`; `ends` is how many ends of edges one round uses at these nodes, None where
    they are all; `size` is the number of parameters, None: not known. Where a node told no number of samples, because
    it died, all count as equal in the prediction, and `samples_known` says so. Under a robust rule mixing is no
    Laplacian step: nothing is predicted.
    """
    known = [n for n in samples if n]
    complete = len(known) == len(samples)
    robust = liars_of(federation.gossip.rule) > 0
    return Contraction(
        predicted=None if robust else predicted(federation, known if complete else None, size),
        samples_known=complete,
        measured=_measured(closing, 2 * federation.edges_at_once if ends is None else ends),
        per="one exchange on every edge of a round" if federation.schedule else "one exchange on every edge",
    )


def _measured(closing: Sequence[Mapping[int, ClosedRound]], ends: float) -> float | None:
    """From sketches in the closing rounds: how much closer the nodes came, per exchange at so many ends of edges."""
    ticks = sorted(set.intersection(*(set(lines) for lines in closing))) if closing and ends else []
    points = []
    for tick in ticks:
        at = [lines[tick] for lines in closing]
        distance = consensus_distance(np.array([line.sketch for line in at]))
        points.append(ClosingPoint(distance, sum(line.exchanges for line in at) / ends))
    points = [point for point in points if point.distance > FLOOR * points[0].distance]
    if len(points) < 2 or points[-1].exchanges <= points[0].exchanges:
        return None
    first, last = points[0], points[-1]
    return float((last.distance / first.distance) ** (1 / (last.exchanges - first.exchanges)))


def by_compressor(federation: FederationConfig, sent: Mapping[tuple[int, int], int]) -> dict[str, EdgeTraffic]:
    """What travelled with each compressor: how many edges use it, and the bytes that their ends have sent.

    `sent` is by (sender, receiver); what a node that left no result has sent is in nobody's count.
    """
    found = {federation.gossip.compressor: EdgeTraffic(edges=0, bytes_sent=0)}
    for i, j in federation.edges:
        row = found.setdefault(federation.compressor_of(i, j), EdgeTraffic(edges=0, bytes_sent=0))
        row.edges += 1
        row.bytes_sent += sent.get((i, j), 0) + sent.get((j, i), 0)
    return found


def configuration(federation: FederationConfig) -> dict[str, Any]:
    """What a federation file says, without keys and addresses. `edge_compressors` has rows [i, j, compressor]."""
    return {
        "federation": federation.name,
        "task": federation.task.contents,
        "training": dataclasses.asdict(federation.training),
        "gossip": dataclasses.asdict(federation.gossip),
        "edges": [list(edge) for edge in federation.edges],
        "schedule": [[list(edge) for edge in edges] for edges in federation.schedule],
        "edge_compressors": [[*edge, spec] for edge, spec in federation.edge_compressors.items()],
        "names": [member.name for member in federation.members],
    }
