"""The durable state of one node: snapshots, and recovery from the files to the state to start from.

A snapshot is magic, digest (`wal.FileFormat`), then a State in the safetensors format, written completely or not at
all. It stores the chain digest at the end of the preceding log (`log_end`), so that a log that does not continue it is
never replayed on it. Any safetensors reader can open the part after magic and digest: arrays are stored as
`array:NAME`, blobs as bytes under `blob:NAME`, the header as JSON in the metadata. It is written piece by piece, to
avoid a second copy of the arrays.

A checkpoint of generation g + 1 flushes log g, creates log g + 1, writes snapshot g + 1 and then removes everything
older than the last good snapshot; if there is no room for that, it removes the older files first. Whenever a crash
happens, recovery yields the state before the checkpoint or after it: the newest intact snapshot, then every log that
continues it. Each log names the digest of the chain before it, so one rule decides what may be replayed. If the newest
snapshot is damaged, the one before it, its own log and the next log give the same state. `peek` does the same in a
folder that a running node may own. A store must not be used by several threads at once; only a flush that it has
handed over runs in another.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import StorageError
from p2pfl.storage import disk
from p2pfl.storage.disk import (
    DIGEST_BYTES,
    FAST,
    PLAIN,
    FileFormat,
    Flush,
    Log,
    Piece,
    Record,
    Wal,
    discard_before,
    discard_unfinished,
    format_for,
    is_full,
    lock_folder,
    log_generations,
    log_path,
    newest_generation,
    read_log,
    replace_file,
    snapshot_generations,
    snapshot_path,
    storage_errors,
)
from p2pfl.system import sync_folder

_DIGEST_BYTES = 32
_HEAD_BYTES = len(PLAIN.snapshot_magic) + _DIGEST_BYTES

_DTYPES = {
    "b1": "BOOL",
    **{f"i{size}": f"I{8 * size}" for size in (1, 2, 4, 8)},
    **{f"u{size}": f"U{8 * size}" for size in (1, 2, 4, 8)},
    **{f"f{size}": f"F{8 * size}" for size in (2, 4, 8)},
}
_NAMES = {name: np.dtype("<" + dtype) for dtype, name in _DTYPES.items()}
_ALIGNMENT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A consistent copy of the state. `header` is JSON; arrays keep their shape and dtype (booleans, integers, floats).

    Arrays that were read are read-only, and share the memory of the whole snapshot.
    """

    header: dict[str, Any]
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    blobs: dict[str, bytes | memoryview] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A snapshot and its place in the chain of logs.

    `has_log` says that a log of the same generation was durable before it, and holds what has happened since.
    """

    generation: int
    state: State
    log_end: bytes
    has_log: bool = False


def save(folder: Path, snapshot: Snapshot) -> None:
    """Write a snapshot durably. Raises StorageError if the disk refuses; nothing has changed in that case."""
    metadata = {"generation": str(snapshot.generation), "log_end": snapshot.log_end.hex()}
    metadata |= {"has_log": "yes"} if snapshot.has_log else {}
    body = pieces_of(snapshot.state, metadata)
    path = snapshot_path(folder, snapshot.generation)
    form = format_for(_HEAD_BYTES + sum(piece.nbytes for piece in body))
    replace_file(path, [_head(form, snapshot.generation, body), *body])


def size_bytes(state: State) -> int:
    """Return the approximate size of a snapshot of the state; nothing is copied or written."""
    return _HEAD_BYTES + sum(piece.nbytes for piece in pieces_of(state, {}))


def load(folder: Path, generation: int) -> Snapshot:
    """Read a snapshot. Raises StorageError if the file cannot be read or is not exactly what was written."""
    path = snapshot_path(folder, generation)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror or error}") from error
    body = memoryview(content)[_HEAD_BYTES:]
    if content[:_HEAD_BYTES] != _head(FAST if content.startswith(FAST.snapshot_magic) else PLAIN, generation, [body]):
        raise StorageError(f"{path} is damaged: its digest does not match")
    state, metadata = state_of(body)
    end, has_log = bytes.fromhex(metadata["log_end"]), "has_log" in metadata
    return Snapshot(generation=generation, state=state, log_end=end, has_log=has_log)


def load_latest(folder: Path) -> tuple[Snapshot | None, list[str]]:
    """Return the newest intact snapshot, or None, and a warning for each newer one that is damaged.

    Raises StorageError if there are snapshots but none is intact.
    """
    warnings: list[str] = []
    for generation in reversed(snapshot_generations(folder)):
        try:
            return load(folder, generation), warnings
        except StorageError as damage:
            warnings.append(str(damage))
    if warnings:
        raise StorageError(
            f"no snapshot in {folder} is usable: {'; '.join(warnings)}. Restore one of these files from a backup, "
            "or move the folder away to start anew",
        )
    return None, []


def pieces_of(state: State, metadata: dict[str, str]) -> list[memoryview]:
    """Return the format's parts in order. They refer to the arrays' own memory: write them before it changes."""
    named = {f"array:{name}": _plain(name, array) for name, array in state.arrays.items()}
    named |= {f"blob:{name}": np.ndarray(len(blob), np.uint8, blob) for name, blob in state.blobs.items()}
    table: dict[str, Any] = {"__metadata__": {**metadata, "header": json.dumps(state.header)}}
    begin = 0
    for name, array in named.items():
        entry = {"dtype": _DTYPES[array.dtype.str[1:]], "shape": array.shape}
        table[name] = entry | {"data_offsets": (begin, begin + array.nbytes)}
        begin += array.nbytes
    head = json.dumps(table).encode()
    head += b" " * (-len(head) % _ALIGNMENT)
    contents = [array.reshape(-1).view(np.uint8).data for array in named.values()]
    return [memoryview(len(head).to_bytes(8, "little") + head), *contents]


def state_of(body: memoryview) -> tuple[State, dict[str, str]]:
    """Return the state and metadata from the bytes made by `pieces_of`, whose digest has already been checked."""
    begin = 8 + int.from_bytes(body[:8], "little")
    table = json.loads(bytes(body[8:begin]))
    metadata = table.pop("__metadata__")
    arrays: dict[str, NDArray[Any]] = {}
    blobs: dict[str, bytes | memoryview] = {}
    for key, entry in table.items():
        kind, name = key.split(":", 1)
        first, last = entry["data_offsets"]
        content = body[begin + first : begin + last]
        if kind == "array":
            arrays[name] = np.ndarray(entry["shape"], _NAMES[entry["dtype"]], content)
        else:
            blobs[name] = bytes(content)
    return State(header=json.loads(metadata.pop("header")), arrays=arrays, blobs=blobs), metadata


def _head(form: FileFormat, generation: int, body: list[memoryview]) -> bytes:
    """Return magic and digest of a snapshot with that body."""
    return form.snapshot_magic + form.digest(b"p2pfl snapshot", generation.to_bytes(8, "little"), body)


def _plain(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Return the array, contiguous and little-endian."""
    if array.dtype.str[1:] not in _DTYPES:
        raise ValueError(f"array {name!r} of dtype {array.dtype} cannot be stored")
    return np.asarray(array, array.dtype.newbyteorder("<"), order="C")


