"""How long messages take between far nodes, and the time to consensus that follows.

Some nodes are far from all others, or a file has the times of pairs. All times are one way, half of what `ping` shows.
As in a simulated world, a message between two nodes that are both far takes the time of both.

A file has lines `a,b,time`, or a matrix: a first line with the nodes' names behind an empty cell, then a line for each
node. Times are in milliseconds, or have a unit, as 60ms or 0.06s.

Each node keeps its own pace, and no round is one of all nodes. The model is of what nodes do. A node trains, then
exchanges with each neighbor, which takes a message there and one back; it waits for all answers, but for one that is
late no longer than `PATIENCE` times the (lower) median of its exchanges and `FLOOR_S` more, and again half as long in
each further round until it is there. Whichever of two ends is quicker asks the other, one exchange at a time, so an
edge is used at the pace of the quicker end or of its own exchanges. What is older than `FRESH` rounds of the quicker
end moves models less.

Small exchanges one after the other act as a flow: the distance falls as exp(-lambda_2 t), with lambda_2 that of the
Laplacian whose weights are the mixing weights times the exchanges per second. (Boyd, Ghosh, Prabhakar and Shah,
Randomized gossip algorithms, 2006, has the same matrix for random exchanges.) Nothing here knows bandwidth: large
models need a simulation.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from topologies.eigen import extremes, require_converged
from topologies.eigen.laplacian import Array, Laplacian
from topologies.errors import TopologyError
from topologies.graph import Edge, Ends, Topology, component_count
from topologies.spectral import rounds_to_consensus, settled_weights, spectrum, weighted

NEAR_S = 0.002
"""The time of a message between nodes of which nothing else is said: the default of a simulated world."""
BYTES_LIMIT = 1 << 28
SHOWN = 5

_TIME = re.compile(r"(\d{1,9}(?:\.\d{1,9})?|\.\d{1,9})\s*(ms|s|)")
_RANGE = re.compile(r"(\d{1,9})\s*-\s*(\d{1,9})")
_ALLOWED_TIME = "a time, as 60ms or 0.06s"
_ALLOWED_LINES = "lines `a,b,60ms`, or a matrix with the names of all nodes in its first line and first column"


@dataclass(frozen=True, slots=True)
class Latencies:
    """The times of messages between `nodes` nodes: `far_s`, shape (nodes,), is added at both ends to `near_s`, or to
    what `pairs` has for a pair (i, j), i < j.
    """

    far_s: Array
    near_s: float = NEAR_S
    pairs: Mapping[tuple[int, int], float] = field(default_factory=dict)

    @property
    def nodes(self) -> int:
        return len(self.far_s)

    def of(self, ends: Ends) -> Array:
        """Return how long a message takes over each edge, one way, in seconds. Shape (edges,)."""
        near = np.full(len(ends), self.near_s)
        if self.pairs:
            near = np.array([self.pairs.get((i, j), self.near_s) for i, j in ends.tolist()])
        return np.asarray(near + self.far_s[ends[:, 0]] + self.far_s[ends[:, 1]])

    def matrix(self) -> Array:
        """Return the times between all nodes, shape (nodes, nodes), zero on the diagonal."""
        found = np.full((self.nodes, self.nodes), self.near_s)
        for (i, j), time_s in self.pairs.items():
            found[i, j] = found[j, i] = time_s
        found += self.far_s[:, None] + self.far_s
        np.fill_diagonal(found, 0.0)
        return found


@dataclass(frozen=True, slots=True)
class FarNodes:
    """Nodes as a person names them (`28-29`, `3`, `north`), and how much longer messages to and from them take."""

    named: str
    time_s: float


def read_far(text: str) -> FarNodes:
    """Read `NODES=TIME`, as 28-29=60ms. Raises TopologyError if it is something else."""
    named, equals, time = text.rpartition("=")
    seconds = time_in_seconds(time, unit=None) if equals and named.strip() else None
    if seconds is None:
        allowed = "nodes and how far they are, one way, as 28-29=60ms"
        raise TopologyError("not a distance", key="far", value=text, allowed=allowed)
    return FarNodes(named.strip(), seconds)


def time_in_seconds(text: str, unit: str | None = "ms") -> float | None:
    """Read a time; a number alone is in `unit`, or nothing if that is None. Returns None if it is no time."""
    match = _TIME.fullmatch(text.strip())
    if match is None or not (match[2] or unit):
        return None
    return float(match[1]) * {"ms": 1e-3, "s": 1.0}[match[2] or unit or "s"]


def latencies(
    nodes: int,
    *,
    names: Sequence[str] = (),
    far: Iterable[FarNodes] = (),
    file: Path | None = None,
) -> Latencies:
    """Return the distances between nodes 0 .. nodes-1, which may have `names`.

    Raises TopologyError if a node is not one of them, or if the file cannot be understood.
    """
    called = _Sites(nodes, names)
    far_s = np.zeros(nodes)
    for one in far:
        for node in called.several(one.named):
            far_s[node] += one.time_s
    return Latencies(far_s, pairs={} if file is None else _read(file, called))


class _Sites:
    """The nodes of a graph by number and by name."""

    def __init__(self, nodes: int, names: Sequence[str]) -> None:
        self.nodes = nodes
        self.numbers = {name: number for number, name in enumerate(names)}
        shown = ", ".join(list(names)[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
        self.allowed = f"the nodes of the graph: {shown}" if names else f"the nodes of the graph: 0 to {nodes - 1}"

    def one(self, word: str, place: str) -> int:
        """Return the number of the node that a word names. Raises TopologyError if it names none."""
        plain = word.strip()
        if plain in self.numbers:
            return self.numbers[plain]
        if not self.numbers and plain.isascii() and plain.isdigit() and len(plain) < 10 and int(plain) < self.nodes:
            return int(plain)
        raise TopologyError("no such node", key=place, value=plain[:80], allowed=self.allowed)

    def several(self, words: str) -> list[int]:
        """Return the numbers of the nodes that a name, a number, a range, or several of these with commas name."""
        found = []
        for word in words.split(","):
            ends = None if word.strip() in self.numbers else _RANGE.fullmatch(word.strip())
            if ends is None or self.numbers:
                found.append(self.one(word, "far"))
                continue
            first, last = (self.one(end, "far") for end in ends.groups())
            if first > last:
                raise TopologyError("an empty range", key="far", value=word, allowed="the lower number first")
            found += range(first, last + 1)
        if len(set(found)) != len(found):
            raise TopologyError("names a node twice", key="far", value=words, allowed="each node once")
        return found


def _read(path: Path, called: _Sites) -> dict[tuple[int, int], float]:
    """Read a file of distances, in seconds by pair."""
    try:
        with path.open("rb") as file:
            data = file.read(BYTES_LIMIT + 1)
    except (OSError, ValueError) as error:
        text = f"cannot read the distances: {getattr(error, 'strerror', error)}"
        raise TopologyError(text, key="distances", value=str(path), allowed="a CSV file") from None
    if len(data) > BYTES_LIMIT:
        raise TopologyError("too large a file", key="distances", value=str(path), allowed=f"up to {BYTES_LIMIT} bytes")
    try:
        rows = list(csv.reader(io.StringIO(data.decode("utf-8-sig"), newline="")))
    except (UnicodeDecodeError, csv.Error) as error:
        text = f"not a CSV file in UTF-8: {error}"
        raise TopologyError(text, key="distances", value=str(path), allowed=_ALLOWED_LINES) from None
    lines = [(f"{path}:{number}", row) for number, row in enumerate(rows, 1) if any(cell.strip() for cell in row)]
    if not lines:
        raise TopologyError("no distances", key="distances", value=str(path), allowed=_ALLOWED_LINES)
    return _matrix(lines, called) if not lines[0][1][0].strip() else _lines(lines, called)


def _lines(lines: Sequence[tuple[str, list[str]]], called: _Sites) -> dict[tuple[int, int], float]:
    """Read lines `a,b,time`; a first line without a time is a heading. A pair may stand once in each direction."""
    told: dict[tuple[int, int], float] = {}
    for place, row in lines:
        if len(row) != 3:
            raise TopologyError("not a distance", key=place, value=",".join(row)[:80], allowed=_ALLOWED_LINES)
        if place == lines[0][0] and time_in_seconds(row[2]) is None and not any(c.isdigit() for c in row[2]):
            continue
        i, j = called.one(row[0], place), called.one(row[1], place)
        if i == j:
            raise TopologyError("a distance from a node to itself", key=place, value=row[0], allowed="two nodes")
        if (i, j) in told:
            allowed = "each pair once, or once in each direction"
            raise TopologyError("the same two nodes again", key=place, value=f"{row[0]},{row[1]}", allowed=allowed)
        told[i, j] = _time(row[2], place)
    return _mean_of_directions(told)


def _matrix(lines: Sequence[tuple[str, list[str]]], called: _Sites) -> dict[tuple[int, int], float]:
    """Read a matrix of the times between all nodes, one way from the row's to the column's."""
    (head, names), *rest = lines
    columns = [called.one(word, head) for word in names[1:]]
    for place, nodes in ((head, columns), *([(head, [called.one(row[0], place) for place, row in rest])])):
        if len(nodes) != called.nodes or len(set(nodes)) != called.nodes:
            text = f"the matrix has {len(set(nodes))} of the graph's {called.nodes} nodes"
            raise TopologyError(text, key=place, allowed="a line and a column for each node, once")
    told: dict[tuple[int, int], float] = {}
    for place, row in rest:
        i = called.one(row[0], place)
        if len(row) != len(columns) + 1:
            raise TopologyError("not a line of the matrix", key=place, value=len(row), allowed=f"{len(names)} cells")
        for j, cell in zip(columns, row[1:], strict=True):
            if i != j:
                told[i, j] = _time(cell, place)
    return _mean_of_directions(told)


def _time(text: str, place: str) -> float:
    seconds = time_in_seconds(text)
    if seconds is None or not math.isfinite(seconds):
        raise TopologyError("not a time", key=place, value=text.strip()[:80], allowed=_ALLOWED_TIME)
    return seconds


def _mean_of_directions(told: Mapping[tuple[int, int], float]) -> dict[tuple[int, int], float]:
    """Return one time for each pair: an exchange goes there and back, so only the sum of both ways counts."""
    return {(min(i, j), max(i, j)): (time_s + told.get((j, i), time_s)) / 2.0 for (i, j), time_s in told.items()}


PATIENCE = 4.0
FLOOR_S = 0.02
"""p2pfl.core.limits: PATIENCE_MULTIPLE, PATIENCE_FLOOR_S."""
FRESH = 4.0
LIMIT = 64.0
"""How old a report may be: the default of `p2pfl.core.settings`, hinge-polynomial:4,0.5, ends at 64 rounds."""


@dataclass(frozen=True, slots=True)
class NodePaces:
    """`exchange_s`, shape (edges,): how long an exchange takes. `round_s`, shape (nodes,): how long a round takes.
    `per_s`, shape (edges,): exchanges per second, each counted as much as it moves models.
    """

    exchange_s: Array
    round_s: Array
    per_s: Array


def pace(nodes: int, ends: Ends, one_way_s: Array, train_s: float = 0.0) -> NodePaces:
    """Return the pace of nodes that train `train_s` seconds a round; `one_way_s`, shape (edges,), is for a message."""
    exchange_s = 2.0 * one_way_s
    round_s = train_s + _waits(nodes, ends, exchange_s, train_s)
    quicker = np.minimum(round_s[ends[:, 0]], round_s[ends[:, 1]])
    age = np.minimum(exchange_s / quicker, LIMIT)
    fresh = 1.0 / np.sqrt(np.maximum(1.0, age - FRESH + 1.0))
    return NodePaces(exchange_s, round_s, fresh / np.maximum(exchange_s, quicker))


def _waits(nodes: int, ends: Ends, exchange_s: Array, train_s: float) -> Array:
    """Return how long each node waits in a round, on average. Shape (nodes,)."""
    both, twice = ends.T.ravel(), np.concatenate([exchange_s, exchange_s])
    order = np.lexsort((twice, both))
    both, twice = both[order], twice[order]
    counts = np.bincount(both, minlength=nodes)
    there = counts > 0
    first = (np.cumsum(counts) - counts)[there]
    last = twice[first + counts[there] - 1]
    patience = PATIENCE * twice[first + (counts[there] - 1) // 2] + FLOOR_S
    # the slowest exchange that it waits for to the end
    own = np.repeat(patience, counts[there])
    awaited = np.maximum.reduceat(np.where(twice <= own, twice, 0.0), first)
    rest = 1.0 - 2.0 * patience / last
    halved = np.where(rest > 0.0, (train_s + awaited) / np.where(rest > 0.0, rest, 1.0) - train_s, np.inf)
    waits = np.zeros(nodes)
    waits[there] = np.where(last <= patience, last, np.minimum(patience, halved))
    return waits


def decay_per_s(nodes: int, ends: Ends, c: Array, found: NodePaces) -> float:
    """Return how fast the distance to consensus falls on a connected graph, in nepers per second. `c`, shape (edges,),
    are the mixing weights.
    """
    if nodes < 2:
        return math.inf
    return require_converged(extremes(Laplacian(ends, c * found.per_s, np.ones(nodes)))).low


def timing(
    topology: Topology, distances: Latencies, *, weights: str | None, epsilon: float, train_s: float = 0.0
) -> dict[str, Any]:
    """Return the figures of a graph in seconds: exchanges, rounds, and consensus to `epsilon`.

    `consensus_s` is with each node at its own pace; `consensus_in_step_s` if all waited for all in every round, None
    where consensus is never reached.
    """
    ends = topology.ends
    found = pace(topology.nodes, ends, distances.of(ends), train_s)
    slowest: Edge | None = None
    if topology.edge_count:
        slowest = topology.edges[int(np.argmax(found.exchange_s))]
    facts = {
        "train_s": train_s,
        "exchange_s": _spread(found.exchange_s),
        "slowest_edge": slowest and [topology.names[node] if topology.names else node for node in slowest],
        "round_s": _spread(found.round_s),
        "consensus_s": None,
        "consensus_in_step_s": None,
    }
    if topology.nodes < 2 or component_count(topology) > 1:
        return facts
    mixes, name, _ = settled_weights(topology, weights)
    decay = decay_per_s(topology.nodes, ends, weighted(mixes, name).c, found)
    facts["consensus_s"] = -math.log(epsilon) / decay
    rounds = rounds_to_consensus(spectrum(mixes, name).mixing_rate, epsilon)
    facts["consensus_in_step_s"] = None if rounds is None else rounds * (train_s + float(found.exchange_s.max()))
    return facts


def _spread(values: Array) -> dict[str, float] | None:
    if not len(values):
        return None
    return {"min": float(values.min()), "mean": float(values.mean()), "max": float(values.max())}
