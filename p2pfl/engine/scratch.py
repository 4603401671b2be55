"""The memory of an exchange: its two payloads, decoded a tile at a time.

An exchange is computed twice: once to check it, once to carry it out. So that nothing of the model's size lies between
the two, both decode the payloads again, tile by tile, where the compressor can (`TiledCompressor`). With the others,
and for vectors too small to matter, both payloads are decoded once, into two vectors that are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from p2pfl.compress import Compressor, Payload
from p2pfl.compress.interface import LazyRow, Reader, TiledCompressor
from p2pfl.learn.interface import Vector

TILE = 1 << 16
"""The number of values in a tile; a few float32 tiles fit into a one-megabyte L2 cache."""
SMALL = 1 << 20
"""Vectors of up to this many values are decoded whole: two of them take 8 MB, and decoding them again takes time."""


def tiles(size: int) -> Iterator[slice]:
    """Split `size` values into tiles."""
    return (slice(first, min(first + TILE, size)) for first in range(0, size, TILE))


def works_in_tiles(codec: Compressor, size: int) -> bool:
    """Return True if vectors of `size` values are encoded and decoded in tiles."""
    return size > SMALL and isinstance(codec, TiledCompressor)


class Scratch:
    """Tiles, and vectors (d,) where payloads are decoded whole; all allocated on first use and kept. All edges of a
    node share one instance.
    """

    peer: Vector
    own: Vector
    move: Vector
    spare: Vector
    decoded_peer: NDArray[np.float32]
    decoded_own: NDArray[np.float32]

    def __init__(self) -> None:
        self._dtype: np.dtype[Any] | None = None
        self._whole: dict[str, Vector] = {}

    def fit(self, dtype: np.dtype[Any]) -> None:
        """Make the tiles: `peer` and `own` hold replicas, `move` a tile of D, `spare` what follows from it."""
        if self._dtype is None or self._dtype != dtype:  # None equals float64
            vectors: NDArray[Any] = np.empty((4, TILE), dtype)
            self.peer, self.own, self.move, self.spare = vectors
            decoded: NDArray[np.float32] = vectors[:2] if dtype == np.float32 else np.empty((2, TILE), np.float32)
            self.decoded_peer, self.decoded_own = decoded
            self._dtype, self._whole = dtype, {}

    @property
    def nbytes(self) -> int:
        """The bytes of the vectors, without tiles."""
        return sum(vector.nbytes for vector in self._whole.values())

    def whole(self, name: str, size: int, dtype: np.dtype[Any] | type[np.float32] = np.float32) -> Vector:
        """Return the vector (size,) of that name; what an earlier exchange has left there is overwritten."""
        found = self._whole.get(name)
        if found is None or found.size < size or found.dtype != dtype:
            found = self._whole[name] = np.empty(size, dtype)
        return found[:size]

    def shown(self, name: str, codec: Compressor, payload: Payload, size: int) -> Shown:
        """Return a payload of `size` values to be decoded, or decoded in the vector of that name. Raises PeerFault."""
        if works_in_tiles(codec, size):
            assert isinstance(codec, TiledCompressor)  # noqa: S101 - for the type checker
            return codec.reader(payload, size)
        return codec.decode(payload, size, self.whole(name, size))

    def encode(
        self, codec: Compressor, shown: Vector, replica: Vector, *, chance: int, bodies: Bodies | None = None
    ) -> Payload:
        """Encode the difference of two vectors (d,); `bodies` get the payload as this node's own."""
        self.fit(shown.dtype)
        if works_in_tiles(codec, shown.size):
            assert isinstance(codec, TiledCompressor)  # noqa: S101 - as above

            def gain_of(part: slice) -> Vector:
                gain: Vector = np.subtract(shown[part], replica[part], out=self.spare[: part.stop - part.start])
                return gain

            payload = codec.encode_row(LazyRow(shown.size, shown.dtype, gain_of), chance=chance)
            if bodies is not None:
                bodies.own = codec.reader(payload, shown.size)
            return payload
        name = "own" if shown.dtype == np.float32 else "gain"
        gain = np.subtract(shown, replica, out=self.whole(name, shown.size, shown.dtype))
        if bodies is None:
            return codec.encode(gain, chance=chance)
        decoded = self.whole("own", shown.size)
        payload = codec.encode(gain, chance=chance, decoded=decoded)
        bodies.own = decoded
        return payload


