"""Which k of d places, in bytes: increasing indices, many rows at once.

Both codes have a size that k and d alone decide, so that payloads have exact sizes and tell no more than the places
themselves. `PACKED` is near the least that k places of d can take; `GAPS` is larger but leaves what an entropy stage
feeds on. Measured against each other, varints and bitmaps in docs/decisions/0012.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import PeerFault

Indices = NDArray[np.int64]
"""Shape (b, k), each row strictly increasing."""


class IndexCode(Protocol):
    def size_bytes(self, count: int, size: int) -> int:
        """Bytes that `count` indices below `size` take."""

    def write(self, indices: Indices, size: int, out: NDArray[np.uint8]) -> None:
        """Fill `out` (b, size_bytes(k, size)) with the indices (b, k)."""

    def read(self, stored: NDArray[np.uint8], count: int, size: int) -> Indices:
        """The indices of rows (b, size_bytes(count, size)).

        Raises:
            PeerFault: a row is not what `write` makes of increasing indices below `size`.
        """


@dataclass(frozen=True, slots=True)
class _Packed:
    """Elias-Fano (Elias, 1974; Fano, 1971): within half a bit an index of log2(d over k), as long as k <= d/4.

    The floor(log2(d/k)) low bits of all indices stand plane by plane, the lowest plane first; then the rest, in unary:
    of index i (from 0), bit (index >> low) + i is set. From where d bits are no more than that, there is one bit for
    each place instead; all places take nothing. The first bit is the lowest of a byte, and what is left over is 0.
    """

    def size_bytes(self, count: int, size: int) -> int:
        if count in (0, size):
            return 0
        return -(-min(size, _elias_fano_bits(count, size)) // 8)

    def write(self, indices: Indices, size: int, out: NDArray[np.uint8]) -> None:
        rows, count = indices.shape
        if count in (0, size):
            return
        if size <= _elias_fano_bits(count, size):
            bits = np.zeros((rows, size), np.uint8)
            np.put_along_axis(bits, indices, 1, axis=1)
        else:
            low = _low_bits(count, size)
            bits = np.zeros((rows, _elias_fano_bits(count, size)), np.uint8)
            for place in range(low):
                np.copyto(bits[:, place * count : (place + 1) * count], indices >> place & 1, casting="unsafe")
            upper = indices >> low
            upper += np.arange(low * count, (low + 1) * count)
            np.put_along_axis(bits, upper, 1, axis=1)
        np.copyto(out, np.packbits(bits, axis=1, bitorder="little"))

    def read(self, stored: NDArray[np.uint8], count: int, size: int) -> Indices:
        rows = len(stored)
        if count in (0, size):
            return np.broadcast_to(np.arange(count), (rows, count))
        if stored.shape[1] == 0:
            raise ValueError("expected one row of bytes for each row of indices")
        used = min(size, _elias_fano_bits(count, size))
        bits = np.unpackbits(stored, axis=1, bitorder="little")
        if bits[:, used:].any():
            raise PeerFault("the filling after the indices is not 0")
        if used == size:
            return _ones(bits[:, :used], count)
        low = _low_bits(count, size)
        indices = _ones(bits[:, low * count : used], count)
        indices -= np.arange(count)
        for place in reversed(range(low)):
            indices <<= 1
            indices |= bits[:, place * count : (place + 1) * count]
        require_increasing(indices, size)
        return indices


@dataclass(frozen=True, slots=True)
class _Gaps:
    """What lies between an index and the one before it, as bytes: all lowest bytes, then all next ones, and so on.

    As many bytes a gap as the largest possible one needs; the upper ones are mostly 0.
    """

    def size_bytes(self, count: int, size: int) -> int:
        return count * _gap_bytes(count, size)

    def write(self, indices: Indices, size: int, out: NDArray[np.uint8]) -> None:
        count = indices.shape[1]
        gaps = np.diff(indices, axis=1, prepend=-1)
        gaps -= 1
        for place in range(_gap_bytes(count, size)):
            np.copyto(out[:, place * count : (place + 1) * count], gaps & 0xFF, casting="unsafe")
            gaps >>= 8

    def read(self, stored: NDArray[np.uint8], count: int, size: int) -> Indices:
        indices = np.zeros((len(stored), count), np.int64)
        for place in reversed(range(_gap_bytes(count, size))):
            indices <<= 8
            indices |= stored[:, place * count : (place + 1) * count]
        if (indices > size - count).any():
            raise PeerFault("a gap between two indices is larger than any can be")
        indices += 1
        np.cumsum(indices, axis=1, out=indices)
        indices -= 1
        require_increasing(indices[:, -1:], size)
        return indices


PACKED: IndexCode = _Packed()
GAPS: IndexCode = _Gaps()


def require_increasing(indices: Indices, size: int) -> None:
    """Each row (k,) is strictly increasing and ends below `size`.

    Raises:
        PeerFault: one is not.
    """
    if (indices[:, 1:] <= indices[:, :-1]).any() or (indices[:, -1:] >= size).any():
        raise PeerFault(f"the indices are not increasing, or not below {size}")


def _low_bits(count: int, size: int) -> int:
    return (size // count).bit_length() - 1


def _elias_fano_bits(count: int, size: int) -> int:
    low = _low_bits(count, size)
    return low * count + count + (size - 1 >> low)


def _gap_bytes(count: int, size: int) -> int:
    return -(-(size - count).bit_length() // 8)


def _ones(bits: NDArray[np.uint8], count: int) -> Indices:
    """Where the ones are, in rows that hold `count` of them each; shape (b, count)."""
    if (np.count_nonzero(bits, axis=1) != count).any():
        raise PeerFault(f"a row of indices does not hold {count}")
    return np.nonzero(bits)[1].reshape(len(bits), count)
