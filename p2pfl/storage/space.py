"""How much room there is for a state, and how long a log may become in it.

While a checkpoint is being written there may be three snapshots, the new one being written aside, and two logs. Where
that is too much the store gives up the older generation first: two snapshots and one log.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

LEAST_LOG_BYTES = 64 << 10
"""a shorter log would give way to a snapshot after every few exchanges."""
SLACK_BYTES = 64 << 10
"""for heads of logs, whole blocks, a result."""
BLOCK_BYTES = 512
"""of st_blocks, by POSIX."""


def free_bytes(folder: Path) -> float:
    """What this user may still write there; infinite where the file system does not say."""
    there = os.statvfs(_existing(folder))
    return there.f_bavail * there.f_frsize if there.f_blocks else float("inf")


def volume_bytes(folder: Path) -> float:
    """The size of the whole file system."""
    there = os.statvfs(_existing(folder))
    return there.f_blocks * there.f_frsize if there.f_blocks else float("inf")


def used_bytes(folder: Path) -> int:
    """By the files in the folder, 0 where there is none."""
    used = 0
    with suppress(FileNotFoundError), os.scandir(folder) as files:
        for file in files:
            with suppress(FileNotFoundError):  # its node may be running
                used += file.stat(follow_symlinks=False).st_blocks * BLOCK_BYTES
    return used


def log_limit(room_bytes: float, *, snapshot_bytes: int, wanted: int) -> int:
    """How long a log may become, where state and free space are `room_bytes` together."""
    return int(max(LEAST_LOG_BYTES, min(wanted, (room_bytes - 3 * snapshot_bytes - SLACK_BYTES) // 2)))


def least_bytes(snapshot_bytes: int, *, logging: bool) -> int:
    """With less a node cannot replace its first snapshot by a second."""
    return 2 * snapshot_bytes + SLACK_BYTES + logging * LEAST_LOG_BYTES


def _existing(folder: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.exists())
