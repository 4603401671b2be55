"""The goal of a design: its requirements, and the criteria by which one graph is better than another.

The mixing rate of small dense graphs is computed fast, because the search needs tens of thousands of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from topologies.chance import generator
from topologies.errors import TopologyError, nearest
from topologies.graph import Ends, Topology
from topologies.laplacian import Array, Laplacian
from topologies.spectral import BY_DEGREE, EPSILON, check_weights, rounds_to_consensus, spectrum, weighted
from topologies.timing.latencies import Latencies
from topologies.timing.pace import pace

DENSE_LIMIT = 500
"""Up to this many nodes, computing all eigenvalues is faster than computing only the two that matter."""


LAMBDA_2 = "lambda_2"


def weighted_laplacian(adjacency: Array, weights: str) -> Array:
    """Return L with W = I - L, or the plain Laplacian for `best-constant` and lambda_2. Shape (n, n), the same as
    `adjacency`, which holds zeros and ones.

    All nodes have the same number of samples, so `sample-weighted` equals `metropolis`.
    """
    degrees = adjacency.sum(axis=0)
    if weights in {"best-constant", LAMBDA_2}:
        shares = adjacency
    else:
        shares = adjacency / (np.maximum(degrees[:, None], degrees) + 1.0)
    laplacian: Array = -shares
    np.fill_diagonal(laplacian, shares.sum(axis=0))
    return laplacian


def rate_between(low: float, high: float, weights: str) -> float:
    """Compute the mixing rate from the second smallest and the largest eigenvalue of `weighted_laplacian`.

    It decreases with `low` and does not decrease with `high`, so bounds on those bound it. For `LAMBDA_2` in place of
    weights it stands for lambda_2 alone: from 1, for disconnected, down to 0.
    """
    if weights == LAMBDA_2:
        return 1.0 / (1.0 + low)
    if weights == "best-constant":
        return (high - low) / (high + low) if high > 0.0 else 1.0
    return max(1.0 - low, high - 1.0)


def mixing_rate(adjacency: Array, weights: str) -> float:
    """Compute the mixing rate; 1 on a disconnected graph."""
    return rate_of_laplacian(weighted_laplacian(adjacency, weights), weights)


def rate_of_laplacian(laplacian: Array, weights: str) -> float:
    """Compute the mixing rate from the `weighted_laplacian`."""
    values = np.linalg.eigvalsh(laplacian)
    if values[1] < 1e-10 * max(1.0, values[-1]):
        return 1.0
    return rate_between(float(values[1]), float(values[-1]), weights)


def rate_of(topology: Topology, weights: str) -> float:
    """Return the mixing rate as `spectrum` does, without its proofs."""
    if topology.formula is not None or topology.nodes > DENSE_LIMIT:
        return spectrum(topology, weights).mixing_rate
    return mixing_rate(adjacency_of(topology.nodes, topology.ends), weights)


def adjacency_of(nodes: int, ends: Ends) -> Array:
    """Return the matrix of zeros and ones, shape (nodes, nodes)."""
    adjacency = np.zeros((nodes, nodes))
    adjacency[ends[:, 0], ends[:, 1]] = adjacency[ends[:, 1], ends[:, 0]] = 1.0
    return adjacency


CRITERIA = ("rounds", "bytes", "edges")
TIME = "time"
"""The criterion where distances are known."""
LARGEST = (LAMBDA_2,)
MODEL_BYTES = 400_000
"""The size of a model with 100,000 parameters in float32."""

DIGITS = 9
"""Two mixing rates that agree to this many decimal places are a tie."""

PER_EDGE = 1e-6
"""What an edge costs the search, so that of two graphs as fast the one with fewer edges wins."""

DESIGN_LIMIT = 5_000
"""The maximum number of nodes for a design: two minutes in all on one core."""

SEARCH_LIMIT = 500
"""The maximum number of nodes for a search; above that, one graph takes too long to judge."""

Key = tuple[float, ...]


Over = Callable[[], bool]
"""True when a search has to end."""


def never() -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """The requirements on a designed graph, and the criterion; the second figure named breaks ties.

    `maximize`, if given, is the criterion in place of `minimize`: `lambda_2`; then edges.

    - `rounds`: the mixing rate under `weights`, which decides the rounds to consensus; then edges.
    - `bytes`: what all nodes send until consensus, 2 * edges * rounds * model_bytes; then the mixing rate.
    - `edges`: cables, or sessions; then the mixing rate.
    - `time`: the seconds to consensus where `distances` says how far nodes are, and a round trains `train_s`; then
      edges.

    Consensus is agreement to `EPSILON`. `byzantine`: with b liars each node has more than 2b neighbors, there is no
    bridge, and the graph is (2b + 1)-robust. `max_degree` None: no limit. With `given`, the graph has all edges of that
    one, and `add` more.
    """

    nodes: int
    max_degree: int | None = None
    byzantine: int = 0
    model_bytes: int = MODEL_BYTES
    minimize: str = "rounds"
    maximize: str | None = None
    weights: str = "metropolis"
    seed: int = 0
    distances: Latencies | None = field(default=None, compare=False)
    train_s: float = 0.0
    given: Topology | None = field(default=None, compare=False)
    add: int = 0

    @property
    def by_time(self) -> bool:
        """True if the seconds to consensus are the criterion."""
        return self.maximize is None and self.minimize == "time"

    @property
    def highest(self) -> int:
        """The maximum degree that any node may have."""
        return self.nodes - 1 if self.max_degree is None else min(self.max_degree, self.nodes - 1)

    @property
    def lowest(self) -> int:
        """The minimum degree that every node must have: a bridge-free graph has no leaf."""
        return 2 * self.byzantine + 1 if self.byzantine else 1

    @property
    def robustness(self) -> int:
        return 2 * self.byzantine + 1 if self.byzantine else 0

    def rounds(self, rate: float) -> int | None:
        return rounds_to_consensus(min(rate, 1.0))

    def bytes_sent(self, rate: float, edges: int) -> int | None:
        """The bytes that all nodes send until consensus; None if it is never reached."""
        rounds = self.rounds(rate)
        return None if rounds is None else 2 * edges * rounds * self.model_bytes

    def seconds(self, ends: Ends) -> float:
        """The time to consensus on the graph with these edges; infinite if it is not connected."""
        low, high = np.linalg.eigvalsh(self.flow(ends))[[1, -1]].tolist()
        return math.inf if low < 1e-10 * max(high, 1e-300) else -math.log(EPSILON) / low

    def flow(self, ends: Ends) -> Array:
        """The Laplacian, shape (nodes, nodes), whose lambda_2 is how fast models approach each other per second."""
        if self.distances is None:
            raise ValueError("nothing says how far the nodes are")
        if self.weights == "best-constant":
            c = weighted(Topology("searched", self.nodes, ends), self.weights).c
        else:
            degrees = np.bincount(ends.ravel(), minlength=self.nodes)
            c = 1.0 / (np.maximum(degrees[ends[:, 0]], degrees[ends[:, 1]]) + 1.0)
        per_s = pace(self.nodes, ends, self.distances.of(ends), self.train_s).per_s
        return Laplacian(ends, c * per_s, np.ones(self.nodes)).dense()

    @property
    def matrix(self) -> str:
        """The weights of the matrix whose rate the search lowers; `LAMBDA_2` stands for the Laplacian itself."""
        return self.maximize or self.weights

    def key(self, rate: float, edges: int) -> Key:
        """Make a sort key from the rate of `matrix`, or the seconds; lower is better."""
        uncounted = self.by_time or (self.maximize and rate < 1.0)
        return self.key_of(rate, edges, 0 if uncounted else self.bytes_sent(rate, edges))

    def key_of(self, rate: float, edges: int, sent: int | None) -> Key:
        """Make the key when the bytes `sent` are known from elsewhere, as for a schedule."""
        if sent is None:
            return (math.inf, edges, 1.0)
        tie = round(rate, DIGITS)
        match self.maximize or self.minimize:
            case "rounds" | "lambda_2" | "time":
                return (tie, edges)
            case "bytes":
                return (sent, tie)
            case _:
                return (edges, tie)

    def energy(self, rate: float, edges: int) -> float:
        """Return a smooth substitute for `key`, increasing with the rate, or the seconds, which the search minimizes.
        In nepers.
        """
        if self.by_time:
            return math.log(rate) + PER_EDGE * edges
        if rate >= 1.0:
            return math.inf
        decay = -math.log(max(rate, 1e-15))
        match self.maximize or self.minimize:
            case "rounds" | "lambda_2":
                return -math.log(decay) + PER_EDGE * edges
            case "bytes":
                # the models sent until consensus: half by whole rounds, half by what would be needed
                smooth = max(1.0, -math.log(EPSILON) / decay)
                return math.log(edges * (smooth + (self.rounds(rate) or 1)))
            case _:
                return math.log(edges) - 0.05 * math.log(decay)


def checked(goal: Goal) -> Goal:
    """Return the goal if some graph can meet it. Raises TopologyError if none can; its key says why."""
    check_weights(goal.weights, BY_DEGREE)
    if goal.minimize not in (*CRITERIA, TIME):
        allowed = nearest(goal.minimize, (*CRITERIA, TIME))
        raise TopologyError("unknown criterion", key="minimize", value=goal.minimize, allowed=allowed)
    if goal.maximize is not None and goal.maximize not in LARGEST:
        allowed = nearest(goal.maximize, LARGEST)
        raise TopologyError("unknown criterion", key="maximize", value=goal.maximize, allowed=allowed)
    if goal.by_time and goal.distances is None:
        text = "nothing says how far the nodes are from each other"
        raise TopologyError(text, key="minimize", value="time", allowed="with --far or --distances")
    if goal.nodes < 2:
        raise TopologyError("nothing to join", key="nodes", value=goal.nodes, allowed="from 2")
    if goal.nodes > DESIGN_LIMIT:
        allowed = f"from 2 to {DESIGN_LIMIT}; `topology compare` shows single families at larger sizes"
        raise TopologyError(
            "impossible size for a search among all families", key="nodes", value=goal.nodes, allowed=allowed
        )
    generator(goal.seed)
    for key in ("byzantine", "model_bytes", "max_degree"):
        least = 0 if key == "byzantine" else 1
        value = getattr(goal, key)
        if value is not None and value < least:
            raise TopologyError("impossible value", key=key.replace("_", "-"), value=value, allowed=f"from {least}")
    _check_byzantine(goal)
    _check_degree(goal)
    if goal.given is not None:
        _check_addition(goal, goal.given)
    return goal


def _check_addition(goal: Goal, given: Topology) -> None:
    if given.nodes > SEARCH_LIMIT:
        allowed = f"up to {SEARCH_LIMIT}"
        raise TopologyError("too large to look for edges to add", key="nodes", value=given.nodes, allowed=allowed)
    room = given.nodes * (given.nodes - 1) // 2 - given.edge_count
    if not 1 <= goal.add <= room:
        allowed = f"from 1 to {room}: so many pairs of nodes are not joined"
        raise TopologyError("impossible number of edges to add", key="add", value=goal.add, allowed=allowed)


def _check_byzantine(goal: Goal) -> None:
    n, b = goal.nodes, goal.byzantine
    most = ((n + 1) // 2 - 1) // 2  # the complete graph is ceil(n/2)-robust, and no graph is more robust
    if b and b > most:
        raise TopologyError(
            f"{n} nodes cannot be {2 * b + 1}-robust, as byzantine = {b} asks for",
            key="byzantine",
            value=b,
            allowed=f"up to {most} on {n} nodes, or at least {4 * b + 1} nodes",
        )


def _check_degree(goal: Goal) -> None:
    n, most = goal.nodes, goal.highest
    need = goal.lowest if goal.byzantine else min(2, n - 1)
    if most < need:
        reason = f"more than {2 * goal.byzantine} neighbors" if goal.byzantine else "a connected graph"
        text = f"too few for {reason}" + (f" with byzantine = {goal.byzantine}" if goal.byzantine else "")
        raise TopologyError(text, key="max-degree", value=goal.max_degree, allowed=f"from {need}")
    if most == goal.lowest and most * n % 2 and most > 1:
        text = f"not all of {n} nodes can have exactly {most} neighbors, since {n} times {most} is odd"
        raise TopologyError(text, key="max-degree", value=goal.max_degree, allowed=f"from {most + 1}")
