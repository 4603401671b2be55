"""Nodes average their values: all in rounds, or two at a time.

In rounds x <- W x, with one W, those of a schedule in turn, or on old values (Xiao and Boyd, Fast linear iterations for
distributed averaging, 2004). With old values rows sum to one and columns do not: nodes agree, but not on the mean. No
formula for the speed is known; the bounds of Nedic and Ozdaglar (2010) are far from what is measured.

In pairs, one edge at each tick, drawn uniformly, replaces both its values by their mean: Boyd, Ghosh, Prabhakar and
Shah, Randomized gossip algorithms, IEEE Trans. Information Theory 52 (2006), whose nodes wake and call a neighbor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import cycle, islice
from typing import NamedTuple

import numpy as np

from topologies.errors import TopologyError
from topologies.graph import Ends, Topology, component_count
from topologies.laplacian import Array
from topologies.spectral import fiedler_vector, require_epsilon, spectrum, weighted

Step = Callable[[Array], Array]
"""One round of mixing, from and to shape (nodes, dimension)."""

VANISHED = 1e-12
"""A distance below this share after one round is rounding."""
SETTLED = 1e-7
"""Norm of W^2 y - r^2 y for unit y: its square bounds the error of r^2 times the gap to the next modulus."""
WORK_LIMIT = 500_000_000
"""Edges times rounds by default, about half a minute; ten times that on request."""
FEWEST, ROUNDS_LIMIT, ASKED_ROUNDS = 10, 100_000, 1_000_000
"""Rounds: fewest on any graph, most by default, most on request, as each is a row of the history."""
FORGET, TAIL = 500, 1_000
"""Rounds with old values: first to forget the start, then to measure the contraction."""
VALUES_LIMIT = 20_000_000
"""Most values held at once: a few copies take a gigabyte."""


class DisconnectedError(TopologyError):
    """Nodes that cannot reach each other never agree."""

    exit_code = 3


class Approach(NamedTuple):
    """`distances[t]`: distance to consensus after t rounds over that at the start. `reached`: the round of epsilon."""

    distances: list[float]
    reached: int | None
    mean_drift: float


class Tail(NamedTuple):
    """`contraction` per round once the slowest mode is all that is left; not yet so where not `settled`."""

    contraction: float
    rounds: int
    settled: bool


def require_connected(topology: Topology) -> None:
    """Two or more nodes, all of which can reach each other."""
    if topology.nodes < 2:
        raise TopologyError("nothing to agree on", key="nodes", value=topology.nodes, allowed="from 2")
    if (parts := component_count(topology)) > 1:
        text = f"not connected, its {parts} components never agree with each other"
        raise DisconnectedError(text, key="topology", value=topology.spec, allowed="a connected graph")


def require_whole(key: str, value: int, minimum: int, maximum: int) -> None:
    if not minimum <= value <= maximum:
        raise TopologyError("out of range", key=key, value=value, allowed=f"from {minimum} to {maximum}")


def require_held(key: str, value: int, values: int) -> None:
    if values > VALUES_LIMIT:
        allowed = f"less, or fewer nodes: up to {VALUES_LIMIT:,} values at all nodes together"
        raise TopologyError("too many values to hold", key=key, value=value, allowed=allowed)


def random_values(nodes: int, dimension: int, rng: np.random.Generator) -> Array:
    """Shape (nodes, dimension), standard normal: their mean is not zero, so that a drift of it can be seen."""
    require_whole("dimension", dimension, 1, 1_000)
    require_held("dimension", dimension, nodes * dimension)
    return rng.normal(size=(nodes, dimension))


def rounds_limit(links: int, rounds: int | None = None) -> int:
    """Rounds a simulation may take by default over `links` edges. Raises TopologyError: `rounds` are too many."""
    if rounds is not None:
        require_whole("rounds", rounds, 1, min(ASKED_ROUNDS, max(FEWEST, 10 * WORK_LIMIT // max(1, links))))
    return min(ROUNDS_LIMIT, max(FEWEST, WORK_LIMIT // max(1, links)))


def disagreement(x: Array) -> float:
    """The distance to consensus: Frobenius norm of `x`, shape (nodes, dimension), without its mean over nodes."""
    return float(np.linalg.norm(_centered(x)))


def _centered(x: Array) -> Array:
    return np.asarray(x - x.mean(axis=0))


def drift(x: Array, begun: Array) -> float:
    """How far the mean moved since `begun`, over the root mean square distance to it at the start, of all columns."""
    moved = np.linalg.norm(x.mean(axis=0) - begun.mean(axis=0))
    return float(moved * np.sqrt(len(begun)) / disagreement(begun))


def mixing_step(topology: Topology, weights: str = "metropolis") -> Step:
    """W of `weights.mixing_matrix`, applied edge by edge: what one end gains is what the other loses."""
    laplacian = weighted(topology, weights)
    i, j, nodes = laplacian.ends[:, 0], laplacian.ends[:, 1], laplacian.nodes

    def step(x: Array) -> Array:
        moved = x.copy()
        for k in range(x.shape[1]):
            flow = laplacian.c * (x[i, k] - x[j, k])
            moved[:, k] += np.bincount(j, flow, nodes) - np.bincount(i, flow, nodes)
        return moved

    return step


def mixed(steps: Sequence[Step], x: Array) -> Iterator[tuple[Array, float]]:
    """The values after each round, with `steps` in turn, and their distance to consensus."""
    for step in cycle(steps):
        x = step(x)
        yield x, disagreement(x)


class OldValues:
    """x_i(t+1) = x_i(t) + sum_j W_ij (x_j(t - age) - x_i(t)), each age drawn anew, uniformly from 0 to `oldest`.

    Iterates over the values after each round and their `distance`. `past` has shape (oldest + 1, nodes, dimension).
    """

    def __init__(self, topology: Topology, weights: str, x: Array, oldest: int, rng: np.random.Generator) -> None:
        laplacian = weighted(topology, weights)
        self.receivers = np.concatenate([laplacian.ends[:, 0], laplacian.ends[:, 1]])
        self.senders = np.concatenate([laplacian.ends[:, 1], laplacian.ends[:, 0]])
        self.shares = np.concatenate([laplacian.c, laplacian.c])
        self.past = np.repeat(x[None], oldest + 1, axis=0)
        self.now = 0
        self.rng = rng

    def __iter__(self) -> Iterator[tuple[Array, float]]:
        return iter(self.advance, None)

    def advance(self) -> tuple[Array, float]:
        kept, nodes, dimension = self.past.shape
        x = self.past[self.now]
        ages = self.rng.integers(kept, size=len(self.senders))
        seen = self.past[(self.now - ages) % kept, self.senders]
        moved = x.copy()
        for k in range(dimension):
            moved[:, k] += np.bincount(self.receivers, self.shares * (seen[:, k] - x[self.receivers, k]), nodes)
        self.now = (self.now + 1) % kept
        self.past[self.now] = moved
        return moved, self.distance()

    def distance(self) -> float:
        """Root mean square distance to the mean of all rounds kept: older values drive the present ones apart."""
        return disagreement(self.past.reshape(-1, self.past.shape[2])) / math.sqrt(len(self.past))

    def tail(self, limit: int) -> Tail:
        """The geometric mean factor per round, within `limit` rounds. Values are centered and scaled: no underflow."""
        measured = min(TAIL, limit - limit // 3)
        logs = []
        for _ in range(min(FORGET, limit // 3) + measured):
            self.past = (self.past - self.past.mean(axis=(0, 1))) / (self.distance() or 1.0)
            left = self.advance()[1]
            if left < VANISHED:
                return Tail(0.0, measured, settled=measured == TAIL)
            logs.append(math.log(left))
        return Tail(math.exp(sum(logs[-measured:]) / measured), measured, settled=measured == TAIL)


def run(states: Iterable[tuple[Array, float]], x: Array, epsilon: float, rounds: int | None, limit: int) -> Approach:
    """Run from `x` through exactly `rounds` of the `states` that follow; None: until epsilon, or to the limit."""
    last, first = x, disagreement(x)
    distances, reached = [1.0], None
    for t, (last, distance) in enumerate(islice(states, rounds or limit), start=1):  # noqa: B007 - `last` is used
        distances.append(distance / first)
        if reached is None and distances[-1] <= epsilon:
            reached = t
            if rounds is None:
                break
    return Approach(distances, reached, drift(last, x))


def tail(step: Step, x: Array, limit: int) -> Tail:
    """The contraction in the long run of a symmetric W: r^2 = |W y|^2 / |y|^2, with y scaled to 1 all the time.

    That is a Rayleigh quotient of W^2: it never falls from round to round, and never exceeds the prediction.
    """
    y = _centered(x)
    y /= np.linalg.norm(y)
    measured = 0.0
    for t in range(0, limit, 2):
        once = _centered(step(y))
        measured = float(np.linalg.norm(once))
        if measured < VANISHED:
            return Tail(measured, t + 1, settled=True)
        twice = _centered(step(once))
        if np.linalg.norm(twice - measured**2 * y) < SETTLED:
            return Tail(measured, t + 2, settled=True)
        y = twice / np.linalg.norm(twice)
    return Tail(measured, limit, settled=False)


def cyclic_tail(steps: Sequence[Step], x: Array, periods: int) -> Tail:
    """The contraction per round of a schedule in the long run: the mean slope over the last half of `periods`.

    The product of a period need not be symmetric: its modes may turn, so that no single period tells.
    """
    y = _centered(x)
    y /= np.linalg.norm(y)
    slopes = []
    for period in range(periods):
        for step in steps:
            y = _centered(step(y))
        left = float(np.linalg.norm(y))
        if left < VANISHED:
            return Tail(0.0, (period + 1) * len(steps), settled=True)
        slopes.append(np.log(left))
        y /= left
    third, fourth = (float(np.mean(part)) for part in np.array_split(slopes, 4)[2:])
    settled = abs(third - fourth) < 1e-6 * len(steps)
    return Tail(float(np.exp((third + fourth) / (2 * len(steps)))), periods * len(steps), settled)


EPSILON_LIMIT = 0.25
"""The bracket's lower end holds up to here: 1/(2 epsilon) must be at least the root of 1/epsilon."""
RUNS_LIMIT = 5_000
_CHUNK = 128


