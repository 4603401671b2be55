"""The view of a liar that makes up a lie for one neighbor (`Sight`).

In the simulator it has every model, as it is shown at this instant; a real liar fills in what its own edges hold: the
latest replicas of its neighbors, and the graph, which the federation's file names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.chance import generator

Vector = NDArray[np.floating[Any]]
Rows = NDArray[np.floating[Any]]
Edge = tuple[int, int]
Climb = Callable[[Vector], tuple[float, Vector]]
"""Maps a model (d,) to the task's mean loss there, on data that the liar knows, and its gradient (d,)."""


@dataclass(frozen=True, kw_only=True)
class Sight:
    """The facts from which `node` makes a lie for `peer`; `own` (d,) is the model that it would honestly show.

    `models` (d,) by node are the models that it knows, all finite: a peer whose model is not among them is taken to
    have the liar's own. `liars` are those in league with it, itself among them. `edges` is the graph. `rounds` counts
    its own local rounds, `count` the models that it has shown so far, to anybody. `weights` are the peer's mixing
    weights a_ij by neighbor; if empty, equal ones, 1/(neighbors + 1). `rule` is the spec of the rule by which the peer
    mixes, None for the mean. `initial` (d,) is the model that every node starts from. `slope` is the task's loss, for
    attacks that climb it and for those of a user's own; None where the task has no gradient.
    """

    node: int
    peer: int
    own: Vector
    initial: Vector
    models: Mapping[int, Vector] = field(default_factory=dict)
    liars: frozenset[int] = frozenset()
    edges: tuple[Edge, ...] = ()
    weights: Mapping[int, float] = field(default_factory=dict)
    rule: str | None = None
    rounds: int = 0
    count: int = 0
    seed: int = 0
    slope: Climb | None = None

    @property
    def victim(self) -> Vector:
        """The peer's own model (d,)."""
        return self.models.get(self.peer, self.own)

    @cached_property
    def neighbors(self) -> tuple[int, ...]:
        """Neighbors of the peer, in ascending order."""
        ends = {high if low == self.peer else low for low, high in self.edges if self.peer in (low, high)}
        return tuple(sorted(ends or {self.node}))

    @property
    def lying(self) -> tuple[int, ...]:
        """The peer's neighbors in the league, this liar among them."""
        return tuple(node for node in self.neighbors if node in self.liars or node == self.node)

    @cached_property
    def known(self) -> tuple[int, ...]:
        """The peer's honest neighbors whose models the liar knows."""
        return tuple(n for n in self.neighbors if n in self.models and n not in self.liars and n != self.node)

    @cached_property
    def around(self) -> Rows:
        """The peer's model and then those of `known`, (1 + k, d) in float64."""
        rows = [self.victim, *(self.models[node] for node in self.known)]
        return np.stack(rows).astype(np.float64)

    @cached_property
    def honest(self) -> tuple[int, ...]:
        """All honest nodes whose models the liar knows, near or far."""
        return tuple(node for node in sorted(self.models) if node not in self.liars and node != self.node)

    def weight(self, neighbor: int) -> float:
        return self.weights.get(neighbor, 1.0 / (len(self.neighbors) + 1))

    def draws(self, purpose: str, *path: int) -> np.random.Generator:
        """Return a generator of the liar's own."""
        return generator(self.seed, purpose, self.node, *path)


def length(vector: Vector) -> float:
    """Compute the Euclidean length, summed in one order: a library's result may depend on the number of its threads."""
    return float(np.sqrt(np.einsum("i,i->", vector, vector)))
