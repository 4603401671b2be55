"""The seam that every compressor fills.

Decoding is normative, since the two ends of an edge must hold identical replicas on x86 and on ARM: an
integer code becomes a float32 and is multiplied once, in float32, by a scale that was sent. Nothing else is
computed, nothing is fused, and every number of a payload is little-endian. Encoding is not normative: only
its sender ever runs it.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.floating[Any]]
"""One dimension, float32 or float64."""

Rows = NDArray[np.floating[Any]]
"""Two dimensions, float32 or float64: a vector in each row."""


class Compressor(Protocol):
    """A pair of pure functions Q and its inverse; holds no state, so that one object serves every edge.

    The functions on rows do for many vectors of one size what the others do for one, to the last bit.
    """

    @property
    def spec(self) -> str:
        """The word of `gossip.compressor` that names it."""

    @property
    def delta(self) -> float:
        """Guaranteed contraction: |v - Q(v)|^2 <= (1 - delta) |v|^2, within the range the class documents."""

    def size_bytes(self, size: int) -> int:
        """Exact payload size for a vector of `size` values."""

    def encode(self, vector: Vector) -> bytes:
        """Payload of a vector of shape (d,), float32 or float64.

        Raises:
            ValueError: the vector holds NaN or infinity, or is not of that shape and type.
        """

    def decode(self, payload: bytes | memoryview, size: int) -> NDArray[np.float32]:
        """A new vector of shape (size,), always finite.

        Raises:
            PeerFault: the length is not `size_bytes(size)`, or the payload holds what no encoder may send.
        """

    def encode_rows(self, rows: Rows) -> NDArray[np.uint8]:
        """Payloads, shape (b, size_bytes(d)), of the rows of (b, d); raises as `encode` does."""

    def decode_rows(
        self, payloads: NDArray[np.uint8], size: int, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """Vectors, shape (b, size), of payloads (b, size_bytes(size)): `out`, or a new array.

        Raises:
            PeerFault: as for `decode`, if any row is at fault; `out` may be filled in part.
        """

    def quantize_rows(self, rows: Rows, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """What the payloads of rows (b, d) decode to, without the payloads; `out` may be `rows` itself.

        Raises:
            ValueError: as for `encode`; `out` may be filled in part.
        """
