"""The past of a federation in bounded memory: a few figures of each member over time, thinner the longer it is.

At MOST_POINTS points every second one is dropped, and from then on points come half as often. Of many members a reader
gets the least, the median and the largest value of each figure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

FIGURES = ("accuracy", "main", "distance", "staleness", "bytes_per_s")
MOST_POINTS = 240
FIRST_STEP_S = 2.0
MOST_LINES = 12
"""The most members for which each has its own line."""

CurvePoint = dict[str, list[float | None]]


class Curves:
    """The curves of all members. Memory: 240 points x 5 figures x members floats.

    `add` takes the present figures; times are seconds of one clock. `values` is indexed by point, figure (FIGURES) and
    member; an unknown value is NaN.
    """

    def __init__(self) -> None:
        self.step_s = FIRST_STEP_S
        self.times: list[float] = []
        self.values: NDArray[np.float32] = np.empty((0, len(FIGURES), 0), np.float32)

    def is_due(self, now: float) -> bool:
        return not self.times or now >= self.times[-1] + self.step_s

    def add(self, now: float, members: Sequence[Mapping[str, float | None]]) -> CurvePoint:
        """Keep a point, and return it for readers. `members` has the figures of each member, by name."""
        if len(self.times) >= MOST_POINTS:
            self.times, self.values, self.step_s = self.times[::2], self.values[::2], 2 * self.step_s
        found = [[one.get(figure) for one in members] for figure in FIGURES]
        row = np.array(found, np.float32).reshape(1, len(FIGURES), len(members))
        count = max(len(members), self.values.shape[2])
        self.values = np.concatenate([_widen(self.values, count), _widen(row, count)])
        self.times.append(now)
        point: CurvePoint = {"time": [round(now, 1)]}
        return point | {figure: lines[-1] for figure, lines in self._lines(self.values[-1:]).items()}

    def as_dict(self) -> dict[str, Any]:
        """Return all curves for readers: by figure a list of points, each a list with a value for each line."""
        return {
            "step_s": self.step_s,
            "times": [round(at, 1) for at in self.times],
            "members": self.has_a_line_each,
            "figures": self._lines(self.values),
        }

    def of_member(self, member: int) -> dict[str, Any]:
        """Return the curves of one member, with one line for each figure."""
        inside = 0 <= member < self.values.shape[2]
        part = self.values[:, :, member : member + 1] if inside else np.empty((0, len(FIGURES), 1), np.float32)
        return {
            "times": [round(at, 1) for at in self.times] if inside else [],
            "figures": {figure: _plain(part[:, place]) for place, figure in enumerate(FIGURES)},
        }

    @property
    def has_a_line_each(self) -> bool:
        """True if each member has a line; otherwise there are three: minimum, median and maximum."""
        return int(self.values.shape[2]) <= MOST_LINES

    def _lines(self, values: NDArray[np.float32]) -> dict[str, list[list[float | None]]]:
        if not self.has_a_line_each:
            values = _spread(values)
        return {figure: _plain(values[:, place]) for place, figure in enumerate(FIGURES)}


def _widen(values: NDArray[np.float32], members: int) -> NDArray[np.float32]:
    """Widen the history to so many members."""
    return np.pad(values, ((0, 0), (0, 0), (0, members - values.shape[2])), constant_values=np.nan)


def _spread(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the least, median and largest value over the members (last axis); NaN where no member has a value."""
    ordered = np.sort(values, axis=2)  # NaN comes last
    known = (~np.isnan(values)).sum(axis=2, keepdims=True)
    places = np.concatenate([np.zeros_like(known), known // 2, known - 1], axis=2)
    return np.take_along_axis(ordered, np.clip(places, 0, values.shape[2] - 1), axis=2)


def _plain(values: NDArray[np.float32]) -> list[list[float | None]]:
    """Return nested lists of shape (points, lines), with four digits each."""
    return [[None if math.isnan(value) else float(f"{value:.4g}") for value in line] for line in values.tolist()]
