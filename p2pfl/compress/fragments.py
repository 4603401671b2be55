"""One fragment of the vector at a time, as it is: nothing is left for a later message, so neither end needs a replica.

The values of a fragment are exact (float32) or rounded without bias (`bf16`). Every other compressor sends a difference
from a replica, and what it leaves out follows in later messages; here a payload holds the values themselves.

Payload: N and the fragment's number as two uint32, then the fragment in the inner code. Fragment p (from 0) of d values
begins at p d // N. Of several channels of d values a fragment has the same slice of each.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2pfl.compress.interface import (
    SPARSIFIER,
    STAGES,
    LazyRow,
    Payload,
    Reader,
    Rows,
    TiledCompressor,
    Vector,
    as_payload,
    not_finite,
    payload_row,
    require_length,
    require_rows,
    require_vector,
    rows_for,
    tiles,
)
from p2pfl.errors import PeerFault
from p2pfl.specs import Parameter, whole

HEAD = struct.Struct("<II")
MOST_FRAGMENTS = 4096
MOST_CHANNELS = 8
"""The number of channels that `size_bytes` allows for: each may add a value to a fragment."""
TILE = 1 << 16


@STAGES.add(
    name="fragment",
    place=SPARSIFIER,
    written="fragment:N",
    aliases=("fragments",),
    means="an N-th of the values in each message, in turn, and no replica of any neighbor",
    parameters=(Parameter("N", whole(1, MOST_FRAGMENTS), "the fragments that make up the model", argument="count"),),
    example="fragment:8+bf16",
    before=("bf16",),
)
@dataclass(frozen=True, slots=True)
class Fragments:
    """The values of one of `count` fragments of the vector, in a code that is exact or without bias.

    As any other compressor it decodes to zeros outside the fragment, which `chance` modulo `count` chooses. An edge
    takes the fragments in turn, by the part of the interface that names a fragment (`encode_fragment`), and mixes
    only the slices that it names (`slices`).
    """

    count: int
    inner: TiledCompressor

    fixed = False
    source = "fragments in turn: DivShare, Biswas et al., 2024 (arXiv:2410.12918)"

    @property
    def spec(self) -> str:
        alone = f"fragment:{self.count}"
        return alone if self.inner.spec == "none" else f"{alone}+{self.inner.spec}"

    @property
    def random(self) -> bool:
        return self.count > 1 or self.inner.random

    def longest(self, size: int, channels: int = 1) -> int:
        """Return the number of values in the largest fragment of `channels` channels of `size` values in all."""
        return channels * -(-(size // channels) // self.count)

    def size_bytes(self, size: int) -> int:
        most = -(-size // self.count) + MOST_CHANNELS - 1
        return HEAD.size + self.inner.size_bytes(min(size, most))

    def delta(self, size: int) -> float:
        return self.inner.delta(size) / self.count

    def gamma(self, size: int) -> float:  # noqa: ARG002 - of any size
        return 1.0

    # -- one fragment ------------------------------------------------------------------------------------------------

    def slices(self, fragment: int, size: int, channels: int = 1) -> list[slice]:
        """Return the places of a fragment in `channels` channels of `size` values in all, one slice of each."""
        each = size // channels
        first, end = fragment * each // self.count, (fragment + 1) * each // self.count
        return [slice(start + first, start + end) for start in range(0, size, max(1, each))] or [slice(0, 0)]

    def encode_fragment(
        self, values: Vector | LazyRow, fragment: int, *, chance: int, decoded: NDArray[np.float32] | None = None
    ) -> Payload:
        """Encode the values (n,) of a fragment, and fill `decoded` (n,); raises like `Compressor.encode`."""
        if not isinstance(values, LazyRow):
            require_vector(values)
        rows = values if isinstance(values, LazyRow) else values[None]
        payload = np.empty(HEAD.size + self.inner.size_bytes(rows.shape[1]), np.uint8)
        HEAD.pack_into(payload.data, 0, self.count, fragment)
        out = None if decoded is None else decoded[None]
        self.inner.write_rows(rows, payload[None, HEAD.size :], chances=(chance,), decoded=out)
        return as_payload(payload)

    def read_fragment(self, payload: Payload) -> int:
        """Return which fragment a payload holds. Raises PeerFault if it names none of them."""
        if memoryview(payload).nbytes < HEAD.size:
            require_length(memoryview(payload).nbytes, HEAD.size)
        count, fragment = HEAD.unpack_from(payload)
        if count != self.count or fragment >= count:
            raise PeerFault(f"fragment {fragment} of {count} where one of {self.count} was due")
        return int(fragment)

    def decode_fragment(self, payload: Payload, size: int, out: NDArray[np.float32] | None = None) -> Vector:
        """Return the `size` values of the fragment in a payload: `out`, or a new array. Raises PeerFault."""
        row = payload_row(payload, HEAD.size + self.inner.size_bytes(size))[:, HEAD.size :]
        vector: Vector = self.inner.decode_rows(row, size, None if out is None else out[None])[0]
        return vector

    def fragment_reader(self, payload: Payload, size: int) -> Reader:
        """Return a function that decodes any tile of a fragment of `size` values. Raises PeerFault."""
        require_length(memoryview(payload).nbytes, HEAD.size + self.inner.size_bytes(size))
        return self.inner.reader(memoryview(payload)[HEAD.size :], size)

    # -- as any other compressor -------------------------------------------------------------------------------------

    def encode(self, vector: Vector, *, chance: int = 0, decoded: NDArray[np.float32] | None = None) -> Payload:
        require_vector(vector)
        _require_finite(vector)
        fragment, size = chance % self.count, vector.size
        (part,) = self.slices(fragment, size)
        if decoded is not None:
            rows_for(1, size, decoded[None])
            decoded.fill(0)
        return self.encode_fragment(
            vector[part], fragment, chance=chance, decoded=None if decoded is None else decoded[part]
        )

    def decode(self, payload: Payload, size: int, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        (part,) = self.slices(self.read_fragment(payload), size)
        require_length(memoryview(payload).nbytes, HEAD.size + self.inner.size_bytes(part.stop - part.start))
        vector: NDArray[np.float32] = rows_for(1, size, None if out is None else out[None])[0]
        vector.fill(0)
        self.decode_fragment(payload, part.stop - part.start, vector[part])
        return vector

    def quantize_rows(
        self, rows: Rows, *, chances: Sequence[int] | None = None, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        require_rows(rows)
        count, size = rows.shape
        if self.random and (chances is None or len(chances) != count):
            raise ValueError(f"expected a chance for each of {count} rows")
        decoded = rows_for(count, size, out)
        for row, chance in zip(range(count), chances or [0] * count, strict=True):
            (part,) = self.slices(chance % self.count, size)
            values = self.inner.quantize_rows(rows[row : row + 1, part], chances=(chance,))
            _require_finite(rows[row])
            decoded[row, : part.start] = 0
            decoded[row, part] = values[0]
            decoded[row, part.stop :] = 0
        return decoded


def _require_finite(vector: Vector) -> None:
    if not all(np.isfinite(vector[tile]).all() for _, tile in tiles(1, vector.size, TILE)):
        raise not_finite()
