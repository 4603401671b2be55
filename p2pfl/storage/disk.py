"""The files of a node's state: the few operations that durability depends on, free space, ownership of the folder, and
the write-ahead log with its chain of digests.

An OSError becomes a StorageError that names the file, since the disk may be full or read-only. Nothing is written
through a symbolic link in the folder, which other users may have been able to write to earlier. While a checkpoint is
written there may be three snapshots, one of them under a temporary name, and two logs. If there is not enough room, the
store removes the older generation first, which leaves two snapshots and one log. One process owns the folder, through a
flock that ends with the process. The files of a generation are `snapshot-00000007` and its log, `log-00000007`:

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

import errno
import hashlib
import os
import re
import shutil
import stat
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec
from xxhash import xxh3_128

from p2pfl.errors import StorageError, UserError
from p2pfl.limits import LEAST_LOG_BYTES
from p2pfl.system import BINARY, HAS_MODES, NO_FOLLOW, lock, make_folder, sync, sync_folder, user_id

Piece: TypeAlias = bytes | bytearray | memoryview

OWNER_ONLY = 0o600
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error


def is_full(error: StorageError) -> bool:
    """Return True if the write failed only for lack of space."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in NO_SPACE


def write_all(fd: int, piece: Piece) -> None:
    """Write all of a piece: os.write may write only part of it, for example above 2 GiB."""
    rest = memoryview(piece)
    while rest:
        rest = rest[os.write(fd, rest) :]


def replace_file(path: Path, pieces: Iterable[Piece]) -> None:
    """Write a file so that at any instant, even in a power failure, its name stands for the whole file or for none of
    it.

    Only its owner can read it. A file with the same name plus `.tmp`, left by a crash or by somebody, is removed.
    """
    part = path.with_name(path.name + ".tmp")
    with storage_errors(path):
        try:
            try:
                _write_new(part, pieces)
            except FileExistsError:
                part.unlink()
                _write_new(part, pieces)
            part.replace(path)
            sync_folder(path.parent)
        except OSError:
            discard(part)
            raise


def create_file(path: Path, content: bytes) -> None:
    """Create a durable file that is going to grow; a crash may leave part of the content."""
    with storage_errors(path):
        try:
            _write_new(path, [content])
        except FileExistsError:
            raise
        except OSError:
            discard(path)
            raise
        sync_folder(path.parent)


def truncate_file(path: Path, size_bytes: int) -> None:
    """Truncate the file to `size_bytes`; the rest is then durable, even if it was only in memory before."""
    with storage_errors(path):
        fd = os.open(path, os.O_WRONLY | BINARY | NO_FOLLOW)
        try:
            os.ftruncate(fd, size_bytes)
            sync(fd)
        finally:
            os.close(fd)


def discard(path: Path) -> None:
    """Remove a file that no longer matters; if this fails, the file does no harm, and a later call tries again."""
    with suppress(OSError):
        path.unlink()


def _write_new(path: Path, pieces: Iterable[Piece]) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, OWNER_ONLY)  # O_EXCL does not follow links
    try:
        for piece in pieces:
            write_all(fd, piece)
        sync(fd)
    finally:
        os.close(fd)


SLACK_BYTES = 64 << 10
"""Space for log headers, partly used blocks and a result."""
BLOCK_BYTES = 512
"""The unit of st_blocks, as defined by POSIX."""


def free_bytes(folder: Path) -> float:
    """Return the bytes that this user may still write there; infinite if the file system does not say."""
    there = shutil.disk_usage(_existing(folder))
    return there.free if there.total else float("inf")


def volume_bytes(folder: Path) -> float:
    """Return the size of the whole file system."""
    return shutil.disk_usage(_existing(folder)).total or float("inf")


