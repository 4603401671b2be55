"""The best split of each node from its sums (Chen and Guestrin 2016, arXiv 1603.02754, algorithms 1 and 3).

Sums are whole numbers; gains and values follow from them by additions, multiplications and divisions, which every
processor rounds alike. Of equal gains the lowest column, then the lowest bin counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2pfl.learn.trees.bins import BinGrid
from p2pfl.learn.trees.tree_settings import TreeSettings

Sums = NDArray[np.int64]
"""(..., 3): gradients and hessians in steps, and rows."""
Floats = NDArray[np.float64]
CELLS_AT_ONCE = 1 << 19
"""So many cells of nodes, columns and bins are looked at together, some 150 MB: one wide category widens all."""
LEAST_GAIN = 1e-6
"""A gain that is not larger is no gain, as in XGBoost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    column: int
    bin: int
    """A number goes left if its bin is this or a lower one; a category goes right if its bin is this one."""
    missing_left: bool
    gain: float
    left: Sums
    right: Sums


@dataclass(frozen=True, slots=True, kw_only=True)
class Splitter:
    """Finds splits. `bits` are those behind the point, and `scale` is the unit of a number to predict."""

    settings: TreeSettings
    grid: BinGrid
    bits: int
    scale: float = 1.0

    def value(self, sums: Sums) -> float:
        """Return a leaf's value, which is a float32."""
        gradients, hessians = np.ldexp(sums[:2].astype(np.float64), -self.bits)
        total = hessians + self.settings.reg_lambda
        return float(np.float32(-(gradients / total) * self.settings.eta)) if total > 0.0 else 0.0

    def weight(self, sums: Sums) -> float:
        """Return the sum of hessians."""
        return float(np.ldexp(float(sums[1]), -self.bits))

    def best(self, histograms: Sums) -> list[Split | None]:
        """Return the best split for each node's histogram (nodes, columns, bins, 3); None if none is allowed."""
        nodes = max(1, CELLS_AT_ONCE // (histograms.shape[1] * histograms.shape[2]))
        starts = range(0, len(histograms), nodes)
        return [split for start in starts for split in self._best(histograms[start : start + nodes])]

    def _best(self, histograms: Sums) -> list[Split | None]:
        widths, splits = np.array(self.grid.widths), np.array(self.grid.splits)
        columns = np.arange(len(widths))
        total = histograms[:, 0].sum(axis=1)
        missing = histograms[:, columns, widths - 1]
        body = histograms.copy()
        body[:, columns, widths - 1] = 0
        numeric = len(self.grid.edges)
        body[:, :numeric] = body[:, :numeric].cumsum(axis=2)
        known = (total[:, None] - missing)[:, numeric:, None]
        body[:, numeric:] = known - body[:, numeric:]
        left = np.stack([body, body + missing[:, :, None]], axis=3)
        right = total[:, None, None, None] - left
        gains = self._score(left) + self._score(right) - self._score(total)[:, None, None, None]
        possible = (np.arange(histograms.shape[2]) < splits[:, None])[None, :, :, None]
        least = possible & self._is_enough(left) & self._is_enough(right)
        gains = np.where(least, gains, -np.inf).reshape(len(gains), -1)
        chosen, found = gains.argmax(axis=1), list[Split | None]()
        for node, place in enumerate(chosen.tolist()):
            gain = float(gains[node, place])
            if not self._is_gain(gain):
                found.append(None)
                continue
            column, split, side = map(int, np.unravel_index(place, left.shape[1:4]))
            lower, upper = left[node, column, split, side], right[node, column, split, side]
            missing_left = bool(side) if missing[node, column, 2] else bool(lower[2] >= upper[2])
            found.append(Split(column=column, bin=split, missing_left=missing_left, gain=gain, left=lower, right=upper))
        return found

    def _is_gain(self, gain: float) -> bool:
        return gain > LEAST_GAIN and gain * self.scale * self.scale >= self.settings.gamma

    def _score(self, sums: Sums) -> Floats:
        gradients = np.ldexp(sums[..., 0].astype(np.float64), -self.bits)
        hessians = np.ldexp(sums[..., 1].astype(np.float64), -self.bits) + self.settings.reg_lambda
        found: Floats = np.divide(gradients * gradients, hessians, out=np.zeros_like(hessians), where=hessians > 0.0)
        return found

    def _is_enough(self, sums: Sums) -> NDArray[np.bool_]:
        weights = np.ldexp(sums[..., 1].astype(np.float64), -self.bits)
        enough = (sums[..., 2] >= self.settings.least_rows) & (weights >= self.settings.min_child_weight)
        return np.asarray(enough & (weights > 0.0))
