"""All nodes mix at once, round after round: x <- W x. Measures the contraction that the eigenvalues of W predict.

Source: Xiao and Boyd, Fast linear iterations for distributed averaging, 2004.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from topologies.graph import Topology
from topologies.laplacian import Array
from topologies.simulation.start import VANISHED, centered, disagreement, drift, require_whole
from topologies.weights import weighted

Step = Callable[[Array], Array]
"""One round of mixing, from and to shape (nodes, dimension)."""

WORK_LIMIT = 500_000_000
"""edges times rounds: about half a minute, where nobody says how many rounds."""
ASKED_LIMIT = 10 * WORK_LIMIT
"""the same, that can be asked for."""
FEWEST = 10
"""rounds that are tried on any graph."""
ROUNDS_LIMIT = 100_000
ASKED_ROUNDS = 1_000_000
"""that can be asked for: every round is a row of the history."""
SETTLED = 1e-7
"""norm of W^2 y - r^2 y for unit y: the square of it bounds the error of r^2 times the gap to the next modulus."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """`distances[t]`: distance to consensus after t rounds over that at the start. `mean_drift`: see `start.drift`."""

    distances: tuple[float, ...]
    rounds: int | None
    """until epsilon; None where it was not reached."""
    mean_drift: float


@dataclass(frozen=True, slots=True)
class Tail:
    """`contraction` per round once the slowest mode is all that is left; not yet so where not `settled`."""

    contraction: float
    rounds: int
    settled: bool


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


def rounds_limit(links: int) -> int:
    """How many rounds over so many edges or links a simulation may take where nobody says."""
    return min(ROUNDS_LIMIT, max(FEWEST, WORK_LIMIT // max(1, links)))


def require_rounds(rounds: int | None, links: int) -> None:
    """Raises TopologyError where so many rounds over so many edges or links would take too long, or fill the memory."""
    if rounds is not None:
        require_whole("rounds", rounds, 1, min(ASKED_ROUNDS, max(FEWEST, ASKED_LIMIT // max(1, links))))


def run(steps: Sequence[Step], x: Array, epsilon: float, *, rounds: int | None, limit: int) -> Run:
    """From `x`, with `steps` in turn: exactly `rounds` of them, else until the distance is `epsilon` of what it was."""
    begun, first = x, disagreement(x)
    distances = [1.0]
    reached = None
    for t in range(rounds if rounds is not None else limit):
        x = steps[t % len(steps)](x)
        distances.append(disagreement(x) / first)
        if reached is None and distances[-1] <= epsilon:
            reached = t + 1
            if rounds is None:
                break
    return Run(distances=tuple(distances), rounds=reached, mean_drift=drift(x, begun))


def tail(step: Step, x: Array, limit: int) -> Tail:
    """The contraction in the long run of a symmetric W: r^2 = |W y|^2 / |y|^2, with y scaled to 1 all the time.

    That is a Rayleigh quotient of W^2: it never falls from round to round, and never exceeds the prediction.
    """
    y = centered(x)
    y /= np.linalg.norm(y)
    measured = 0.0
    for t in range(0, limit, 2):
        once = centered(step(y))
        measured = float(np.linalg.norm(once))
        if measured < VANISHED:
            return Tail(measured, t + 1, settled=True)
        twice = centered(step(once))
        if np.linalg.norm(twice - measured**2 * y) < SETTLED:
            return Tail(measured, t + 2, settled=True)
        y = twice / np.linalg.norm(twice)
    return Tail(measured, limit, settled=False)


def cyclic_tail(steps: Sequence[Step], x: Array, periods: int) -> Tail:
    """The contraction per round of a schedule in the long run: the mean slope over the last half of `periods`.

    The product of a period need not be symmetric: its modes may turn, so that no single period tells.
    """
    y = centered(x)
    y /= np.linalg.norm(y)
    slopes = []
    for period in range(periods):
        for step in steps:
            y = centered(step(y))
        left = float(np.linalg.norm(y))
        if left < VANISHED:
            return Tail(0.0, (period + 1) * len(steps), settled=True)
        slopes.append(np.log(left))
        y /= left
    third, fourth = (float(np.mean(part)) for part in np.array_split(slopes, 4)[2:])
    settled = abs(third - fourth) < 1e-6 * len(steps)
    return Tail(float(np.exp((third + fourth) / (2 * len(steps)))), periods * len(steps), settled)
