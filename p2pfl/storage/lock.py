"""One process per folder, held by flock: it goes away with the process, however that ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from p2pfl.errors import StorageError, UserError
from p2pfl.storage.disk import NO_SPACE


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
