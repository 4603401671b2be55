"""Experiments on a graph: what remains as nodes fail, and how fast random values agree.

Nodes fail one at a time, at random or where it hurts most. Worst cases follow from the Fiedler vector v, a unit vector:
it bounds the algebraic connectivity of what remains by a Rayleigh quotient (Fiedler, Algebraic connectivity of graphs,
1973).

Consensus, without learning, is compared with the theory's prediction. `sync`: rounds x <- W x, with one W or a
schedule's in turn (Xiao and Boyd, Fast linear iterations, 2004). `gossip`: at each tick one edge, drawn uniformly,
replaces both its values by their mean (Boyd, Ghosh, Prabhakar and Shah, Randomized gossip algorithms, IEEE Trans.
Information Theory 52, 2006, whose nodes wake and call a neighbor). No network, no time, no models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, NamedTuple

import numpy as np

from topologies.chance import generator
from topologies.eigen import EFFORT_LIMIT, Tell, effort, silent
from topologies.eigen.laplacian import Array, Laplacian
from topologies.errors import TopologyError, nearest, refuse_gone
from topologies.graph import Topology, component_labels, require_connected
from topologies.metrics.describe import describe_schedule, messages
from topologies.schedule import Schedule
from topologies.spectral import (
    bracket,
    default_weights,
    fiedler_vector,
    plain_extremes,
    require_epsilon,
    rounds_to_consensus,
    settled_weights,
    spectrum,
    weighted,
)

Choose = Callable[[Topology, np.random.Generator], int]
"""Chooses the node that fails next."""

PATHS_LIMIT = 1_000
"""The maximum number of nodes, because networkx counts shortest paths one by one."""

COSTS = {"random": 1, "degree": 1, "fiedler": 3, "betweenness": 1}
"""The cost of each failure, in eigenvalue problems like that of lambda_2."""
PATH = 5
"""The steps along edges of shortest paths that cost one unit of effort."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureState:
    """The graph after some failures. `failed` is the node that failed last, in the graph's own numbers; initially
    None. `largest` is the number of nodes of the largest component.
    """

    removed: int
    failed: int | None
    algebraic_connectivity: float
    components: int
    largest: int


@dataclass(frozen=True, slots=True)
class Decay:
    """The course of failures. `left[k]` is the state after k failures; `remaining` is the final graph, its nodes by
    their old names or numbers.
    """

    left: tuple[FailureState, ...]
    remaining: Topology


def decay(topology: Topology, remove: int, strategy: str = "random", *, seed: int = 0, tell: Tell = silent) -> Decay:
    """Remove `remove` nodes, one at a time; each choice depends on what remains of the graph. `tell` receives progress
    messages.

    Raises TopologyError if there is no such strategy, if the graph has too few nodes to remove, or if it would take too
    long.
    """
    if strategy not in STRATEGIES:
        raise TopologyError("unknown strategy", key="strategy", value=strategy, allowed=nearest(strategy, STRATEGIES))
    if not 0 <= remove < topology.nodes:
        allowed = f"from 0 to {topology.nodes - 1} nodes, so that one is left"
        raise TopologyError("out of range", key="remove", value=remove, allowed=allowed)
    if strategy == "betweenness" and topology.nodes > PATHS_LIMIT:
        text = "takes too long on so many nodes"
        raise TopologyError(text, key="strategy", value=strategy, allowed=f"betweenness up to {PATHS_LIMIT} nodes")
    _check_effort(topology, remove, strategy)
    rng = generator(seed)
    graph, kept = Topology(topology.spec, topology.nodes, topology.ends, seed), np.arange(topology.nodes)
    left = [_state_after(graph, 0, None)]
    for k in range(1, remove + 1):
        tell(f"removed {k - 1} of {remove}")
        node = STRATEGIES[strategy](graph, rng)
        left.append(_state_after(_without(graph, node), k, int(kept[node])))
        graph, kept = _without(graph, node), np.delete(kept, node)
    names = [topology.names[node] if topology.names else str(node) for node in kept]
    remaining = Topology(topology.spec, graph.nodes, graph.ends, topology.seed, names=names)
    return Decay(tuple(left), remaining)


