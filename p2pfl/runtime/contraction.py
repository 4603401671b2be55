"""How much one round of a federation is expected to shrink the distance to consensus, on a graph or in a schedule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from p2pfl.config.model import Federation
from p2pfl.core.turns import most_at_once, turns_of
from topologies import Topology, contraction
from topologies.graph import component_count
from topologies.laplacian import Laplacian


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
    degrees = np.array([most_at_once(turns_of(node, federation.schedule)) for node in range(topology.nodes)])
    share = n / (degrees + 1.0)
    mean = np.sqrt(n / n.sum())
    product = np.eye(topology.nodes) - np.outer(mean, mean)
    for edges in federation.schedule:
        ends = np.array(edges, dtype=np.int64).reshape(-1, 2)
        c = np.minimum(share[ends[:, 0]], share[ends[:, 1]])
        product = product - federation.gossip.gamma * (Laplacian(ends, c, n).dense() @ product)
    return float(np.linalg.norm(product, 2) ** (1.0 / len(federation.schedule)))
