"""Small codes in bytes, many rows at once: signed integers in 8, 4 or 2 bits, and planes of one bit for each value.

The integers are symmetric: -128, -8 and -2 do not exist, so a payload that holds them was not made by an encoder. In 4
bits a code is stored plus 8, two to a byte, the earlier in the low half; in 2 bits plus 2, four to a byte, the earliest
lowest. What is left of the last byte is filled with code 0. Of a plane eight bits stand in a byte, the earliest lowest;
the rest of the last byte is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import PeerFault


class Packing(Protocol):
    @property
    def largest(self) -> int:
        """Codes are within -largest..largest."""

    @property
    def zero(self) -> int:
        """The stored value of code 0; the others are next to it, modulo 256."""

    def size_bytes(self, size: int) -> int:
        """The number of bytes for `size` codes."""

    def pack(self, stored: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
        """Write rows (b, n) of codes plus `zero` to `out`, (b, size_bytes(d)), where 8 divides n and n is at least d.

        Codes after the d-th are 0. `stored` is used up.
        """

    def unpack(self, packed: NDArray[np.uint8], size: int, out: NDArray[np.int8]) -> None:
        """Write codes of rows (b, size_bytes(size)) to `out`, (b, n), where 8 divides n; code 0 follows the last.

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


@dataclass(frozen=True, slots=True)
class _TwoBits:
    largest: int = 1
    zero: int = 2

    def size_bytes(self, size: int) -> int:
        return (size + 3) // 4

    def pack(self, stored: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
        fours = stored.view("<u4")
        fours |= fours >> 6
        fours |= fours >> 12
        np.copyto(out, fours[:, : out.shape[1]], casting="unsafe")

    def unpack(self, packed: NDArray[np.uint8], size: int, out: NDArray[np.int8]) -> None:
        fours = out.view("<u4")
        np.copyto(fours[:, : packed.shape[1]], packed)
        fours[:, packed.shape[1] :] = 0xAA
        fours |= fours << 12
        fours &= 0x000F000F
        fours |= fours << 6
        fours &= 0x03030303
        if (out[:, size:] != self.zero).any():
            raise PeerFault("the filling after the last 2-bit code is not code 0")
        if not out.min():
            raise PeerFault("code -2 in a 2-bit payload")
        out -= self.zero


EIGHT_BITS: Packing = _EightBits()
FOUR_BITS: Packing = _FourBits()
TWO_BITS: Packing = _TwoBits()


def plane_bytes(size: int) -> int:
    return (size + 7) // 8


def pack_bits(bits: NDArray[Any], out: NDArray[np.uint8], wide: slice) -> None:
    """Write what is not 0 in `bits` (b, n) to the bits `wide` of `out`, (b, plane_bytes); what follows them is 0."""
    place = out[:, wide.start // 8 : plane_bytes(wide.stop)]
    np.copyto(place, np.packbits(bits, axis=1, bitorder="little")[:, : place.shape[1]])


def unpack_bits(plane: NDArray[np.uint8], wide: slice, count: int) -> NDArray[np.uint8]:
    """The bits `wide` of the plane (b, plane_bytes), each 0 or 1, and zeros up to `count` bits of each row.

    Raises PeerFault: what follows the last bit is not 0.
    """
    part = plane[:, wide.start // 8 : plane_bytes(wide.stop)]
    if wide.stop % 8 and (part[:, -1] >> (wide.stop % 8)).any():
        raise PeerFault("the filling after the last bit is not 0")
    return np.unpackbits(part, axis=1, count=count, bitorder="little")
