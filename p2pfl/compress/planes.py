"""One bit for each value of many rows, eight to a byte, the earliest lowest; the rest of the last byte is 0."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import PeerFault


def plane_bytes(size: int) -> int:
    return (size + 7) // 8


def pack_bits(bits: NDArray[Any], out: NDArray[np.uint8], wide: slice) -> None:
    """Write what is not 0 in `bits` (b, n) to the bits `wide` of `out`, (b, plane_bytes); what follows them is 0."""
    place = out[:, wide.start // 8 : plane_bytes(wide.stop)]
    np.copyto(place, np.packbits(bits, axis=1, bitorder="little")[:, : place.shape[1]])


def unpack_bits(plane: NDArray[np.uint8], wide: slice, count: int) -> NDArray[np.uint8]:
    """The bits `wide` of the plane (b, plane_bytes), each 0 or 1, and zeros up to `count` bits of each row.

    Raises:
        PeerFault: what follows the last bit is not 0.
    """
    part = plane[:, wide.start // 8 : plane_bytes(wide.stop)]
    if wide.stop % 8 and (part[:, -1] >> (wide.stop % 8)).any():
        raise PeerFault("the filling after the last bit is not 0")
    return np.unpackbits(part, axis=1, count=count, bitorder="little")
