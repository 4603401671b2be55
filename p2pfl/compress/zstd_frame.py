"""One frame of Zstandard into, and out of, memory that is there already.

In pieces: the library lets other threads run while it works on one, but not while it copies what it was given.
"""

from __future__ import annotations

import sys
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import PeerFault

LEVEL = 1
# A frame that needs a larger window is refused, and none is made: the decoder takes that much memory before it reads.
WINDOW_LOG = 21
INPUT_BYTES = 1 << 17
OUTPUT_BYTES = 1 << 18
_SMALLEST_WINDOW_LOG = 10


def compress(plain: NDArray[np.uint8], out: NDArray[np.uint8], level: int = LEVEL) -> int | None:
    """Write a frame to `out` and return its length, or None if it does not fit."""
    zstd = _library()
    parameter = zstd.CompressionParameter
    window_log = min(_window_log(plain.size), WINDOW_LOG)
    options = {parameter.compression_level: level, parameter.window_log: window_log}
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


def decompress(frame: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """Fill `out` with exactly what the frame holds.

    Raises:
        PeerFault: `frame` is not exactly one frame, without a dictionary, that says it holds as much and does.
    """
    zstd = _library()
    try:
        info = zstd.get_frame_info(frame[:32].tobytes())
        if info.decompressed_size != out.size or info.dictionary_id:
            raise PeerFault(f"a frame of {info.decompressed_size} bytes where {out.size} were due")
        limit = {zstd.DecompressionParameter.window_log_max: min(_window_log(out.size), WINDOW_LOG)}
        _fill(zstd.ZstdDecompressor(options=limit), frame, out)
    except zstd.ZstdError as error:
        raise PeerFault(f"no frame of Zstandard: {error}") from error


def _fill(decompressor: Any, frame: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    filled = fed = 0
    while not decompressor.eof:
        given = frame[:0]
        if decompressor.needs_input:
            given = frame[fed : fed + INPUT_BYTES]
            if not given.size:
                raise PeerFault("the frame is cut off")
            fed += given.size
        # One byte more than there is room for shows that there is more.
        piece = np.frombuffer(decompressor.decompress(given.data, min(OUTPUT_BYTES, out.size - filled + 1)), np.uint8)
        if filled + piece.size > out.size:
            raise PeerFault("the frame holds more than it says")
        out[filled : filled + piece.size] = piece
        filled += piece.size
    if filled < out.size or fed < frame.size or decompressor.unused_data:
        raise PeerFault("the frame ends early, or something follows it")


def _window_log(size: int) -> int:
    return max(_SMALLEST_WINDOW_LOG, (size - 1).bit_length())


@cache
def _library() -> ModuleType:
    """Loaded only where a chain ends in zstd."""
    if sys.version_info >= (3, 14):
        from compression import zstd  # noqa: PLC0415
    else:
        from backports import zstd  # noqa: PLC0415
    return zstd
