"""libsodium's secretstream on the caller's memory: no copy of a chunk before it is sealed, and none after it is opened.

PyNaCl's own functions take and return `bytes`: the copies made a fifth of what sealing and opening a large chunk cost.
These make the same calls with PyNaCl's states. `nacl._sodium` is its compiled part and has libsodium's names, which are
stable. The calls release the GIL.
"""

from __future__ import annotations

from typing import Any

from nacl._sodium import ffi, lib  # type: ignore[import-not-found] # compiled
from nacl.bindings import crypto_secretstream_xchacha20poly1305_ABYTES as OVERHEAD_BYTES
from nacl.exceptions import CryptoError


def seal(state: Any, chunk: bytes | memoryview, tag: int) -> bytes:
    """Encrypt the next chunk, a flat buffer of bytes. `state` is PyNaCl's."""
    size = len(chunk) + OVERHEAD_BYTES
    if state.rawbuf is None or len(state.rawbuf) < size:
        state.rawbuf = ffi.new("unsigned char[]", size)
    plain = ffi.from_buffer(chunk)
    if lib.crypto_secretstream_xchacha20poly1305_push(
        state.statebuf, state.rawbuf, ffi.NULL, plain, len(chunk), ffi.NULL, 0, tag
    ):
        raise CryptoError("libsodium cannot seal a chunk")
    sealed: bytes = ffi.buffer(state.rawbuf, size)[:]
    return sealed


def open_into(state: Any, sealed: bytes, room: memoryview) -> int:
    """Decrypt the next chunk into `room`, which is as long as the chunk; return its tag.

    `state` has seen the stream's header. Raises CryptoError, and writes nothing, if it is not the next chunk.
    """
    if len(room) != len(sealed) - OVERHEAD_BYTES:
        raise ValueError(f"room for {len(room)} bytes of {len(sealed)} that are sealed")
    place = ffi.from_buffer(room, require_writable=True)
    if lib.crypto_secretstream_xchacha20poly1305_pull(
        state.statebuf, place, ffi.NULL, state.tagbuf, sealed, len(sealed), ffi.NULL, 0
    ):
        raise CryptoError("not the next chunk of the stream")
    return int(state.tagbuf[0])
