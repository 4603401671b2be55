"""One graph as the flat object that `p2pfl topology info` prints; a schedule has the same keys where they make sense.

The module also describes several graphs at several sizes, in one row each, for `p2pfl topology compare`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from topologies.eigen import Extremes
from topologies.eigen.iterations import Over, never
from topologies.errors import TopologyError
from topologies.families import build_schedule, is_static, kind, resolve
from topologies.files.content import is_file
from topologies.graph import NetworkxGraph, Topology, component_count, require_graph
from topologies.metrics import IntegerBounds, degree_range, diameter, diameter_bounds
from topologies.metrics.byzantine import tolerance
from topologies.metrics.cuts import (
    Cut,
    conductance_bounds,
    connectivity,
    cut_points,
    sweep_cut,
)
from topologies.metrics.robustness import robustness
from topologies.schedule import DENSE_LIMIT, ROUNDING, PeriodContraction, Schedule, contraction, exact_after
from topologies.spectral import (
    EPSILON,
    check_weights,
    default_weights,
    plain_extremes,
    require_epsilon,
    rounds_to_consensus,
    settled_weights,
    spectrum,
)
from topologies.timing import Latencies, timing

Row = dict[str, Any]

COLUMNS = (
    *("topology", "n", "edges", "degree_max", "lambda_2", "mixing_rate"),
    *("rounds", "messages", "bytes", "busiest_bytes", "diameter", "certified"),
)


ORDER = (
    *("spec", "seed", "nodes", "edges", "connected", "components"),
    *("algebraic_connectivity", "method", "residual", "lower_bound"),
    *("probable_lower_bound", "certified", "converged", "laplacian_max_eigenvalue"),
    *("weights", "mixing_rate", "mixing_certified", "mixing_converged", "epsilon"),
    *(
        "rounds_to_consensus",
        "fewest_rounds",
        "messages_to_consensus",
        "bytes_to_consensus",
        "bytes_per_round_busiest_node",
    ),
    *("train_s", "exchange_s", "slowest_edge", "round_s", "consensus_s", "consensus_in_step_s"),
    *("degree", "diameter", "diameter_bounds"),
    *("edge_connectivity", "vertex_connectivity", "bridges", "cut_nodes"),
    *("thinnest_cut", "conductance"),
    *("robustness", "liars_per_node", "seconds"),
)
"""The figures of `survey` in the order in which they are shown: lambda_2 is the first after what the graph is."""


def describe(
    topology: Topology | NetworkxGraph,
    weights: str | None = None,
    epsilon: float = EPSILON,
    *,
    certify: bool = False,
    plain: Extremes | None = None,
    over: Over = never,
) -> dict[str, Any]:
    """Describe how connected a graph, or a `networkx.Graph`, is and how fast it mixes: the figures of `survey` down to
    the distances. `plain`: the result of `plain_extremes`, if known.
    """
    started = time.perf_counter()
    topology = require_graph(topology)
    plain = plain or plain_extremes(topology, certify=certify)
    mixing = _mixing(topology, plain, weights, epsilon, over, certify=certify)
    facts = {**_graph(topology), **_connectivity(plain), **mixing, **_distances(topology)}
    return in_order({**facts, "seconds": time.perf_counter() - started})


def survey(
    topology: Topology,
    weights: str | None = None,
    epsilon: float = EPSILON,
    *,
    certify: bool = False,
    model_bytes: int | None = None,
    distances: Latencies | None = None,
    train_s: float = 0.0,
    over: Over = never,
) -> dict[str, Any]:
    """The facts of `describe`, plus thin places, tolerated malicious neighbors and failures, and cost; with
    `distances`, also in seconds. When it is `over`, eigenvalues are looked for no longer: what is known then is told.

    A message is one model sent over one edge in one direction, so a round costs two per edge. `method`, `residual`,
    `lower_bound`, `probable_lower_bound`, `certified` and `converged` are about the algebraic connectivity: see
    `eigen.Extremes`.
    """
    started = time.perf_counter()
    plain = plain_extremes(topology, certify=certify, over=over)
    facts = describe(topology, weights, epsilon, certify=certify, plain=plain, over=over)
    if model_bytes is not None:
        facts |= bytes_sent(facts, model_bytes)
    if distances is not None:
        facts |= timing(topology, distances, weights=weights, epsilon=epsilon, train_s=train_s, over=over)
    # a vector may take as long as its value; one that did not converge leads to no thin place
    cuts = plain if plain.converged or not over() else replace(plain, find=lambda: np.zeros(0))
    return in_order({**facts, **structure(topology, cuts), "seconds": time.perf_counter() - started})


def bytes_sent(facts: Mapping[str, Any], model_bytes: int) -> dict[str, Any]:
    """Return what a description says about messages in bytes."""
    messages = facts["messages_to_consensus"]
    return {
        "bytes_to_consensus": None if messages is None else messages * model_bytes,
        "bytes_per_round_busiest_node": facts["degree"]["max"] * model_bytes,
    }


def in_order(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {key: facts[key] for key in ORDER if key in facts}


def _graph(topology: Topology) -> dict[str, Any]:
    parts = component_count(topology)
    least, most = degree_range(topology)
    return {
        "spec": topology.spec,
        "seed": topology.seed,
        "nodes": topology.nodes,
        "edges": topology.edge_count,
        "connected": parts == 1,
        "components": parts,
        "degree": {"min": least, "mean": 2.0 * topology.edge_count / topology.nodes, "max": most},
    }


def _connectivity(plain: Extremes) -> dict[str, Any]:
    return {
        "algebraic_connectivity": plain.low,
        "method": plain.method,
        "residual": plain.residual,
        "lower_bound": plain.lower,
        "probable_lower_bound": plain.probable,
        "certified": plain.certified,
        "converged": plain.converged,
        "laplacian_max_eigenvalue": plain.high,
    }


def _mixing(
    topology: Topology, plain: Extremes, weights: str | None, epsilon: float, over: Over = never, *, certify: bool
) -> dict[str, Any]:
    weights = default_weights(topology) if weights is None else weights
    mixes = settled_weights(topology, weights)
    result = spectrum(mixes.topology, mixes.weights, certify=certify, plain=plain, over=over)
    rounds = rounds_to_consensus(result.mixing_rate, epsilon) if topology.nodes > 1 else 0
    fewest = {} if mixes.bound is None else {"fewest_rounds": rounds_to_consensus(mixes.bound, epsilon)}
    return {
        "weights": weights,
        "mixing_rate": result.mixing_rate,
        "mixing_certified": result.mixing_certified,
        "mixing_converged": result.mixing_converged,
        "epsilon": epsilon,
        "rounds_to_consensus": rounds,
        **fewest,
        "messages_to_consensus": None if rounds is None else 2 * rounds * topology.edge_count,
    }


def _distances(topology: Topology) -> dict[str, Any]:
    bounds = diameter_bounds(topology)
    return {
        "diameter": bounds.upper if bounds is not None and bounds.exact else None,
        "diameter_bounds": _range(bounds),
    }


def structure(topology: Topology, plain: Extremes) -> dict[str, Any]:
    """Return what does not depend on the mixing weights. A range [lower, upper] is exact if both ends are equal."""
    points = cut_points(topology)
    cut = sweep_cut(topology, plain)
    between = connectivity(topology, plain, points, cut)
    robust = robustness(topology, plain, cut, most=between.nodes.upper)
    liars = tolerance(topology, robust)
    return {
        "bridges": None if points is None else len(points.bridges),
        "cut_nodes": None if points is None else len(points.nodes),
        "thinnest_cut": _cut(cut),
        "conductance": conductance_bounds(topology, plain, cut),
        "edge_connectivity": _range(between.edges),
        "vertex_connectivity": _range(between.nodes),
        "robustness": [robust.lower, robust.upper],
        "liars_per_node": {
            "mixes": liars.local,
            "guaranteed": _range(liars.guaranteed),
            "at_most": _range(liars.possible),
        },
    }


def describe_schedule(schedule: Schedule, epsilon: float = EPSILON) -> dict[str, Any]:
    """Describe a schedule. The rows and columns of its mixing matrices must sum to one, as in all families here.

    `edges`, `diameter` and the Laplacian's eigenvalues describe the union of all rounds, without directions. `degree`
    is how many models a node receives in a round. `mixing_rate`: the spectral norm of D = W_period ... W_1 - J/n, to
    the power 1/period: the factor by which a round shrinks the distance to consensus, over a period.
    `rounds_to_consensus`: the smallest t with ||W_t ... W_1 - J/n|| <= epsilon for every start. `exact_after`: the
    round after which all nodes hold the exact mean. `method`, `residual` and `certified` are about the mixing rate,
    `connectivity_method` and `connectivity_certified` about the union's eigenvalues.

    Raises TopologyError if `epsilon` is not between 0 and 1, or above `schedule.DENSE_LIMIT` nodes, unless the schedule
    is exact.
    """
    require_epsilon(epsilon)
    started = time.perf_counter()
    union = schedule.union()
    parts = component_count(union)
    exact = exact_after(schedule) if parts == 1 else None
    decay = _contraction(schedule, epsilon, parts, exact)
    # all weights as integers, or the whole matrix in memory: a norm of zero needs no relative accuracy
    nothing = exact is not None and exact <= schedule.period
    proven = nothing and decay.norm <= ROUNDING and schedule.nodes <= DENSE_LIMIT
    # an exact schedule needs no more rounds, however a norm of zero is rounded
    rounds = decay.rounds if exact is None or decay.rounds is None else min(decay.rounds, exact)
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
        "algebraic_connectivity": plain.low,
        "laplacian_max_eigenvalue": plain.high,
        "connectivity_method": plain.method,
        "connectivity_certified": bool(plain.certified),
        "degree": _degree(schedule),
        "diameter": diameter(union),
        "mixing_rate": 0.0 if nothing else min(1.0, decay.norm) ** (1.0 / schedule.period),
        "epsilon": epsilon,
        "exact_after": exact,
        "rounds_to_consensus": rounds,
        "messages_to_consensus": None if rounds is None else messages(schedule, rounds),
        "method": decay.method,
        "residual": decay.residual,
        "certified": decay.certified or proven,
        "seconds": time.perf_counter() - started,
    }


def messages(schedule: Schedule, rounds: int) -> int:
    """Count the models sent in the first `rounds` rounds."""
    sent = [mixing.messages for mixing in schedule.mixings]
    periods, rest = divmod(rounds, schedule.period)
    return periods * sum(sent) + sum(sent[:rest])


@dataclass(frozen=True, slots=True)
class MissingRow:
    """A row without figures, and the reason why it has none."""

    topology: str
    n: int | None
    error: TopologyError

    def __str__(self) -> str:
        return f"{self.topology} on {self.n} nodes: {self.error}"


@dataclass(frozen=True, slots=True)
class ComparisonTable:
    """A table. `rows` have the keys `COLUMNS`. A missing graph's row has only its topology and n, and None everywhere
    else.
    """

    rows: list[Row]
    missing: list[MissingRow]


def compare(
    specs: Sequence[str],
    sizes: Sequence[int],
    *,
    weights: str | None = None,
    epsilon: float = EPSILON,
    seed: int = 0,
    model_bytes: int | None = None,
) -> ComparisonTable:
    """Compare graphs. A graph file has its own size; families are built in all of `sizes`.

    `rounds`, `messages` and `bytes` are the totals until consensus; `busiest_bytes` are the bytes that the node with
    the most neighbors sends in one round, for a schedule in its heaviest round. Rows are grouped by n, and within a
    group in the order of `specs`. Raises TopologyError if a spec cannot be read, if the weights are unknown, or if none
    of the graphs exists.
    """
    if weights is not None:
        check_weights(weights)
    require_epsilon(epsilon)
    cases = [(spec, n) for spec in specs for n in _sizes(spec, sizes)]
    table = ComparisonTable([], [])
    for spec, n in cases:
        try:
            row = _row(spec, n, weights=weights, epsilon=epsilon, seed=seed)
            table.rows.append(with_byte_costs(row, model_bytes))
        except TopologyError as error:
            table.missing.append(MissingRow(spec, n, error))
            table.rows.append(dict.fromkeys(COLUMNS) | {"topology": spec, "n": n})
    if table.missing and len(table.missing) == len(cases):
        raise table.missing[0].error
    rows = sorted(table.rows, key=lambda row: (row["n"] is None, row["n"] or 0))
    return ComparisonTable(rows, table.missing)


def with_byte_costs(row: Mapping[str, Any], model_bytes: int | None) -> Row:
    """Return the row with `bytes` and `busiest_bytes` for a model of that size, all columns in order. None stays
    None.
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


