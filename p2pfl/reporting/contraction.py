"""How much one round of a federation is expected to shrink the distance to consensus, on a graph or in a schedule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from p2pfl.compress import make_compressor
from p2pfl.config.model import FederationConfig
from topologies import Topology, contraction
from topologies.eigen.iterations import Krylov
from topologies.graph import component_count
from topologies.schedules.contraction import PRODUCTS, ROUNDING, SETTLED

MOST_DENSE = 1000
"""The most nodes of a schedule for which a whole period is multiplied out."""


def predicted(federation: FederationConfig, samples: Sequence[float] | None, size: int | None = None) -> float:
    """The factor by which one exchange on every edge in use shrinks the n-weighted distance to consensus.

    With `size`, the number of parameters, each edge takes the step that its compressor allows; without it all take a
    full one. What travels counts as exact: what a compressor leaves out arrives in later exchanges, by error feedback,
    so that under a sparse one the distance falls more slowly at first than this says.

    In a schedule: that of a whole period from its worst start, to the power of one over the period; 0 where every node
    has the mean at its end. The weights are those that nodes use, c_ij = min(n_i/(deg_i+1), n_j/(deg_j+1)), deg the
    largest number of edges that one round uses, not those of the schedule's own matrices. Without `samples` n is 1.
    """
    topology = Topology(federation.topology, len(federation.members), federation.edges, federation.seed)
    gammas = _gammas(federation, size)
    if not federation.schedule and len(set(gammas.values())) <= 1:
        return contraction(topology, samples, next(iter(gammas.values()), federation.gossip.gamma))
    if component_count(topology) > 1:
        return 1.0
    n = np.ones(topology.nodes) if samples is None else np.asarray(samples, dtype=np.float64)
    rounds = _Rounds(federation, np.sqrt(n), gammas)
    norm = rounds.dense_norm() if topology.nodes <= MOST_DENSE else rounds.lanczos_norm()
    return 0.0 if norm < ROUNDING else norm ** (1.0 / len(rounds.rounds))


def _gammas(federation: FederationConfig, size: int | None) -> Mapping[tuple[int, int], float]:
    """The step on each edge."""
    gamma = federation.gossip.gamma
    if size is None:
        return dict.fromkeys(federation.edges, gamma)
    specs = {federation.gossip.compressor, *federation.edge_compressors.values()}
    steps = {spec: gamma * make_compressor(spec).gamma(size) for spec in specs}
    return {edge: steps[federation.compressor_of(*edge)] for edge in federation.edges}


class _Rounds:
    """One period, or a static graph, as an operator on z = root x, root = N^1/2, where the n-weighted norm is plain."""

    def __init__(
        self, federation: FederationConfig, root: NDArray[np.float64], gammas: Mapping[tuple[int, int], float]
    ) -> None:
        self.root = root
        share = root**2 / (np.array(federation.degrees) + 1.0)
        self.rounds = []
        for edges in federation.schedule or (federation.edges,):
            i, j = np.array(edges, dtype=np.int64).reshape(-1, 2).T
            gamma = np.array([gammas[edge] for edge in edges])
            self.rounds.append((i, j, gamma * np.minimum(share[i], share[j])))
        self.mean = root / np.linalg.norm(root)

    def apply(self, z: NDArray[np.float64], *, back: bool = False) -> NDArray[np.float64]:
        """All rounds in turn to each column of z (nodes, k), in place. Each is symmetric: `back` is the transpose."""
        root = self.root.reshape(-1, *[1] * (z.ndim - 1))
        for i, j, weight in reversed(self.rounds) if back else self.rounds:
            flow = weight.reshape(-1, *[1] * (z.ndim - 1)) * (z[i] / root[i] - z[j] / root[j])
            np.subtract.at(z, i, flow / root[i])
            np.add.at(z, j, flow / root[j])
        return z

    def dense_norm(self) -> float:
        away = np.eye(len(self.root)) - np.outer(self.mean, self.mean)
        return float(np.linalg.norm(self.apply(away), 2))

    def lanczos_norm(self) -> float:
        """From below, to about six digits."""
        krylov = Krylov(lambda z: self.apply(self.apply(z.copy()), back=True), self.mean)
        while True:
            krylov.extend(krylov.size + 4)
            top = krylov.highest()
            if top.residual <= SETTLED * top.value or krylov.dead or krylov.size >= PRODUCTS:
                return math.sqrt(max(0.0, top.value))
