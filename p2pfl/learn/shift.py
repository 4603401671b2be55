"""Measure how unequal the nodes' data are: the distance of each node's targets, in distribution, from those of all.

For class labels it is the total variation, half the sum of |p_k(class) - p(class)|, from 0 to 1: the share of a node's
rows that would have to change their class. For numbers it is Wasserstein's distance of order one, the integral of |F_k
- F|, in the targets' own unit: how far they would have to be moved, on average.

The measure needs all data at once, so it is for one machine that has them: no node reveals its labels to another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from p2pfl.learn.interface import Learner

MOST_COMPARED = 200_000_000
"""The largest product of nodes and rows for which numbers are compared: about two seconds."""

Floats = NDArray[np.float64]
Kind = Literal["total variation", "Wasserstein-1"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelShift:
    """The shift of all nodes. `nodes` has each node's distance by name; `mean` weighs them by their samples, `max` is
    the largest.
    """

    kind: Kind
    mean: float
    max: float
    nodes: dict[str, float]

    @property
    def in_words(self) -> str:
        return f"{self.kind} {self.mean:.3g} from those of all, at most {self.max:.3g}"


def targets_of(learner: Learner) -> NDArray[Any] | None:
    """The targets (n,) that a node learns from; None unless they are labels or numbers in memory, one to a row."""
    targets = getattr(getattr(learner, "train_set", None), "targets", None)
    return None if targets is None else flat_targets(targets.numpy())


def flat_targets(targets: NDArray[Any]) -> NDArray[Any] | None:
    """Return the targets flat. Integers of any shape are labels; numbers must be one to a row."""
    if targets.dtype.kind in "iu" or targets.size == len(targets):
        return targets.reshape(-1)
    return None


def label_shift(targets: Mapping[str, NDArray[Any] | None]) -> LabelShift | None:
    """The shift of each node's targets (n_k,), by name; None for fewer than two nodes, or if they cannot
    be compared.
    """
    known = {name: values for name, values in targets.items() if values is not None and len(values)}
    kinds = {values.dtype.kind in "iu" for values in known.values()}
    if len(known) < 2 or len(known) < len(targets) or len(kinds) > 1:
        return None
    parts = list(known.values())
    counts = np.array([len(part) for part in parts], dtype=np.float64)
    if kinds == {False} and counts.sum() * len(parts) > MOST_COMPARED:
        return None
    found = total_variation(parts) if kinds == {True} else wasserstein(parts)
    return LabelShift(
        kind="total variation" if kinds == {True} else "Wasserstein-1",
        mean=float(counts @ found / counts.sum()),
        max=float(found.max()),
        nodes=dict(zip(known, found.tolist(), strict=True)),
    )


def total_variation(parts: list[NDArray[Any]]) -> NDArray[np.float64]:
    """The total variation of each node's integer labels (n_k,) from those of all: (nodes,)."""
    values, places = np.unique(np.concatenate(parts), return_inverse=True)
    ends = np.cumsum([len(part) for part in parts])[:-1]
    counted = np.array([np.bincount(part, minlength=len(values)) for part in np.split(places, ends)], dtype=np.float64)
    shares = counted / counted.sum(axis=1, keepdims=True)
    return np.asarray(np.abs(shares - counted.sum(axis=0) / counted.sum()).sum(axis=1) / 2, dtype=np.float64)


def wasserstein(parts: list[NDArray[Any]]) -> NDArray[np.float64]:
    """The Wasserstein distance of each node's numbers (n_k,) from those of all: (nodes,)."""
    together = np.sort(np.concatenate(parts).astype(np.float64))
    return np.array([_area(_ecdf(part, together), _ecdf_of_sorted(together, together), together) for part in parts])


def wasserstein_between(first: NDArray[Any], other: NDArray[Any]) -> float:
    """The Wasserstein distance of two sets of numbers (n,) and (m,)."""
    together = np.sort(np.concatenate([first, other]).astype(np.float64))
    return _area(_ecdf(first, together), _ecdf(other, together), together)


def _ecdf(numbers: NDArray[Any], places: Floats) -> Floats:
    """The share of `numbers` (n,) that is not above each of `places` (m,) but the last: (m - 1,)."""
    return _ecdf_of_sorted(np.sort(numbers.astype(np.float64)), places)


def _ecdf_of_sorted(numbers: Floats, places: Floats) -> Floats:
    return np.asarray(np.searchsorted(numbers, places[:-1], side="right") / len(numbers), dtype=np.float64)


def _area(first: Floats, other: Floats, places: Floats) -> float:
    """The area between two distribution functions, given at `places` but the last."""
    return float(np.diff(places) @ np.abs(first - other))
