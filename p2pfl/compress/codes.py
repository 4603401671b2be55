"""Signed integer codes in 8 or in 4 bits.

Both are symmetric: -128 and -8 do not exist, so a payload that holds them was not made by an encoder. In 4
bits a code is stored plus 8, two to a byte, the earlier in the low half; an odd tail is filled with 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import PeerFault


class Packing(Protocol):
    @property
    def largest(self) -> int:
        """Codes lie within -largest..largest."""

    def size_bytes(self, size: int) -> int:
        """Bytes that `size` codes take."""

    def pack(self, codes: NDArray[np.int8]) -> NDArray[np.uint8]:
        """Codes of shape (n,) to bytes of shape (size_bytes(n),)."""

    def unpack(self, packed: NDArray[np.uint8], size: int) -> NDArray[np.int8]:
        """The inverse of `pack`; raises PeerFault for a code that does not exist."""


@dataclass(frozen=True, slots=True)
class _EightBits:
    largest: int = 127

    def size_bytes(self, size: int) -> int:
        return size

    def pack(self, codes: NDArray[np.int8]) -> NDArray[np.uint8]:
        return codes.view(np.uint8)

    def unpack(self, packed: NDArray[np.uint8], size: int) -> NDArray[np.int8]:
        codes = packed[:size].view(np.int8)
        if (codes == -128).any():
            raise PeerFault("code -128 in an 8-bit payload")
        return codes


@dataclass(frozen=True, slots=True)
class _FourBits:
    largest: int = 7

    def size_bytes(self, size: int) -> int:
        return (size + 1) // 2

    def pack(self, codes: NDArray[np.int8]) -> NDArray[np.uint8]:
        halves = np.full(2 * self.size_bytes(codes.size), 8, np.uint8)
        halves[: codes.size] += codes.view(np.uint8)
        pairs = halves.view("<u2")
        packed: NDArray[np.uint8] = (pairs | (pairs >> 4)).astype(np.uint8)
        return packed

    def unpack(self, packed: NDArray[np.uint8], size: int) -> NDArray[np.int8]:
        pairs = packed.astype("<u2")
        pairs |= pairs << 4
        pairs &= 0x0F0F
        halves = pairs.view(np.uint8)
        if not halves.all():
            raise PeerFault("code -8 in a 4-bit payload")
        if (halves[size:] != 8).any():
            raise PeerFault("the filling after the last 4-bit code is not code 0")
        return halves[:size].view(np.int8) - np.int8(8)


EIGHT_BITS: Packing = _EightBits()
FOUR_BITS: Packing = _FourBits()
