"""Read a state folder that a running node may own: nothing is locked, cut off, removed or created.

The node may write its next snapshot in the middle of it. So the folder is listed before and after, and read once more
if a file came or went in between.
"""

from __future__ import annotations

from pathlib import Path

from p2pfl.errors import StorageError
from p2pfl.storage import generations
from p2pfl.storage.recovery import recover
from p2pfl.storage.state import Loaded

TRIES = 10


def peek(folder: Path) -> Loaded | None:
    """What a restart would begin with now; None if nothing was ever kept. What follows in the log is just not there.

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


def _listing(folder: Path) -> tuple[list[int], list[int]]:
    return generations.snapshots(folder), generations.logs(folder)
