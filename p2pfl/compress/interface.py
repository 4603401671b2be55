"""The seam that every compressor fills.

Decoding is normative, since the two ends of an edge must hold identical replicas on x86 and on ARM: an integer code
becomes a float32 and is multiplied once, in float32, by a scale that was sent; a rotation is undone by additions and
subtractions of float32 in a fixed order and one multiplication. Nothing else is computed, nothing is fused, and every
number of a payload is little-endian. Encoding is not normative: only its sender ever runs it. Where it draws, it draws
from the `chance` it is given and from nothing else, so that the same vector and chance give the same payload.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.floating[Any]]
"""One dimension, float32 or float64."""

Rows = NDArray[np.floating[Any]]
"""Two dimensions, float32 or float64: a vector in each row."""

Payload = bytes | memoryview
"""What travels; flat bytes."""


class Compressor(Protocol):
    """A pair of pure functions Q and its inverse; holds no state, so that one object serves every edge.

    The functions on rows do for many vectors of one size what the others do for one, to the last bit.
    """

    @property
    def spec(self) -> str:
        """The words of `gossip.compressor` that name it, in their canonical spelling."""

    @property
    def source(self) -> str:
        """The paper, or the standard, that it comes from."""

    @property
    def random(self) -> bool:
        """Whether its encoder draws from `chance`."""

    @property
    def fixed(self) -> bool:
        """Whether every payload has exactly `size_bytes`; else that is the most, and the values decide."""

    def size_bytes(self, size: int) -> int:
        """Payload size for a vector of `size` values: exact if `fixed`, else no payload is longer."""

    def delta(self, size: int) -> float:
        """Contraction: |v - Q(v)|^2 <= (1 - delta) |v|^2, within the range the class documents.

        Guaranteed for each vector if not `random`, else in expectation over `chance`. Zero or less: no contraction, and
        error feedback would not converge.
        """

    def gamma(self, size: int) -> float:
        """The share of a full mixing step that goes well with it, in (0, 1]."""

    def encode(self, vector: Vector, *, chance: int = 0, decoded: NDArray[np.float32] | None = None) -> Payload:
        """Payload of a vector of shape (d,), float32 or float64; fills `decoded` (d,) with what it decodes to.

        `chance` is 64 bits. The payload is new memory, which nobody writes to again.

        Raises:
            ValueError: the vector holds NaN or infinity, or is not of that shape and type.
        """

    def decode(self, payload: Payload, size: int, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """The vector, shape (size,), always finite: `out`, or a new array.

        Raises:
            PeerFault: the length is wrong, or the payload holds what no encoder may send. Found before memory is taken
                beyond a small multiple of the vector; `out` may be filled in part.
        """

    def quantize_rows(
        self, rows: Rows, *, chances: Sequence[int] | None = None, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """What payloads of the rows (b, d) decode to, without the payloads; `out` may be `rows` itself.

        `chances` has one for each row, and may be None where the encoder is not `random`.

        Raises:
            ValueError: as for `encode`; `out` may be filled in part.
        """


class RowCompressor(Compressor, Protocol):
    """One whose payloads have a fixed size, so that those of many vectors make a matrix."""

    def encode_rows(
        self, rows: Rows, *, chances: Sequence[int] | None = None, decoded: NDArray[np.float32] | None = None
    ) -> NDArray[np.uint8]:
        """Payloads, shape (b, size_bytes(d)), of the rows of (b, d); raises as `encode` does.

        Fills `decoded` (b, d), which may be `rows` itself, with what they decode to.
        """

    def decode_rows(
        self, payloads: NDArray[np.uint8], size: int, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """Vectors, shape (b, size), of payloads (b, size_bytes(size)): `out`, or a new array.

        Raises:
            PeerFault: as for `decode`, if any row is at fault; `out` may be filled in part.
        """
