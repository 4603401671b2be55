"""Experiments on a graph: what remains as nodes fail, and how fast random values agree.

Nodes fail one at a time, at random or those with the most neighbors.

Consensus, without learning, is compared with the theory's prediction: rounds x <- W x, with one W or a schedule's in
turn (Xiao and Boyd, Fast linear iterations, 2004). No network, no time, no models.
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
from topologies.eigen.laplacian import Array
from topologies.errors import TopologyError, nearest, refuse_gone
from topologies.graph import Topology, require_connected
from topologies.metrics.describe import describe_schedule, messages
from topologies.schedule import Schedule
from topologies.spectral import (
    default_weights,
    plain_extremes,
    require_epsilon,
    rounds_to_consensus,
    settled_weights,
    spectrum,
    weighted,
)

Choose = Callable[[Topology, np.random.Generator], int]
"""Chooses the node that fails next."""


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


def decay(
    topology: Topology, remove: int, strategy: str = "random", *, seed: int = 0, tell: Tell = silent
) -> list[FailureState]:
    """Remove `remove` nodes, one at a time, and return the state after 0 .. `remove` failures; each choice depends on
    what remains of the graph. `tell` receives progress messages.

    Raises TopologyError if there is no such strategy, if the graph has too few nodes to remove, or if it would take too
    long.
    """
    if strategy not in STRATEGIES:
        refuse_gone("strategy", strategy)
        raise TopologyError("unknown strategy", key="strategy", value=strategy, allowed=nearest(strategy, STRATEGIES))
    if not 0 <= remove < topology.nodes:
        allowed = f"from 0 to {topology.nodes - 1} nodes, so that one is left"
        raise TopologyError("out of range", key="remove", value=remove, allowed=allowed)
    _check_effort(topology, remove)
    rng = generator(seed)
    graph, kept = Topology(topology.spec, topology.nodes, topology.ends, seed), np.arange(topology.nodes)
    left = [_state_after(graph, 0, None)]
    for k in range(1, remove + 1):
        tell(f"removed {k - 1} of {remove}")
        node = STRATEGIES[strategy](graph, rng)
        left.append(_state_after(_without(graph, node), k, int(kept[node])))
        graph, kept = _without(graph, node), np.delete(kept, node)
    return left


def _check_effort(topology: Topology, remove: int) -> None:
    """Refuse what would take too long. Raises TopologyError."""
    n, m = topology.nodes, topology.edge_count
    text = f"would take too long on {n} nodes and {m} edges"
    spent = 0
    for k in range(remove + 1):
        spent += effort(n - k, m * (n - k) ** 2 // n**2)
        if spent > EFFORT_LIMIT and k < 2:
            raise TopologyError(text, key="nodes", value=n, allowed="a smaller graph")
        if spent > EFFORT_LIMIT:
            raise TopologyError(text, key="remove", value=remove, allowed=f"up to {k - 1} on a graph of this size")


def _state_after(graph: Topology, removed: int, failed: int | None) -> FailureState:
    sizes = np.unique(graph.labels, return_counts=True)[1]
    low = plain_extremes(graph).low if len(sizes) == 1 and graph.nodes > 1 else 0.0
    return FailureState(
        removed=removed, failed=failed, algebraic_connectivity=low, components=len(sizes), largest=int(sizes.max())
    )


def _without(graph: Topology, node: int) -> Topology:
    staying = graph.ends[(graph.ends != node).all(axis=1)]
    return Topology(graph.spec, graph.nodes - 1, staying - (staying > node), graph.seed)


STRATEGIES: Mapping[str, Choose] = {
    "random": lambda graph, rng: int(rng.integers(graph.nodes)),
    "degree": lambda graph, _: int(np.argmax(graph.degrees)),
}

Step = Callable[[Array], Array]
"""One round of mixing, from and to shape (nodes,)."""

VANISHED = 1e-12
"""Below this fraction of the distance after one round, only rounding error is left."""
SETTLED = 1e-7
"""The largest norm of W^2 y - r^2 y, for unit y, at which the contraction has converged.

