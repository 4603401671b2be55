"""A disk that can be rebuilt as a power loss at any instant could have left it.

A file's bytes are durable after its own sync, a name after the sync of its folder. What is not yet durable may be
there or not: names in every combination; bytes all, none, without half of the last write, or as zeros.
"""

from __future__ import annotations

import errno
import itertools
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest


@dataclass(eq=False)
class Inode:
    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    last_write: int = 0

    def versions(self) -> tuple[bytes, bytes, bytes, bytes]:
        written = bytes(self.content)
        torn = written[: max(len(self.durable), len(written) - self.last_write // 2)]
        return written, self.durable, torn, self.durable + bytes(max(0, len(written) - len(self.durable)))


class CrashingDisk:
    """Stands before the functions of `os` for the files of one folder; they are carried out for real too.

    Operations whose number is in `refused` fail for want of space, a write after half of it.
    """

    def __init__(self, folder: Path, refused: range = range(0)) -> None:
        self.folder = folder
        self.operations = 0
        self.after_each = lambda: None
        self._refused = refused
        self._names: dict[str, Inode] = {}
        self._durable_names: dict[str, Inode] = {}
        self._unsynced_names: list[dict[str, Inode | None]] = []
        self._opened: dict[int, Inode | None] = {}

    def install(self, monkeypatch) -> None:
        for name in ("open", "close", "write", "fsync", "fdatasync", "ftruncate", "replace", "unlink"):
            monkeypatch.setattr(os, name, self._standing_before(getattr(os, name), getattr(self, f"_{name}")))

    def forget_process(self) -> None:
        """The process is gone and its files are closed; what it wrote is still in memory."""
        self.after_each = lambda: None
        for fd in list(self._opened):
            os.close(fd)

    def possible_states(self) -> set[tuple[tuple[str, bytes], ...]]:
        states = set()
        for chosen in itertools.product((False, True), repeat=len(self._unsynced_names)):
            names = dict(self._durable_names)
            for changes in itertools.compress(self._unsynced_names, chosen):
                names |= changes
            present = sorted((name, inode.versions()) for name, inode in names.items() if inode)
            states |= {tuple((name, versions[kind]) for name, versions in present) for kind in range(4)}
        return states

    def _standing_before(self, real, model):
        def call(first, *rest, **options):
            known = first in self._opened if isinstance(first, int) else self._is_ours(Path(first))
            if not known:
                return real(first, *rest, **options)
            self._maybe_refuse(real, model, first, *rest)
            result = real(first, *rest, **options)
            model(first, *rest, result)
            self.operations += 1
            self.after_each()
            return result

        return call

    def _is_ours(self, path: Path) -> bool:
        return path == self.folder or (path.parent == self.folder and path.name != "lock")

    def _maybe_refuse(self, real, model, first, *rest) -> None:
        if self.operations not in self._refused or model == self._close:
            return
        self.operations += 1
        if model == self._write:
            half = bytes(rest[0][: len(rest[0]) // 2])
            model(first, half, real(first, half))
        self.after_each()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _rename(self, changes: dict[str, Inode | None]) -> None:
        self._unsynced_names.append(changes)
        self._names |= changes

    def _open(self, path, *rest) -> None:
        name = Path(path).name
        if Path(path) == self.folder:
            self._opened[rest[-1]] = None
            return
        if self._names.get(name) is None:
            self._rename({name: Inode()})
        elif rest[0] & os.O_TRUNC:
            self._names[name].content.clear()
        self._opened[rest[-1]] = self._names[name]

    def _close(self, fd, _) -> None:
        del self._opened[fd]

    def _write(self, fd, data, written) -> None:
        inode = self._opened[fd]
        inode.content += bytes(data[:written])
        inode.last_write = written

    def _fsync(self, fd, _) -> None:
        inode = self._opened[fd]
        if inode:
            inode.durable = bytes(inode.content)
            return
        for changes in self._unsynced_names:
            self._durable_names |= changes
        self._unsynced_names.clear()

    _fdatasync = _fsync

    def _ftruncate(self, fd, size, _) -> None:
        del self._opened[fd].content[size:]

    def _replace(self, source, target, _) -> None:
        source, target = Path(source).name, Path(target).name
        self._rename({target: self._names[source], source: None})

    def _unlink(self, path, *_) -> None:
        self._rename({Path(path).name: None})


@pytest.fixture
def tmp_path():
    """In memory where there is such a place: small files are rewritten here thousands of times."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def crashing_disk():
    return CrashingDisk