def _check_effort(topology: Topology, remove: int, strategy: str) -> None:
    """Refuse what would take too long. Raises TopologyError."""
    n, m = topology.nodes, topology.edge_count
    text = f"would take too long on {n} nodes and {m} edges"
    spent = 0
    for k in range(remove + 1):
        left = (n - k, m * (n - k) ** 2 // n**2)
        spent += COSTS[strategy] * effort(*left) + (left[0] * left[1] // PATH if strategy == "betweenness" else 0)
        if spent > EFFORT_LIMIT and k < 2:
            raise TopologyError(text, key="nodes", value=n, allowed="a smaller graph, or another strategy")
        if spent > EFFORT_LIMIT:
            raise TopologyError(text, key="remove", value=remove, allowed=f"up to {k - 1} on a graph of this size")


def connectivity_bounds(topology: Topology, vector: Array) -> Array:
    """Bound from above, for each node, the algebraic connectivity of the graph without it. Shape (nodes,).

    `vector` is the Fiedler vector, or any other unit vector with mean zero; q is its Rayleigh quotient. Without node i,
    what remains loses the square of its own entry and of its new mean.
    """
    i, j, n = topology.ends[:, 0], topology.ends[:, 1], topology.nodes
    lost = (vector[i] - vector[j]) ** 2
    of_node = np.bincount(i, lost, n) + np.bincount(j, lost, n)
    low = Laplacian.plain(topology).quotient(vector)
    return np.asarray((low - of_node) / np.maximum(1.0 - vector**2 * n / (n - 1), 1e-12))


def _state_after(graph: Topology, removed: int, failed: int | None) -> FailureState:
    sizes = np.unique(component_labels(graph), return_counts=True)[1]
    low = plain_extremes(graph).low if len(sizes) == 1 and graph.nodes > 1 else 0.0
    return FailureState(
        removed=removed, failed=failed, algebraic_connectivity=low, components=len(sizes), largest=int(sizes.max())
    )


def _without(graph: Topology, node: int) -> Topology:
    staying = graph.ends[(graph.ends != node).all(axis=1)]
    return Topology(graph.spec, graph.nodes - 1, staying - (staying > node), graph.seed)


def _by_fiedler(graph: Topology, _rng: np.random.Generator) -> int:
    """Choose within the largest component: other parts are not attacked further."""
    labels = component_labels(graph)
    root = np.argmax(np.bincount(labels))
    nodes = np.flatnonzero(labels == root)
    if len(nodes) < 3:
        return int(nodes[0])
    number = np.full(graph.nodes, -1)
    number[nodes] = np.arange(len(nodes))
    part = Topology(graph.spec, len(nodes), number[graph.ends[labels[graph.ends[:, 0]] == root]], graph.seed)
    return int(nodes[np.argmin(connectivity_bounds(part, fiedler_vector(part)))])


def _by_betweenness(graph: Topology, _rng: np.random.Generator) -> int:
    """Choose the first of those on most shortest paths, ignoring rounding."""
    import networkx as nx  # noqa: PLC0415 - slow to import

    found = nx.betweenness_centrality(graph.to_networkx())
    return int(np.argmax([round(found[node], 9) for node in range(graph.nodes)]))


STRATEGIES: Mapping[str, Choose] = {
    "random": lambda graph, rng: int(rng.integers(graph.nodes)),
    "degree": lambda graph, _: int(np.argmax(graph.degrees)),
    "fiedler": _by_fiedler,
    "betweenness": _by_betweenness,
}

Step = Callable[[Array], Array]
"""One round of mixing, from and to shape (nodes,)."""

MODES = ("sync", "gossip")
VANISHED = 1e-12
"""Below this fraction of the distance after one round, only rounding error is left."""
SETTLED = 1e-7
"""The largest norm of W^2 y - r^2 y, for unit y, at which the contraction has converged.

Its square bounds the error of r^2 times the gap to the next modulus.
"""
WORK_LIMIT, GOSSIP_WORK = 500_000_000, 1_000_000_000
"""Default limits on edges times rounds, and on ticks times runs: about half a minute; ten times as much on request."""
FEWEST, ROUNDS_LIMIT, ASKED_ROUNDS, TICKS_LIMIT = 10, 100_000, 1_000_000, 100_000_000
"""The minimum number of rounds on any graph; the maximum by default, and on request (each round is a row of the
history); and the maximum number of ticks.
"""
PERIODS = 2_000
"""The periods of a schedule after which its contraction is measured."""
VALUES_LIMIT = 20_000_000
"""The maximum number of values held at a time: a few copies take a gigabyte."""
RUNS_LIMIT, CHUNK = 5_000, 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsensusSettings:
    """Settings of a simulation. `rounds` is the exact number of rounds (for gossip, the maximum number of ticks); with
    None it runs until `epsilon`, within limits on the work.

    `runs` applies to gossip; None means as many as `epsilon` needs. `seed` determines the start and the edges.
    """

    epsilon: float = 1e-3
    weights: str | None = None
    rounds: int | None = None
    runs: int | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Consensus:
    """The result. `history` has rows with the same keys: the round or tick, the distance to consensus relative to the
    start, and the prediction. `notes` explain the figures.
    """

    facts: dict[str, Any]
    history: list[dict[str, Any]]
    notes: tuple[str, ...] = ()


class Tail(NamedTuple):
    """The `contraction` per round once only the slowest mode is left; not reached yet unless `settled`."""

    contraction: float
    settled: bool


def simulate(topology: Topology, mode: str = "sync", settings: ConsensusSettings | None = None) -> Consensus:
    """Simulate a graph. Raises TopologyError for an unknown mode or an impossible request, DisconnectedError if it is
    not connected.
    """
    settings = settings or ConsensusSettings()
    if mode not in MODES:
        refuse_gone("mode", mode)
        raise TopologyError("unknown mode", key="mode", value=mode, allowed=nearest(mode, MODES))
    limit = _round_limit(settings, mode, topology.edge_count)
    require_connected(topology)
    return _simulate_gossip(topology, settings) if mode == "gossip" else _simulate_rounds(topology, settings, limit)


def simulate_schedule(schedule: Schedule, mode: str = "sync", settings: ConsensusSettings | None = None) -> Consensus:
    """Simulate a schedule, only in mode `sync`; it has its own weights, and its union must be connected."""
    settings = settings or ConsensusSettings()
    if mode != "sync":
        raise TopologyError("only for static undirected graphs", key="mode", value=mode, allowed="sync")
    limit = _round_limit(settings, mode, max(mixing.messages for mixing in schedule.mixings))
    require_connected(schedule.union())
    x = generator(settings.seed).normal(size=schedule.nodes)
    steps = [mixing.apply for mixing in schedule.mixings]
    distances, reached, mean_drift = run(mixed(steps, x), x, settings.epsilon, settings.rounds, limit)
    slope = cyclic_tail(steps, x, max(4, min(PERIODS, limit // schedule.period)))
    known = describe_schedule(schedule, settings.epsilon)
    facts = {
        "period": schedule.period,
        "directed": schedule.directed,
        "predicted_contraction": known["mixing_rate"],
        "measured_contraction": slope.contraction,
        "settled": slope.settled,
        "predicted_rounds": known["rounds_to_consensus"],
        "measured_rounds": reached,
        "predicted_exact_after": known["exact_after"],
        "measured_exact_after": _exact_after(schedule, steps, x),
        "measured_messages": None if reached is None else messages(schedule, reached),
        "mean_drift": mean_drift,
    }
    rate, exact = known["mixing_rate"], math.inf if known["exact_after"] is None else known["exact_after"]
    # a bound: the effect of whole periods on the worst start
    predicted = [0.0 if t >= exact else rate ** (t - t % schedule.period) for t in range(len(distances))]
    return _consensus(_about(schedule, known["edges"], mode, settings) | facts, enumerate(distances), predicted)


def _simulate_rounds(topology: Topology, settings: ConsensusSettings, limit: int) -> Consensus:
    """Simulate rounds in which all nodes mix at once."""
    named = default_weights(topology) if settings.weights is None else settings.weights
    topology, weights, _ = settled_weights(topology, named)
    x = generator(settings.seed).normal(size=topology.nodes)
    step = mixing_step(topology, weights)
    distances, reached, mean_drift = run(mixed([step], x), x, settings.epsilon, settings.rounds, limit)
    slowest = tail(step, x, limit)
    rate = spectrum(topology, weights).mixing_rate
    facts = {
        "weights": named,
        "predicted_contraction": rate,
        "measured_contraction": slowest.contraction,
        "settled": slowest.settled,
        "predicted_rounds": rounds_to_consensus(rate, settings.epsilon),
        "measured_rounds": reached,
        "measured_messages": None if reached is None else 2 * topology.edge_count * reached,
        "mean_drift": mean_drift,
    }
    notes = [] if slowest.settled else [f"the contraction had not settled after {limit} rounds"]
    # the prediction is for the worst start: no other is farther away
    predicted = [rate**t for t in range(len(distances))]
    about = _about(topology, topology.edge_count, "sync", settings)
    return _consensus(about | facts, enumerate(distances), predicted, notes)


def _simulate_gossip(topology: Topology, settings: ConsensusSettings) -> Consensus:
    known = bracket(topology, settings.epsilon)
    runs = settings.runs
    if runs is None:  # two runs may be late: with fewer, the quantile cannot be determined
        enough = min(RUNS_LIMIT, max(100, math.ceil(2.0 / settings.epsilon)))
        runs = min(enough, max(1, VALUES_LIMIT // topology.nodes))
    _require_held("runs", runs, topology.nodes * runs)
    # looking at 500 nodes once in 128 ticks takes as long as the ticks
    most = max(1, GOSSIP_WORK // (runs * (1 + topology.nodes // 500)))
    _require_whole("rounds", settings.rounds, 1, min(TICKS_LIMIT, 10 * most))
    limit = settings.rounds or min(most, math.ceil(known.high))
    done = gossip(topology, settings.epsilon, runs=runs, limit=limit, rng=generator(settings.seed))
    ticks = averaging_ticks(done.reached, settings.epsilon)
    facts = {
        "runs": runs,
        "expected_matrix_eigenvalue": known.eigenvalue,
        "predicted_ticks_low": known.low,
        "predicted_ticks_high": known.high,
        "measured_ticks": ticks,
        "median_ticks": averaging_ticks(done.reached, 0.5),
        "measured_messages": None if ticks is None else 2 * ticks,
        "mean_drift": done.mean_drift,
    }
    few = [f"{runs} runs are few for a probability of {settings.epsilon:g}"] if runs * settings.epsilon < 1 else []
    predicted = [known.eigenvalue ** (t / 2) for t, _ in done.history]
    return _consensus(_about(topology, topology.edge_count, "gossip", settings) | facts, done.history, predicted, few)


def _about(graph: Topology | Schedule, edges: int, mode: str, settings: ConsensusSettings) -> dict[str, Any]:
    about = {"spec": graph.spec, "seed": settings.seed, "nodes": graph.nodes, "edges": edges}
    return {**about, "mode": mode, "epsilon": settings.epsilon}


def _consensus(
    facts: dict[str, Any], distances: Iterable[tuple[int, float]], predicted: list[float], notes: Sequence[str] = ()
) -> Consensus:
    unit = "tick" if facts["mode"] == "gossip" else "round"
    rows = zip(distances, predicted, strict=True)
    history = [{unit: t, "distance": distance, "predicted": known} for (t, distance), known in rows]
    late = f"epsilon was not reached within {history[-1][unit]} {unit}s"
    return Consensus(facts, history, (*notes, late) if facts[f"measured_{unit}s"] is None else tuple(notes))


def _round_limit(settings: ConsensusSettings, mode: str, links: int) -> int:
    """Return the maximum number of rounds in a simulation whose rounds each use this many edges or links."""
    require_epsilon(settings.epsilon)
    if settings.runs is not None and mode != "gossip":
        raise TopologyError("only gossip has several", key="runs", value=settings.runs, allowed="with --mode gossip")
    if mode != "gossip":
        return rounds_limit(links, settings.rounds)
    _require_whole("runs", settings.runs, 1, RUNS_LIMIT)
    _require_whole("rounds", settings.rounds, 1, TICKS_LIMIT)
    return TICKS_LIMIT


def rounds_limit(links: int, rounds: int | None = None) -> int:
    """Return the default limit on rounds over `links` edges. Raises TopologyError if `rounds` exceeds the limit."""
    _require_whole("rounds", rounds, 1, min(ASKED_ROUNDS, max(FEWEST, 10 * WORK_LIMIT // max(1, links))))
    return min(ROUNDS_LIMIT, max(FEWEST, WORK_LIMIT // max(1, links)))


def _require_whole(key: str, value: int | None, minimum: int, maximum: int) -> None:
    if value is not None and not minimum <= value <= maximum:
        raise TopologyError("out of range", key=key, value=value, allowed=f"from {minimum} to {maximum}")


def _require_held(key: str, value: int, values: int) -> None:
    if values > VALUES_LIMIT:
        allowed = f"less, or fewer nodes: up to {VALUES_LIMIT:,} values at all nodes together"
        raise TopologyError("too many values to hold", key=key, value=value, allowed=allowed)


def _centered(x: Array) -> Array:
    return np.asarray(x - x.mean(axis=0))


def disagreement(x: Array) -> float:
    """Return the distance to consensus: the norm of `x`, shape (nodes,), minus its mean."""
    return float(np.linalg.norm(_centered(x)))


def drift(x: Array, start: Array) -> float:
    """Return how far the mean has moved since `start`, relative to the root mean square distance to it then."""
    return float(abs(x.mean() - start.mean()) * np.sqrt(len(start)) / disagreement(start))


def mixing_step(topology: Topology, weights: str = "metropolis") -> Step:
    """Make a step with W of `spectral.mixing_matrix`, applied edge by edge: what one end gains the other loses."""
    laplacian = weighted(topology, weights)
    return lambda x: x - laplacian.times(x)


def mixed(steps: Sequence[Step], x: Array) -> Iterator[tuple[Array, float]]:
    """Yield the values after each round, with `steps` in turn, and their distance to consensus."""
    for step in cycle(steps):
        x = step(x)
        yield x, disagreement(x)


def run(
    states: Iterable[tuple[Array, float]], x: Array, epsilon: float, rounds: int | None, limit: int
) -> tuple[list[float], int | None, float]:
    """Run from `x` through exactly `rounds` of the `states`, or, if None, until epsilon or the limit. Returns the
    distance to consensus after each round relative to the start, the round of epsilon, and the `drift`.
    """
    last, first = x, disagreement(x)
    distances, reached = [1.0], None
    for t, (last, distance) in enumerate(islice(states, rounds or limit), start=1):  # noqa: B007 - `last` is used
        distances.append(distance / first)
        if reached is None and distances[-1] <= epsilon:
            reached = t
            if rounds is None:
                break
    return distances, reached, drift(last, x)


def tail(step: Step, x: Array, limit: int) -> Tail:
    """Measure the long-run contraction of a symmetric W: r^2 = |W y|^2 / |y|^2, with y always rescaled to 1.

    That is a Rayleigh quotient of W^2: it never falls from round to round, and never exceeds the prediction.
    """
    y = _centered(x) / disagreement(x)
    measured = 0.0
    for _ in range(0, limit, 2):
        once = _centered(step(y))
        measured = float(np.linalg.norm(once))
        twice = _centered(step(once))
        if np.linalg.norm(twice - measured**2 * y) < SETTLED:
            return Tail(measured, settled=True)
        y = twice / np.linalg.norm(twice)
    return Tail(measured, settled=False)


def cyclic_tail(steps: Sequence[Step], x: Array, periods: int) -> Tail:
    """Measure the long-run contraction per round of a schedule: the mean slope over the last half of `periods`.

    The product over a period need not be symmetric: its modes may rotate, so no single period is representative.
    """
    y = _centered(x) / disagreement(x)
    slopes = []
    for _ in range(periods):
        for step in steps:
            y = _centered(step(y))
        left = float(np.linalg.norm(y))
        if left < VANISHED:
            return Tail(0.0, settled=True)
        slopes.append(np.log(left))
        y /= left
    third, fourth = (float(np.mean(part)) for part in np.array_split(slopes, 4)[2:])
    contraction = float(np.exp((third + fourth) / (2 * len(steps))))
    return Tail(contraction, settled=abs(third - fourth) < 1e-6 * len(steps))


def _exact_after(schedule: Schedule, steps: Sequence[Step], x: Array) -> int | None:
    """Return the round in which the distance suddenly dropped to zero, which only a product equal to J/n causes."""
    most = max(schedule.period, 2 * schedule.nodes.bit_length())
    distances, reached, _ = run(mixed(steps, x), x, VANISHED, None, most)
    return reached if reached is not None and distances[-2] > np.sqrt(VANISHED) else None


def averaging_ticks(reached: Sequence[int], epsilon: float) -> int | None:
    """Return the smallest number of ticks after which at most a fraction `epsilon` of the runs has not arrived."""
    last = sorted(math.inf if ticks < 0 else ticks for ticks in reached)[-1 - math.floor(epsilon * len(reached))]
    return None if last == math.inf else int(last)


class Meetings(NamedTuple):
    """The result of gossip. `reached[r]` is the number of ticks until run r came within epsilon, or -1 if it did not.

    `history` has pairs (tick, root mean square distance over all runs, relative to the start). `mean_drift` is the
    largest move of a mean, relative to the same distance.
    """

    reached: list[int]
    history: list[tuple[int, float]]
    mean_drift: float


def gossip(topology: Topology, epsilon: float, *, runs: int, limit: int, rng: np.random.Generator) -> Meetings:
    """Gossip from the eigenvector of the slowest mode, for which the lower bound of Theorem 3 is proven.

    All runs advance together, one column each; after `limit` ticks the unfinished ones are abandoned. The squared
    distance falls by (x_i - x_j)^2 / 2 at each tick; it is recomputed every 128 ticks, so that rounding does not
    accumulate.
    """
    x = np.repeat(fiedler_vector(topology)[:, None], runs, axis=1)
    columns = np.arange(runs)
    reached = np.full(runs, -1)
    history = [(tick := 0, 1.0)]
    while tick < limit and (reached < 0).any():
        squared = (_centered(x) ** 2).sum(axis=0)
        for edges in rng.integers(topology.edge_count, size=(min(CHUNK, limit - tick), runs)):
            i, j = topology.ends[edges].T
            left, right = x[i, columns], x[j, columns]
            x[i, columns] = x[j, columns] = 0.5 * (left + right)
            squared -= 0.5 * (left - right) ** 2
            tick += 1
            reached[(reached < 0) & (squared < epsilon**2)] = tick
        history.append((tick, float(np.sqrt((_centered(x) ** 2).sum() / runs))))
    moved = np.abs(x.mean(axis=0)).max() * math.sqrt(topology.nodes)
    return Meetings(reached.tolist(), history, float(moved))
