"""The places of the k largest magnitudes of each row: in linear time, and of long rows without a copy of them.

Magnitudes are compared by the bits of their float32, which as integers are in the same order: above the largest float
comes infinity, and above it NaN, so neither is ever left out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from p2pfl.compress.indices import Indices
from p2pfl.compress.interface import Rows
from p2pfl.compress.vectors import copy_float32, tiles

WITHOUT_SIGN = np.uint32(0x7FFFFFFF)
# Worked on at a time: the temporaries stay in the cache.
TILE = 1 << 16
# A longer row is searched by way of a sample of about that many values.
LONG = 1 << 17
SAMPLE = 1 << 14


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


def _of_short(bits: NDArray[np.uint32], count: int) -> Indices:
    height, size = bits.shape
    if count == size:
        return np.broadcast_to(np.arange(size), (height, size))
    least = np.partition(bits, size - count, axis=1)[:, size - count, None]
    taken = bits >= least
    for row in np.flatnonzero(np.count_nonzero(taken, axis=1) > count):
        # Of those that equal the least one taken, the last ones are too many.
        equal = np.flatnonzero(bits[row] == least[row])
        taken[row, equal[count - np.count_nonzero(taken[row]) :]] = False
    return np.nonzero(taken)[1].reshape(height, count)


def _of_long(row: Rows, count: int) -> NDArray[np.int64]:
    """The same of one row (d,): only what is no smaller than a guess is looked at closely."""
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
    """Places and magnitudes of all that are larger than the guess, and of the first `count` that equal it.

    Many may: where most of a model stands still, most values are 0.
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
