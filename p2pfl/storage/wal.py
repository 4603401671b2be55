"""The write-ahead log, writing side: append is a copy, flush makes all that was appended durable.

After a StorageError the end of the file is uncertain: the log must not be used again (`Store` sees to that).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from p2pfl.storage import chain
from p2pfl.storage.disk import Piece, create_file, refusal_of, truncate_file, write_all
from p2pfl.storage.log_reading import Log

# No more is copied in memory: what does not fit is handed to the system, still without waiting for the disk.
_BUFFER_BYTES = 1 << 20

_encoder = msgspec.msgpack.Encoder()


class Wal:
    """One log, open for appending."""

    def __init__(self, path: Path, *, end: bytes, size_bytes: int) -> None:
        """Of a file that exists, whose valid content has `size_bytes` and leaves the chain at `end`."""
        self._path = path
        self._end = end
        self._size_bytes = size_bytes
        self._buffer = bytearray()
        self._synced = True
        with refusal_of(path):
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND)

    @classmethod
    def create(cls, path: Path, previous: bytes) -> Wal:
        """A new empty log that continues the chain at `previous`; durable when this returns."""
        salt = os.urandom(chain.SALT_BYTES)
        create_file(path, chain.log_head(previous, salt))
        return cls(path, end=chain.first_link(previous, salt), size_bytes=chain.LOG_HEAD.size)

    @classmethod
    def resume(cls, path: Path, log: Log) -> Wal:
        """A log that was read: what was read becomes durable, what follows its last whole record is cut off."""
        truncate_file(path, log.valid_bytes)
        return cls(path, end=log.end, size_bytes=log.valid_bytes)

    @property
    def end(self) -> bytes:
        return self._end

    @property
    def is_empty(self) -> bool:
        """Whether no record was ever appended."""
        return self._size_bytes == chain.LOG_HEAD.size

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def append(self, kind: str, header: Mapping[str, Any], blobs: Sequence[Piece]) -> None:
        """Takes everything, so that the caller's memory is free again; durable after the next flush."""
        views: list[memoryview] = [memoryview(blob) for blob in blobs]
        head = _encoder.encode((kind, header, [view.nbytes for view in views]))
        body: list[Piece] = [chain.BODY_HEAD.pack(len(head)), head, *views]
        length = chain.BODY_HEAD.size + len(head) + sum(view.nbytes for view in views)
        link = chain.next_link(self._end, body)
        self._buffer += chain.RECORD_HEAD.pack(length, chain.length_check(self._end, length), link)
        self._end = link
        self._size_bytes += chain.RECORD_HEAD.size + length
        self._synced = False
        for piece in body:
            self._take(piece)

    def flush(self) -> None:
        """Returns when every appended record is on the disk. Costs nothing if none is new."""
        if self._synced:
            return
        self._write_out()
        with refusal_of(self._path):
            os.fdatasync(self._fd)
        self._synced = True

    def close(self) -> None:
        """Without flushing: what was not flushed was promised to nobody."""
        with suppress(OSError):
            os.close(self._fd)

    def _take(self, piece: Piece) -> None:
        """A large piece goes past the buffer: copying it there would stop all threads."""
        if len(self._buffer) + memoryview(piece).nbytes < _BUFFER_BYTES:
            self._buffer += piece
            return
        self._write_out()
        with refusal_of(self._path):
            write_all(self._fd, piece)

    def _write_out(self) -> None:
        with refusal_of(self._path):
            write_all(self._fd, self._buffer)
        self._buffer = bytearray()