def _contraction(schedule: Schedule, epsilon: float, parts: int, exact: int | None) -> PeriodContraction:
    if schedule.nodes == 1:
        return _plain(0.0, 0, "one node")
    if parts > 1:
        return _plain(1.0, None, "disconnected")
    if (decay := contraction(schedule, epsilon)) is not None:
        return decay
    if exact is not None:
        return replace(_plain(0.0, exact, "random starts"), certified=False)
    text = "too large for the figures of a schedule that is not exact"
    raise TopologyError(text, key="nodes", value=schedule.nodes, allowed=f"up to {DENSE_LIMIT}")


def _plain(norm: float, rounds: int | None, method: str) -> PeriodContraction:
    return PeriodContraction(norm=norm, rounds=rounds, method=method, residual=0.0, certified=True)


def _degree(schedule: Schedule) -> dict[str, float]:
    least, most, total = schedule.nodes, 0, 0
    for mixing in schedule.mixings:
        heard = np.bincount(mixing.receivers, minlength=schedule.nodes)
        least, most, total = min(least, int(heard.min())), max(most, int(heard.max())), total + mixing.messages
    return {"min": least, "mean": total / (schedule.nodes * schedule.period), "max": most}


def _sizes(spec: str, sizes: Sequence[int]) -> Sequence[int | None]:
    """Return the sizes in which to build `spec`; None for a file's own. An unknown name is refused here, before
    anything is built.
    """
    if spec == "-" or is_file(spec):
        return [None]
    kind(spec)
    if not sizes:
        raise TopologyError("how many nodes?", key="nodes", allowed="-n N: only a graph file says so itself")
    return sorted(set(sizes))


def _row(spec: str, n: int | None, *, weights: str | None, epsilon: float, seed: int) -> Row:
    """Make a row. A schedule's edges, lambda_2 and diameter are of the union of all rounds; its weights are its own."""
    if n is None or is_static(spec):
        figures = describe(resolve(spec, n, seed), weights, epsilon)
    else:
        figures = describe_schedule(build_schedule(spec, n, seed), epsilon)
    return {
        "topology": spec,
        "n": figures["nodes"],
        "edges": figures["edges"],
        "degree_max": figures["degree"]["max"],
        "lambda_2": figures["algebraic_connectivity"],
        "mixing_rate": figures["mixing_rate"],
        "rounds": figures["rounds_to_consensus"],
        "messages": figures["messages_to_consensus"],
        "diameter": figures["diameter"],
        "certified": bool(figures["certified"] and figures.get("connectivity_certified", True)),
    }
