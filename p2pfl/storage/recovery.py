"""From the files in the folder to the state to start from.

The newest whole snapshot, then every log that continues it: each log names the digest the chain had before it, so
one rule decides what may be replayed. If the newest snapshot is damaged, the one before it with its own log and
the next comes to the same state. `peek` does the same in a folder that a running node may own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from p2pfl.errors import StorageError
from p2pfl.storage.folder import log_generations, log_path, snapshot_generations
from p2pfl.storage.snapshot import Snapshot, State, load_latest
from p2pfl.storage.wal import Log, Record, read_log

TRIES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The state to start from and the records to replay on it, oldest first.

    `complete` is False when something that had been durable is known to be missing, so that the result is older
    than the last message that left; `warnings` says why, for the log and the operator.
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
    """What was found: the snapshot, the records that follow it, and the last log that may be continued."""

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
    """None for a folder that holds nothing. Raises StorageError when what it holds is of no use."""
    snapshot, warnings = load_latest(folder)
    if snapshot is None:
        _refuse_orphans(folder)
        return None
    recovery = Recovery(snapshot=snapshot, end=snapshot.log_end, warnings=warnings)
    for generation in log_generations(folder):
        if generation >= snapshot.generation and not _follow(recovery, folder, generation):
            break
    _account_for_damaged(recovery, snapshot_generations(folder)[-1])
    return recovery


def peek(folder: Path) -> Loaded | None:
    """What a restart would begin with now; None if nothing was ever kept. What follows in the log is just not there.

    Nothing is locked, cut off, removed or created. The node may write its next snapshot in the middle of it: so the
    folder is listed before and after, and read once more if a file came or went in between.

    Raises:
        StorageError: nothing kept is usable, or the folder changes faster than it can be read.
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
    """Take the records of one log; False if nothing after them may be replayed."""
    path = log_path(folder, generation)
    try:
        log = read_log(path)
    except StorageError as error:
        recovery.lose(f"{error}; it and what follows is not replayed")
        return False
    if log.previous is None and not log.damaged:
        return True  # a crash while it was being created: nothing was ever in it
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
    """An older snapshot is as good as a damaged newer one only if the logs reach up to that."""
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
