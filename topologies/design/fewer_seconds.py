"""Search for the graph with which consensus takes least time where some nodes are far away: simulated annealing, as in
`search`, but which node is where matters, and an edge costs the time of its messages.

The energy is the logarithm of the time of `timing.pace`. A move adds or removes an edge, moves one end of one, crosses
two edges, or lets two nodes change places.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from random import Random

import numpy as np

from topologies.design.goal import Goal
from topologies.design.search import Over, never
from topologies.eigen.extremes import Tell, silent
from topologies.graph import Edge, Ends, Topology
from topologies.laplacian import Array, Laplacian
from topologies.spectral import weighted
from topologies.timing.pace import pace

HOT, COLD = 0.1, 1e-3
"""Temperatures, divided by the number of nodes; the energy is a logarithm."""
PER_EDGE = 1e-6
"""What an edge costs, so that of two graphs as fast the one with fewer edges wins."""
EVALUATIONS = 6_000
"""The most graphs to try: about two seconds on 30 nodes."""
KINDS = ("cross", "add", "remove", "turn", "turn", "places")
TELL_EVERY = 200


def seconds_to_consensus(goal: Goal, ends: Ends) -> float:
    """Return the time to consensus on the graph with these edges; infinite if it is not connected."""
    if goal.distances is None:
        raise ValueError("nothing says how far the nodes are")
    found = pace(goal.nodes, ends, goal.distances.of(ends), goal.train_s)
    matrix = Laplacian(ends, _weights(goal, ends) * found.per_s, np.ones(goal.nodes)).dense()
    values = np.linalg.eigvalsh(matrix)
    if values[1] < 1e-10 * max(float(values[-1]), 1e-300):
        return math.inf
    return -math.log(goal.epsilon) / float(values[1])


def _weights(goal: Goal, ends: Ends) -> Array:
    if goal.weights in {"metropolis", "sample-weighted"}:
        degrees = np.bincount(ends.ravel(), minlength=goal.nodes)
        return np.asarray(1.0 / (np.maximum(degrees[ends[:, 0]], degrees[ends[:, 1]]) + 1.0))
    return weighted(Topology("searched", goal.nodes, ends), goal.weights).c


def search_seconds(
    goal: Goal, starts: Sequence[Ends], evaluations: int, tell: Tell = silent, over: Over = never
) -> list[Ends]:
    """Walk from each start in turn, then from the best; return the best graph of each number of edges, best first."""
    rng = Random(goal.seed)
    best: dict[int, tuple[float, Ends]] = {}
    turns = len(starts) + 1
    share = max(1, evaluations // turns)
    for turn in range(turns if starts else 0):
        ends = starts[turn] if turn < len(starts) else min(best.values(), key=lambda one: one[0])[1]
        heat = HOT / goal.nodes / (1.0 if turn < len(starts) else 10.0)
        for tried, (energy, found) in enumerate(_walk(goal, ends, rng, share, heat)):
            if tried % TELL_EVERY == 0:
                tell(f"searched {turn * share + tried} of {turns * share} graphs")
            if energy < best.get(len(found), (math.inf,))[0]:
                best[len(found)] = energy, found
            if over():
                break
    return [ends for _, ends in sorted(best.values(), key=lambda one: one[0])]


def _walk(goal: Goal, ends: Ends, rng: Random, evaluations: int, hot: float) -> Iterator[tuple[float, Ends]]:
    """Yield graphs with their energy: the first, and each that is accepted."""
    edges: set[Edge] = {(int(i), int(j)) for i, j in ends}
    energy = _energy(goal, edges)
    yield energy, _ends(edges)
    for tried in range(evaluations):
        after = _moved(goal, edges, rng)
        if after is None:
            continue
        heat = hot * (COLD / hot) ** (tried / evaluations)
        reached = _energy(goal, after)
        if reached <= energy - heat * math.log(1.0 - rng.random()):
            edges, energy = after, reached
            yield energy, _ends(edges)


def _ends(edges: set[Edge]) -> Ends:
    return np.array(sorted(edges), dtype=np.int64).reshape(-1, 2)


def _energy(goal: Goal, edges: set[Edge]) -> float:
    seconds = seconds_to_consensus(goal, _ends(edges))
    return math.log(seconds) + PER_EDGE * len(edges) if seconds < math.inf else math.inf


def _moved(goal: Goal, edges: set[Edge], rng: Random) -> set[Edge] | None:
    """Return the edges after a random move; None if the drawn one is impossible."""
    listed = sorted(edges)
    kind = rng.choice(KINDS)
    if kind == "places":
        one, other = rng.sample(range(goal.nodes), 2)
        swap = {one: other, other: one}
        return {_sorted(swap.get(i, i), swap.get(j, j)) for i, j in listed}
    a, b = rng.choice(listed)
    if rng.random() < 0.5:
        a, b = b, a
    gone: set[Edge] = {_sorted(a, b)}
    fresh: set[Edge] = set()
    match kind:
        case "cross":
            c, d = rng.choice(listed)
            gone.add(_sorted(c, d))
            fresh = {_sorted(a, c), _sorted(b, d)} if len({a, b, c, d}) == 4 else set()
        case "add":
            gone, fresh = set(), {_sorted(*rng.sample(range(goal.nodes), 2))}
        case "turn":
            fresh = {_sorted(a, rng.randrange(goal.nodes))}
        case _:
            return _within_degrees(goal, edges - gone)
    if not fresh or fresh & edges or any(i == j for i, j in fresh):
        return None
    return _within_degrees(goal, edges - gone | fresh)


def _within_degrees(goal: Goal, edges: set[Edge]) -> set[Edge] | None:
    if len(edges) < goal.nodes - 1:
        return None
    degrees = np.bincount(_ends(edges).ravel(), minlength=goal.nodes)
    return edges if goal.lowest <= degrees.min() and degrees.max() <= goal.highest else None


def _sorted(i: int, j: int) -> Edge:
    return (i, j) if i < j else (j, i)
