"""The vectors of requests that are frozen and not yet applied."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class RequestRows:
    """The decoded requests under way, at most one on each of `edges`. Only those take memory: in a run in which a node
    exchanges with one neighbor at a time, a quarter of the edges of a 4-regular graph.
    """

    def __init__(self, edges: int, size: int) -> None:
        self._rows = np.zeros((0, size), np.float32)
        self._place = np.full(edges, -1)
        """Where in `_rows` an edge's request is; -1: nowhere."""
        self._free: NDArray[np.int64] = np.zeros(0, np.int64)

    def put(self, edges: NDArray[np.int64], requests: NDArray[np.float32]) -> None:
        """Store `requests` (b, d), each in place of an earlier one on its edge."""
        new = edges[self._place[edges] < 0]
        if len(new) > len(self._free):
            self._grow(len(new) - len(self._free))
        self._free, self._place[new] = self._free[len(new) :], self._free[: len(new)]
        self._rows[self._place[edges]] = requests

    def of(self, edges: NDArray[np.int64], *, drop: bool) -> NDArray[np.float32]:
        """Return copies (b, d) of the requests on these edges; with `drop` they are forgotten."""
        places = self._place[edges]
        if (places < 0).any():
            raise AssertionError("a request is applied that is not under way")
        if drop:
            self._place[edges] = -1
            self._free = np.concatenate([self._free, places])
        requests: NDArray[np.float32] = self._rows[places]
        return requests

    def _grow(self, most: int) -> None:
        have, edges = len(self._rows), len(self._place)
        more = min(edges - have, max(most, have // 4))
        self._rows = np.concatenate([self._rows, np.zeros((more, self._rows.shape[1]), np.float32)])
        self._free = np.concatenate([self._free, np.arange(have, have + more)])
