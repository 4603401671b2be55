"""From the files in the folder to the state to start from.

The newest whole snapshot, then every log that continues it: each log names the digest the chain had before it, so
one rule decides what may be replayed. If the newest snapshot is damaged, the one before it with its own log and
the next comes to the same state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from p2pfl.errors import StorageError
from p2pfl.storage import generations
from p2pfl.storage.log_reading import Log, read_log
from p2pfl.storage.snapshot import Snapshot, load_latest
from p2pfl.storage.state import Loaded, Record


@dataclass(slots=True, kw_only=True)
class Recovery:
    """What was found: the snapshot, the records that follow it, and the last log that may be continued."""

    snapshot: Snapshot
    end: bytes
    warnings: list[str]
    records: list[Record] = field(default_factory=list)
    complete: bool = True
    last_log: tuple[int, Log] | None = None

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
    for generation in generations.logs(folder):
        if generation >= snapshot.generation and not _follow(recovery, folder, generation):
            break
    _account_for_damaged(recovery, generations.snapshots(folder)[-1])
    return recovery


def _follow(recovery: Recovery, folder: Path, generation: int) -> bool:
    """Take the records of one log; False if nothing after them may be replayed."""
    path = generations.log_path(folder, generation)
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
    recovery.last_log = (generation, log)
    if log.damaged:
        recovery.lose(f"{path} is damaged after byte {log.valid_bytes}; what follows there is not replayed")
    return not log.damaged


def _account_for_damaged(recovery: Recovery, newest_snapshot: int) -> None:
    """An older snapshot is as good as a damaged newer one only if the logs reach up to that."""
    base = recovery.snapshot.generation
    if newest_snapshot == base or not recovery.complete:
        return
    reached = recovery.last_log[0] if recovery.last_log else base
    if reached < newest_snapshot:
        recovery.lose(f"the state is that of snapshot {base}, older than the damaged {newest_snapshot}")


def _refuse_orphans(folder: Path) -> None:
    for generation in generations.logs(folder):
        path = generations.log_path(folder, generation)
        if read_log(path).records:
            raise StorageError(
                f"{path} continues a snapshot that is missing. Restore it from a backup, or move the folder "
                "away to start anew",
            )
