"""Rules that treat each coordinate separately: what remains of a column after its ends are trimmed.

A column of n values is sorted by a sorting network (Batcher's odd-even merge sort): rows against rows, minimum and
maximum, block by block, leaving out comparisons whose outcome is not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from p2pfl.aggregate.distances import blocks
from p2pfl.aggregate.interface import Rows, Vector

BLOCK = 16_384
"""The number of values from one row in a block, chosen so that a comparison's operands stay in the L1 cache."""
UNSORTED = 4 * BLOCK
"""The same where nothing is compared: a block then costs little but numpy's calls, and fewer of them are made."""
SAMPLED = 4096
"""The number of columns used to estimate the share that passes."""
LEAST, GREATEST = 1, 2

Step = tuple[int, int, int]
"""Two positions, the lower first, and which of minimum (LEAST, to the first) and maximum (GREATEST) are needed."""


class PlainRows:
    """Vectors in memory, without a copy."""

    def __init__(self, rows: Sequence[Vector]) -> None:
        self.count, self.size, self.dtype = len(rows), rows[0].size, rows[0].dtype
        self.rows = rows

    def read(self, span: slice) -> list[Vector]:
        return [row[span] for row in self.rows]


class MixedRows:
    """The rows of `mixing @ rows`, computed when read; the rows of `mixing` (count, n) are nonnegative and sum to 1."""

    def __init__(self, rows: Sequence[Vector], mixing: NDArray[np.float64]) -> None:
        self.count, self.size, self.dtype = len(mixing), rows[0].size, rows[0].dtype
        self.rows, self.mixing = rows, mixing.astype(self.dtype)

    def read(self, span: slice) -> list[Vector]:
        rows = np.stack([row[span] for row in self.rows])
        with np.errstate(over="ignore"):
            mixed = self.mixing @ rows
        if not np.isfinite(mixed).all():  # if shares of the largest floats sum to slightly more than 1
            np.clip(mixed, rows.min(axis=0), rows.max(axis=0), out=mixed)
        return list(mixed)


class Gaps:
    """The distances of the others' values from the node's own."""

    def __init__(self, own: Vector, others: Rows) -> None:
        self.count, self.size, self.dtype = len(others), own.size, own.dtype
        self.own, self.others = own, others

    def read(self, span: slice) -> list[Vector]:
        with np.errstate(over="ignore"):
            return [np.abs(row[span] - self.own[span]) for row in self.others]


Source = PlainRows | MixedRows | Gaps
"""A source of `count` vectors of `size` values, read span by span; results of `read` must not be written to."""


def average(parts: Sequence[Vector], out: Vector) -> None:
    """Write the mean into `out`: finite if all parts are, even if their sum overflows the dtype, and else not."""
    share = 1 / len(parts)
    with np.errstate(over="ignore", invalid="ignore"):
        np.add(parts[0], parts[1] if len(parts) > 1 else -0.0, out=out)  # -0.0 leaves any value as it is
        for part in parts[2:]:
            out += part
        out *= share
        for span in () if np.isfinite(out).all() else blocks(out.size, BLOCK):
            if not np.isfinite(out[span]).all():
                whole = np.sum([part[span] * np.float64(share) for part in parts], axis=0)
                np.copyto(out[span], whole, casting="same_kind")


def sorted_blocks(source: Source, kept: range) -> Iterator[tuple[slice, list[Vector]]]:
    """Yield, for each block, the values whose places in the sorted column are in `kept`, one row per place.

    Their order is arbitrary. They are valid until the next block.
    """
    steps = network(source.count, kept.start, kept.stop)
    scratch = np.empty((source.count + 1, min(BLOCK, max(source.size, 1))), source.dtype)
    for span in blocks(source.size, BLOCK if steps or not isinstance(source, PlainRows) else UNSORTED):
        wires = source.read(span)
        _run(steps, wires, list(scratch[:, : span.stop - span.start]))
        yield span, [wires[place] for place in kept]


def _run(steps: Sequence[Step], wires: list[Vector], free: list[Vector]) -> None:
    """Compare without changing the rows: results go to scratch memory, which is reused."""
    owned = [False] * len(wires)
    for first, second, outcomes in steps:
        low, high = wires[first], wires[second]
        if outcomes & LEAST:
            wires[first] = np.minimum(low, high, out=free.pop())
        if outcomes & GREATEST:
            wires[second] = np.maximum(low, high, out=high if owned[second] else free.pop())
        elif owned[second]:
            free.append(high)
        if owned[first]:
            free.append(low)
        owned[first], owned[second] = bool(outcomes & LEAST), bool(outcomes & GREATEST)


@lru_cache(maxsize=64)
def network(count: int, start: int, stop: int) -> tuple[Step, ...]:
    """Build comparisons after which positions `start` to `stop` hold their sorted values, in any order.

    They are pruned from last to first: a comparison whose outcome no later step needs is left out.
    """
    low, inside, high, kept_apart = -1, -2, -3, 0
    label = [low] * start + [inside] * (stop - start) + [high] * (count - stop)
    steps: list[Step] = []
    for first, second in reversed(_batcher(count)):
        here, there = label[first], label[second]
        if here == there != kept_apart:
            continue
        steps.append((first, second, LEAST * (here not in (low, high)) | GREATEST * (there not in (low, high))))
        label[first] = label[second] = kept_apart
    return tuple(reversed(steps))


def _batcher(count: int) -> list[tuple[int, int]]:
    """Batcher's network: Knuth, The Art of Computer Programming 3, algorithm 5.2.2M."""
    pairs, top = [], 1 << max(0, (count - 1).bit_length() - 1)
    p = top
    while p > 0:
        q, r, distance = top, 0, p
        while distance > 0:
            pairs += [(i, i + distance) for i in range(count - distance) if i & p == r]
            distance, q, r = q - p, q >> 1, p
        p >>= 1
    return pairs