TRIES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The state to start from and the records to replay on it, oldest first.

    `complete` is False if data that had been durable are known to be missing, so that the result is older than the last
    message sent; `warnings` says why, for the log and the operator.
    """

    state: State
    records: list[Record]
    warnings: list[str]
    complete: bool


class LastLog(NamedTuple):
    generation: int
    log: Log


@dataclass(slots=True, kw_only=True)
class Recovery:
    """The result of a recovery: the snapshot, the records that follow it, and the last log that may be continued."""

    snapshot: Snapshot
    end: bytes
    warnings: list[str]
    records: list[Record] = field(default_factory=list)
    complete: bool = True
    last_log: LastLog | None = None

    def loaded(self) -> Loaded:
        return Loaded(state=self.snapshot.state, records=self.records, warnings=self.warnings, complete=self.complete)

    def lose(self, warning: str) -> None:
        self.complete = False
        self.warnings.append(warning)


def recover(folder: Path) -> Recovery | None:
    """Read the state of a folder; None if it is empty. Raises StorageError if its content is unusable."""
    snapshot, warnings = load_latest(folder)
    if snapshot is None:
        _refuse_orphans(folder)
        return None
    recovery = Recovery(snapshot=snapshot, end=snapshot.log_end, warnings=warnings)
    for generation in log_generations(folder):
        if generation >= snapshot.generation and not _follow(recovery, folder, generation):
            break
    _account_for_damaged(recovery, snapshot_generations(folder)[-1])
    if snapshot.has_log and recovery.complete and recovery.last_log is None:
        recovery.lose(f"{log_path(folder, snapshot.generation)} is missing or empty; what it held is lost")
    return recovery


def peek(folder: Path) -> Loaded | None:
    """Return the state and records with which a restart would begin now; None if nothing was ever stored.

    An incomplete part of the log is ignored. Nothing is locked, truncated, removed or created. The node may write its
    next snapshot in the meantime, so the folder is listed before and after, and read once more if a file appeared or
    vanished.

    Raises StorageError if nothing stored is usable, or if the folder changes faster than it can be read.
    """
    for _ in range(TRIES):
        before = _listing(folder)
        try:
            recovery = recover(folder)
        except StorageError:
            if _listing(folder) == before:
                raise
            continue
        if _listing(folder) == before:
            return None if recovery is None else recovery.loaded()
    raise StorageError(f"{folder} is written faster than it can be read")


def _follow(recovery: Recovery, folder: Path, generation: int) -> bool:
    """Read the records of one log; return False if nothing after them may be replayed."""
    path = log_path(folder, generation)
    try:
        log = read_log(path)
    except StorageError as error:
        recovery.lose(f"{error}; it and what follows is not replayed")
        return False
    if log.previous is None and not log.damaged:
        return True  # the crash came while it was being created, so it never held anything
    if log.previous != recovery.end:
        recovery.lose(f"{path} does not continue what is before it; it and what follows is not replayed")
        return False
    recovery.records += log.records
    recovery.end = log.end
    recovery.last_log = LastLog(generation, log)
    if log.damaged:
        recovery.lose(f"{path} is damaged after byte {log.valid_bytes}; what follows there is not replayed")
    return not log.damaged


def _account_for_damaged(recovery: Recovery, newest_snapshot: int) -> None:
    """Record a loss unless the logs on the older snapshot reach up to the damaged newer one."""
    base = recovery.snapshot.generation
    if newest_snapshot == base or not recovery.complete:
        return
    reached = recovery.last_log.generation if recovery.last_log else base
    if reached < newest_snapshot:
        recovery.lose(f"the state is that of snapshot {base}, older than the damaged {newest_snapshot}")


def _refuse_orphans(folder: Path) -> None:
    for generation in log_generations(folder):
        path = log_path(folder, generation)
        if read_log(path).records:
            raise StorageError(
                f"{path} continues a snapshot that is missing. Restore it from a backup, or move the folder "
                "away to start anew",
            )


def _listing(folder: Path) -> tuple[list[int], list[int]]:
    return snapshot_generations(folder), log_generations(folder)


Durability = Literal["exchange", "snapshot"]
T = TypeVar("T")


class Store:
    """The store of one node. Call `load` once after `open`, then `checkpoint` if it returned None; after that, append,
    flush and checkpoint freely.

    A StorageError leaves the store usable. After a failed append or flush the end of the log is uncertain, so appends
    are refused until a checkpoint succeeds; a failed checkpoint keeps what was durable before it.
    """

    def __init__(self, folder: Path, *, durability: Durability, lock: int) -> None:
        self._folder = folder
        self._logging = durability == "exchange"
        self._lock = lock
        self._wal: Wal | None = None
        self._refusal: str | None = "there is no snapshot yet"
        self._base: int | None = None
        self._newest = newest_generation(folder)
        self._unsaved: bytes | None = None
        """The chain at the start of the current log, if its snapshot could not be written."""

    @classmethod
    def open(cls, folder: str | Path, *, durability: Durability) -> Self:
        """Open a folder and lock it.

        Raises UserError if the folder cannot be used or is in use, StorageError if there is no room.
        """
        folder = Path(folder)
        lock = lock_folder(folder)
        discard_unfinished(folder)
        return cls(folder, durability=durability, lock=lock)

    def load(self) -> Loaded | None:
        """Return the state to start from; None if nothing was ever stored.

        Raises StorageError if nothing stored is usable.
        """
        with storage_errors(self._folder):
            sync_folder(self._folder)  # the files about to be read must not vanish later
        recovery = recover(self._folder)
        if recovery is None:
            return None
        self._base = recovery.snapshot.generation
        if self._logging:
            self._continue_log(recovery)
        return recovery.loaded()

    def append(self, kind: str, header: Mapping[str, Any], blobs: Sequence[Piece] = ()) -> None:
        """Add a record to the log; `flush` makes it durable. Does nothing in "snapshot" durability."""
        if self._logging:
            self._with_log(lambda wal: wal.append(kind, header, blobs))

    def flush(self) -> None:
        """Make all appended records durable. Does nothing in "snapshot" durability."""
        if self._logging:
            self._with_log(Wal.flush)

    def begin_flush(self) -> Flush | None:
        """Hand over all appended records: they are durable once the result has run, which may be in another thread.

        None if there are none, or in "snapshot" durability.
        """
        return self._with_log(Wal.begin_flush) if self._logging else None

    def settle(self) -> None:
        """Wait for the flush that was begun on the current log. Raises StorageError if the disk refused it."""
        if self._refusal is None and self._wal is not None:
            self._with_log(Wal.settle)

    def checkpoint(self, state: State) -> None:
        """Make this the state to start from. It must contain every record appended so far."""
        self._unsaved = log_end = self._begin_log(format_for(size_bytes(state)))
        snapshot = Snapshot(generation=self._newest, state=state, log_end=log_end, has_log=self._logging)
        self._with_room(lambda: save(self._folder, snapshot))
        self._refusal = self._unsaved = None
        if self._base is not None:
            discard_before(self._folder, self._base)
        self._base = self._newest

    def end_log(self, reason: str) -> None:
        """Refuse records until the next checkpoint, which will not count as continuing this log."""
        self._refusal = reason
        self._unsaved = None

    @property
    def wal_bytes(self) -> int:
        """The size of the current log, including records waiting for a flush."""
        return self._wal.size_bytes if self._wal else 0

    @property
    def room_bytes(self) -> float:
        """The bytes that the state uses and may still use. Raises StorageError if the folder cannot be read."""
        with storage_errors(self._folder):
            return disk.used_bytes(self._folder) + disk.free_bytes(self._folder)

    def close(self) -> None:
        """Close without flushing. The store cannot be used afterwards."""
        old, self._wal = self._wal, None
        if old:
            old.close()
        os.close(self._lock)

    def _with_log(self, use: Callable[[Wal], T]) -> T:
        if self._refusal is not None or self._wal is None:
            raise StorageError(f"the log takes no records until a checkpoint succeeds: {self._refusal}")
        try:
            return use(self._wal)
        except StorageError as error:
            self._refusal = str(error)
            raise

    def _begin_log(self, form: FileFormat) -> bytes:
        """Create the log that continues from this snapshot, and return the chain there.

        An empty log left by a snapshot that could not be written is reused; otherwise such logs would fill a full disk.
        """
        if self._unsaved is not None and self._wal and self._wal.is_empty:
            return self._unsaved
        end = self._end_of_log()
        self._newest += 1
        if not self._logging:
            return end
        try:
            wal = self._with_room(lambda: Wal.create(log_path(self._folder, self._newest), end, form))
        except StorageError as error:
            self._refusal = str(error)
            raise
        old, self._wal = self._wal, wal
        if old:
            old.close()
        return end

    def _with_room(self, write: Callable[[], T]) -> T:
        """Write; if the disk is full, remove the older generation and retry once, because the newest is enough."""
        try:
            return write()
        except StorageError as error:
            if not (is_full(error) and self._base is not None and discard_before(self._folder, self._base)):
                raise
            return write()

    def _end_of_log(self) -> bytes:
        """Return the chain after the last record if all are durable; otherwise a fresh value that no log reaches."""
        if self._refusal is None and self._wal:
            try:
                self._wal.flush()
            except StorageError as error:
                self._refusal = str(error)
            else:
                return self._wal.end
        return os.urandom(DIGEST_BYTES)

    def _continue_log(self, recovery: Recovery) -> None:
        if not recovery.complete:
            self._refusal = recovery.warnings[-1]
            return
        try:
            self._wal = self._reopened_log(recovery)
            self._refusal = None
        except StorageError as error:
            self._refusal = str(error)
            recovery.warnings.append(str(error))

    def _reopened_log(self, recovery: Recovery) -> Wal:
        if recovery.last_log:
            generation, log = recovery.last_log
            return Wal.resume(log_path(self._folder, generation), log)
        self._newest += 1
        form = format_for(size_bytes(recovery.snapshot.state))
        return Wal.create(log_path(self._folder, self._newest), recovery.end, form)
