"""The compressors of all edges: rows that belong to different edges, each through its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.compress import Compressor, make_compressor
from p2pfl.config.model import FederationConfig

Rows2 = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]


class EdgeCodecs:
    """`kinds` are the different compressors, `kind_of` (edges,) which of them each edge uses."""

    def __init__(self, kinds: Sequence[Compressor], kind_of: Sequence[int]) -> None:
        self.kinds = kinds
        self.kind_of = np.array(kind_of, np.int64)

    @classmethod
    def same(cls, compressor: Compressor, edges: int) -> EdgeCodecs:
        return cls((compressor,), [0] * edges)

    @classmethod
    def of(cls, federation: FederationConfig) -> EdgeCodecs:
        specs = [federation.compressor_of(*edge) for edge in federation.edges]
        kinds = list(dict.fromkeys(specs)) or [federation.gossip.compressor]
        return cls([make_compressor(spec) for spec in kinds], [kinds.index(spec) for spec in specs])

    def quantize(self, rows: Rows2, edges: Ints, chance: Callable[[int], int]) -> NDArray[np.float32]:
        """What the other end decodes of each row (b, d), which goes over these edges (b,).

        `chance(row)` is asked only where a compressor draws.
        Raises ValueError: a row is not finite.
        """
        if len(self.kinds) == 1:
            return _quantized(self.kinds[0], rows, range(len(rows)), chance)
        found = np.empty(rows.shape, np.float32)
        kinds = self.kind_of[edges]
        for kind in np.unique(kinds).tolist():
            places = np.flatnonzero(kinds == kind)
            found[places] = _quantized(self.kinds[kind], rows[places], places.tolist(), chance)
        return found


def _quantized(
    compressor: Compressor, rows: Rows2, places: Sequence[int], chance: Callable[[int], int]
) -> NDArray[np.float32]:
    return compressor.quantize_rows(rows, chances=[chance(row) for row in places] if compressor.random else None)
