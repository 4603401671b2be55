"""`top-k:X`: the values of largest magnitude, and their places.

Of equal magnitudes those of lower index are taken, so that a payload is a function of the vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from p2pfl.compress.indices import PACKED, IndexCode, Indices
from p2pfl.compress.interface import Rows
from p2pfl.compress.largest import largest
from p2pfl.compress.sparse import Sparse


@dataclass(frozen=True, slots=True)
class TopK(Sparse):
    """The k largest of d values hold at least k/d of |v|^2, hence delta = k/d times that of the inner compressor.

    Magnitudes are compared as float32, so a float64 may take the place of one that is larger by 2^-23 of it. gamma is
    experience: theory's values are of no use.
    """

    code: IndexCode = PACKED

    word: ClassVar[str] = "top-k"
    source: ClassVar[str] = "Stich et al., Sparsified SGD with Memory, NeurIPS 2018 (arXiv:1809.07599)"

    @property
    def random(self) -> bool:
        return self.inner.random

    def delta(self, size: int) -> float:
        share = self.kept(size) / size if size else 1.0
        return share * (1 - 2.0**-22) * self.inner.delta(self.kept(size))

    def gamma(self, size: int) -> float:
        share = self.kept(size) / size if size else 1.0
        return min(1.0, 5 * share) * self.inner.gamma(self.kept(size))

    def places_bytes(self, size: int) -> int:
        return self.code.size_bytes(self.kept(size), size)

    def choose(self, rows: Rows, chances: Sequence[int] | None) -> tuple[Indices, Sequence[int] | None]:
        return largest(rows, self.kept(rows.shape[1])), chances

    def write(
        self,
        places: Indices,
        size: int,
        chances: Sequence[int] | None,  # noqa: ARG002 - nothing is drawn
        out: NDArray[np.uint8],
    ) -> None:
        self.code.write(places, size, out)

    def read(self, stored: NDArray[np.uint8], size: int) -> Indices:
        return self.code.read(stored, self.kept(size), size)
