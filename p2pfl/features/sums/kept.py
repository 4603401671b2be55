"""The sets of members that a member has signed, kept beside its state, so that it remembers them after a restart.

The file grows by one record for each sum, flushed to disk before the signature leaves the node. A record is the digest
of the data (32 bytes), the number of members (4), a name of each by its key (16), and a checksum (8): rows of a
federation may change places, keys do not. A crash can leave the last record cut off; it was never acted on, and is
removed at the next start.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from p2pfl.errors import StorageError
from p2pfl.storage.disk import create_file, replace_file, storage_errors, truncate_file, write_all

FILE_NAME = "sums"
DIGEST_BYTES, COUNT_BYTES, NAME_BYTES, CHECK_BYTES = 32, 4, 16, 8

LIFE_NAME = "sums.life"
MOST_DIGITS = 15
"""A longer number was not written here."""

KeptRecord = tuple[bytes, frozenset[int]]


class KeptSums:
    """`folder` is the node's state folder; None: nothing outlives this object. `keys` are those of all members, by
    index; who is no member any more has an index beyond them. Raises StorageError: the file is damaged, or the disk
    refuses.
    """

    def __init__(self, folder: Path | None = None, keys: Sequence[bytes] = ()) -> None:
        self._path = None if folder is None else folder / FILE_NAME
        self._names = [hashlib.blake2b(key, digest_size=NAME_BYTES, person=b"p2pfl-sums-name").digest() for key in keys]
        self._index_of = {name: index for index, name in enumerate(self._names)}
        self.past: list[KeptRecord] = []
        """All that was kept, in order."""
        self._size = 0
        if self._path is not None:
            self._read(self._path)
        self._known = set(self.past)

    def add(self, data: bytes, members: frozenset[int]) -> None:
        """Keep a record; it is on the disk when this returns. Raises StorageError."""
        if (data, members) in self._known:
            return
        if self._path is not None:
            self._append(self._path, self._packed(data, members))
        self.past.append((data, members))
        self._known.add((data, members))

    def _append(self, path: Path, record: bytes) -> None:
        try:
            with storage_errors(path):
                fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
                try:
                    write_all(fd, record)
                    os.fsync(fd)
                finally:
                    os.close(fd)
        except StorageError:
            truncate_file(path, self._size)
            raise
        self._size += len(record)

    def _read(self, path: Path) -> None:
        with storage_errors(path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            create_file(path, b"")
            return
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error.strerror or error}") from error
        while self._size < len(raw):
            end = _end(raw, self._size)
            found = None if end is None else self._unpacked(raw[self._size : end])
            if found is None:
                if end is not None and end < len(raw):
                    text = "is damaged: without it this node might sign two sums whose difference is one summand"
                    raise StorageError(f"{path} {text}")
                truncate_file(path, self._size)
                return
            self.past.append(found)
            self._size = end or self._size

    def _packed(self, data: bytes, members: frozenset[int]) -> bytes:
        names = b"".join(self._names[member] for member in sorted(members))
        record = data + len(members).to_bytes(COUNT_BYTES, "little") + names
        return record + _check(record)

    def _unpacked(self, record: bytes) -> KeptRecord | None:
        content, check = record[:-CHECK_BYTES], record[-CHECK_BYTES:]
        if _check(content) != check:
            return None
        names = range(DIGEST_BYTES + COUNT_BYTES, len(content), NAME_BYTES)
        return content[:DIGEST_BYTES], frozenset(self._index(content[at : at + NAME_BYTES]) for at in names)

    def _index(self, name: bytes) -> int:
        if name not in self._index_of:
            self._names.append(name)
            self._index_of[name] = len(self._names) - 1
        return self._index_of[name]


def next_life(folder: Path) -> int:
    """Return the number of this start of a member, greater than all before it, and keep it. From a file that is lost or
    damaged it begins anew, and learns the later number from the others. Raises StorageError.
    """
    path = folder / LIFE_NAME
    try:
        text = path.read_text(encoding="ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        text = ""
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error
    life = 1 + (int(text) if text.isdecimal() and len(text) < MOST_DIGITS else 0)
    with storage_errors(path):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(path, [str(life).encode()])
    return life


def _end(raw: bytes, start: int) -> int | None:
    """Where the record that begins there ends; None: it is cut off."""
    head = start + DIGEST_BYTES + COUNT_BYTES
    end = head + NAME_BYTES * int.from_bytes(raw[head - COUNT_BYTES : head], "little") + CHECK_BYTES
    return end if head <= len(raw) and end <= len(raw) else None


def _check(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=CHECK_BYTES, person=b"p2pfl-sums-kept").digest()