def used_bytes(folder: Path) -> int:
    """Return the bytes used by the files in the folder; 0 if there is no folder."""
    used = 0
    with suppress(FileNotFoundError), os.scandir(folder) as files:
        for file in files:
            with suppress(FileNotFoundError):  # its node may be running
                there = file.stat(follow_symlinks=False)
                used += BLOCK_BYTES * getattr(there, "st_blocks", -(-there.st_size // BLOCK_BYTES))
    return used


def log_limit(room_bytes: float, *, snapshot_bytes: int, usual_bytes: int) -> int:
    """Return the size limit of a log: `usual_bytes`, or less if state and free space (`room_bytes`) are small."""
    return int(max(LEAST_LOG_BYTES, min(usual_bytes, (room_bytes - 3 * snapshot_bytes - SLACK_BYTES) // 2)))


def least_bytes(snapshot_bytes: int, *, logging: bool) -> int:
    """Return the smallest workable room in bytes; with less, a node cannot replace its first snapshot with a second."""
    return 2 * snapshot_bytes + SLACK_BYTES + logging * LEAST_LOG_BYTES


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest existing folder above it."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.exists())


_NAME = re.compile(r"(snapshot|log)-(\d{8,19})(\.tmp)?")


LOOKS, LOOK_S = 4, 0.02


def lock_folder(folder: Path) -> int:
    """Create the folder for its owner alone if necessary, and lock it; closing the returned descriptor unlocks it.

    Raises UserError if the folder cannot be created or written, if others may write to it, or if another process uses
    it; StorageError if there is no room for it.
    """
    try:
        make_folder(folder)
        refuse_shared(folder, user=user_id())
        fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | NO_FOLLOW, OWNER_ONLY)
    except OSError as error:
        if error.errno in NO_SPACE:
            raise StorageError(f"cannot write {folder}: {error.strerror}") from error
        raise UserError(
            f"the state folder cannot be used: {error.strerror or error}",
            file=folder,
            allowed="a folder this user may create and write",
        ) from error
    try:
        _take(fd)
    except OSError as error:
        os.close(fd)
        raise UserError(
            "the state folder is in use by another process",
            file=folder,
            allowed="one running node per folder",
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        os.close(fd)
        raise UserError("the state folder is not writable", file=folder, allowed="a folder this user may write")
    return fd


def lock_file(file: Path) -> int:
    """Lock an existing file; closing the returned descriptor, or the end of the process, unlocks it.

    Raises UserError if it cannot be read, or if another process has locked it.
    """
    try:
        fd = os.open(file, os.O_RDONLY)
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", file=file, allowed="a file this user may read") from error
    try:
        _take(fd)
    except OSError as error:
        os.close(fd)
        raise UserError("in use by another process", file=file, allowed="one running node per key") from error
    return fd


def _take(fd: int) -> None:
    """Try to lock a few times: a process that only checks whether a node is running holds the lock for an instant."""
    for _ in range(LOOKS):
        with suppress(BlockingIOError):
            lock(fd)
            return
        time.sleep(LOOK_S)
    lock(fd)


def refuse_shared(folder: Path, *, user: int) -> None:
    """Check that only this user and root may change the state folder.

    Raises UserError if others may change it, or if it links to another folder; OSError if there is no folder.
    """
    if folder.is_symlink():
        allowed = f"the folder itself: node.state_dir = {str(folder.resolve())!r}"
        raise UserError("the state folder is a symbolic link", file=folder, allowed=allowed)
    there = folder.stat()
    if not HAS_MODES:
        return
    if there.st_uid not in (0, user):
        raise UserError(
            "the state folder belongs to another user",
            file=folder,
            value=f"user {there.st_uid}",
            allowed=f"a folder of user {user}, who runs this node: chown it, or name another (node.state_dir)",
        )
    if there.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UserError(
            "others may write to the state folder",
            file=folder,
            value=f"mode {stat.S_IMODE(there.st_mode):o}",
            allowed=f"a folder that only its owner can write: chmod 700 {folder}",
        )


def snapshot_path(folder: Path, generation: int) -> Path:
    return folder / f"snapshot-{generation:08d}"


def log_path(folder: Path, generation: int) -> Path:
    return folder / f"log-{generation:08d}"


def snapshot_generations(folder: Path) -> list[int]:
    """Return the generations that have a snapshot, intact or not, oldest first."""
    return sorted(generation for stem, generation, part in _files(folder) if stem == "snapshot" and not part)


def log_generations(folder: Path) -> list[int]:
    return sorted(generation for stem, generation, part in _files(folder) if stem == "log" and not part)


def newest_generation(folder: Path) -> int:
    """Return the highest generation in use, or 0."""
    return max((generation for _, generation, _ in _files(folder)), default=0)


def discard_unfinished(folder: Path) -> None:
    for stem, generation, part in _files(folder):
        if part:
            discard(folder / f"{stem}-{generation:08d}.tmp")


def discard_before(folder: Path, generation: int) -> bool:
    """Remove older generations; return True if there were any.

    A file that cannot be removed now is retried later.
    """
    older: list[Path] = []
    with suppress(StorageError):
        older = [folder / f"{stem}-{number:08d}" for stem, number, _ in _files(folder) if number < generation]
    for path in older:
        discard(path)
    return bool(older)


def _files(folder: Path) -> list[tuple[str, int, bool]]:
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise StorageError(f"{folder} cannot be listed: {error.strerror or error}") from error
    matches = (_NAME.fullmatch(name) for name in names)
    return [(match[1], int(match[2]), match[3] is not None) for match in matches if match]


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
    while (next_record := _read_record(content, position, link, log.form)) is not None:
        record, link, position = next_record
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
                sync(self._fd, only_content=True)
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
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | BINARY | NO_FOLLOW)

    @classmethod
    def create(cls, path: Path, previous: bytes, form: FileFormat = PLAIN) -> Wal:
        """Create an empty log that continues the chain at `previous`; it is durable when this returns."""
        salt = os.urandom(SALT_BYTES)
        create_file(path, LOG_HEAD.pack(form.log_magic, previous, salt, log_check(previous, salt)))
        return cls(path, end=first_link(previous, salt), size_bytes=LOG_HEAD.size, form=form)

    @classmethod
    def resume(cls, path: Path, log: Log) -> Wal:
        """Open a log that was read: its records become durable, and what follows its last whole record is cut off."""
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
            sync(self._fd, only_content=True)
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
