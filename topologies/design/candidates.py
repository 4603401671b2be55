"""The goal of a design, its requirements and criteria; and the candidates that the known families have for it.

The mixing rate of small dense graphs is computed fast, because the search needs tens of thousands of them.

Parameters are chosen to suit a number of nodes and a degree; a family without an entry in the table of choices is tried
without parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from random import Random

import numpy as np

from topologies.chance import generator
from topologies.eigen import Tell, silent
from topologies.eigen.iterations import Over, never
from topologies.eigen.laplacian import Array, Laplacian
from topologies.errors import TopologyError, nearest
from topologies.families import FAMILIES, build, parse
from topologies.family import GraphKind, GraphRequest
from topologies.graph import Ends, Topology, component_count
from topologies.metrics import degree_range
from topologies.metrics.cuts import cut_points
from topologies.metrics.robustness import Robustness, robustness
from topologies.spectral import (
    BY_DEGREE,
    EPSILON,
    check_weights,
    plain_extremes,
    rounds_to_consensus,
    spectrum,
    weighted,
)
from topologies.timing import Latencies, pace

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
"""The cost of an edge in the search, so that of two graphs as fast the one with fewer edges wins."""

DESIGN_LIMIT = 5_000
"""The maximum number of nodes for a design: two minutes in all on one core."""

SEARCH_LIMIT = 500
"""The maximum number of nodes for a search; above that, one graph takes too long to judge."""

Key = tuple[float, ...]


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


SEEDS = 5
DRAWN = 200
"""Up to this many nodes each random family is drawn `SEEDS` times, if not asked otherwise; on larger graphs once."""
SMALL = 500
DEGREES = 12
"""The number of values tried for a parameter that sets the degree; half as many above `SMALL` nodes."""
CIRCULANTS = 2_000
"""The maximum number of offset sets tried for each number of offsets."""
OFFSETS_LIMIT = 8
CIRCULANT_NODES = 2_000


def static_choices(goal: Goal) -> Iterator[tuple[str, int]]:
    """Yield specs with seeds, in family order. Some have no graph of this size: building them raises an error."""
    for name, family in FAMILIES.items():
        if family.kind is not GraphKind.STATIC:
            continue
        settings = CHOICES[name](goal) if name in CHOICES else [""]
        seeds = range(goal.seed, goal.seed + (SEEDS if goal.nodes <= DRAWN else 1)) if family.random else [0]
        for setting in settings:
            for seed in seeds:
                yield (f"{name}:{setting}" if setting else name), seed


def _spread(low: int, high: int, step: int, most: int) -> list[int]:
    """Return at most `most` values from `low` to `high`, both included."""
    values = list(range(low, high + 1, step))
    if len(values) <= most:
        return values
    return sorted({values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)})


def _degrees(goal: Goal, low: int, step: int = 1) -> list[int]:
    if goal.nodes <= SMALL:
        return _spread(low, goal.highest, step, DEGREES)
    return _spread(low, min(goal.highest, 32), step, DEGREES // 2)


def circulants(goal: Goal) -> Iterator[str]:
    """Yield the fastest set of offsets found for each degree."""
    n = goal.nodes
    if not 3 <= n <= CIRCULANT_NODES:
        return
    half = (n - 1) // 2
    waves = np.outer(np.arange(1, n // 2 + 1), np.arange(n // 2 + 1)) % n
    gaps = 4.0 * np.sin(np.pi * waves / n) ** 2
    if n % 2 == 0:
        gaps[:, -1] /= 2.0
    for count in range(1, min(OFFSETS_LIMIT, half, goal.highest // 2) + 1):
        drawn = np.array(list(_offset_sets(half, count, Random(goal.seed))))
        for extra in (), (n // 2,):
            degree = 2 * count + len(extra)
            if degree <= goal.highest and (not extra or n % 2 == 0):
                best = _fastest(gaps, drawn, extra, goal.matrix)
                yield "offsets=" + "-".join(map(str, sorted((*drawn[best].tolist(), *extra))))


def _offset_sets(half: int, count: int, rng: Random) -> Iterable[tuple[int, ...]]:
    if math.comb(half, count) <= CIRCULANTS:
        return combinations(range(1, half + 1), count)
    return (tuple(sorted(rng.sample(range(1, half + 1), count))) for _ in range(CIRCULANTS))


def _fastest(
    gaps: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    drawn: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    extra: tuple[int, ...],
    weights: str,
) -> int:
    """Return the row of the fastest set in `drawn` (sets, count); eigenvalues are sums of `gaps` over its offsets."""
    scale = 1.0 if weights in {"best-constant", LAMBDA_2} else 1.0 / (2 * drawn.shape[1] + len(extra) + 1)
    rates = []
    for offsets in drawn:
        values = gaps[:, [*offsets.tolist(), *extra]].sum(axis=1)
        rates.append(rate_between(scale * float(values.min()), scale * float(values.max()), weights))
    return int(np.argmin(np.round(rates, 12)))


CHOICES: Mapping[str, Callable[[Goal], Iterable[str]]] = {
    "random-regular": lambda goal: [f"degree={degree}" for degree in _degrees(goal, 2)],
    "circulant": circulants,
    "watts-strogatz": lambda goal: [f"k={k},p={p}" for k in _degrees(goal, 2, 2) for p in (0.1, 0.5)],
    "keyed-rings": lambda goal: [f"r={degree // 2}" for degree in _degrees(goal, 2, 2)],
    "barabasi-albert": lambda goal: [f"m={m}" for m in _degrees(goal, 1)[:4]],
    "d-cliques": lambda goal: [f"size={size}" for size in _degrees(goal, 3)[:6]],
}


SEARCHED = "searched"
"""The first word of the spec of a graph that belongs to no family."""

DENSE = 40
"""Edges per node: above `SMALL` nodes, a denser graph is judged by its formulas or not at all."""


@dataclass(eq=False, kw_only=True)
class GraphCandidate:
    """A graph with its costs. For a schedule `topology` is the union of its rounds, which needs sessions.

    `rate` is the mixing rate; for a schedule, that of a static graph that would need as many rounds.
    """

    goal: Goal
    topology: Topology
    rate: float
    rounds: int | None
    sent: int | None

    @property
    def spec(self) -> str:
        return self.topology.spec

    @property
    def key(self) -> Key:
        return self.goal.key_of(self.measure, self.topology.edge_count, self.sent)

    @property
    def measure(self) -> float:
        """The rate, or the seconds, or where lambda_2 is the criterion what stands for it; lower is better."""
        if self.goal.by_time:
            return math.inf if self.seconds is None else self.seconds
        return rate_between(self.lambda_2 or 0.0, 0.0, LAMBDA_2) if self.goal.maximize else self.rate

    @cached_property
    def seconds(self) -> float | None:
        """The seconds to consensus; None where nothing says how far nodes are."""
        if self.goal.distances is None or self.topology.implicit:
            return None
        return self.goal.seconds(self.topology.ends)

    @cached_property
    def lambda_2(self) -> float | None:
        """The algebraic connectivity."""
        if self.topology.formula is not None or self.topology.nodes > DENSE_LIMIT:
            return plain_extremes(self.topology).low
        if component_count(self.topology) > 1:
            return 0.0
        return float(np.linalg.eigvalsh(Laplacian.plain(self.topology).dense())[1])

    @property
    def named(self) -> bool:
        """True if a federation file can name it by its spec; a graph that depends on the members' names differs."""
        if self.goal.given is not None or self.spec.startswith(SEARCHED):
            return False
        return not FAMILIES[parse(self.spec).name].by_name

    @property
    def random(self) -> bool:
        """True if the federation's seed determines the graph of the spec."""
        return self.named and FAMILIES[parse(self.spec).name].random

    @cached_property
    def robust(self) -> Robustness:
        return robustness(self.topology)

    @cached_property
    def failures(self) -> tuple[str, ...]:
        """Describe violated requirements that are cheap to check, in plain words; without robustness."""
        goal, texts = self.goal, []
        if component_count(self.topology) > 1:
            return ("it is not connected",)
        least, most = degree_range(self.topology)
        if most > goal.highest:
            texts.append(f"a node has {most} neighbors, and max-degree allows {goal.highest}")
        if least < goal.lowest:
            texts.append(f"a node has {least} neighbors where byzantine asks for {goal.lowest}")
        elif goal.byzantine and (points := cut_points(self.topology)) is not None and points.bridges:
            texts.append("one edge holds two parts together")
        return tuple(texts)

    @property
    def fragile(self) -> str:
        """Say why it is not robust enough; empty if it is, or if that is unknown."""
        asked = self.goal.robustness
        if not asked or self.robust.upper >= asked:
            return ""
        return f"it is only {self.robust.upper}-robust where byzantine asks for {asked}"

    @property
    def proven(self) -> bool:
        """True if it is known to be robust enough."""
        return not self.goal.byzantine or self.robust.lower >= self.goal.robustness


