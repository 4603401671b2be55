"""Top-k and random-k: some values are sent, coded by another compressor, and the others decode to 0.

Payload: the places, then the payload of the values there. With S the k places, and Q an inner compressor with
contraction delta', |v - Q(v)|^2 = |v - v_S|^2 + |v_S - Q(v_S)|^2 <= |v|^2 - delta' |v_S|^2: the contraction is delta'
times the share of |v|^2 that S holds. (Random inner compressors draw from their own chance, so the same holds in
expectation.)

The places of the k largest of d magnitudes are found in linear time, and without copying long rows. Magnitudes are
compared by their float32 bits, which have the same order as integers: infinity is above the largest float and NaN above
infinity, so neither is ever left out. The sizes of both codes of places depend only on k and d, so that payloads have
exact sizes and reveal no more than the places themselves. `PACKED` is close to the minimum for k of d places; `GAPS` is
larger but has the redundancy that an entropy stage removes. docs/decisions/0012 compares them with others.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from p2pfl.compress.interface import (
    KEEP,
    SPARSIFIER,
    STAGES,
    RowCompressor,
    Rows,
    copy_float32,
    not_finite,
    plain,
    require_payloads,
    require_rows,
    rows_for,
    seeds_of,
    tiles,
    words,
)
from p2pfl.errors import PeerFault

SEED_BYTES = 8
# The number of values in a piece, chosen so that its temporaries stay in the cache.
TILE = 1 << 15
WORD = np.uint64(32)
Indices = NDArray[np.int64]
"""Shape (b, k), each row strictly increasing."""

WITHOUT_SIGN = np.uint32(0x7FFFFFFF)
# The number of values in a piece, chosen so that its temporaries stay in the cache.
PLACES_TILE = 1 << 16
# A longer row is searched through a sample of about this many values.
LONG = 1 << 17
SAMPLE = 1 << 14
# For fewer indices, a zstd frame costs more than it saves.
_FEW = 1024


@dataclass(frozen=True, slots=True)
class Sparse(RowCompressor):
    """A compressor that sends some values. `keep` is a fraction of the values in (0, 1], or an int that counts them;
    vectors with fewer values are sent whole.
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

    def packed(self) -> Sparse:
        """The same compressor before an entropy stage."""
        return self

    @abstractmethod
    def places_bytes(self, size: int) -> int:
        """Return the bytes that the places take for a vector of `size` values."""

    @abstractmethod
    def choose(
        self, rows: Rows, chances: Sequence[int] | None, stored: NDArray[np.uint8] | None
    ) -> tuple[Indices, Sequence[int] | None]:
        """Choose places (b, k) in the rows (b, d), and the inner compressor's chances; fill `stored`, if it is given,
        (b, places_bytes(d)), with the places.

        Raises ValueError if NaN or infinity is at a place that was not chosen.
        """

    @abstractmethod
    def read(self, stored: NDArray[np.uint8], size: int) -> Indices:
        """Read places (b, k) from rows (b, places_bytes(size)). Raises PeerFault if `choose` would not store them."""

    def kept(self, size: int) -> int:
        """Return how many of the `size` values are sent, k: at least one, if there is one."""
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
        payloads = np.empty((count, self.size_bytes(size)), np.uint8)
        start = self.places_bytes(size)
        places, inner_chances = self.choose(rows, chances, payloads[:, :start])
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
        places, inner_chances = self.choose(rows, chances, None)
        values = self.inner.quantize_rows(np.take_along_axis(rows, places, axis=1), chances=inner_chances)
        scatter(values, places, out)
        return out


def scatter(values: NDArray[np.float32], places: Indices, out: NDArray[np.float32]) -> None:
    """Fill `out` (b, d) with the values (b, k) at their places, and zeros."""
    out.fill(0)
    np.put_along_axis(out, places, values, axis=1)


