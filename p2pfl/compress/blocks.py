"""`q8` and `q4`: blocks of 256 values, one float32 scale a block, round to nearest.

Payload: the scales of all blocks, then the codes of all values. With codes -C..C the scale is peak / (C +
1/2), so that no value is further than half a step from its code.

Contraction: an error is at most half a step, and at most the value itself. The worst block has its peak at
C + 1/2 steps and its other 255 values at half a step: 1 - delta = 64 / ((C + 1/2)^2 + 255/4), that is delta
= 0.466 at 4 bits and 0.996 at 8 bits. Typical vectors do far better, measured at 4 bits: Gaussian 0.986,
Laplace 0.972.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from p2pfl.compress.codes import Packing
from p2pfl.compress.interface import Payload, Rows, Vector
from p2pfl.compress.single import decode_one, encode_one
from p2pfl.compress.vectors import (
    FLOAT32_MAX,
    copy_float32,
    not_finite,
    require_payloads,
    require_rows,
    rows_for,
    tiles,
)
from p2pfl.errors import PeerFault

BLOCK = 256
# Worked on at a time: the temporaries stay in the cache; whole blocks, so that none spans two tiles.
TILE = 256 * BLOCK
# A smaller scale is subnormal, and some processors are told to flush those to zero.
SMALLEST_SCALE = np.finfo(np.float32).smallest_normal
# The share of the proven delta given up to rounding in float32.
ROUNDING = 1e-4
# A float32 this large has no bits for fractions: adding it rounds to nearest, to even between two, as `rint` does,
# and leaves the whole number in the low bits, whatever its sign.
WHOLE = np.float32(1.5 * 2**23)
WITHOUT_SIGN = np.uint32(0x7FFFFFFF)
INFINITY_BITS = np.float32(np.inf).view(np.uint32)


Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True, slots=True)
class BlockQuantizer:
    """The delta holds for blocks whose peak lies between 1e-35 and the largest float32.

    Smaller blocks become zeros; float64 beyond float32's range is clipped to it.
    """

    spec: str
    packing: Packing
    random: bool = False
    fixed: bool = True
    source: str = "Dettmers et al., 8-bit Optimizers via Block-wise Quantization, ICLR 2022"

    def delta(self, size: int) -> float:  # noqa: ARG002 - of any size
        return 1 - (BLOCK / 4) / (self._peak_steps**2 + (BLOCK - 1) / 4) - ROUNDING

    def size_bytes(self, size: int) -> int:
        return 4 * _block_count(size) + self.packing.size_bytes(size)

    def gamma(self, size: int) -> float:  # noqa: ARG002 - of any size
        return 1.0

    def encode(self, vector: Vector, *, chance: int = 0, decoded: NDArray[np.float32] | None = None) -> Payload:
        return encode_one(self, vector, chance, decoded)

    def decode(self, payload: Payload, size: int, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        return decode_one(self, payload, size, out)

    def encode_rows(self, rows: Rows, *, chances: Sequence[int] | None = None) -> NDArray[np.uint8]:  # noqa: ARG002
        require_rows(rows)
        count, size = rows.shape
        payloads = np.empty((count, self.size_bytes(size)), np.uint8)
        scales, packed = self._parts(payloads, size)
        scratch = _Scratch(count, size)
        for tall, wide in tiles(count, size, TILE):
            values, steps, stored = scratch.cut(tall, wide)
            scales[tall, _blocks(wide)] = self._quantize(rows[tall, wide], values, steps)
            np.copyto(stored, steps.view(np.uint32), casting="unsafe")
            self.packing.pack(_flat(stored), packed[tall, self._bytes(wide)])
        return payloads

    def decode_rows(
        self, payloads: NDArray[np.uint8], size: int, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        require_payloads(payloads, self.size_bytes(size))
        out = rows_for(len(payloads), size, out)
        scales, packed = self._parts(payloads, size)
        scales = self._checked(scales)
        scratch = _Scratch(len(payloads), size)
        for tall, wide in tiles(len(payloads), size, TILE):
            values, _, stored = scratch.cut(tall, wide)
            code = stored.view(np.int8)
            self.packing.unpack(packed[tall, self._bytes(wide)], wide.stop - wide.start, _flat(code))
            _multiply(code, scales[tall, _blocks(wide)], out[tall, wide], values)
        return out

    def quantize_rows(
        self,
        rows: Rows,
        *,
        chances: Sequence[int] | None = None,  # noqa: ARG002 - nothing is drawn
        out: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        require_rows(rows)
        out = rows_for(len(rows), rows.shape[1], out)
        scratch = _Scratch(len(rows), rows.shape[1])
        for tall, wide in tiles(len(rows), rows.shape[1], TILE):
            values, steps, _ = scratch.cut(tall, wide)
            scale = self._quantize(rows[tall, wide], values, steps)
            steps -= self._whole
            _multiply(steps, scale, out[tall, wide], values)
        return out

    @property
    def _peak_steps(self) -> float:
        return self.packing.largest + 0.5

    @property
    def _whole(self) -> np.float32:
        """Code 0 as `_quantize` gives it: the low byte is what the packing stores."""
        return np.float32(WHOLE + self.packing.zero)

    def _bytes(self, wide: slice) -> slice:
        """Where the codes of these values are."""
        return slice(self.packing.size_bytes(wide.start), self.packing.size_bytes(wide.stop))

    def _parts(self, payloads: NDArray[np.uint8], size: int) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        """Views of the scales (b, blocks) and of the codes (b, bytes)."""
        end = 4 * _block_count(size)
        return payloads[:, :end].view("<f4"), payloads[:, end:]

    def _quantize(self, part: Rows, values: NDArray[np.float32], steps: NDArray[np.float32]) -> NDArray[np.float32]:
        """Scales (b, blocks) of `part`, (b, d); fill `values` with it and `steps` with `_whole` plus its codes.

        Both have shape (b, blocks, width).
        """
        size = part.shape[1]
        copy_float32(part, _flat(values)[:, :size])
        _flat(values)[:, size:] = 0
        bits = steps.view(np.uint32)
        np.bitwise_and(values.view(np.uint32), WITHOUT_SIGN, out=bits)
        # As integers, the bits of positive floats are in the order of the floats, and infinity and NaN lie above.
        peak = bits.max(axis=2)
        if peak.max() >= INFINITY_BITS:
            raise not_finite()
        scale: NDArray[np.float32] = peak.view(np.float32) / np.float32(self._peak_steps)
        tiny = scale < SMALLEST_SCALE
        scale[tiny] = 1
        inverse = np.float32(1) / scale
        scale[tiny] = inverse[tiny] = 0
        np.multiply(values, inverse[..., None], out=steps)
        whole = self._whole
        steps += whole
        # After the rounding: the peak itself, at C + 1/2 steps, rounds up half of the time.
        steps.clip(whole - self.packing.largest, whole + self.packing.largest, out=steps)
        return scale

    def _checked(self, scales: NDArray[np.float32]) -> NDArray[np.float32]:
        """A copy of the scales (b, blocks): each is +0 or a normal positive number within the range."""
        scales = scales.astype(np.float32)
        low, high = _scale_bits(self.packing.largest)
        bits = scales.view(np.uint32)
        # Modulo 2^32, so that what is too small is too large as well; +0 is all zeros.
        wrong = bits - low > high - low
        wrong &= bits != 0
        if wrong.any():
            raise PeerFault("a block's scale is negative, not finite or out of range")
        return scales


@cache
def _scale_bits(largest_code: int) -> tuple[np.uint32, np.uint32]:
    """The smallest scale, and the largest with which no decoded value overflows, as integers of the same bits.

    Those of positive floats are in the order of the floats, and all others lie above.
    """
    largest = np.float32(FLOAT32_MAX / (largest_code + 0.25))
    return SMALLEST_SCALE.view(np.uint32), largest.view(np.uint32)


class _Scratch:
    """Buffers for the tiles of rows of one size, cut into blocks: `width` values each, the last filled up."""

    def __init__(self, count: int, size: int) -> None:
        # Even, so that no byte of 4-bit codes spans two blocks.
        self.width = min(BLOCK, size + size % 2)
        tall, wide = next(tiles(count, size, TILE), (slice(0, 0), slice(0, 0)))
        values = tall.stop * _block_count(wide.stop) * self.width
        self.floats = np.empty((2, values), np.float32)
        self.bytes = np.empty(values, np.uint8)

    def cut(self, tall: slice, wide: slice) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.uint8]]:
        """Two buffers of floats and one of bytes for a tile, shape (rows, blocks, width)."""
        shape = (tall.stop - tall.start, _block_count(wide.stop - wide.start), self.width)
        values = shape[0] * shape[1] * shape[2]
        first, second = self.floats[:, :values].reshape(2, *shape)
        return first, second, self.bytes[:values].reshape(shape)


def _multiply(
    codes: NDArray[Any], scales: NDArray[np.float32], out: NDArray[np.float32], scratch: NDArray[np.float32]
) -> None:
    """Write codes (b, blocks, width) times scales (b, blocks) to `out`, (b, d); `scratch` is as large as `codes`."""
    if out.size == codes.size:
        np.multiply(codes, scales[..., None], out=out.reshape(codes.shape))
        return
    np.multiply(codes, scales[..., None], out=scratch)
    np.copyto(out, _flat(scratch)[:, : out.shape[1]])


def _flat(blocks: NDArray[Scalar]) -> NDArray[Scalar]:
    """The blocks (b, blocks, width) of each row one after the other, a view of shape (b, blocks * width)."""
    return blocks.reshape(len(blocks), blocks.shape[1] * blocks.shape[2])


def _block_count(size: int) -> int:
    return -(-size // BLOCK)


def _blocks(wide: slice) -> slice:
    """Which blocks hold these values."""
    return slice(wide.start // BLOCK, _block_count(wide.stop))
