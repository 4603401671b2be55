"""A schedule is a sequence of mixing matrices that repeats: round t of it mixes with `mixings[t % period]`.

A directed static graph is a schedule of one matrix. Weights are kept as fractions of whole numbers, so that a product
of them can be compared with the averaging matrix exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from topologies.graph import Topology

Ints = NDArray[np.int64]
Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Mixing:
    """One round: node `receivers[e]` takes the share `numerators[e] / denominators[e]` of node `senders[e]`.

    What is left of its weight 1 stays with the node itself. Each array has shape (links,); an undirected edge is two
    links. Rows of the matrix W sum to one by construction; the families here have columns that do so too.
    """

    nodes: int
    receivers: Ints
    senders: Ints
    numerators: Ints
    denominators: Ints

    @classmethod
    def of(cls, nodes: int, shares: Mapping[tuple[int, int], Fraction]) -> Mixing:
        """From W's entries off the diagonal: `shares[receiver, sender]`."""
        links = sorted(shares)
        array = np.array(links, dtype=np.int64).reshape(-1, 2)
        numerators = np.array([shares[link].numerator for link in links], dtype=np.int64)
        denominators = np.array([shares[link].denominator for link in links], dtype=np.int64)
        return cls(nodes, array[:, 0], array[:, 1], numerators, denominators)

    @cached_property
    def weights(self) -> Array:
        """Shape (links,)."""
        return self.numerators / self.denominators

    def dense(self) -> Array:
        """W as a matrix of shape (nodes, nodes), rows sum to 1."""
        matrix = np.zeros((self.nodes, self.nodes))
        np.add.at(matrix, (self.receivers, self.senders), self.weights)
        matrix[np.diag_indices(self.nodes)] += 1.0 - matrix.sum(axis=1)
        return matrix

    def apply(self, x: Array) -> Array:
        """W x for x of shape (nodes,) or (nodes, d), without a matrix."""
        moved = np.array(x, dtype=np.float64)
        weights = self.weights if x.ndim == 1 else self.weights[:, None]
        np.add.at(moved, self.receivers, weights * (x[self.senders] - x[self.receivers]))
        return moved

    @property
    def messages(self) -> int:
        """Models sent in one round: one for each link."""
        return len(self.receivers)


class Schedule:
    """`directed`: some matrix is not symmetric. `random`: the matrices were drawn, from the seed."""

    def __init__(
        self, spec: str, nodes: int, mixings: Sequence[Mixing], seed: int = 0, *, directed: bool, random: bool = False
    ) -> None:
        self.spec = spec
        self.nodes = nodes
        self.mixings = tuple(mixings)
        self.seed = seed
        self.directed = directed
        self.random = random

    @property
    def period(self) -> int:
        return len(self.mixings)

    def mixing(self, t: int) -> Mixing:
        return self.mixings[t % self.period]

    def union(self) -> Topology:
        """All links of a period as one undirected graph: what a federation keeps sessions for."""
        pairs = [np.stack([mixing.receivers, mixing.senders], axis=1) for mixing in self.mixings]
        return Topology(self.spec, self.nodes, np.concatenate([np.empty((0, 2), np.int64), *pairs]), self.seed)
