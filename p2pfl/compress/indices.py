"""The choice of k of d places: those of the k largest magnitudes; and increasing indices in bytes, many rows at once.

The largest are found in linear time, and in long rows without a copy of them. Magnitudes are compared by the bits of
their float32, which as integers are in the same order: above the largest float comes infinity, and above it NaN, so
neither is ever left out.

k and d alone determine the size of both codes, so that payloads have exact sizes and reveal no more than the places
themselves. `PACKED` is near the least that k places of d can take; `GAPS` is larger but has the redundancy that an
entropy stage removes. docs/decisions/0012 compares them with each other, varints and bitmaps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from p2pfl.compress.interface import Rows, copy_float32, tiles
from p2pfl.errors import PeerFault

Indices = NDArray[np.int64]
"""Shape (b, k), each row strictly increasing."""

WITHOUT_SIGN = np.uint32(0x7FFFFFFF)
# The values in a piece, whose temporaries stay in the cache.
TILE = 1 << 16
# A longer row is searched through a sample of about that many values.
LONG = 1 << 17
SAMPLE = 1 << 14
# For fewer, a frame of zstd costs more than it saves.
_FEW = 1024


class IndexCode(Protocol):
    def size_bytes(self, count: int, size: int) -> int:
        """The number of bytes for `count` indices below `size`."""

    def write(self, indices: Indices, size: int, out: NDArray[np.uint8]) -> None:
        """Fill `out` (b, size_bytes(k, size)) with the indices (b, k)."""

    def read(self, stored: NDArray[np.uint8], count: int, size: int) -> Indices:
        """The indices of rows (b, size_bytes(count, size)).

        Raises PeerFault: a row is not what `write` makes of increasing indices below `size`.
        """


@dataclass(frozen=True, slots=True)
class _Packed:
    """Elias-Fano (Elias, 1974; Fano, 1971): per index 0.5 to 0.6 bits more than log2(d over k) / k, at k = d/4 0.76.

    The floor(log2(d/k)) low bits of all indices are stored plane by plane, the lowest plane first; then the rest, in
    unary: for index i (from 0), bit (index >> low) + i is set. Where d bits are no more than that, there is one bit for
    each place instead; all places take nothing. The first bit is the lowest of a byte, and unused bits are 0.
    """

    def size_bytes(self, count: int, size: int) -> int:
        return 0 if count in (0, size) else -(-min(size, _elias_fano_bits(count, size)) // 8)

    def write(self, indices: Indices, size: int, out: NDArray[np.uint8]) -> None:
        rows, count = indices.shape
        if count in (0, size):
            return
        if size <= _elias_fano_bits(count, size):
            _write_bitmap(indices, size, out)
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
        if count in (0, size):
            return _all(len(stored), count)
        if size <= _elias_fano_bits(count, size):
            return _read_bitmap(stored, count, size)
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
class _Gaps:
    """The gaps between successive indices, as bytes: all lowest bytes, then all next ones, and so on.

    A gap takes as many bytes as the largest possible one needs; the upper bytes are mostly 0. Where an entropy stage
    gains nothing by that, with few indices and from k = d/4 on, it is `PACKED`.
    """

    def size_bytes(self, count: int, size: int) -> int:
        return count * _gap_bytes(count, size) if self._pays(count, size) else PACKED.size_bytes(count, size)

    def write(self, indices: Indices, size: int, out: NDArray[np.uint8]) -> None:
        count = indices.shape[1]
        if not self._pays(count, size):
            PACKED.write(indices, size, out)
            return
        gaps = np.diff(indices, axis=1, prepend=-1)
        gaps -= 1
        for place in range(_gap_bytes(count, size)):
            np.copyto(out[:, place * count : (place + 1) * count], gaps & 0xFF, casting="unsafe")
            gaps >>= 8

    def read(self, stored: NDArray[np.uint8], count: int, size: int) -> Indices:
        if not self._pays(count, size):
            return PACKED.read(stored, count, size)
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


PACKED: IndexCode = _Packed()
GAPS: IndexCode = _Gaps()


def require_increasing(indices: Indices, size: int) -> None:
    """Check that each row (k,) is strictly increasing and ends below `size`. Raises PeerFault: one is not."""
    if (indices[:, 1:] <= indices[:, :-1]).any() or (indices[:, -1:] >= size).any():
        raise PeerFault(f"the indices are not increasing, or not below {size}")


def largest(rows: Rows, count: int) -> Indices:
    """Places (b, count), increasing, of the rows (b, d); of equal magnitudes those of lower index."""
    height, size = rows.shape
    places = np.empty((height, count), np.int64)
    if size > LONG and count < size:
        for row, into in zip(rows, places, strict=True):
            into[:] = _of_long(row, count)
        return places
    for tall, _ in tiles(height, max(1, size), max(TILE, size)):
        places[tall] = _of_short(_magnitudes(rows[tall]), count)
    return places


def _low_bits(count: int, size: int) -> int:
    return (size // count).bit_length() - 1


def _elias_fano_bits(count: int, size: int) -> int:
    low = _low_bits(count, size)
    return low * count + count + (size - 1 >> low)


def _gap_bytes(count: int, size: int) -> int:
    return -(-(size - count).bit_length() // 8)


def _all(rows: int, count: int) -> Indices:
    return np.broadcast_to(np.arange(count), (rows, count))


def _write_bitmap(indices: Indices, size: int, out: NDArray[np.uint8]) -> None:
    bits = np.zeros((len(indices), size), np.uint8)
    np.put_along_axis(bits, indices, 1, axis=1)
    np.copyto(out, np.packbits(bits, axis=1, bitorder="little"))


def _read_bitmap(stored: NDArray[np.uint8], count: int, size: int) -> Indices:
    return _ones(_bits(stored, size), count)


def _bits(stored: NDArray[np.uint8], used: int) -> NDArray[np.uint8]:
    """The first `used` bits of each row, a byte for each; those after them are 0."""
    bits = np.unpackbits(stored, axis=1, bitorder="little")
    if bits[:, used:].any():
        raise PeerFault("the filling after the indices is not 0")
    return bits[:, :used]


def _ones(bits: NDArray[np.uint8], count: int) -> Indices:
    """The places of the ones, in rows with `count` of them each; shape (b, count)."""
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
        # Of those that equal the smallest chosen value, the last ones are dropped.
        equal = np.flatnonzero(bits[row] == least[row])
        taken[row, equal[count - np.count_nonzero(taken[row]) :]] = False
    return np.nonzero(taken)[1].reshape(height, count)


def _of_long(row: Rows, count: int) -> NDArray[np.int64]:
    """Find the places in one row (d,): only values that are not below a guess are examined."""
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
    """Return places and magnitudes of all that are larger than the guess, and of the first `count` that equal it.

    Many may equal it: where most of a model stands still, most values are 0.
    """
    places, magnitudes, room = [], [], count
    for _, wide in tiles(1, row.size, TILE):
        bits = _magnitudes(row[None, wide])[0]
        found = np.flatnonzero(bits >= guess)
        kept = bits[found]
        equal = np.flatnonzero(kept == guess)
        if equal.size > room:
            found, kept = np.delete(found, equal[room:]), np.delete(kept, equal[room:])
        room = max(0, room - equal.size)
        magnitudes.append(kept)
        found += wide.start
        places.append(found)
    return np.concatenate(places), np.concatenate(magnitudes)


def _magnitudes(part: Rows) -> NDArray[np.uint32]:
    """The bits of the magnitudes (b, d) as float32."""
    values = np.empty(part.shape, np.float32)
    copy_float32(part, values)
    bits = values.view(np.uint32)
    bits &= WITHOUT_SIGN
    return bits