class Bracket(NamedTuple):
    """Theorem 3: ticks between which the averaging time lies, for the second eigenvalue of the expected matrix."""

    eigenvalue: float
    low: float
    high: float


def bracket(topology: Topology, epsilon: float) -> Bracket:
    """Bounds for a connected graph, whose expected matrix is I - L / (2 edges)."""
    require_epsilon(epsilon, EPSILON_LIMIT)
    share = spectrum(topology).algebraic_connectivity / (2.0 * topology.edge_count)
    if share > 1.0 - 1e-12:  # two nodes: they agree when they first meet
        return Bracket(0.0, 0.0, 1.0)
    times = math.log(1.0 / epsilon) / -math.log1p(-share)
    return Bracket(1.0 - share, 0.5 * times, 3.0 * times)


def averaging_ticks(reached: Sequence[int], epsilon: float) -> int | None:
    """The least number of ticks after which at most a share `epsilon` of the runs was not there yet."""
    last = sorted(math.inf if ticks < 0 else ticks for ticks in reached)[-1 - math.floor(epsilon * len(reached))]
    return None if last == math.inf else int(last)


class Meetings(NamedTuple):
    """`reached[r]`: ticks until run r came within epsilon, -1 where it did not. `history`: (tick, root mean square
    distance of all runs over that at the start). `mean_drift`: the largest move of a mean, over that distance too.
    """

    reached: list[int]
    history: list[tuple[int, float]]
    mean_drift: float


