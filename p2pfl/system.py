"""What differs between operating systems.

Linux and macOS run nodes. Windows runs what needs none: files, graphs, simulations, all nodes in one process. A mode
there says nothing about who may read a file, and a folder cannot be opened.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from p2pfl.errors import UserError

NO_FOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
NO_WAIT: int = getattr(os, "O_NONBLOCK", 0)
"""For `os.open`, so that a named pipe does not block."""
BINARY: int = getattr(os, "O_BINARY", 0)
"""For `os.open`: else Windows writes two bytes for a line's end."""
KILL: signal.Signals = getattr(signal, "SIGKILL", signal.SIGTERM)
IS_LINUX: bool = sys.platform == "linux"
HAS_MODES: bool = sys.platform != "win32"
"""True if a file's owner and mode say who may read and write it."""

if sys.platform == "win32":
    import msvcrt

    LOCKED_AT = 1 << 30
    """The byte that is locked: nobody else may read what is, so it is one that no file has."""

    def lock(fd: int) -> None:
        """Lock a file until it is closed. Raises BlockingIOError: another process has locked it."""
        os.lseek(fd, LOCKED_AT, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError(errno.EWOULDBLOCK, "locked by another process") from error

    def user_id() -> int:
        return 0

    def is_own_group(group: int, user: int) -> bool:  # noqa: ARG001 - as on other systems
        """Return True: groups are unknown."""
        return True

    def peak_memory_bytes() -> int | None:
        return None

else:
    import fcntl
    import grp
    import pwd
    import resource

    def lock(fd: int) -> None:
        """Lock a file until it is closed. Raises BlockingIOError: another process has locked it; OSError: the file
        system has no locks.
        """
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def user_id() -> int:
        return os.geteuid()

    def is_own_group(group: int, user: int) -> bool:
        """Return True if the group is the user's own: many systems give each user a group with no other members."""
        try:
            owner, entry = pwd.getpwuid(user), grp.getgrgid(group)
        except KeyError:
            return False
        return (owner.pw_gid, owner.pw_name) == (group, entry.gr_name) and set(entry.gr_mem) <= {owner.pw_name}

    def peak_memory_bytes() -> int | None:
        """Return the most memory that this process has had; None where the system does not say."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak


def written_bytes() -> int | None:
    """Return the bytes that this process has given to disks, in whole pages, without the file system's own records (see
    proc_pid_io(5)); None where the system does not say.
    """
    try:
        told = dict(line.split(": ") for line in Path("/proc/self/io").read_text(encoding="ascii").splitlines())
        return int(told["write_bytes"])
    except (OSError, ValueError, KeyError):
        return None


def sync(fd: int, *, only_content: bool = False) -> None:
    """Make what was written to a file durable; with `only_content` not its times. Raises OSError: the disk refused."""
    if sys.platform == "darwin":  # its fsync leaves everything in the drive's cache
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOTTY):  # file systems that know fsync alone
                raise
        else:
            return
    if sys.platform == "linux" and only_content:
        os.fdatasync(fd)
    else:
        os.fsync(fd)


def return_free_memory() -> None:
    """Give freed memory back, if the C library can (glibc): its heaps keep vectors of up to 32 MB."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return
    trim(ctypes.c_size_t(0))


def sync_folder(folder: Path) -> None:
    """Make names in the folder durable, which a file's own fsync does not; on Windows the file system does."""
    if HAS_MODES:
        fd = os.open(folder, os.O_RDONLY)
        try:
            sync(fd)
        finally:
            os.close(fd)


def make_folder(folder: Path) -> None:
    """Create the folder, for its owner alone, and those above it where they are missing; the names are then durable, or
    a power failure could take the folder with all that was synced in it.
    """
    missing = [each for each in folder.parents if not each.exists()]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for each in (folder, *missing):
        with suppress(PermissionError):  # a folder above that others own, and that was there
            sync_folder(each.parent)


@contextmanager
def signals_held(*numbers: signal.Signals) -> Iterator[None]:
    """Hold signals back until the block ends; processes that it starts begin with them held. Windows cannot."""
    if sys.platform != "win32":
        before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        if sys.platform != "win32":
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def is_alive(pid: int) -> bool:
    """Return True if this machine has such a process, as far as this user can tell."""
    try:
        if sys.platform != "win32":  # where signal 0 is Ctrl-C
            os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return HAS_MODES


def require_nodes(what: str) -> None:
    """Raises UserError: `what` works with nodes, and this system runs none."""
    if sys.platform == "win32":
        raise UserError(f"{what} needs Linux or macOS: on Windows, simulate (p2pfl sim run)")
