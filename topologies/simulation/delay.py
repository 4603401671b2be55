"""All nodes mix in every round, each with values of its neighbors that are some random number of rounds old.

x_i(t+1) = x_i(t) + sum_j W_ij (x_j(t - age) - x_i(t)), each age drawn anew, uniformly from 0 to the greatest. Rows of
this iteration sum to one, its columns do not: it agrees, but not on the mean. No formula for its speed is known; the
bounds of Nedic and Ozdaglar, Convergence rate for consensus with delays (2010), are far from what is measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from topologies.graph import Topology
from topologies.laplacian import Array
from topologies.simulation.start import VANISHED, disagreement, drift, require_whole
from topologies.weights import weighted

OLDEST = 1_000
FORGET, TAIL = 500, 1_000
"""rounds after those until epsilon: first for the start to be forgotten, then to measure the contraction over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delayed:
    """`distances[t]`: distance after t rounds to the mean of all values that some node may still see, over that at the
    start. The present values alone do not tell: what is older drives them apart again.

    `contraction`: its geometric mean factor per round once the start is forgotten. `mean_drift`: see `start.drift`.
    """

    distances: tuple[float, ...]
    rounds: int | None
    contraction: float
    mean_drift: float


class Process:
    """The last values of all nodes, shape (oldest + 1, nodes, dimension), and how they go on.

    Only differences of values matter, so a common offset may be taken out and the rest scaled: no underflow.
    """

    def __init__(self, topology: Topology, weights: str, x: Array, oldest: int, rng: np.random.Generator) -> None:
        laplacian = weighted(topology, weights)
        ends = laplacian.ends
        self.receivers = np.concatenate([ends[:, 0], ends[:, 1]])
        self.senders = np.concatenate([ends[:, 1], ends[:, 0]])
        self.shares = np.concatenate([laplacian.c, laplacian.c])
        self.past = np.repeat(x[None], oldest + 1, axis=0)
        self.now = 0
        self.rng = rng

    @property
    def x(self) -> Array:
        return np.asarray(self.past[self.now])

    def advance(self) -> None:
        kept, nodes = self.past.shape[0], self.past.shape[1]
        ages = self.rng.integers(kept, size=len(self.senders))
        seen = self.past[(self.now - ages) % kept, self.senders]
        moved = self.x.copy()
        for k in range(moved.shape[1]):
            gained = self.shares * (seen[:, k] - self.x[self.receivers, k])
            moved[:, k] += np.bincount(self.receivers, gained, nodes)
        self.now = (self.now + 1) % kept
        self.past[self.now] = moved

    def distance(self) -> float:
        """Root mean square, over the rounds that are kept, of the distance to the mean of all of it."""
        kept, nodes, dimension = self.past.shape
        return disagreement(self.past.reshape(kept * nodes, dimension)) / math.sqrt(kept)

    def rescale(self) -> float:
        """Brings the distance to one, and says what it was."""
        left = self.distance()
        self.past = (self.past - self.past.mean(axis=(0, 1))) / (left or 1.0)
        return left


def delayed(
    topology: Topology,
    x: Array,
    *,
    weights: str,
    epsilon: float,
    oldest: int,
    rounds: int | None,
    limit: int,
    rng: np.random.Generator,
) -> Delayed:
    """Ages reach up to `oldest` rounds. Exactly `rounds` rounds, else until epsilon, then the tail is measured."""
    require_whole("max-delay", oldest, 0, OLDEST)
    process = Process(topology, weights, x, oldest, rng)
    first = disagreement(x)
    distances = [1.0]
    reached = None
    for t in range(rounds if rounds is not None else limit):
        process.advance()
        distances.append(process.distance() / first)
        if reached is None and distances[-1] <= epsilon:
            reached = t + 1
            if rounds is None:
                break
    moved = drift(process.x, x)
    contraction = _tail(process, min(FORGET, limit // 3), measured_over(limit))
    return Delayed(distances=tuple(distances), rounds=reached, contraction=contraction, mean_drift=moved)


def measured_over(limit: int) -> int:
    """Rounds over which the contraction is measured where `limit` rounds are what a graph so large may take."""
    return min(TAIL, limit - limit // 3)


def _tail(process: Process, forget: int, measured: int) -> float:
    logs = []
    for _ in range(forget + measured):
        process.rescale()
        process.advance()
        left = process.distance()
        if left < VANISHED:
            return 0.0
        logs.append(math.log(left))
    return math.exp(sum(logs[forget:]) / measured)
