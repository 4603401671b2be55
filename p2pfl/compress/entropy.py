"""`zstd`: the payload of another compressor, packed by Zstandard (RFC 8878) if that makes it shorter.

Payload: a byte, then the unchanged inner payload (0) or one Zstandard frame (1). The decoded payload is the same with
every release of the library; its packed length may depend on the sender's. Frames are made and read in pieces: the
library lets other threads run while it processes a piece, but not while it copies its input.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.compress.interface import (
    ENTROPY,
    STAGES,
    Payload,
    RowCompressor,
    Rows,
    Vector,
    as_payload,
)
from p2pfl.errors import PeerFault

PLAIN, PACKED = 0, 1

LEVEL = 1
# A frame that needs a larger window is refused, and none is made: the decoder would allocate that much before reading.
SMALLEST_WINDOW_LOG, LARGEST_WINDOW_LOG = 10, 21
LONGEST_HEADER_BYTES = 18
INPUT_BYTES = 1 << 17
OUTPUT_BYTES = 1 << 18


@STAGES.add(
    name="zstd",
    place=ENTROPY,
    aliases=("gzip", "zlib", "zip", "zstandard"),
    means="pack the bytes losslessly; worthwhile for large models and clustered values",
    example="top-k:0.05+q8+zstd",
)
@dataclass(frozen=True, slots=True)
class Entropy:
    """Lossless, so delta and gamma are the inner compressor's."""

    inner: RowCompressor
    fixed: bool = False
    source: str = "Collet and Kucherawy, Zstandard, RFC 8878"

    @property
    def spec(self) -> str:
        return "zstd" if self.inner.spec == "none" else f"{self.inner.spec}+zstd"

    @property
    def random(self) -> bool:
        return self.inner.random

    def delta(self, size: int) -> float:
        return self.inner.delta(size)

    def gamma(self, size: int) -> float:
        return self.inner.gamma(size)

    def size_bytes(self, size: int) -> int:
        return 1 + self.inner.size_bytes(size)

    def encode(self, vector: Vector, *, chance: int = 0, decoded: NDArray[np.float32] | None = None) -> Payload:
        plain = _bytes(self.inner.encode(vector, chance=chance, decoded=decoded))
        payload = np.empty(1 + plain.size, np.uint8)
        used = compress_frame(plain, payload[1 : plain.size])
        payload[0] = PLAIN if used is None else PACKED
        if used is None:
            np.copyto(payload[1:], plain)
            used = plain.size
        return as_payload(payload[: 1 + used])

    def decode(self, payload: Payload, size: int, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        due = self.inner.size_bytes(size)
        stored = _bytes(payload)
        if not 0 < stored.size <= 1 + due:
            raise PeerFault(f"payload of {stored.size} bytes where 1 to {1 + due} were due")
        marker, stored = int(stored[0]), stored[1:]
        if marker == PACKED:
            plain = decompress_frame(stored, due)
        elif marker == PLAIN:
            plain = stored
        else:
            raise PeerFault(f"a payload begins with {marker}: neither plain nor packed")
        return self.inner.decode(plain.data, size, out)

    def quantize_rows(
        self, rows: Rows, *, chances: Sequence[int] | None = None, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        return self.inner.quantize_rows(rows, chances=chances, out=out)


def compress_frame(plain: NDArray[np.uint8], out: NDArray[np.uint8], level: int = LEVEL) -> int | None:
    """Write a frame to `out` and return its length, or None if it does not fit."""
    zstd = _library()
    parameter = zstd.CompressionParameter
    options = {parameter.compression_level: level, parameter.window_log: _window_log(plain.size)}
    compressor = zstd.ZstdCompressor(options=options)
    compressor.set_pledged_input_size(plain.size)
    used = 0
    for start in range(0, max(1, plain.size), INPUT_BYTES):
        end = start + INPUT_BYTES
        mode = compressor.CONTINUE if end < plain.size else compressor.FLUSH_FRAME
        piece = np.frombuffer(compressor.compress(plain[start:end].data, mode), np.uint8)
        if used + piece.size > out.size:
            return None
        out[used : used + piece.size] = piece
        used += piece.size
    return used


def decompress_frame(frame: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Decompress the frame's content: exactly `size` bytes, allocated only after its header confirms that.

    Raises PeerFault if `frame` is not exactly one frame, without a dictionary, whose header and content have that size.
    """
    zstd = _library()
    try:
        info = zstd.get_frame_info(frame[:LONGEST_HEADER_BYTES].tobytes())
        if info.decompressed_size != size or info.dictionary_id:
            raise PeerFault(f"a frame of {info.decompressed_size} bytes where {size} were due")
        plain = np.empty(size, np.uint8)
        limit = {zstd.DecompressionParameter.window_log_max: _window_log(size)}
        _fill(zstd.ZstdDecompressor(options=limit), frame, plain)
    except zstd.ZstdError as error:
        raise PeerFault(f"not a Zstandard frame: {error}") from error
    return plain


def zstd_is_installed() -> bool:
    try:
        _library()
    except ImportError:
        return False
    return True


def _bytes(payload: Payload) -> NDArray[np.uint8]:
    """Return a view of the same memory."""
    return np.frombuffer(payload, np.uint8) if memoryview(payload).nbytes else np.empty(0, np.uint8)


def _fill(decompressor: Any, frame: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    filled = fed = 0
    while not decompressor.eof:
        given = frame[:0]
        if decompressor.needs_input:
            given = frame[fed : fed + INPUT_BYTES]
            if not given.size:
                raise PeerFault("the frame is truncated")
            fed += given.size
        # One byte more than fits shows that there is more.
        piece = np.frombuffer(decompressor.decompress(given.data, min(OUTPUT_BYTES, out.size - filled + 1)), np.uint8)
        if filled + piece.size > out.size:
            raise PeerFault("the frame holds more than it says")
        out[filled : filled + piece.size] = piece
        filled += piece.size
    if filled < out.size or fed < frame.size or decompressor.unused_data:
        raise PeerFault("the frame ends early, or something follows it")


def _window_log(size: int) -> int:
    return min(max(SMALLEST_WINDOW_LOG, (size - 1).bit_length()), LARGEST_WINDOW_LOG)


@cache
def _library() -> ModuleType:
    """Load the library, which only a chain ending in zstd needs."""
    if sys.version_info >= (3, 14):
        from compression import zstd  # noqa: PLC0415
    else:
        from backports import zstd  # noqa: PLC0415
    return zstd
