"""Frames cut into the chunks of a session, and chunks put together again.

There is one way to cut: a frame of at most CHUNK_BYTES is one chunk; a longer one is a chunk with prefix and header,
then the body in full chunks and a last one that is not empty. Messages do not interleave. Any other cut is a fault,
so a peer cannot make a message expensive by sending it in crumbs.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator

from p2pfl.core.messages import Message
from p2pfl.errors import PeerFault
from p2pfl.vocabulary import CHUNK_BYTES
from p2pfl.wire.frame import PREFIX_BYTES, Prefix, decode, decode_prefix, encode

PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
"""pages of one's own cost half of what shared ones do when they are touched first."""


def split(message: Message) -> Iterator[bytes | memoryview]:
    """The message's chunks in order; those of a long body are views of it, so it must not change before they went.

    Raises:
        ValueError: our own message holds a value that no peer would accept.
    """
    head, body = encode(message)
    if len(head) + body.nbytes <= CHUNK_BYTES:
        yield head + body
        return
    yield head
    for start in range(0, body.nbytes, CHUNK_BYTES):
        yield body[start : start + CHUNK_BYTES]


class Assembler:
    """The receiving side of one session, fed one chunk after the other.

    A message owns its body for as long as anybody holds it: a short body is a view of the chunk it came in, a long
    one of a buffer. That buffer serves the next long body once nobody looks at it any more, because touching fresh
    memory costs more than the copy. It has room for any body, and takes as much memory as the longest so far.
    """

    def __init__(self, max_body_bytes: int) -> None:
        self._max_body_bytes = max_body_bytes
        self._buffer: mmap.mmap | None = None
        self._pending: tuple[Prefix, bytes] | None = None
        self._filled = 0
        self._dead = False

    @property
    def pending_bytes(self) -> int:
        """The size of the body that is under way, 0 between messages; any thread may ask."""
        pending = self._pending  # which another thread may be about to forget
        return pending[0].body_bytes if pending else 0

    def feed(self, chunk: bytes) -> list[Message]:
        """The message that this chunk completes, if it does.

        A chunk that completes a long request also pays for its digest: call this in the thread that opened the chunk.

        Raises:
            PeerFault: the chunk is not what may come next; nothing can be fed after that.
        """
        if self._dead:
            raise PeerFault("a chunk after one that broke the protocol")
        self._dead = True
        if len(chunk) > CHUNK_BYTES:
            raise PeerFault(f"a chunk of {len(chunk)} bytes; limit {CHUNK_BYTES}")
        message = self._begin(chunk) if self._pending is None else self._continue(*self._pending, chunk)
        self._dead = False
        return [] if message is None else [message]

    def _begin(self, chunk: bytes) -> Message | None:
        view = memoryview(chunk)
        prefix = decode_prefix(view[:PREFIX_BYTES], max_body_bytes=self._max_body_bytes)
        header, body = view[PREFIX_BYTES:][: prefix.header_bytes], view[PREFIX_BYTES + prefix.header_bytes :]
        if prefix.frame_bytes <= CHUNK_BYTES:
            return decode(prefix, header, body)
        if len(header) != prefix.header_bytes or body.nbytes:
            raise PeerFault("a long message begins with a chunk that is not its prefix and header")
        self._take_buffer()
        self._pending, self._filled = (prefix, bytes(header)), 0
        return None

    def _continue(self, prefix: Prefix, header: bytes, chunk: bytes) -> Message | None:
        expected = min(CHUNK_BYTES, prefix.body_bytes - self._filled)
        if len(chunk) != expected:
            raise PeerFault(f"a body continues with {len(chunk)} bytes instead of {expected}")
        # Through a view: a bytearray would copy the chunk once more before it takes it.
        self._memory(prefix.body_bytes)[self._filled : self._filled + expected] = chunk
        self._filled += expected
        if self._filled < prefix.body_bytes:
            return None
        self._pending = None
        return decode(prefix, header, self._memory(prefix.body_bytes))

    def _memory(self, size: int) -> memoryview:
        if self._buffer is None:
            raise AssertionError("a long body without a buffer")
        return memoryview(self._buffer)[:size]

    def _take_buffer(self) -> None:
        """Mapped memory is zeroed page by page as it is touched, where a bytearray would stop all threads for it.

        A map refuses to be resized, even to what it is, while a view of it lives: so it tells whether it is free.
        """
        try:
            if self._buffer is not None:
                self._buffer.resize(len(self._buffer))
                return
        except (BufferError, SystemError):
            # SystemError: no map can be resized on this system.
            pass
        self._buffer = mmap.mmap(-1, self._max_body_bytes, **PRIVATE)