class Replicas(Protocol):
    """Both replicas of an edge (c d,), or two empty vectors."""

    own: Vector
    peer: Vector


Shown = Reader | NDArray[np.float32]
"""A payload: a function that decodes a tile of it, or its values."""


@dataclass(slots=True)
class Bodies:
    """The two payloads of one exchange of an edge: `peer` is the neighbor's, `own` this node's, once there is one.

    On an edge without replicas both hold the values of `fragment`, in these `slices` of the channels, and `gap` becomes
    the square of the distance between the two models there. Elsewhere `fragment` is None.
    """

    scratch: Scratch
    slices: Sequence[slice]
    peer: Shown
    own: Shown | None = None
    fragment: int | None = None
    gap: float = 0.0

    def tiles(self) -> Iterator[tuple[slice, slice]]:
        """Yield the tiles of the exchange: their places in the channels, and in the payloads."""
        before = 0
        for whole in self.slices:
            size = whole.stop - whole.start
            for part in tiles(size):
                there, here = whole.start, before
                yield slice(there + part.start, there + part.stop), slice(here + part.start, here + part.stop)
            before += size

    def after(self, edge: Replicas, part: slice, here: slice, *, for_good: bool = False) -> tuple[Vector, Vector]:
        """Return a tile of both replicas as they are after the exchange, the neighbor's first: what was decoded, added
        to the replica if there is one, `for_good` or in scratch memory. Raises PeerFault.
        """
        scratch, own = self.scratch, self.own
        if own is None:
            raise ValueError("an exchange without this node's payload")
        shown = _tile(self.peer, here, scratch.decoded_peer), _tile(own, here, scratch.decoded_own)
        size = here.stop - here.start
        if self.fragment is None:
            out = (edge.peer[part], edge.own[part]) if for_good else (scratch.peer[:size], scratch.own[:size])
            return np.add(edge.peer[part], shown[0], out=out[0]), np.add(edge.own[part], shown[1], out=out[1])
        return _cast(shown[0], scratch.peer[:size]), _cast(shown[1], scratch.own[:size])

    def shown_by_peer(self, here: slice) -> Vector:
        """Return a tile of the neighbor's payload, in the dtype of the channels. Raises PeerFault."""
        scratch = self.scratch
        return _cast(_tile(self.peer, here, scratch.decoded_peer), scratch.peer[: here.stop - here.start])

    def move(self, peer: Vector, own: Vector, rate: np.floating[Any]) -> Vector:
        """Return a tile of D from tiles of both replicas; its memory is that of the next one, too."""
        move: Vector = np.subtract(peer, own, out=self.scratch.move[: own.size])
        move *= rate
        return move


def gathered_values(channels: Vector, slices: Sequence[slice], spare: Vector) -> Vector | LazyRow:
    """Return the values in these slices of the channels, end to end: a view if they are there in one piece, else values
    that are put together a tile at a time in `spare`.
    """
    if len(slices) == 1:
        return channels[slices[0]]

    def values_of(part: slice) -> Vector:
        out, before = spare[: part.stop - part.start], 0
        for whole in slices:
            size = whole.stop - whole.start
            first, end = max(part.start, before), min(part.stop, before + size)
            if first < end:
                there = whole.start - before
                out[first - part.start : end - part.start] = channels[there + first : there + end]
            before += size
        return out

    return LazyRow(sum(part.stop - part.start for part in slices), channels.dtype, values_of)


def _tile(shown: Shown, here: slice, out: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a tile of a payload, decoded in `out` if it is not decoded yet."""
    if isinstance(shown, np.ndarray):
        return shown[here]
    tile = out[: here.stop - here.start]
    shown(here, tile)
    return tile


def _cast(values: Vector, out: Vector) -> Vector:
    """Return the values in the dtype of `out`, which is used if they have another."""
    if values.dtype == out.dtype:
        return values
    np.copyto(out, values)
    return out