Its square bounds the error of r^2 times the gap to the next modulus.
"""
WORK_LIMIT = 500_000_000
"""The default limit on edges times rounds: about half a minute; ten times as much on request."""
FEWEST, ROUNDS_LIMIT, ASKED_ROUNDS = 10, 100_000, 1_000_000
"""The least rounds on any graph; the most by default, and on request (each is a row of the history)."""
PERIODS = 2_000
"""The periods of a schedule after which its contraction is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsensusSettings:
    """Settings of a simulation. `rounds` is the exact number; with None it runs until `epsilon`, within limits on the
    work. `seed` determines the start.
    """

    epsilon: float = 1e-3
    weights: str | None = None
    rounds: int | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Consensus:
    """The result. `history` has rows: the round, the distance to consensus relative to the start, and the prediction.
    `notes` explain the figures.
    """

    facts: dict[str, Any]
    history: list[dict[str, Any]]
    notes: tuple[str, ...] = ()


class Tail(NamedTuple):
    """The `contraction` per round once only the slowest mode is left; not reached yet unless `settled`."""

    contraction: float
    settled: bool


def simulate_schedule(schedule: Schedule, settings: ConsensusSettings | None = None) -> Consensus:
    """Simulate a schedule, which has its own weights. Raises TopologyError for an impossible request, DisconnectedError
    if its union is not connected.
    """
    settings = settings or ConsensusSettings()
    limit = rounds_limit(max(mixing.messages for mixing in schedule.mixings), settings)
    require_connected(schedule.union())
    x = generator(settings.seed).normal(size=schedule.nodes)
    steps = [mixing.apply for mixing in schedule.mixings]
    distances, reached, mean_drift = run(mixed(steps, x), x, settings.epsilon, settings.rounds, limit)
    slope = cyclic_tail(steps, x, max(4, min(PERIODS, limit // schedule.period)))
    known = describe_schedule(schedule, settings.epsilon)
    facts = {
        "edges": known["edges"],
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
    return _consensus(schedule, settings, facts, zip(distances, predicted, strict=True))


def simulate(topology: Topology, settings: ConsensusSettings | None = None) -> Consensus:
    """Simulate rounds of a graph in which all nodes mix at once. Raises as `simulate_schedule`."""
    settings = settings or ConsensusSettings()
    limit = rounds_limit(topology.edge_count, settings)
    require_connected(topology)
    named = default_weights(topology) if settings.weights is None else settings.weights
    topology, weights, _ = settled_weights(topology, named)
    x = generator(settings.seed).normal(size=topology.nodes)
    step = mixing_step(topology, weights)
    distances, reached, mean_drift = run(mixed([step], x), x, settings.epsilon, settings.rounds, limit)
    slowest = tail(step, x, limit)
    rate = spectrum(topology, weights).mixing_rate
    facts = {
        "edges": topology.edge_count,
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
    return _consensus(topology, settings, facts, zip(distances, predicted, strict=True), notes)


def _consensus(
    graph: Topology | Schedule,
    settings: ConsensusSettings,
    facts: dict[str, Any],
    pairs: Iterable[tuple[float, float]],
    notes: Sequence[str] = (),
) -> Consensus:
    about = {"spec": graph.spec, "seed": settings.seed, "nodes": graph.nodes, "epsilon": settings.epsilon}
    history = [{"round": t, "distance": distance, "predicted": known} for t, (distance, known) in enumerate(pairs)]
    late = f"epsilon was not reached within {len(history) - 1} rounds"
    return Consensus(about | facts, history, (*notes, late) if facts["measured_rounds"] is None else tuple(notes))


def rounds_limit(links: int, settings: ConsensusSettings) -> int:
    """Return the default limit on rounds over `links` edges. Raises TopologyError if the settings exceed theirs."""
    require_epsilon(settings.epsilon)
    most = min(ASKED_ROUNDS, max(FEWEST, 10 * WORK_LIMIT // max(1, links)))
    if settings.rounds is not None and not 1 <= settings.rounds <= most:
        raise TopologyError("out of range", key="rounds", value=settings.rounds, allowed=f"from 1 to {most}")
    return min(ROUNDS_LIMIT, max(FEWEST, WORK_LIMIT // max(1, links)))


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