def gossip(topology: Topology, epsilon: float, *, runs: int, limit: int, rng: np.random.Generator) -> Meetings:
    """Every run starts at the eigenvector of the slowest mode, for which the lower bound of Theorem 3 is proven.

    All runs advance together, one column each; after `limit` ticks those that are still on their way are given up.
    """
    x = np.repeat(fiedler_vector(topology)[:, None], runs, axis=1)
    reached = np.full(runs, -1)
    history = [(0, 1.0)]
    tick = 0
    while tick < limit and (reached < 0).any():
        length = min(_CHUNK, limit - tick)
        late = _late(topology, x, rng.integers(topology.edge_count, size=(length, runs)), epsilon)
        fresh = (reached < 0) & (late < length)
        reached[fresh] = tick + late[fresh] + 1
        tick += length
        history.append((tick, float(np.sqrt((_centered(x) ** 2).sum() / runs))))
    drift = float(np.abs(x.mean(axis=0)).max() * math.sqrt(topology.nodes))
    return Meetings(reached.tolist(), history, drift)


def _late(topology: Topology, x: Array, drawn: Ends, epsilon: float) -> Ends:
    """Averages in place along `drawn` edges, shape (ticks, runs); for each run the number of ticks it stayed away.

    The squared distance falls by (x_i - x_j)^2 / 2 at each tick; it is taken afresh each time, so no rounding gathers.
    """
    columns = np.arange(x.shape[1])
    squared = (_centered(x) ** 2).sum(axis=0)
    late = np.zeros(x.shape[1], dtype=np.int64)
    for edges in drawn:
        i, j = topology.ends[edges, 0], topology.ends[edges, 1]
        left, right = x[i, columns], x[j, columns]
        x[i, columns] = x[j, columns] = 0.5 * (left + right)
        squared -= 0.5 * (left - right) ** 2
        late += squared >= epsilon**2
    return late