def candidate(goal: Goal, topology: Topology) -> GraphCandidate:
    rate = rate_of(topology, goal.weights)
    sent = goal.bytes_sent(rate, topology.edge_count)
    return GraphCandidate(goal=goal, topology=topology, rate=rate, rounds=goal.rounds(rate), sent=sent)


def known_graphs(goal: Goal, tell: Tell = silent, over: Over = never, draws: int = SEEDS) -> Iterator[GraphCandidate]:
    """Yield the best of the `draws` of each family and choice of parameters that has a connected graph of this size.

    A graph with wrong degrees is yielded only where a formula gives its rate: it is not worth an eigensolver.
    """
    best: dict[str, GraphCandidate] = {}
    choices = [(spec, seed) for spec, seed in static_choices(goal) if seed < goal.seed + draws]
    for done, (spec, seed) in enumerate(choices):
        tell(f"looked at {done} of {len(choices)} graphs")
        if best and over():
            break
        try:
            topology = _build_connected(goal, spec, seed)
            if topology is None:
                continue
            least, most = degree_range(topology)
            if topology.formula is None and not goal.lowest <= least <= most <= goal.highest:
                continue
            if not topology.implicit and component_count(topology) > 1:
                continue
            graph = candidate(goal, topology)
        except TopologyError:
            continue  # no such graph of this size
        if spec not in best or (bool(graph.failures), graph.key) < (bool(best[spec].failures), best[spec].key):
            best[spec] = graph
    yield from best.values()


def _build_connected(goal: Goal, spec: str, seed: int) -> Topology | None:
    """Build the graph, or its formulas alone if it is large and unfit; None if these are unknown or disconnected."""
    if goal.nodes <= SMALL:
        return build(spec, goal.nodes, seed)
    parsed = parse(spec)
    family = FAMILIES[parsed.name]
    request = GraphRequest(spec=spec, nodes=goal.nodes, parameters=parsed.parameters, seed=seed)
    most = min(DENSE, goal.highest) * goal.nodes
    if family.closed and (form := family.closed(request)) is not None:
        if form.edges > most or not goal.lowest <= form.degrees[0] <= form.degrees[1] <= goal.highest:
            return Topology(spec, goal.nodes, None, seed, formula=form) if form.low > 0.0 else None
    elif family.expected and family.expected(request) > most:
        return None
    return build(spec, goal.nodes, seed)
