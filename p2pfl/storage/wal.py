"""The write-ahead log: its format, the chain of digests through it and into the next log, writing, reading.

    log     = magic (8), digest the chain had before (32), salt (16), check of these (8), records
    record  = length of body (8), check of the length (8), digest (32), body
    body    = length of head (4), head, blobs;   head = msgpack (kind, header, length of each blob)

A record's digest and check cover the previous digest, and in a log's first record the salt, so bytes left over from
another file or another place in this one never pass. The magic says which digest. Integers are little-endian.

Digests, here and over snapshots, withstand chance, not intent: who may write to the folder may also write them. So
where a state is large XXH3 reads it, and BLAKE2b only the result; over the whole it takes twelve times as long (1.5
against .12 CPU-seconds for a GB), more than sending a model and applying it. The bodies of others are in the log, too:
the seed, which they cannot know, keeps them from making two contents of one digest. Small states keep the digest of
earlier versions, which can read them.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from xxhash import xxh3_128

from p2pfl.errors import StorageError
from p2pfl.storage.disk import Piece, create_file, storage_errors, truncate_file, write_all

LARGE_BYTES = 16 << 20
"""The size from which on a snapshot is large; the log beside it counts as the snapshot does."""


class FileFormat(NamedTuple):
    """How a log and a snapshot begin, and whether the digest over their contents is the fast one."""

    log_magic: bytes
    snapshot_magic: bytes
    is_fast: bool

    def digest(self, person: bytes, begin: bytes, pieces: Iterable[Piece]) -> bytes:
        """Return a digest of `begin` and of the pieces one after the other, 32 bytes. `begin` is short."""
        if not self.is_fast:
            return blake2b(person, 32, begin, pieces)
        seed = int.from_bytes(blake2b(b"p2pfl seed", 8, begin, []), "little")
        fast = xxh3_128(seed=seed)
        for piece in pieces:
            fast.update(piece)
        return blake2b(person, 32, begin, [fast.digest()])


PLAIN = FileFormat(b"p2pfll1\n", b"p2pfls1\n", is_fast=False)
FAST = FileFormat(b"p2pfll2\n", b"p2pfls2\n", is_fast=True)


def format_for(size_bytes: int) -> FileFormat:
    """Return the format for a snapshot of that size."""
    return FAST if size_bytes >= LARGE_BYTES else PLAIN


def blake2b(person: bytes, size: int, begin: bytes, pieces: Iterable[Piece]) -> bytes:
    """Return BLAKE2b of `begin` and of the pieces, `size` bytes."""
    digest = hashlib.blake2b(begin, digest_size=size, person=person)
    for piece in pieces:
        digest.update(piece)
    return digest.digest()


DIGEST_BYTES = 32
SALT_BYTES = 16
CHECK_BYTES = 8
LOG_HEAD = struct.Struct(f"<8s{DIGEST_BYTES}s{SALT_BYTES}s{CHECK_BYTES}s")
RECORD_HEAD = struct.Struct(f"<Q{CHECK_BYTES}s{DIGEST_BYTES}s")
BODY_HEAD = struct.Struct("<I")

_decoder = msgspec.msgpack.Decoder(tuple[str, dict[str, Any], list[int]])

# At most this many bytes are buffered in memory; more is handed to the system, still without waiting for the disk.
_BUFFER_BYTES = 1 << 20

_encoder = msgspec.msgpack.Encoder()


def log_check(previous: bytes, salt: bytes) -> bytes:
    return blake2b(b"p2pfl log check", CHECK_BYTES, previous, [salt])


def first_link(previous: bytes, salt: bytes) -> bytes:
    """Return the chain before a log's first record."""
    return blake2b(b"p2pfl log begin", DIGEST_BYTES, previous, [salt])


def length_check(link: bytes, length: int) -> bytes:
    return blake2b(b"p2pfl log length", CHECK_BYTES, link, [length.to_bytes(8, "little")])


