"""The files of a node's state: the few operations that durability depends on, free space, and ownership of the folder.

An OSError becomes a StorageError that names the file, since the disk may be full or read-only. Nothing is written
through a symbolic link in the folder, which other users may have been able to write to earlier. While a checkpoint is
written there may be three snapshots, one of them under a temporary name, and two logs. If there is not enough room, the
store removes the older generation first, which leaves two snapshots and one log. One process owns the folder, through a
flock that ends with the process. The files of a generation are `snapshot-00000007` and its log, `log-00000007`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from p2pfl.errors import StorageError, UserError

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


def sync_folder(folder: Path) -> None:
    """Make names in the folder durable: a file's own fsync does not."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


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
        fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
        try:
            os.ftruncate(fd, size_bytes)
            os.fsync(fd)
        finally:
            os.close(fd)


def discard(path: Path) -> None:
    """Remove a file that no longer matters; if this fails, the file does no harm, and a later call tries again."""
    with suppress(OSError):
        path.unlink()


def _write_new(path: Path, pieces: Iterable[Piece]) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY)  # O_EXCL does not follow links
    try:
        for piece in pieces:
            write_all(fd, piece)
        os.fsync(fd)
    finally:
        os.close(fd)


LEAST_LOG_BYTES = 64 << 10
"""The smallest size limit of a log: a shorter log would end after every few exchanges."""
SLACK_BYTES = 64 << 10
"""Space for log headers, partly used blocks and a result."""
BLOCK_BYTES = 512
"""The unit of st_blocks, as defined by POSIX."""


def free_bytes(folder: Path) -> float:
    """Return the bytes that this user may still write there; infinite if the file system does not say."""
    there = os.statvfs(_existing(folder))
    return there.f_bavail * there.f_frsize if there.f_blocks else float("inf")


def volume_bytes(folder: Path) -> float:
    """Return the size of the whole file system."""
    there = os.statvfs(_existing(folder))
    return there.f_blocks * there.f_frsize if there.f_blocks else float("inf")


def used_bytes(folder: Path) -> int:
    """Return the bytes used by the files in the folder; 0 if there is no folder."""
    used = 0
    with suppress(FileNotFoundError), os.scandir(folder) as files:
        for file in files:
            with suppress(FileNotFoundError):  # its node may be running
                used += file.stat(follow_symlinks=False).st_blocks * BLOCK_BYTES
    return used


def log_limit(room_bytes: float, *, snapshot_bytes: int, usual_bytes: int) -> int:
    """Return the size limit of a log: `usual_bytes`, or less if state and free space together (`room_bytes`) are
    small.
    """
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
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        refuse_shared(folder, user=os.geteuid())
        fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, OWNER_ONLY)
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
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
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
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(LOOK_S)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def refuse_shared(folder: Path, *, user: int) -> None:
    """Check that only this user and root may change the state folder.

    Raises UserError if others may change it, or if it links to another folder; OSError if there is no folder.
    """
    if folder.is_symlink():
        allowed = f"the folder itself: node.state_dir = {str(folder.resolve())!r}"
        raise UserError("the state folder is a symbolic link", file=folder, allowed=allowed)
    there = folder.stat()
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
