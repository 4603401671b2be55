"""The time that messages take between far nodes, and the time to consensus that follows.

Some nodes are far from all others. All times are one way, half of what `ping` shows. As in a simulated world, a message
between two nodes that are both far takes the time of both.

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

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from topologies.eigen import extremes, require_converged
from topologies.eigen.iterations import Over, never
from topologies.eigen.laplacian import Array, Laplacian
from topologies.errors import TopologyError
from topologies.graph import Edge, Ends, Topology, component_count
from topologies.spectral import rounds_to_consensus, settled_weights, spectrum, weighted

NEAR_S = 0.002
"""The time of a message between nodes of which nothing else is said: the default of a simulated world."""
SHOWN = 5

_TIME = re.compile(r"(\d{1,9}(?:\.\d{1,9})?|\.\d{1,9})\s*(ms|s)")
_RANGE = re.compile(r"(\d{1,9})\s*-\s*(\d{1,9})")


@dataclass(frozen=True, slots=True)
class Latencies:
    """The times of messages: `far_s`, shape (nodes,), is added at both ends to `near_s`."""

    far_s: Array
    near_s: float = NEAR_S

    def of(self, ends: Ends) -> Array:
        """Return how long a message takes over each edge, one way, in seconds. Shape (edges,)."""
        return np.asarray(self.near_s + self.far_s[ends[:, 0]] + self.far_s[ends[:, 1]])


@dataclass(frozen=True, slots=True)
class FarNodes:
    """Nodes as a person names them (`28-29`, `3`, `north`), and how much longer messages to and from them take."""

    named: str
    time_s: float


def read_far(text: str) -> FarNodes:
    """Read `NODES=TIME`, as 28-29=60ms. Raises TopologyError if it is something else."""
    named, equals, time = text.rpartition("=")
    match = _TIME.fullmatch(time.strip()) if equals and named.strip() else None
    if match is None:
        allowed = "nodes and how far they are, one way, as 28-29=60ms"
        raise TopologyError("not a distance", key="far", value=text, allowed=allowed)
    return FarNodes(named.strip(), float(match[1]) * {"ms": 1e-3, "s": 1.0}[match[2]])


def latencies(
    nodes: int,
    *,
    names: Sequence[str] = (),
    far: Iterable[FarNodes] = (),
) -> Latencies:
    """Return the distances between nodes 0 .. nodes-1, which may have `names`.

    Raises TopologyError if a node is not one of them.
    """
    called = _Sites(nodes, names)
    far_s = np.zeros(nodes)
    for group in far:
        for node in called.several(group.named):
            far_s[node] += group.time_s
    return Latencies(far_s)


class _Sites:
    """The nodes of a graph by number and by name."""

    def __init__(self, nodes: int, names: Sequence[str]) -> None:
        self.nodes = nodes
        self.numbers = {name: number for number, name in enumerate(names)}
        shown = ", ".join(list(names)[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
        self.allowed = f"the nodes of the graph: {shown}" if names else f"the nodes of the graph: 0 to {nodes - 1}"

    def number(self, word: str, place: str) -> int:
        """Return the number of the node that a word names. Raises TopologyError if it names none."""
        plain = word.strip()
        if plain in self.numbers:
            return self.numbers[plain]
        if not self.numbers and plain.isascii() and plain.isdigit() and len(plain) < 10 and int(plain) < self.nodes:
            return int(plain)
        raise TopologyError("no such node", key=place, value=plain[:80], allowed=self.allowed)

    def several(self, words: str) -> list[int]:
        """Return the numbers of the nodes that a name, a number, a range, or several of these with commas name."""
        chosen = []
        for word in words.split(","):
            ends = None if word.strip() in self.numbers else _RANGE.fullmatch(word.strip())
            if ends is None or self.numbers:
                chosen.append(self.number(word, "far"))
                continue
            first, last = (self.number(end, "far") for end in ends.groups())
            if first > last:
                raise TopologyError("an empty range", key="far", value=word, allowed="the lower number first")
            chosen += range(first, last + 1)
        if len(set(chosen)) != len(chosen):
            raise TopologyError("names a node twice", key="far", value=words, allowed="each node once")
        return chosen


PATIENCE = 4.0
FLOOR_S = 0.02
"""p2pfl.core.limits: PATIENCE_MULTIPLE, PATIENCE_FLOOR_S."""
FRESH = 4.0
LIMIT = 64.0
"""The greatest age of a report: the default of `p2pfl.core.settings`, hinge-polynomial:4,0.5, ends at 64 rounds."""


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


def decay_per_s(nodes: int, ends: Ends, c: Array, paces: NodePaces) -> float:
    """Return how fast the distance to consensus falls on a connected graph, in nepers per second. `c`, shape (edges,),
    are the mixing weights.
    """
    if nodes < 2:
        return math.inf
    return require_converged(extremes(Laplacian(ends, c * paces.per_s, np.ones(nodes)))).low


def timing(
    topology: Topology,
    distances: Latencies,
    *,
    weights: str | None,
    epsilon: float,
    train_s: float = 0.0,
    over: Over = never,
) -> dict[str, Any]:
    """Return the figures of a graph in seconds: exchanges, rounds, and consensus to `epsilon`.

    `consensus_s` is with each node at its own pace; `consensus_in_step_s` if all waited for all in every round, None
    where consensus is never reached. When it is `over`, neither is looked for.
    """
    ends = topology.ends
    paces = pace(topology.nodes, ends, distances.of(ends), train_s)
    slowest: Edge | None = None
    if topology.edge_count:
        slowest = topology.edges[int(np.argmax(paces.exchange_s))]
    facts = {
        "train_s": train_s,
        "exchange_s": _spread(paces.exchange_s),
        "slowest_edge": slowest and [topology.names[node] if topology.names else node for node in slowest],
        "round_s": _spread(paces.round_s),
        "consensus_s": None,
        "consensus_in_step_s": None,
    }
    if topology.nodes < 2 or component_count(topology) > 1 or over():
        return facts
    mixes, name, _ = settled_weights(topology, weights)
    decay = decay_per_s(topology.nodes, ends, weighted(mixes, name).c, paces)
    facts["consensus_s"] = -math.log(epsilon) / decay
    rounds = rounds_to_consensus(spectrum(mixes, name).mixing_rate, epsilon)
    facts["consensus_in_step_s"] = None if rounds is None else rounds * (train_s + float(paces.exchange_s.max()))
    return facts


def _spread(values: Array) -> dict[str, float] | None:
    if not len(values):
        return None
    return {"min": float(values.min()), "mean": float(values.mean()), "max": float(values.max())}
