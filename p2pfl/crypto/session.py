"""An open session: it seals chunks and opens sealed ones, with one libsodium secretstream per direction.

The first sealed chunk in each direction starts with the stream's 24-byte header. A chunk that is lost, duplicated,
reordered, changed or truncated is detected at once and ends the session. libsodium releases the GIL, so large chunks
belong in a worker thread: one call at a time per direction, but both directions at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from nacl.bindings import (
    crypto_secretstream_xchacha20poly1305_ABYTES,
    crypto_secretstream_xchacha20poly1305_HEADERBYTES,
    crypto_secretstream_xchacha20poly1305_init_pull,
    crypto_secretstream_xchacha20poly1305_init_push,
    crypto_secretstream_xchacha20poly1305_pull,
    crypto_secretstream_xchacha20poly1305_state,
    crypto_secretstream_xchacha20poly1305_TAG_FINAL,
    crypto_secretstream_xchacha20poly1305_TAG_MESSAGE,
    crypto_secretstream_xchacha20poly1305_TAG_REKEY,
)
from nacl.exceptions import CryptoError

from p2pfl.core.messages import CHUNK_BYTES
from p2pfl.crypto import secretstream
from p2pfl.crypto.handshake import SessionKeys
from p2pfl.errors import PeerFault

SESSION_MAX_S = 3600
REKEY_BYTES = 1 << 30

_HEADER_BYTES = crypto_secretstream_xchacha20poly1305_HEADERBYTES
_OVERHEAD_BYTES = crypto_secretstream_xchacha20poly1305_ABYTES
_MESSAGE = crypto_secretstream_xchacha20poly1305_TAG_MESSAGE
_REKEY = crypto_secretstream_xchacha20poly1305_TAG_REKEY
_FINAL = crypto_secretstream_xchacha20poly1305_TAG_FINAL

MAX_SEALED_BYTES = CHUNK_BYTES + _OVERHEAD_BYTES + _HEADER_BYTES


class Session:
    """Both directions of one session. After any failure, every later call raises PeerFault."""

    def __init__(self, keys: SessionKeys, *, rekey_bytes: int = REKEY_BYTES) -> None:
        self.session_id = keys.session_id
        self.peer_public = keys.peer_public
        self._alive = True
        self._outbound = crypto_secretstream_xchacha20poly1305_state()
        self._out_header = crypto_secretstream_xchacha20poly1305_init_push(self._outbound, keys.send)
        self._out_lock = threading.Lock()
        self._out_final = False
        self._unrekeyed_bytes = 0
        self._rekey_bytes = rekey_bytes
        self._inbound: crypto_secretstream_xchacha20poly1305_state | None = None
        self._in_key: bytes | None = keys.receive
        self._in_lock = threading.Lock()
        self._in_final = False

    def seal(self, chunk: bytes | memoryview, *, final: bool = False) -> bytes:
        """Encrypt the next chunk (at most CHUNK_BYTES). No chunk may follow a `final` one."""
        with self._turn(self._out_lock):
            if self._out_final or len(chunk) > CHUNK_BYTES:
                raise ValueError("a chunk is too long, or comes after the final one")
            sealed = secretstream.seal(self._outbound, chunk, self._next_tag(len(chunk), final=final))
            header, self._out_header = self._out_header, b""
            return header + sealed if header else sealed

    def chunk_bytes(self, sealed: bytes) -> int:
        """Return the size of the chunk in `sealed` if that is the next one."""
        return len(sealed) - _OVERHEAD_BYTES - (_HEADER_BYTES if self._inbound is None else 0)

    def open(self, sealed: bytes) -> tuple[bytes, bool]:
        """Decrypt the next chunk; the flag says whether it was the peer's last.

        Raises PeerFault if it is not the chunk that the peer sealed next.
        """
        with self._turn(self._in_lock):
            return self._pull(sealed, None)

    def open_into(self, room: memoryview, sealed: bytes) -> bool:
        """Decrypt the next chunk, of `chunk_bytes`, into `room`; return True if it was the peer's last.

        Raises PeerFault as `open`; nothing but what the peer has sealed is written.
        """
        with self._turn(self._in_lock):
            return self._pull(sealed, room)[1]

    def _pull(self, sealed: bytes, room: memoryview | None) -> tuple[bytes, bool]:
        if self._in_final:
            raise PeerFault("a chunk after the final one")
        sealed = self._strip_header(sealed)
        if not _OVERHEAD_BYTES <= len(sealed) <= CHUNK_BYTES + _OVERHEAD_BYTES or self._inbound is None:
            raise PeerFault(f"a sealed chunk of {len(sealed)} bytes")
        chunk = b""
        try:
            if room is not None:
                tag = secretstream.open_into(self._inbound, sealed, room)
            else:
                chunk, tag = crypto_secretstream_xchacha20poly1305_pull(self._inbound, sealed)
        except CryptoError as error:
            raise PeerFault("a chunk was changed, lost, doubled or reordered") from error
        if tag not in {_MESSAGE, _REKEY, _FINAL}:
            raise PeerFault(f"a chunk has the unknown tag {tag}")
        self._in_final = tag == _FINAL
        return chunk, self._in_final

    def _strip_header(self, sealed: bytes) -> bytes:
        if self._inbound is not None:
            return sealed
        if len(sealed) < _HEADER_BYTES or self._in_key is None:
            raise PeerFault("the first sealed chunk is too short for the stream's header")
        # Rekey the stream's state: a first key left in memory would open recorded chunks.
        key, self._in_key = self._in_key, None
        self._inbound = crypto_secretstream_xchacha20poly1305_state()
        crypto_secretstream_xchacha20poly1305_init_pull(self._inbound, sealed[:_HEADER_BYTES], key)
        return sealed[_HEADER_BYTES:]

    def _next_tag(self, size_bytes: int, *, final: bool) -> int:
        if final:
            self._out_final = True
            return _FINAL
        self._unrekeyed_bytes += size_bytes
        if self._unrekeyed_bytes < self._rekey_bytes:
            return _MESSAGE
        self._unrekeyed_bytes = 0
        return _REKEY

    def _check_alive(self) -> None:
        if not self._alive:
            raise PeerFault("the session is dead")

    @contextmanager
    def _turn(self, lock: threading.Lock) -> Iterator[None]:
        """Allow one call at a time: two at once would seal two chunks with the same nonce."""
        if not lock.acquire(blocking=False):
            raise RuntimeError("two calls at once for one direction of a session")
        try:
            self._check_alive()
            yield
        except BaseException:
            self._alive = False
            raise
        finally:
            lock.release()
