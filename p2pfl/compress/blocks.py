"""`q8` and `q4`: blocks of 256 values, one float32 scale a block, round to nearest.

Payload: the scales of all blocks, then the codes of all values. With codes -C..C the scale is peak / (C +
1/2), so that no value is further than half a step from its code.

Contraction: an error is at most half a step, and at most the value itself. The worst block has its peak at
C + 1/2 steps and its other 255 values at half a step: 1 - delta = 64 / ((C + 1/2)^2 + 255/4), that is delta
= 0.466 at 4 bits and 0.996 at 8 bits. Typical vectors do far better, measured at 4 bits: Gaussian 0.986,
Laplace 0.972.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2pfl.compress.codes import Packing
from p2pfl.compress.interface import Vector
from p2pfl.compress.vectors import FLOAT32_MAX, finite_float32, payload_bytes, require_vector
from p2pfl.errors import PeerFault

BLOCK = 256
# Worked on at a time: the temporaries stay in the cache; even, so that no byte spans two chunks.
CHUNK = 256 * BLOCK
# A smaller scale is subnormal, and some processors are told to flush those to zero.
SMALLEST_SCALE = np.finfo(np.float32).smallest_normal
# The share of the proven delta given up to rounding in float32.
ROUNDING = 1e-4


@dataclass(frozen=True, slots=True)
class BlockQuantizer:
    """The delta holds for blocks whose peak lies between 1e-35 and the largest float32.

    Smaller blocks become zeros; float64 beyond float32's range is clipped to it.
    """

    spec: str
    packing: Packing

    @property
    def delta(self) -> float:
        return 1 - (BLOCK / 4) / (self._peak_steps**2 + (BLOCK - 1) / 4) - ROUNDING

    def size_bytes(self, size: int) -> int:
        return 4 * _block_count(size) + self.packing.size_bytes(size)

    def encode(self, vector: Vector) -> bytes:
        require_vector(vector)
        scales = np.empty(_block_count(vector.size), "<f4")
        codes = np.empty(self.packing.size_bytes(vector.size), np.uint8)
        for first in range(0, vector.size, CHUNK):
            part = finite_float32(vector[first : first + CHUNK])
            scale, code = self._quantize(_in_blocks(part))
            scales[first // BLOCK :][: scale.size] = scale
            packed = self.packing.pack(code[: part.size])
            codes[self.packing.size_bytes(first) :][: packed.size] = packed
        return scales.tobytes() + codes.tobytes()

    def decode(self, payload: bytes | memoryview, size: int) -> NDArray[np.float32]:
        data = payload_bytes(payload, self.size_bytes(size))
        scales = self._scales(data[: 4 * _block_count(size)])
        packed = data[4 * _block_count(size) :]
        vector = np.empty(size, np.float32)
        for first in range(0, size, CHUNK):
            part = vector[first : first + CHUNK]
            begin = self.packing.size_bytes(first)
            code = self.packing.unpack(packed[begin : begin + self.packing.size_bytes(part.size)], part.size)
            _scale(code, scales[first // BLOCK :], part)
        return vector

    @property
    def _peak_steps(self) -> float:
        return self.packing.largest + 0.5

    @property
    def _largest_scale(self) -> np.float32:
        """Within this no decoded value overflows."""
        return np.float32(FLOAT32_MAX / (self.packing.largest + 0.25))

    def _quantize(self, blocks: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
        """Scales (b,) and codes (b * BLOCK,) of blocks (b, BLOCK)."""
        scale = np.abs(blocks).max(axis=1) / np.float32(self._peak_steps)
        scale[scale < SMALLEST_SCALE] = 0
        inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
        steps = blocks * inverse[:, None]
        np.rint(steps, out=steps)
        np.clip(steps, -self.packing.largest, self.packing.largest, out=steps)
        return scale, steps.astype(np.int8).reshape(-1)

    def _scales(self, data: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The scales, shape (blocks,): each is +0 or a normal positive number within the range."""
        scales = data.view("<f4").astype(np.float32)
        # As integers, the bits of positive floats are in the order of the floats, and all others lie above.
        low, high = np.array([SMALLEST_SCALE, self._largest_scale], np.float32).view(np.uint32)
        bits = scales.view(np.uint32)
        if ((bits != 0) & ((bits < low) | (bits > high))).any():
            raise PeerFault("a block's scale is negative, not finite or out of range")
        return scales


def _block_count(size: int) -> int:
    return -(-size // BLOCK)


def _in_blocks(part: NDArray[np.float32]) -> NDArray[np.float32]:
    """The values (n,) as (blocks, BLOCK), the last one filled with zeros."""
    if part.size % BLOCK == 0:
        return part.reshape(-1, BLOCK)
    blocks = np.zeros((_block_count(part.size), BLOCK), np.float32)
    blocks.reshape(-1)[: part.size] = part
    return blocks


def _scale(code: NDArray[np.int8], scales: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """Write code * scale of its block; `code` and `out` are (n,), `scales` has at least one value a block."""
    whole = code.size // BLOCK
    end = whole * BLOCK
    np.multiply(code[:end].reshape(-1, BLOCK), scales[:whole, None], out=out[:end].reshape(-1, BLOCK))
    if end < code.size:
        np.multiply(code[end:], scales[whole], out=out[end:])
