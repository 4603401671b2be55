"""Signed integer codes in 8 or in 4 bits, many rows at once.

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

    @property
    def zero(self) -> int:
        """What code 0 is stored as; the others are next to it, modulo 256."""

    def size_bytes(self, size: int) -> int:
        """Bytes that `size` codes take."""

    def pack(self, stored: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
        """Write rows (b, n) of codes plus `zero` to `out`, (b, size_bytes(d)), where n is even and at least d.

        Codes after the d-th are 0. `stored` is used up.
        """

    def unpack(self, packed: NDArray[np.uint8], size: int, out: NDArray[np.int8]) -> None:
        """Write codes of rows (b, size_bytes(size)) to `out`, (b, n), where n is even; code 0 follows the last.

        Raises PeerFault for a code that does not exist.
        """


@dataclass(frozen=True, slots=True)
class _EightBits:
    largest: int = 127
    zero: int = 0

    def size_bytes(self, size: int) -> int:
        return size

    def pack(self, stored: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
        np.copyto(out, stored[:, : out.shape[1]])

    def unpack(self, packed: NDArray[np.uint8], size: int, out: NDArray[np.int8]) -> None:
        np.copyto(out[:, :size], packed.view(np.int8))
        out[:, size:] = 0
        if out.min() == -128:
            raise PeerFault("code -128 in an 8-bit payload")


@dataclass(frozen=True, slots=True)
class _FourBits:
    largest: int = 7
    zero: int = 8

    def size_bytes(self, size: int) -> int:
        return (size + 1) // 2

    def pack(self, stored: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
        pairs = stored.view("<u2")
        pairs |= pairs >> 4
        np.copyto(out, pairs[:, : out.shape[1]], casting="unsafe")

    def unpack(self, packed: NDArray[np.uint8], size: int, out: NDArray[np.int8]) -> None:
        if size % 2 and (packed[:, -1] >> 4 != self.zero).any():
            raise PeerFault("the filling after the last 4-bit code is not code 0")
        pairs = out.view("<u2")
        np.copyto(pairs[:, : packed.shape[1]], packed)
        pairs[:, packed.shape[1] :] = 0x88
        pairs |= pairs << 4
        pairs &= 0x0F0F
        if not out.min():
            raise PeerFault("code -8 in a 4-bit payload")
        out -= self.zero


EIGHT_BITS: Packing = _EightBits()
FOUR_BITS: Packing = _FourBits()