def next_link(link: bytes, body: Sequence[Piece], form: FileFormat = PLAIN) -> bytes:
    return form.digest(b"p2pfl log record", link, body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """An entry of the log. Its blobs share the memory of the whole log."""

    kind: str
    header: dict[str, Any]
    blobs: list[memoryview]


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """A log that was read. `previous` is the chain before it, None if even the log's header is incomplete.

    `end` is the chain after the last whole record, at byte `valid_bytes`.
    """

    previous: bytes | None
    records: list[Record]
    end: bytes
    valid_bytes: int
    damaged: bool
    form: FileFormat = PLAIN


def read_log(path: Path) -> Log:
    """Return every whole record from the beginning, and whether damage follows the last one.

    A crash may leave a torn tail: an incomplete record, or zeros where the file grew before its content was written.
    That is not damage, since nothing in it was ever durable. A bad record with further data after it is. Raises
    StorageError if the file cannot be read, never because of its content.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror or error}") from error
    log = _read_head(content)
    if log.previous is None:
        return log
    position, link = log.valid_bytes, log.end
    while (found := _read_record(content, position, link, log.form)) is not None:
        record, link, position = found
        log.records.append(record)
    damaged = _is_damaged_after(content, position, link)
    return replace(log, end=link, valid_bytes=position, damaged=damaged)


class Flush:
    """Records on their way to the disk: `run` writes and syncs them, in any thread. `error` is why the disk refused."""

    def __init__(self, path: Path, fd: int, content: bytearray) -> None:
        self._path, self._fd, self._content = path, fd, content
        self._ended = threading.Event()
        self.error: StorageError | None = None

    def run(self) -> None:
        try:
            with storage_errors(self._path):
                write_all(self._fd, self._content)
                os.fdatasync(self._fd)
        except StorageError as error:
            self.error = error
        except Exception as error:  # noqa: BLE001 - whatever it was, the records are not known to be on disk
            self.error = StorageError(f"cannot write {self._path}: {error!r}")
        finally:
            self._ended.set()

    def wait(self) -> None:
        """Wait until `run` is done. Raises StorageError if the disk refused."""
        self._ended.wait()
        if self.error is not None:
            raise self.error


class Wal:
    """A log open for appending: append copies, flush makes all appended records durable.

    `begin_flush` hands them to another thread. Whatever else touches the file waits for that flush first.

    After a StorageError the end of the file is uncertain, and the log must not be used again (`Store` ensures that).
    """

    def __init__(self, path: Path, *, end: bytes, size_bytes: int, form: FileFormat = PLAIN) -> None:
        """Open an existing file with `size_bytes` of valid content, which leaves the chain at `end`."""
        self._path, self._form = path, form
        self.end = end
        self.size_bytes = size_bytes
        self._buffer = bytearray()
        self._synced = True
        self._running: Flush | None = None
        with storage_errors(path):
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)

    @classmethod
    def create(cls, path: Path, previous: bytes, form: FileFormat = PLAIN) -> Wal:
        """Create an empty log that continues the chain at `previous`; it is durable when this returns."""
        salt = os.urandom(SALT_BYTES)
        create_file(path, LOG_HEAD.pack(form.log_magic, previous, salt, log_check(previous, salt)))
        return cls(path, end=first_link(previous, salt), size_bytes=LOG_HEAD.size, form=form)

    @classmethod
    def resume(cls, path: Path, log: Log) -> Wal:
        """Open a log that was read: its records become durable, and everything after its last whole record is
        truncated.
        """
        truncate_file(path, log.valid_bytes)
        return cls(path, end=log.end, size_bytes=log.valid_bytes, form=log.form)

    @property
    def is_empty(self) -> bool:
        """True if no record was ever appended."""
        return self.size_bytes == LOG_HEAD.size

    def append(self, kind: str, header: Mapping[str, Any], blobs: Sequence[Piece]) -> None:
        """Copy a record to the buffer, so that the caller may reuse its memory; the next flush makes it durable."""
        views: list[memoryview] = [memoryview(blob) for blob in blobs]
        head = _encoder.encode((kind, header, [view.nbytes for view in views]))
        body: list[Piece] = [BODY_HEAD.pack(len(head)), head, *views]
        length = BODY_HEAD.size + len(head) + sum(view.nbytes for view in views)
        link = next_link(self.end, body, self._form)
        self._buffer += RECORD_HEAD.pack(length, length_check(self.end, length), link)
        self.end = link
        self.size_bytes += RECORD_HEAD.size + length
        self._synced = False
        for piece in body:
            self._take(piece)

    def flush(self) -> None:
        """Return once every appended record is on disk. Costs nothing if there are no new ones."""
        self.settle()
        if self._synced:
            return
        self._write_out()
        with storage_errors(self._path):
            os.fdatasync(self._fd)
        self._synced = True

    def begin_flush(self) -> Flush | None:
        """Hand over all appended records: they are durable once the result has run. None if there are no new ones."""
        self.settle()
        if self._synced:
            return None
        self._running = Flush(self._path, self._fd, self._buffer)
        self._buffer = bytearray()
        self._synced = True
        return self._running

    def settle(self) -> None:
        """Wait for the flush that was begun. Raises StorageError if the disk refused it."""
        running, self._running = self._running, None
        if running is not None:
            running.wait()

    def close(self) -> None:
        """Close without flushing: nothing depends on records that were not flushed."""
        with suppress(StorageError):
            self.settle()
        with suppress(OSError):
            os.close(self._fd)

    def _take(self, piece: Piece) -> None:
        """Add a piece to the buffer; a large one is written at once, because copying it would stall all threads."""
        if len(self._buffer) + memoryview(piece).nbytes < _BUFFER_BYTES:
            self._buffer += piece
            return
        self._write_out()
        with storage_errors(self._path):
            write_all(self._fd, piece)

    def _write_out(self) -> None:
        self.settle()
        with storage_errors(self._path):
            write_all(self._fd, self._buffer)
        self._buffer = bytearray()


def _read_head(content: bytes) -> Log:
    if len(content) >= LOG_HEAD.size:
        magic, previous, salt, check = LOG_HEAD.unpack_from(content)
        form = {each.log_magic: each for each in (PLAIN, FAST)}.get(magic)
        if form is not None and check == log_check(previous, salt):
            end = first_link(previous, salt)
            size = LOG_HEAD.size
            return Log(previous=previous, records=[], end=end, valid_bytes=size, damaged=False, form=form)
    damaged = any(content[LOG_HEAD.size :])
    return Log(previous=None, records=[], end=b"", valid_bytes=0, damaged=damaged)


def _read_record(content: bytes, position: int, link: bytes, form: FileFormat) -> tuple[Record, bytes, int] | None:
    """Return the record at `position`, with the chain and the position after it; None if the record is incomplete."""
    begin = position + RECORD_HEAD.size
    if begin > len(content):
        return None
    length, check, digest = RECORD_HEAD.unpack_from(content, position)
    if check != length_check(link, length) or begin + length > len(content):
        return None
    body = memoryview(content)[begin : begin + length]
    if digest != next_link(link, [body], form):
        return None
    return _parse(body), digest, begin + length


def _is_damaged_after(content: bytes, position: int, link: bytes) -> bool:
    """Return True if more data follow the incomplete record at `position`."""
    begin = position + RECORD_HEAD.size
    if begin >= len(content):
        return False
    length, check, _ = RECORD_HEAD.unpack_from(content, position)
    end = begin + length if check == length_check(link, length) else begin
    return any(content[end:])


def _parse(body: memoryview) -> Record:
    (size,) = BODY_HEAD.unpack_from(body)
    begin = BODY_HEAD.size + size
    kind, header, lengths = _decoder.decode(body[BODY_HEAD.size : begin])
    blobs = []
    for length in lengths:
        blobs.append(body[begin : begin + length])
        begin += length
    return Record(kind=kind, header=header, blobs=blobs)
