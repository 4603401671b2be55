"""`random-k:X`: values drawn by chance, one from each of k strata; their places follow from a seed of 8 bytes.

Stratum i (from 0) of d values begins at i d // k. Word i of the seed (see `draws`), its upper 32 bits times the size of
the stratum, without the lower 32 bits of the product, is the place in it. Normative: decoders do it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from p2pfl.compress.draws import seeds_of, words
from p2pfl.compress.indices import Indices
from p2pfl.compress.interface import Rows
from p2pfl.compress.sparse import Sparse
from p2pfl.compress.vectors import not_finite, tiles

SEED_BYTES = 8
# Worked on at a time: the temporaries stay in the cache.
TILE = 1 << 15
WORD = np.uint64(32)


@dataclass(frozen=True, slots=True)
class RandomK(Sparse):
    """Not rescaled: a contraction in expectation, not unbiased.

    A value is taken with a chance of at least floor(2^32 / m) / 2^32, m = ceil(d/k) the size of the larger strata:
    that is delta, times the inner compressor's. It is k/d, less 2^-32, where k divides d.
    """

    word: ClassVar[str] = "random-k"
    source: ClassVar[str] = "Stich et al., Sparsified SGD with Memory, NeurIPS 2018 (arXiv:1809.07599)"

    @property
    def random(self) -> bool:
        return True

    def delta(self, size: int) -> float:
        if not size:
            return self.inner.delta(0)
        largest = -(-size // self.kept(size))
        return (2**32 // largest) / 2**32 * self.inner.delta(self.kept(size))

    def gamma(self, size: int) -> float:
        share = self.kept(size) / size if size else 1.0
        return share * self.inner.gamma(self.kept(size))

    def places_bytes(self, size: int) -> int:  # noqa: ARG002 - of any size
        return SEED_BYTES

    def choose(self, rows: Rows, chances: Sequence[int] | None) -> tuple[Indices, Sequence[int] | None]:
        for tile in tiles(len(rows), rows.shape[1], TILE):
            if not np.isfinite(rows[tile]).all():
                raise not_finite()
        seeds = seeds_of(chances, len(rows))
        kept = self.kept(rows.shape[1])
        # The word after those that the strata use: an inner compressor's chance is independent of the places.
        inner = [int(word) for word in words(seeds, kept, 1)[:, 0]] if self.inner.random else None
        return _places(seeds, kept, rows.shape[1]), inner

    def write(
        self,
        places: Indices,
        size: int,  # noqa: ARG002 - the seed says all
        chances: Sequence[int] | None,
        out: NDArray[np.uint8],
    ) -> None:
        np.copyto(out, seeds_of(chances, len(places)).astype("<u8").view(np.uint8).reshape(out.shape))

    def read(self, stored: NDArray[np.uint8], size: int) -> Indices:
        return _places(np.ascontiguousarray(stored).view("<u8")[:, 0].astype(np.uint64), self.kept(size), size)


def _places(seeds: NDArray[np.uint64], kept: int, size: int) -> Indices:
    """Shape (seeds, kept), increasing, one in each stratum."""
    places = np.empty((len(seeds), kept), np.int64)
    for tall, wide in tiles(len(seeds), kept, TILE):
        edges = np.arange(wide.start, wide.stop + 1, dtype=np.uint64) * np.uint64(size) // np.uint64(kept)
        drawn = words(seeds[tall], wide.start, wide.stop - wide.start)
        drawn >>= WORD
        drawn *= np.diff(edges)
        drawn >>= WORD
        drawn += edges[:-1]
        np.copyto(places[tall, wide], drawn, casting="same_kind")
    return places
