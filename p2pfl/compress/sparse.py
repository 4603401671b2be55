"""Top-k and random-k: some values are sent, as another compressor codes them, and the others decode to 0.

Payload: the places, then the payload of the values there. With S the places, k of them, and an inner compressor Q of
contraction delta', |v - Q(v)|^2 = |v - v_S|^2 + |v_S - Q(v_S)|^2 <= |v|^2 - delta' |v_S|^2: the contraction is delta'
times the share of |v|^2 that S holds. (Random inner compressors draw from chance of their own, so that the same holds
for expectations.)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from p2pfl.compress.draws import seeds_of, words
from p2pfl.compress.entry import KEEP, SPARSIFIER, STAGES, StageEntry, plain
from p2pfl.compress.indices import GAPS, PACKED, IndexCode, Indices, largest
from p2pfl.compress.interface import (
    ByRows,
    RowCompressor,
    Rows,
    not_finite,
    require_payloads,
    require_rows,
    rows_for,
    tiles,
)

SEED_BYTES = 8
# The values in a piece, whose temporaries stay in the cache.
TILE = 1 << 15
WORD = np.uint64(32)


@dataclass(frozen=True, slots=True)
class Sparse(ByRows, ABC):
    """A compressor that sends some values. `keep` is a fraction of the values in (0, 1], or an int, their number; of
    fewer values all are kept.
    """

    keep: int | float
    inner: RowCompressor

    word: ClassVar[str]
    source: ClassVar[str]
    fixed: ClassVar[bool] = True

    @property
    def spec(self) -> str:
        alone = f"{self.word}:{plain(self.keep)}"
        return alone if self.inner.spec == "none" else f"{alone}+{self.inner.spec}"

    @property
    @abstractmethod
    def random(self) -> bool: ...

    @abstractmethod
    def delta(self, size: int) -> float: ...

    @abstractmethod
    def gamma(self, size: int) -> float: ...

    def packed(self) -> Sparse:
        """The same compressor before an entropy stage."""
        return self

    @abstractmethod
    def places_bytes(self, size: int) -> int:
        """The bytes that the places of a vector of `size` values take."""

    @abstractmethod
    def choose(self, rows: Rows, chances: Sequence[int] | None) -> tuple[Indices, Sequence[int] | None]:
        """Choose places (b, k) of the rows (b, d), and the inner compressor's chances.

        Raises ValueError: NaN or infinity is at a place that was not chosen.
        """

    @abstractmethod
    def write(self, places: Indices, size: int, chances: Sequence[int] | None, out: NDArray[np.uint8]) -> None:
        """Fill `out` (b, places_bytes(size)) with the places (b, k)."""

    @abstractmethod
    def read(self, stored: NDArray[np.uint8], size: int) -> Indices:
        """Read places (b, k) from rows (b, places_bytes(size)). Raises PeerFault: they are not what `write` writes."""

    def kept(self, size: int) -> int:
        """The number k of the `size` values that are sent; at least one, if there is one."""
        if isinstance(self.keep, int):
            return min(self.keep, size)
        return min(size, max(1, int(self.keep * size + 0.5)))

    def size_bytes(self, size: int) -> int:
        return self.places_bytes(size) + self.inner.size_bytes(self.kept(size))

    def encode_rows(
        self, rows: Rows, *, chances: Sequence[int] | None = None, decoded: NDArray[np.float32] | None = None
    ) -> NDArray[np.uint8]:
        require_rows(rows)
        count, size = rows.shape
        places, inner_chances = self.choose(rows, chances)
        payloads = np.empty((count, self.size_bytes(size)), np.uint8)
        start = self.places_bytes(size)
        self.write(places, size, chances, payloads[:, :start])
        values = None if decoded is None else np.empty(places.shape, np.float32)
        picked = np.take_along_axis(rows, places, axis=1)
        payloads[:, start:] = self.inner.encode_rows(picked, chances=inner_chances, decoded=values)
        if decoded is not None and values is not None:
            scatter(values, places, rows_for(count, size, decoded))
        return payloads

    def decode_rows(
        self, payloads: NDArray[np.uint8], size: int, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        require_payloads(payloads, self.size_bytes(size))
        out = rows_for(len(payloads), size, out)
        start = self.places_bytes(size)
        values = self.inner.decode_rows(payloads[:, start:], self.kept(size))
        scatter(values, self.read(payloads[:, :start], size), out)
        return out

    def quantize_rows(
        self, rows: Rows, *, chances: Sequence[int] | None = None, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        require_rows(rows)
        out = rows_for(len(rows), rows.shape[1], out)
        places, inner_chances = self.choose(rows, chances)
        values = self.inner.quantize_rows(np.take_along_axis(rows, places, axis=1), chances=inner_chances)
        scatter(values, places, out)
        return out


def scatter(values: NDArray[np.float32], places: Indices, out: NDArray[np.float32]) -> None:
    """Fill `out` (b, d) with the values (b, k) at their places, and zeros."""
    out.fill(0)
    np.put_along_axis(out, places, values, axis=1)


@STAGES.add(
    StageEntry(
        name="top-k",
        place=SPARSIFIER,
        written="top-k:X",
        aliases=("topk",),
        means="only the X values (0.05: a share; 500: a count) of largest magnitude",
        parameters=(KEEP,),
        example="top-k:0.05+q8",
    )
)
@dataclass(frozen=True, slots=True)
class TopK(Sparse):
    """The values of largest magnitude; of equal ones those of lower index: a payload is a function of the vector.

    The k largest of d values hold at least k/d of |v|^2, hence delta = k/d times that of the inner compressor.

    Magnitudes are compared as float32, so a float64 may take the place of one that is larger by 2^-23 of it. gamma
    comes from experience: theory's values are of no use.
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

    def packed(self) -> Sparse:
        return replace(self, code=GAPS)

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


@STAGES.add(
    StageEntry(
        name="random-k",
        place=SPARSIFIER,
        written="random-k:X",
        aliases=("randomk", "randk"),
        means="X values drawn at random; their positions follow from a seed",
        parameters=(KEEP,),
        example="random-k:0.1+q8",
    )
)
@dataclass(frozen=True, slots=True)
class RandomK(Sparse):
    """Values drawn by chance, one from each of k strata; their places follow from a seed of 8 bytes.

    Stratum i (from 0) of d values begins at i d // k. Word i of the seed (see `draws`), its upper 32 bits times the
    size of the stratum, without the lower 32 bits of the product, is the place in it. Normative: decoders do it.

    Not rescaled: a contraction in expectation, not unbiased.

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
        # The word after those that the strata use, so that an inner compressor's chance is independent of the places.
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
