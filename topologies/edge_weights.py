"""Weights that edges bring along, from a file or a `networkx.Graph`: each is a positive number, and all edges have one,
or none has.

A weight is a mixing weight: in one round, the share of their difference by which both ends of the edge move toward each
other. `spectral` says which weights a graph can mix with.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from topologies.errors import TopologyError

Weights = NDArray[np.float64]
"""One weight for each edge, shape (edges,)."""
ALLOWED = "a number above 0"


class WeightColumn:
    """The weights of the edges, one after the other; it takes no memory until an edge has one."""

    def __init__(self) -> None:
        self._known = array("d")
        self._count = 0

    def add(self, weight: object, place: Callable[[], str]) -> None:
        """Take the next edge's weight, None if it has none. Raises TopologyError, with its `place`, if it is not a
        positive finite number.
        """
        if weight is not None:
            self._known.extend([math.nan] * (self._count - len(self._known)))
            self._known.append(positive(weight, place))
        self._count += 1

    def all(self, place: Callable[[int], str]) -> Weights | None:
        """Return the weights, None if no edge has one, or all are 1. Raises TopologyError if some edges have none; the
        error has the `place` of the first of these.
        """
        if not self._known:
            return None
        found = np.array([*self._known, *[math.nan] * (self._count - len(self._known))])
        missing = np.flatnonzero(np.isnan(found))
        if (found[~np.isnan(found)] == 1.0).all():
            return None
        if len(missing):
            allowed = "a weight on every edge, or on none"
            raise TopologyError("an edge without a weight", key=place(int(missing[0])), allowed=allowed)
        return found


def positive(value: object, place: Callable[[], str]) -> float:
    """Read a weight. Raises TopologyError if it is not a positive finite number."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0.0 < number < math.inf:
        shown = value if isinstance(value, float) else str(value)[:80]
        raise TopologyError("impossible weight", key=place(), value=shown, allowed=ALLOWED)
    return number
