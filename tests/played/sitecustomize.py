"""Plays another system, `PLAYED` = darwin, win32 or 32-bit, to the code of this project: a folder for PYTHONPATH, so
that every process of a test plays it.

Only our packages see the system's name, and lack the modules and names that it lacks: the standard library and other
packages go on as they are on Linux. What a system does otherwise, as to refuse to remove an open file, all of Python
sees. Each `fcntl(F_FULLFSYNC)` adds a line to the file `PLAYED_SYNCS`.
"""

import builtins
import errno
import fcntl
import importlib
import os
import select
import shutil
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from types import ModuleType

OURS = ("p2pfl", "sim", "topologies")
FULL_SYNC, BINARY = 51, 1 << 30
NEVER_DARWIN = {
    "os": ("fdatasync", "fork", "pidfd_open", "posix_fadvise", "sched_getaffinity", "waitid"),
    "select": ("epoll",),
}
NEVER_WIN32 = {
    "os": (
        *("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "chown", "fchmod", "fdatasync", "fork", "forkpty"),
        *("getegid", "geteuid", "getgid", "getloadavg", "getpgid", "getpriority", "getuid", "killpg", "mkfifo", "nice"),
        *("openpty", "pidfd_open", "posix_fadvise", "sched_getaffinity", "setpriority", "setsid", "setuid", "statvfs"),
        *("sync", "sysconf", "ttyname", "uname", "wait", "waitid"),
    ),
    "signal": ("SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "alarm", "pthread_kill", "pthread_sigmask", "setitimer"),
    "mmap": ("MAP_ANONYMOUS", "MAP_PRIVATE", "MAP_SHARED"),
    "multiprocessing.context": ("ForkServerProcess",),
    "socket": ("AF_UNIX", "SO_REUSEPORT", "TCP_NOTSENT_LOWAT"),
    **dict.fromkeys(("fcntl", "grp", "pty", "pwd", "readline", "resource", "termios", "tty"), None),
}


class View(ModuleType):
    """A module as our packages see it, with names changed or missing (None), and the rest as it is."""

    def __init__(self, module, **changed):
        super().__init__(module.__name__)
        self._module, self._changed = module, changed

    def __getattribute__(self, name):
        changed = super().__getattribute__("_changed")
        if name in changed:
            if changed[name] is None:
                raise AttributeError(f"there is no {name}")
            return changed[name]
        return getattr(super().__getattribute__("_module"), name)


def show(views):
    """Let our packages import these views, and no module whose view is None."""
    plain = builtins.__import__

    def import_seen(name, within=None, local=None, fromlist=(), level=0):
        asking = str((within or {}).get("__name__")).partition(".")[0]
        if level or asking not in OURS or name not in views or ("." in name and not fromlist):
            return plain(name, within, local, fromlist, level)
        if views[name] is None:
            raise ModuleNotFoundError(f"no module {name} here", name=name)
        return views[name]

    builtins.__import__ = import_seen


def hide_proc():
    def refuse(event, details):
        if event in ("open", "os.listdir", "os.scandir") and str(details[0]).startswith(("/proc", "/sys")):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), details[0])

    sys.addaudithook(refuse)


def play_darwin():
    def control(fd, command, *rest):
        if command != FULL_SYNC:
            return fcntl.fcntl(fd, command, *rest)
        with Path(os.environ["PLAYED_SYNCS"]).open("a", encoding="ascii") as syncs:
            syncs.write("sync\n")
        return os.fsync(fd)

    for module in (os, select):  # nobody has them, so that asyncio takes another selector
        for name in NEVER_DARWIN[module.__name__]:
            if hasattr(module, name):
                delattr(module, name)
    if sys.version_info >= (3, 13):
        os.process_cpu_count = os.cpu_count
    hide_proc()
    show({"sys": View(sys, platform="darwin"), "fcntl": View(fcntl, F_FULLFSYNC=FULL_SYNC, fcntl=control)})


def play_win32():
    import asyncio  # noqa: PLC0415 - not before `play_darwin`

    views = {"sys": View(sys, platform="win32"), "msvcrt": ModuleType("msvcrt")}
    for name, missing in NEVER_WIN32.items():
        views[name] = None if missing is None else View(importlib.import_module(name), **dict.fromkeys(missing))
    views["os"] = View(os, **dict.fromkeys(NEVER_WIN32["os"]), O_BINARY=BINARY, open=open_binary)
    views["ctypes"] = View(importlib.import_module("ctypes"), CDLL=len)  # which takes no None
    vars(views["msvcrt"]).update(locking=locking, LK_NBLCK=2)
    for name in ("remove", "rename", "replace", "rmdir", "unlink"):
        setattr(os, name, unless_open(getattr(os, name)))
    plain_mkdir = os.mkdir
    os.mkdir = lambda path, _mode=0o777, **more: plain_mkdir(path, **more)
    os.umask(0)
    shutil._use_fd_functions = False
    loop = asyncio.SelectorEventLoop
    loop.add_signal_handler = loop.connect_read_pipe = not_there
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        type(asyncio.get_event_loop_policy())._loop_factory = type("Proactor", (loop,), {"add_reader": not_there})
    warnings.filterwarnings("error", category=EncodingWarning, module=rf"({'|'.join(OURS)})\b")
    hide_proc()
    show(views)


def open_binary(path, flags, mode=0o777, **more):
    """Open a file, as it would be for `os.write`: everybody may read it, and it is no folder."""
    if Path(path).is_dir():
        raise PermissionError(errno.EACCES, "a folder", path)
    if flags & (os.O_WRONLY | os.O_RDWR) and not flags & BINARY and Path(path).name != "lock":
        raise AssertionError(f"{path} is opened as a text")
    return os.open(path, flags & ~BINARY, mode | 0o666, **more)


def locking(fd, _mode, count):
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, count)
    except BlockingIOError:
        raise PermissionError(errno.EACCES, "locked") from None


def unless_open(function):
    """Let a function of `os` refuse files that are open, and renaming what is there: folders, too."""

    def called(*paths, **more):
        for path in paths:
            if isinstance(path, str | os.PathLike) and (held := opened_below(path)):
                raise PermissionError(errno.EACCES, f"{held} is open", str(path))
        if function.__name__ == "rename" and Path(paths[1]).exists():
            raise FileExistsError(errno.EEXIST, "exists", str(paths[1]))
        return function(*paths, **more)

    return called


def play_32_bits():
    show({"sys": View(sys, maxsize=2**31 - 1)})


def not_there(*_):
    raise NotImplementedError


def opened_below(path):
    """Return a file that this process has open at this path or below it, or None."""
    path = os.path.realpath(path)
    for fd in Path("/dev/fd").iterdir():
        with suppress(OSError):
            target = os.readlink(fd)  # noqa: PTH115 - a socket's is no path
            if target == path or target.startswith(f"{path}/"):
                return target
    return None


if played := os.environ.get("PLAYED"):
    {"darwin": play_darwin, "win32": play_win32, "32-bit": play_32_bits}[played]()
