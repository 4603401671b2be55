"""Vectors of edges in one file that is mapped into memory, so that the system can move to the disk what it has no room
for.

The file is scratch, never the truth: it loses its name as soon as it is open, so nothing of it survives the process,
and a restart begins from the snapshot and the log, as ever. Its blocks are allocated before they are used, because a
write to a mapped page for which the disk has no room would kill the process.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np

from p2pfl.errors import StorageError
from p2pfl.learn.interface import Vector

NAME = "vectors.mapped"
OWNER_ONLY = 0o600


class MappedVectors:
    """Vectors by the edge's peer and a name, such as `own`. All have the length and dtype of `like`."""

    def __init__(self, folder: Path, like: Vector, count: int) -> None:
        """Create the file with room for `count` vectors. Raises StorageError: the disk refuses it, or is full."""
        self._path, self._shape, self._dtype = folder / NAME, like.shape, like.dtype
        self._step = -(-max(1, like.nbytes) // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        self._places: dict[tuple[int, str], int] = {}
        self._free: list[int] = []
        self._maps: list[tuple[int, mmap.mmap]] = []
        """The parts of the file as they were reserved, and the first place of each: a map takes a file descriptor."""
        self._reserved = 0
        try:
            self._path.unlink(missing_ok=True)
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, OWNER_ONLY)
            self._path.unlink()
        except OSError as error:
            raise self._refused(error) from error
        try:
            self._reserve(count)
        except StorageError:
            self.close()
            raise

    @property
    def nbytes(self) -> int:
        """The bytes that the file takes on the disk."""
        return self._reserved * self._step

    def zeros(self, peer: int, name: str) -> Vector:
        """Return the zero vector of that edge and name; what was there before is overwritten. Raises StorageError: the
        disk is full.
        """
        place = self._places.get((peer, name))
        is_used = place is not None or bool(self._free)
        if place is None:
            taken = len(self._places) + len(self._free)
            if not self._free:
                self._reserve(taken + 1)
            place = self._places[peer, name] = self._free.pop() if self._free else taken
        first, memory = next(each for each in reversed(self._maps) if each[0] <= place)
        vector: Vector = np.ndarray(self._shape, self._dtype, memory, (place - first) * self._step)
        if is_used:
            vector[:] = 0
        return vector

    def moved(self, peer: int, name: str, vector: Vector) -> Vector:
        """Return a vector of that edge and name with these values."""
        place = self.zeros(peer, name)
        if vector.any():
            place[:] = vector
        return place

    def forget(self, peer: int) -> None:
        """Let other edges have the places of an edge that is gone."""
        for key in [key for key in self._places if key[0] == peer]:
            self._free.append(self._places.pop(key))

    def close(self) -> None:
        """Close the file. Vectors stay as long as somebody holds them."""
        self._maps = []
        os.close(self._fd)

    def _reserve(self, count: int) -> None:
        if count > self._reserved:
            offset, size = self._reserved * self._step, (count - self._reserved) * self._step
            try:
                _allocate(self._fd, offset, size)
                memory = mmap.mmap(self._fd, size, offset=offset)
            except OSError as error:
                raise self._refused(error) from error
            self._maps.append((self._reserved, memory))
            self._reserved = count

    def _refused(self, error: OSError) -> StorageError:
        return StorageError(f"cannot write or map {self._path}: {error.strerror or error}")


def _allocate(fd: int, offset: int, size: int) -> None:
    """Allocate blocks of a file. Raises OSError: there are not enough."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, offset, size)
        return
    block: Any = bytes(1 << 20)  # macOS: blocks that are written are allocated
    for first in range(offset, offset + size, len(block)):
        os.pwrite(fd, block[: offset + size - first], first)
