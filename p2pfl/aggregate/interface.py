"""What a robust rule is to a node: its own model and the neighbors' replicas in, the model to go on with out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighborhood:
    """What stands around a node after its own round, before it mixes: all finite, all (d,) in one type.

    `weights` (m,) are the Laplacian step's a_ij s_j: above 0, their sum below 1, the own model has the rest. `peers`
    (m,) are the neighbors' member indices, in rising order. `progress` is the share of the rounds done, from 0 to 1.
    """

    own: Vector
    others: Sequence[Vector]
    weights: NDArray[np.float64]
    peers: tuple[int, ...]
    progress: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """`model` (d,) is new memory, in the type of the own model.

    `kept` (m,) says how much of each neighbor's pull came through, from 0 to 1, where the rule can tell.
    """

    model: Vector
    kept: NDArray[np.float64] | None = None


class Rule(Protocol):
    """`spec` is the text that gives it again, `liars` (b) how many lying neighbors it is set to bear.

    `least` is with how many neighbors it bears them, 2 b + 1 or more: with fewer `mix` leaves the own model as it is.
    """

    @property
    def spec(self) -> str: ...

    @property
    def liars(self) -> int: ...

    @property
    def least(self) -> int: ...

    def mix(self, around: Neighborhood) -> Mixture:
        """More than 2 b neighbors are there: with fewer the node does not ask."""
        ...
