"""Nodes meet in pairs: at each tick one edge, drawn uniformly, replaces both its values by their mean.

Source: Boyd, Ghosh, Prabhakar and Shah, Randomized gossip algorithms, IEEE Trans. Information Theory 52 (2006).
There a node wakes and calls a neighbor; what is said of the expected matrix holds for edges drawn uniformly too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from topologies.graph import Ends, Topology
from topologies.laplacian import Array
from topologies.spectral import fiedler_vector, require_epsilon, spectrum

EPSILON_LIMIT = 0.25
"""the lower end of the bracket holds up to here: 1/(2 epsilon) must be at least the root of 1/epsilon."""
RUNS_LIMIT = 5_000
_CHUNK = 128


class Bracket(NamedTuple):
    """Theorem 3: ticks between which the averaging time lies, for the second eigenvalue of the expected matrix."""

    eigenvalue: float
    low: float
    high: float


def bracket(topology: Topology, epsilon: float) -> Bracket:
    """For a connected graph. The expected matrix is I - L / (2 edges)."""
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
        history.append((tick, float(np.sqrt(((x - x.mean(axis=0)) ** 2).sum() / runs))))
    drift = float(np.abs(x.mean(axis=0)).max() * math.sqrt(topology.nodes))
    return Meetings(reached.tolist(), history, drift)


def _late(topology: Topology, x: Array, drawn: Ends, epsilon: float) -> Ends:
    """Averages in place along `drawn` edges, shape (ticks, runs); for each run the number of ticks it stayed away.

    The squared distance falls by (x_i - x_j)^2 / 2 at each tick; it is taken afresh each time, so no rounding gathers.
    """
    columns = np.arange(x.shape[1])
    squared = ((x - x.mean(axis=0)) ** 2).sum(axis=0)
    late = np.zeros(x.shape[1], dtype=np.int64)
    for edges in drawn:
        i, j = topology.ends[edges, 0], topology.ends[edges, 1]
        left, right = x[i, columns], x[j, columns]
        x[i, columns] = x[j, columns] = 0.5 * (left + right)
        squared -= 0.5 * (left - right) ** 2
        late += squared >= epsilon**2
    return late
