"""With which models the latest local rounds began: of the nodes that a history looks at, and of no others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows2 = NDArray[np.floating[Any]]


class Begun:
    """`of` nodes are watched; `models` (nodes, d) are as they are now."""

    def __init__(self, of: Sequence[int], models: Rows2) -> None:
        self._places = np.full(len(models), -1)
        self._places[list(of)] = np.arange(len(of))
        self._rows = models[list(of)]

    def note(self, nodes: NDArray[np.int64], models: Rows2) -> None:
        """These `nodes` begin a round now."""
        places = self._places[nodes]
        watched = places >= 0
        self._rows[places[watched]] = models[nodes[watched]]

    def rows(self, nodes: Sequence[int]) -> Rows2:
        """Of `nodes` that are watched, (len(nodes), d)."""
        rows: Rows2 = self._rows[self._places[list(nodes)]]
        return rows
