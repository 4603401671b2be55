"""How much one round of a federation is expected to shrink the distance to consensus, on a graph or in a schedule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from p2pfl.config.model import Federation
from topologies import Topology, contraction
from topologies.graph import component_count
from topologies.schedules.contraction import ROUNDING


def predicted(federation: Federation, samples: Sequence[float] | None) -> float:
    """The factor by which one exchange on every edge in use shrinks the n-weighted distance to consensus.

    In a schedule: that of a whole period from its worst start, to the power of one over the period; 0 where every node
    has the mean at its end. The weights are those that nodes use, c_ij = min(n_i/(deg_i+1), n_j/(deg_j+1)), deg the
    largest number of edges that one round uses, not those of the schedule's own matrices. Without `samples` n is 1.
    """
    topology = Topology(federation.topology, len(federation.members), federation.edges, federation.seed)
    if not federation.schedule:
        return contraction(topology, samples, federation.gossip.gamma)
    if component_count(topology) > 1:
        return 1.0
    n = np.ones(topology.nodes) if samples is None else np.asarray(samples, dtype=np.float64)
    root = np.sqrt(n)
    share = n / (np.array(federation.degrees) + 1.0)
    # of z = N^1/2 x, in which the n-weighted norm is the plain one
    product = np.eye(topology.nodes) - np.outer(root, root) / n.sum()
    for edges in federation.schedule:
        i, j = np.array(edges, dtype=np.int64).reshape(-1, 2).T
        x = product / root[:, None]
        flow = federation.gossip.gamma * np.minimum(share[i], share[j])[:, None] * (x[i] - x[j])
        np.subtract.at(product, i, flow / root[i, None])
        np.add.at(product, j, flow / root[j, None])
    norm = float(np.linalg.norm(product, 2))
    return 0.0 if norm < ROUNDING else norm ** (1.0 / len(federation.schedule))
