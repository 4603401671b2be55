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


class Compressor(Protocol):
    """A pair of pure functions Q and its inverse; holds no state, so that one object serves every edge."""

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
