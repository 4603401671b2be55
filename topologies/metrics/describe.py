"""One graph as the flat object that `p2pfl topology info` prints; a schedule has the same keys where they make sense.

The module also describes several graphs at several sizes, in one row each, for `p2pfl topology compare`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from topologies.building import build_schedule, kind, resolve
from topologies.eigen.extremes import Extremes
from topologies.errors import TopologyError, nearest
from topologies.family import GraphKind
from topologies.files.content import is_file
from topologies.graph import Topology, component_count
from topologies.metrics import IntegerBounds, degree_range
from topologies.metrics.byzantine import tolerance
from topologies.metrics.cuts import Cut, connectivity, cut_points, isoperimetric, sweep_cut
from topologies.metrics.distance import diameter, distances, resistance
from topologies.metrics.robustness import robustness
from topologies.schedules.contraction import LANCZOS, ROUNDING, PeriodContraction, contraction
from topologies.schedules.schedule import Schedule, exact_after
from topologies.spectral import (
    EPSILON,
    Spectrum,
    check_weights,
    plain_extremes,
    require_epsilon,
    rounds_to_consensus,
    spectrum,
)

Row = dict[str, Any]

COLUMNS = (
    *("topology", "n", "edges", "degree_max", "lambda_2", "mixing_rate"),
    *("rounds", "messages", "bytes", "busiest_bytes", "diameter", "certified"),
)
LARGEST_FIRST = ("lambda_2", "certified")
"""The columns in which the largest value is the best; in all others it is the smallest."""


def describe(
    topology: Topology, weights: str = "metropolis", epsilon: float = EPSILON, *, certify: bool = False
) -> dict[str, Any]:
    """Describe how connected a graph is and how fast it mixes. See `mixing_facts`."""
    started = time.perf_counter()
    found = spectrum(topology, weights, certify=certify)
    facts = mixing_facts(topology, found, weights, epsilon)
    return facts | {"seconds": time.perf_counter() - started}


def survey(
    topology: Topology,
    weights: str = "metropolis",
    epsilon: float = EPSILON,
    *,
    certify: bool = False,
    model_bytes: int | None = None,
) -> dict[str, Any]:
    """The facts of `describe`, plus thin places, tolerated malicious neighbors and failures, and cost."""
    started = time.perf_counter()
    plain = plain_extremes(topology, certify=certify)
    facts = mixing_facts(topology, spectrum(topology, weights, certify=certify, found=plain), weights, epsilon)
    if model_bytes is not None:
        messages = facts["messages_to_consensus"]
        facts["bytes_to_consensus"] = None if messages is None else messages * model_bytes
        facts["bytes_per_round_busiest_node"] = degree_range(topology)[1] * model_bytes
    facts |= structure(topology, plain)
    return facts | {"seconds": time.perf_counter() - started}


def mixing_facts(topology: Topology, spectrum: Spectrum, weights: str, epsilon: float) -> dict[str, Any]:
    """Describe how a graph mixes. A message is one model over one edge one way, so a round costs two for each edge.

    `method`, `residual`, `lower_bound`, `probable_lower_bound`, `certified` and `converged` are about the algebraic
    connectivity: see `eigen.extremes.Extremes`.
    """
    rounds = rounds_to_consensus(spectrum.mixing_rate, epsilon) if topology.nodes > 1 else 0
    parts = component_count(topology)
    least, most = degree_range(topology)
    apart = distances(topology)
    return {
        "spec": topology.spec,
        "seed": topology.seed,
        "nodes": topology.nodes,
        "edges": topology.edge_count,
        "connected": parts == 1,
        "components": parts,
        "degree": {"min": least, "mean": 2.0 * topology.edge_count / topology.nodes, "max": most},
        "diameter": apart.diameter.upper if apart.diameter and apart.diameter.exact else None,
        "diameter_bounds": _range(apart.diameter),
        "average_distance": apart.average,
        "algebraic_connectivity": spectrum.algebraic_connectivity,
        "method": spectrum.method,
        "residual": spectrum.residual,
        "lower_bound": spectrum.lower_bound,
        "probable_lower_bound": spectrum.probable_bound,
        "certified": spectrum.certified,
        "converged": spectrum.converged,
        "laplacian_max_eigenvalue": spectrum.laplacian_max_eigenvalue,
        "weights": weights,
        "mixing_rate": spectrum.mixing_rate,
        "mixing_certified": spectrum.mixing_certified,
        "mixing_converged": spectrum.mixing_converged,
        "epsilon": epsilon,
        "rounds_to_consensus": rounds,
        "messages_to_consensus": None if rounds is None else 2 * rounds * topology.edge_count,
    }


def structure(topology: Topology, plain: Extremes) -> dict[str, Any]:
    """Describe what does not depend on the mixing weights. A range [lower, upper] is exact if both are the same."""
    points = cut_points(topology)
    cut = sweep_cut(topology, plain)
    between = connectivity(topology, plain, points, cut)
    growth = isoperimetric(topology, plain, cut)
    pulled = resistance(topology)
    robust = robustness(topology, plain, cut, most=between.nodes.upper)
    liars = tolerance(topology, robust)
    return {
        "effective_resistance": pulled and {"average": pulled.average, "largest": pulled.largest},
        "kirchhoff_index": pulled and pulled.kirchhoff,
        "edge_connectivity": _range(between.edges),
        "vertex_connectivity": _range(between.nodes),
        "bridges": None if points is None else len(points.bridges),
        "cut_nodes": None if points is None else len(points.nodes),
        "thinnest_cut": _cut(cut),
        "isoperimetric_number": growth and [growth.lower, growth.upper],
        "robustness": [robust.lower, robust.upper],
        "liars_per_node": {
            "mixes": liars.local,
            "guaranteed": _range(liars.guaranteed),
            "at_most": _range(liars.possible),
        },
    }


def describe_schedule(schedule: Schedule, epsilon: float = EPSILON) -> dict[str, Any]:
    """Describe a schedule. Mixing matrices must have rows and columns that sum to one, as in all families here.

    `edges`, `diameter` and the Laplacian's eigenvalues are those of the union of all rounds, without directions.
    `degree`: how many models a node receives in a round. `mixing_rate`: the spectral norm of D = W_period ... W_1 -
    J/n, to the power 1/period: the factor by which a round shrinks the distance to consensus, over a period.
    `asymptotic_rate`: the same in the long run, of one directed matrix. `rounds_to_consensus`: the least t with ||W_t
    ... W_1 - J/n|| <= epsilon for every start, an upper bound where `method` says so. `exact_after`: the round in which
    all hold the mean itself. `method`, `residual` and `certified` are about the mixing rate, `connectivity_method` and
    `connectivity_certified` about the union's eigenvalues.
    """
    if not 0.0 < epsilon < 1.0:
        raise TopologyError("impossible accuracy", key="epsilon", value=epsilon, allowed="between 0 and 1")
    started = time.perf_counter()
    union = schedule.union()
    parts = component_count(union)
    found = _contraction(schedule, epsilon, parts)
    exact = exact_after(schedule) if parts == 1 else None
    # with all weights in whole numbers, or the whole matrix in memory: a norm of zero needs no relative accuracy
    nothing = exact is not None and exact <= schedule.period
    proven = nothing and found.norm <= ROUNDING and found.method != LANCZOS
    # an exact schedule needs no more rounds, however a norm of zero is rounded
    rounds = found.rounds if exact is None or found.rounds is None else min(found.rounds, exact)
    plain = plain_extremes(union)
    return {
        "spec": schedule.spec,
        "seed": schedule.seed,
        "nodes": schedule.nodes,
        "period": schedule.period,
        "directed": schedule.directed,
        "random": schedule.random,
        "live": not schedule.directed,
        "edges": union.edge_count,
        "connected": parts == 1,
        "components": parts,
        "degree": _degree(schedule),
        "diameter": diameter(union),
        "algebraic_connectivity": plain.low,
        "laplacian_max_eigenvalue": plain.high,
        "connectivity_method": plain.method,
        "connectivity_certified": bool(plain.certified),
        "mixing_rate": 0.0 if nothing else min(1.0, found.norm) ** (1.0 / schedule.period),
        "asymptotic_rate": 0.0 if exact is not None else found.asymptotic,
        "epsilon": epsilon,
        "exact_after": exact,
        "rounds_to_consensus": rounds,
        "messages_to_consensus": None if rounds is None else messages(schedule, rounds),
        "method": found.method,
        "residual": found.residual,
        "certified": found.certified or proven,
        "seconds": time.perf_counter() - started,
    }


def messages(schedule: Schedule, rounds: int) -> int:
    """Count the models sent in the first `rounds` rounds."""
    sent = [mixing.messages for mixing in schedule.mixings]
    periods, rest = divmod(rounds, schedule.period)
    return periods * sum(sent) + sum(sent[:rest])


@dataclass(frozen=True, slots=True)
class MissingRow:
    """An empty row, and the reason."""

    topology: str
    n: int | None
    error: TopologyError

    def __str__(self) -> str:
        return f"{self.topology} on {self.n} nodes: {self.error}"


@dataclass(frozen=True, slots=True)
class ComparisonTable:
    """A table. `rows` have the keys `COLUMNS`. One that is missing has its topology and n, and None in all the rest."""

    rows: list[Row]
    missing: list[MissingRow]


def compare(
    specs: Sequence[str],
    sizes: Sequence[int],
    *,
    weights: str = "metropolis",
    epsilon: float = EPSILON,
    seed: int = 0,
    model_bytes: int | None = None,
    sort: str | None = None,
) -> ComparisonTable:
    """Compare graphs. A graph file has one size of its own; families are built in all of `sizes`.

    `rounds`, `messages` and `bytes` are those to consensus; `busiest_bytes` are the bytes that the node with the most
    neighbors sends in one round, for a schedule in its heaviest round. Rows are grouped by n, and within it sorted by
    `sort`, best first, or in the order of `specs`; unknown values come last. Raises TopologyError: a spec cannot be
    read, unknown weights or column, or not one of the graphs exists.
    """
    check_weights(weights)
    require_epsilon(epsilon)
    _check_sort(sort, model_bytes)
    cases = [(spec, n) for spec in specs for n in _sizes(spec, sizes)]
    found = ComparisonTable([], [])
    for spec, n in cases:
        try:
            row = _row(spec, n, weights=weights, epsilon=epsilon, seed=seed)
            found.rows.append(with_byte_costs(row, model_bytes))
        except TopologyError as error:
            found.missing.append(MissingRow(spec, n, error))
            found.rows.append(dict.fromkeys(COLUMNS) | {"topology": spec, "n": n})
    if found.missing and len(found.missing) == len(cases):
        raise found.missing[0].error
    return ComparisonTable(_sorted(found.rows, sort), found.missing)


def static_row(topology: Topology, weights: str, epsilon: float) -> Row:
    found = spectrum(topology, weights)
    rounds = rounds_to_consensus(found.mixing_rate, epsilon) if topology.nodes > 1 else 0
    busiest = topology.formula.degrees[1] if topology.implicit else int(topology.degrees.max(initial=0))
    return {
        "topology": topology.spec,
        "n": topology.nodes,
        "edges": topology.edge_count,
        "degree_max": busiest,
        "lambda_2": found.algebraic_connectivity,
        "mixing_rate": found.mixing_rate,
        "rounds": rounds,
        "messages": None if rounds is None else 2 * rounds * topology.edge_count,
        "diameter": diameter(topology),
        "certified": bool(found.certified),
    }


def schedule_row(schedule: Schedule, epsilon: float) -> Row:
    """Make the row of a schedule. Edges, lambda_2 and diameter are those of the union of all rounds; its weights are
    its own.
    """
    found = describe_schedule(schedule, epsilon)
    return {
        "topology": schedule.spec,
        "n": schedule.nodes,
        "edges": found["edges"],
        "degree_max": found["degree"]["max"],
        "lambda_2": found["algebraic_connectivity"],
        "mixing_rate": found["mixing_rate"],
        "rounds": found["rounds_to_consensus"],
        "messages": found["messages_to_consensus"],
        "diameter": found["diameter"],
        "certified": bool(found["certified"] and found["connectivity_certified"]),
    }


def with_byte_costs(row: Mapping[str, Any], model_bytes: int | None) -> Row:
    """Return the row with `bytes` and `busiest_bytes` of a model of that size, all columns in order.
    None stays None.
    """
    known = model_bytes is not None
    messages, degree = row["messages"], row["degree_max"]
    sized = {
        "bytes": model_bytes * messages if known and messages is not None else None,
        "busiest_bytes": model_bytes * degree if known else None,
    }
    return {column: sized[column] if column in sized else row[column] for column in COLUMNS}


def _cut(cut: Cut | None) -> dict[str, Any] | None:
    if cut is None:
        return None
    smaller, larger = cut.sizes
    return {"smaller_side": smaller, "larger_side": larger, "edges": cut.edges, "conductance": cut.conductance}


def _range(bounds: IntegerBounds | None) -> list[int] | None:
    return None if bounds is None else [bounds.lower, bounds.upper]


def _contraction(schedule: Schedule, epsilon: float, parts: int) -> PeriodContraction:
    if schedule.nodes == 1:
        return _plain(0.0, 0, "one node")
    if parts > 1:
        return _plain(1.0, None, "disconnected")
    return contraction(schedule, epsilon)


def _plain(norm: float, rounds: int | None, method: str) -> PeriodContraction:
    return PeriodContraction(norm=norm, rounds=rounds, method=method, residual=0.0, certified=True, asymptotic=norm)


def _degree(schedule: Schedule) -> dict[str, float]:
    least, most, total = schedule.nodes, 0, 0
    for mixing in schedule.mixings:
        heard = np.bincount(mixing.receivers, minlength=schedule.nodes)
        least, most, total = min(least, int(heard.min())), max(most, int(heard.max())), total + mixing.messages
    return {"min": least, "mean": total / (schedule.nodes * schedule.period), "max": most}


def _check_sort(column: str | None, model_bytes: int | None) -> None:
    if column is not None and column not in COLUMNS:
        raise TopologyError("unknown column", key="sort", value=column, allowed=nearest(column, COLUMNS))
    if column in {"bytes", "busiest_bytes"} and model_bytes is None:
        raise TopologyError("bytes are not known", key="sort", value=column, allowed="with --model-bytes")


def _sizes(spec: str, sizes: Sequence[int]) -> Sequence[int | None]:
    """Return the sizes to build `spec` in; None for a file's own. An unknown name is refused here, before anything is
    built.
    """
    if spec == "-" or is_file(spec):
        return [None]
    kind(spec)
    if not sizes:
        raise TopologyError("how many nodes?", key="nodes", allowed="-n N: only a graph file says so itself")
    return sorted(set(sizes))


def _row(spec: str, n: int | None, *, weights: str, epsilon: float, seed: int) -> Row:
    if n is None or kind(spec) is GraphKind.STATIC:
        return {**static_row(resolve(spec, n, seed), weights, epsilon), "topology": spec}
    return schedule_row(build_schedule(spec, n, seed), epsilon)


def _sorted(rows: list[Row], column: str | None) -> list[Row]:
    if column is not None:
        known = [row for row in rows if row[column] is not None]
        known.sort(key=lambda row: row[column], reverse=column in LARGEST_FIRST)
        rows = known + [row for row in rows if row[column] is None]
    return sorted(rows, key=lambda row: (row["n"] is None, row["n"] or 0))