# -- top-k: places as bytes -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IndexCode:
    """Codes places as bytes: Elias-Fano (Elias, 1974; Fano, 1971), 0.5 to 0.6 bits per index above log2(d over k) / k,
    or 0.76 at k = d/4.

    The floor(log2(d/k)) low bits of all indices are stored plane by plane, the lowest plane first; then the rest, in
    unary: for index i (from 0), bit (index >> low) + i is set. If d bits are no more than that, there is one bit per
    place instead; if all places are chosen, nothing is stored. The first bit is the lowest of a byte, and unused bits
    are 0.
    """

    def size_bytes(self, count: int, size: int) -> int:
        """Return the number of bytes for `count` indices below `size`."""
        return 0 if count in (0, size) else -(-min(size, _elias_fano_bits(count, size)) // 8)

    def write(self, indices: Indices, size: int, out: NDArray[np.uint8]) -> None:
        """Fill `out` (b, size_bytes(k, size)) with the indices (b, k)."""
        rows, count = indices.shape
        if count in (0, size):
            return
        if size <= _elias_fano_bits(count, size):
            bits = np.zeros((rows, size), np.uint8)
            np.put_along_axis(bits, indices, 1, axis=1)
            np.copyto(out, np.packbits(bits, axis=1, bitorder="little"))
            return
        low = _low_bits(count, size)
        bits = np.zeros((rows, _elias_fano_bits(count, size)), np.uint8)
        for place in range(low):
            np.copyto(bits[:, place * count : (place + 1) * count], indices >> place & 1, casting="unsafe")
        upper = indices >> low
        upper += np.arange(low * count, (low + 1) * count)
        np.put_along_axis(bits, upper, 1, axis=1)
        np.copyto(out, np.packbits(bits, axis=1, bitorder="little"))

    def read(self, stored: NDArray[np.uint8], count: int, size: int) -> Indices:
        """Return the indices in rows (b, size_bytes(count, size)).

        Raises PeerFault if a row is not what `write` makes from increasing indices below `size`.
        """
        if count in (0, size):
            return np.broadcast_to(np.arange(count), (len(stored), count))
        if size <= _elias_fano_bits(count, size):
            return _ones(_bits(stored, size), count)
        low = _low_bits(count, size)
        bits = _bits(stored, _elias_fano_bits(count, size))
        indices = _ones(bits[:, low * count :], count)
        indices -= np.arange(count)
        for place in reversed(range(low)):
            indices <<= 1
            indices |= bits[:, place * count : (place + 1) * count]
        require_increasing(indices, size)
        return indices


@dataclass(frozen=True, slots=True)
class GapCode(IndexCode):
    """The gaps between successive indices, as bytes: all lowest bytes, then all next ones, and so on.

    A gap takes as many bytes as the largest possible one needs; the upper bytes are mostly 0. If that gains an entropy
    stage nothing, with few indices and from k = d/4 on, it is the same as Elias-Fano.
    """

    def size_bytes(self, count: int, size: int) -> int:
        return count * _gap_bytes(count, size) if self._pays(count, size) else IndexCode.size_bytes(self, count, size)

    def write(self, indices: Indices, size: int, out: NDArray[np.uint8]) -> None:
        count = indices.shape[1]
        if not self._pays(count, size):
            IndexCode.write(self, indices, size, out)
            return
        gaps = np.diff(indices, axis=1, prepend=-1)
        gaps -= 1
        for place in range(_gap_bytes(count, size)):
            np.copyto(out[:, place * count : (place + 1) * count], gaps & 0xFF, casting="unsafe")
            gaps >>= 8

    def read(self, stored: NDArray[np.uint8], count: int, size: int) -> Indices:
        if not self._pays(count, size):
            return IndexCode.read(self, stored, count, size)
        indices = np.zeros((len(stored), count), np.int64)
        for place in reversed(range(_gap_bytes(count, size))):
            indices <<= 8
            indices |= stored[:, place * count : (place + 1) * count]
        indices += 1
        # No sum overflows: d gaps are below 2^8 d each.
        np.cumsum(indices, axis=1, out=indices)
        indices -= 1
        require_increasing(indices[:, -1:], size)
        return indices

    def _pays(self, count: int, size: int) -> bool:
        return count >= _FEW and 4 * count < size


PACKED, GAPS = IndexCode(), GapCode()


@STAGES.add(
    name="top-k",
    place=SPARSIFIER,
    written="top-k:X",
    aliases=("topk",),
    means="only the X values (0.05: a share; 500: a count) of largest magnitude",
    parameters=(KEEP,),
    example="top-k:0.05+q8",
)
@dataclass(frozen=True, slots=True)
class TopK(Sparse):
    """Sends the values of largest magnitude, on ties those of lower index, so that the payload is a function of the
    vector.

    The k largest of d values hold at least k/d of |v|^2, hence delta = k/d times the inner compressor's.

    Magnitudes are compared as float32, so a float64 may replace one that is larger by a relative 2^-23. gamma was
    chosen by experience: the values from theory are of no use.
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

    def choose(
        self, rows: Rows, chances: Sequence[int] | None, stored: NDArray[np.uint8] | None
    ) -> tuple[Indices, Sequence[int] | None]:
        places = largest(rows, self.kept(rows.shape[1]))
        if stored is not None:
            self.code.write(places, rows.shape[1], stored)
        return places, chances

    def read(self, stored: NDArray[np.uint8], size: int) -> Indices:
        return self.code.read(stored, self.kept(size), size)


@STAGES.add(
    name="random-k",
    place=SPARSIFIER,
    written="random-k:X",
    aliases=("randomk", "randk"),
    means="X values drawn at random; their positions follow from a seed",
    parameters=(KEEP,),
    example="random-k:0.1+q8",
)
@dataclass(frozen=True, slots=True)
class RandomK(Sparse):
    """Sends values drawn at random, one from each of k strata; their places follow from a seed of 8 bytes.

    Stratum i (from 0) of d values begins at i d // k. The place within it is the upper 32 bits of the seed's word i
    (see `draws`) times the size of the stratum, shifted right by 32 bits. Normative: decoders do the same.

    Not rescaled: a contraction in expectation, not unbiased.

    A value is sent with probability at least floor(2^32 / m) / 2^32, where m = ceil(d/k) is the size of the larger
    strata; delta is that times the inner compressor's. It is k/d, minus 2^-32, if k divides d.
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

    def choose(
        self, rows: Rows, chances: Sequence[int] | None, stored: NDArray[np.uint8] | None
    ) -> tuple[Indices, Sequence[int] | None]:
        for tile in tiles(len(rows), rows.shape[1], TILE):
            if not np.isfinite(rows[tile]).all():
                raise not_finite()
        seeds = seeds_of(chances, len(rows))
        if stored is not None:
            np.copyto(stored, seeds.astype("<u8").view(np.uint8).reshape(stored.shape))
        kept = self.kept(rows.shape[1])
        # The word after those used by the strata, so that an inner compressor's chance is independent of the places.
        inner = [int(word) for word in words(seeds, kept, 1)[:, 0]] if self.inner.random else None
        return _places(seeds, kept, rows.shape[1]), inner

    def read(self, stored: NDArray[np.uint8], size: int) -> Indices:
        return _places(np.ascontiguousarray(stored).view("<u8")[:, 0].astype(np.uint64), self.kept(size), size)


def _places(seeds: NDArray[np.uint64], kept: int, size: int) -> Indices:
    """Return places, shape (seeds, kept), increasing, one in each stratum."""
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


def require_increasing(indices: Indices, size: int) -> None:
    """Check that each row (k,) is strictly increasing and ends below `size`. Raises PeerFault if one is not."""
    if (indices[:, 1:] <= indices[:, :-1]).any() or (indices[:, -1:] >= size).any():
        raise PeerFault(f"the indices are not increasing, or not below {size}")


def largest(rows: Rows, count: int) -> Indices:
    """Return places (b, count), increasing, of the largest magnitudes in rows (b, d); ties go to the lower index."""
    height, size = rows.shape
    places = np.empty((height, count), np.int64)
    if size > LONG and count < size:
        for row, into in zip(rows, places, strict=True):
            into[:] = _of_long(row, count)
        return places
    for tall, _ in tiles(height, max(1, size), max(PLACES_TILE, size)):
        places[tall] = _of_short(_magnitudes(rows[tall]), count)
    return places


def _low_bits(count: int, size: int) -> int:
    return (size // count).bit_length() - 1


def _elias_fano_bits(count: int, size: int) -> int:
    low = _low_bits(count, size)
    return low * count + count + (size - 1 >> low)


def _gap_bytes(count: int, size: int) -> int:
    return -(-(size - count).bit_length() // 8)


def _bits(stored: NDArray[np.uint8], used: int) -> NDArray[np.uint8]:
    """Return the first `used` bits of each row, one byte each; the bits after them are 0."""
    bits = np.unpackbits(stored, axis=1, bitorder="little")
    if bits[:, used:].any():
        raise PeerFault("the padding after the indices is not 0")
    return bits[:, :used]


def _ones(bits: NDArray[np.uint8], count: int) -> Indices:
    """Return the places of the ones, in rows with `count` of them each; shape (b, count)."""
    if (np.count_nonzero(bits, axis=1) != count).any():
        raise PeerFault(f"a row of indices does not hold {count}")
    rows, size = bits.shape
    places = np.flatnonzero(bits.view(np.bool_)).reshape(rows, count)
    places -= size * np.arange(rows)[:, None]
    return places


def _of_short(bits: NDArray[np.uint32], count: int) -> Indices:
    height, size = bits.shape
    if count == size:
        return np.broadcast_to(np.arange(size), (height, size))
    least = np.partition(bits, size - count, axis=1)[:, size - count, None]
    taken = bits >= least
    for row in np.flatnonzero(np.count_nonzero(taken, axis=1) > count):
        # Of the values equal to the smallest chosen one, the last are dropped.
        equal = np.flatnonzero(bits[row] == least[row])
        taken[row, equal[count - np.count_nonzero(taken[row]) :]] = False
    return np.nonzero(taken)[1].reshape(height, count)


def _of_long(row: Rows, count: int) -> NDArray[np.int64]:
    """Find the places in one row (d,), examining only values that are not below a guess."""
    stride = row.size // SAMPLE
    sample = np.sort(_magnitudes(row[None, ::stride])[0])[::-1]
    expected = count / stride
    # A wrong guess costs a second pass, and nothing else.
    rank = int(expected + 4 * expected**0.5) + 4
    while True:
        guess = sample[rank] if rank < sample.size else np.uint32(0)
        places, bits = _at_least(row, guess, count)
        if places.size >= count:
            chosen: NDArray[np.int64] = places[_of_short(bits[None], count)[0]]
            return chosen
        rank *= 4


def _at_least(row: Rows, guess: np.uint32, count: int) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Return places and magnitudes of all values above the guess, and of the first `count` that equal it.

    Many may equal it: if most of a model is not changing, most values are 0.
    """
    places, magnitudes, room = [], [], count
    for _, wide in tiles(1, row.size, PLACES_TILE):
        bits = _magnitudes(row[None, wide])[0]
        here = np.flatnonzero(bits >= guess)
        kept = bits[here]
        equal = np.flatnonzero(kept == guess)
        if equal.size > room:
            here, kept = np.delete(here, equal[room:]), np.delete(kept, equal[room:])
        room = max(0, room - equal.size)
        magnitudes.append(kept)
        here += wide.start
        places.append(here)
    return np.concatenate(places), np.concatenate(magnitudes)


def _magnitudes(part: Rows) -> NDArray[np.uint32]:
    """Return the bits of the magnitudes (b, d) as float32."""
    values = np.empty(part.shape, np.float32)
    copy_float32(part, values)
    bits = values.view(np.uint32)
    bits &= WITHOUT_SIGN
    return bits
