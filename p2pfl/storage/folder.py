"""The folder of a node's state: whose it is, and the names of its files.

One process has it, held by flock, which goes away with the process, however that ends. Files of one generation are
`snapshot-00000007` and the log that continues it, `log-00000007`.
"""

from __future__ import annotations

import fcntl
import os
import re
from contextlib import suppress
from pathlib import Path

from p2pfl.errors import StorageError, UserError
from p2pfl.storage.disk import NO_SPACE, discard

_NAME = re.compile(r"(snapshot|log)-(\d{8,19})(\.tmp)?")


def lock_folder(folder: Path) -> int:
    """Create the folder for its owner alone if need be and lock it; closing the returned descriptor unlocks it.

    Raises:
        UserError: the folder cannot be created or written, or another process uses it.
        StorageError: there is no room for it.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        if error.errno in NO_SPACE:
            raise StorageError(f"cannot write {folder}: {error.strerror}") from error
        raise UserError(
            f"the state folder cannot be used: {error.strerror or error}",
            file=folder,
            allowed="a folder this user may create and write",
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
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


def snapshot_path(folder: Path, generation: int) -> Path:
    return folder / f"snapshot-{generation:08d}"


def log_path(folder: Path, generation: int) -> Path:
    return folder / f"log-{generation:08d}"


def snapshot_generations(folder: Path) -> list[int]:
    """Generations that have a snapshot, whole or not, oldest first."""
    return sorted(generation for stem, generation, part in _files(folder) if stem == "snapshot" and not part)


def log_generations(folder: Path) -> list[int]:
    return sorted(generation for stem, generation, part in _files(folder) if stem == "log" and not part)


def newest_generation(folder: Path) -> int:
    """The highest generation in use, 0 for none."""
    return max((generation for _, generation, _ in _files(folder)), default=0)


def discard_unfinished(folder: Path) -> None:
    for stem, generation, part in _files(folder):
        if part:
            discard(folder / f"{stem}-{generation:08d}.tmp")


def discard_before(folder: Path, generation: int) -> bool:
    """Whether there was anything. What cannot be removed now does no harm and is tried again later."""
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
