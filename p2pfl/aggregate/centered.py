"""Rules that take one of the vectors for their own: `vectors[idx]` is one's model, the others are the neighbors'.

Each is a function from the neighbors' distances to how much of each pull comes through, so d values are read once to
measure and once to mix. `weights` (n - 1) are what the neighbors have in a mean: 1 / n each where they are not given.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from p2pfl.aggregate import selection
from p2pfl.aggregate.batch import Rows, as_rows
from p2pfl.aggregate.distances import Floats, moved, nearest, squared_lengths, squared_to
from p2pfl.aggregate.interface import Vector
from p2pfl.aggregate.rules import Aggregator


class Centered(Aggregator):
    """Of neighbors' vectors around one's own."""

    def __init__(self, f: int = 0, idx: int = 0) -> None:
        super().__init__(f)
        if isinstance(idx, bool) or not isinstance(idx, int) or idx < 0:
            raise ValueError(f"idx is a whole number from 0, not {idx!r}")
        self.idx = idx

    def __call__(self, vectors: Any, weights: Any = None) -> Any:
        rows, restore = as_rows(vectors)
        self.require(len(rows))
        own, others = self._split(rows)
        told = even_weights(len(others)) if weights is None else _weights(weights, len(others))
        return restore(self.moved(own, others, self.pulls(own, others, told).tolist()))

    def of(self, rows: Rows) -> Vector:
        own, others = self._split(rows)
        return self.moved(own, others, self.pulls(own, others, even_weights(len(others))).tolist())

    @abstractmethod
    def pulls(self, own: Vector, others: Rows, weights: Floats, *, progress: float = 0.0) -> Floats:
        """(m,) how far one goes towards each neighbor: from 0, and at most 1 together."""

    def moved(self, own: Vector, others: Rows, pulls: Sequence[float]) -> Vector:
        """The own model + the sum of the pulls: (d,), exactly the own where all are equal."""
        return moved(own, others, pulls)

    def kept(self, pulls: Floats, weights: Floats) -> Floats:
        """(m,) which part of a neighbor's whole pull that is."""
        return np.divide(pulls, weights, out=np.zeros_like(pulls), where=weights > 0)

    def uncut(self, own: Vector, others: Rows) -> Floats:  # noqa: ARG002 - for those that look at coordinates
        """(m,) which part of a neighbor's way is left when its coordinates have been cut."""
        return np.ones(len(others))

    def _split(self, rows: Rows) -> tuple[Vector, Rows]:
        if self.idx >= len(rows):
            raise ValueError(f"idx={self.idx} of {len(rows)} vectors")
        return rows[self.idx], [row for index, row in enumerate(rows) if index != self.idx]


class Choosing(Centered):
    """A neighbor's model counts as it is, or not at all."""

    def kept(self, pulls: Floats, weights: Floats) -> Floats:  # noqa: ARG002 - weights are not asked
        return np.where(pulls > 0, 1.0, 0.0)


class MoNNA(Choosing):
    """NNA: the mean of one's own and the n - f - 1 vectors nearest to it; weights are not asked.

    The aggregation is nearest neighbor averaging; MoNNA is the paper's name for training with momentum around it.

    Farhadkhani et al. 2023, arXiv 2209.10931.
    """

    def pulls(self, own: Vector, others: Rows, weights: Floats, *, progress: float = 0.0) -> Floats:  # noqa: ARG002
        near = nearest(squared_to(own, others), len(others) - self.f)
        found = np.zeros(len(others))
        found[near] = 1 / (len(near) + 1)
        return found


class SelfCenteredClipping(Centered):
    """Every neighbor's pull, clipped to `tau`, by its weight.

    Without `tau` as the paper does it in practice: tau^2 = the mean of the m - f smallest squared distances, by weight,
    over the share that f neighbors may have.

    He, Karimireddy, Jaggi 2022, arXiv 2202.01545.
    """

    def __init__(self, f: int = 0, idx: int = 0, tau: float | None = None) -> None:
        super().__init__(f, idx)
        if tau is not None and not tau > 0:
            raise ValueError(f"tau is a number above 0, not {tau!r}")
        self.tau = tau

    def pulls(self, own: Vector, others: Rows, weights: Floats, *, progress: float = 0.0) -> Floats:  # noqa: ARG002
        squares = squared_to(own, others)
        radius = selection.own_radius(squares, weights, self.f) if self.tau is None else self.tau
        return weights * selection.clipping(squares, radius)


class ClippedSum(Centered):
    """CS+: every neighbor's pull, clipped to the (m - 2f)-th smallest distance, by its weight.

    Gaucher, Dieuleveut, Hendrikx 2025, arXiv 2410.10418.
    """

    @property
    def least(self) -> int:
        return 2 * self.f + 2

    def pulls(self, own: Vector, others: Rows, weights: Floats, *, progress: float = 0.0) -> Floats:  # noqa: ARG002
        squares = squared_to(own, others)
        return weights * selection.clipping(squares, selection.clipped_sum_radius(squares, self.f))


class Balance(Choosing):
    """alpha own + (1 - alpha) mean of the neighbors within gamma exp(-kappa progress) |own|; weights are not asked.

    `progress` is the share of the rounds that is done. What is within depends on no count of liars.

    Fang et al. 2024, arXiv 2406.10416.
    """

    def __init__(self, f: int = 0, idx: int = 0, *, alpha: float = 0.5, gamma: float = 0.3, kappa: float = 1.0) -> None:
        super().__init__(f, idx)
        self.alpha, self.gamma, self.kappa = alpha, gamma, kappa

    def pulls(self, own: Vector, others: Rows, weights: Floats, *, progress: float = 0.0) -> Floats:  # noqa: ARG002
        bound = (self.gamma * np.exp(-self.kappa * progress)) ** 2 * squared_lengths([own])[0]
        within = squared_to(own, others) <= bound
        return np.where(within, (1 - self.alpha) / max(1, int(within.sum())), 0.0)


def even_weights(others: int) -> Floats:
    return np.full(others, 1 / (others + 1))


def _weights(weights: Any, count: int) -> Floats:
    told = np.asarray(weights, np.float64)
    if told.shape != (count,) or not (told >= 0).all() or not told.sum() <= 1:
        raise ValueError(f"expected {count} weights from 0, at most 1 together")
    return told
