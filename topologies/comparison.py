"""Several topologies side by side, at several sizes: one row of figures for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from topologies.building import build_schedule, kind, resolve
from topologies.errors import TopologyError, nearest
from topologies.family import GraphKind
from topologies.graph import Topology
from topologies.metrics.distance import diameter
from topologies.schedules.schedule import Schedule
from topologies.specs import is_file
from topologies.spectral import EPSILON, check_weights, require_epsilon, rounds_to_consensus, spectrum

Row = dict[str, Any]

COLUMNS = (
    *("topology", "n", "edges", "degree_max", "lambda_2", "mixing_rate"),
    *("rounds", "messages", "bytes", "busiest_bytes", "diameter", "certified"),
)
LARGEST_FIRST = ("lambda_2", "certified")
"""Best first; all other columns are better where they are small."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A row that is empty, and why."""

    topology: str
    n: int | None
    error: TopologyError

    def __str__(self) -> str:
        return f"{self.topology} on {self.n} nodes: {self.error}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """`rows` have the keys `COLUMNS`. One that is missing has its topology and n, and None in all the rest."""

    rows: list[Row]
    missing: list[Missing]


def compare(
    specs: Sequence[str],
    sizes: Sequence[int],
    *,
    weights: str = "metropolis",
    epsilon: float = EPSILON,
    seed: int = 0,
    model_bytes: int | None = None,
    sort: str | None = None,
) -> Comparison:
    """A graph file has one size of its own; families are built in all of `sizes`.

    `rounds`, `messages` and `bytes` are those to consensus; `busiest_bytes` is what the node with the most neighbors
    sends in one round, of a schedule in its heaviest round. Rows are grouped by n, and within it sorted by `sort`,
    best first, or in the order of `specs`; what is not known comes last.
    Raises TopologyError: a spec cannot be read, unknown weights or column, or not one of the graphs exists.
    """
    check_weights(weights)
    require_epsilon(epsilon)
    _check_sort(sort, model_bytes)
    wanted = [(spec, n) for spec in specs for n in _sizes(spec, sizes)]
    found = Comparison([], [])
    for spec, n in wanted:
        try:
            row = _row(spec, n, weights=weights, epsilon=epsilon, seed=seed)
            found.rows.append(with_bytes(row, model_bytes))
        except TopologyError as error:
            found.missing.append(Missing(spec, n, error))
            found.rows.append(dict.fromkeys(COLUMNS) | {"topology": spec, "n": n})
    if found.missing and len(found.missing) == len(wanted):
        raise found.missing[0].error
    return Comparison(_sorted(found.rows, sort), found.missing)


def _check_sort(column: str | None, model_bytes: int | None) -> None:
    if column is not None and column not in COLUMNS:
        raise TopologyError("unknown column", key="sort", value=column, allowed=nearest(column, COLUMNS))
    if column in {"bytes", "busiest_bytes"} and model_bytes is None:
        raise TopologyError("bytes are not known", key="sort", value=column, allowed="with --model-bytes")


def _sizes(spec: str, sizes: Sequence[int]) -> Sequence[int | None]:
    """Sizes to build `spec` in; None for a file's own. An unknown name is found here, before anything is built."""
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
    """Edges, lambda_2 and diameter are those of the union of all rounds; its weights are the schedule's own."""
    from topologies.metrics.describe import describe_schedule  # noqa: PLC0415 - a static graph does without

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


def with_bytes(row: Mapping[str, Any], model_bytes: int | None) -> Row:
    """All columns in order. None stays None."""
    known = model_bytes is not None
    messages, degree = row["messages"], row["degree_max"]
    sized = {
        "bytes": model_bytes * messages if known and messages is not None else None,
        "busiest_bytes": model_bytes * degree if known else None,
    }
    return {column: sized[column] if column in sized else row[column] for column in COLUMNS}


def _sorted(rows: list[Row], column: str | None) -> list[Row]:
    if column is not None:
        known = [row for row in rows if row[column] is not None]
        known.sort(key=lambda row: row[column], reverse=column in LARGEST_FIRST)
        rows = known + [row for row in rows if row[column] is None]
    return sorted(rows, key=lambda row: (row["n"] is None, row["n"] or 0))
