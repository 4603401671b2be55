"""A node's sums beside its state folder: those of a node that learns, or over sessions for sums alone.

What a member has signed is kept, so that it remembers the sets of members after a restart. The file grows by one record
for each sum, flushed to disk before the signature leaves the node. A record is the digest of the data (32 bytes), the
number of members (4), a name of each by its key (16), and a checksum (8): rows of a federation may change places, keys
do not. A crash can leave the last record cut off; it was never acted on, and is removed at the next start.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from p2pfl.config.charter import federation_id
from p2pfl.config.model import FederationConfig, NodeConfig
from p2pfl.crypto.identity import Identity
from p2pfl.errors import StorageError, UserError
from p2pfl.features.sums.messages import SumSettings, quorum
from p2pfl.features.sums.protocol import Sums
from p2pfl.features.sums.records import SumHistory
from p2pfl.features.sums.setup import Draw
from p2pfl.features.sums.talk import SendMessage, SumTalk
from p2pfl.storage.disk import create_file, lock_folder, replace_file, storage_errors, truncate_file, write_all
from p2pfl.system import BINARY, NO_FOLLOW, make_folder, sync

FILE_NAME = "sums"
DIGEST_BYTES, COUNT_BYTES, NAME_BYTES, CHECK_BYTES = 32, 4, 16, 8

LIFE_NAME = "sums.life"
MOST_DIGITS = 15
"""A longer number was not written here."""

MOST_BODY_BYTES = 64 * 1024
"""There is no gossip on sessions for sums alone."""
SHARE_S = 0.2
"""Before anything was measured, nodes that may share a machine wait this much longer for each member."""

MOST_NAMED = 8
"""The members that a short text names."""
KeptRecord = tuple[bytes, frozenset[int]]


class KeptSums:
    """`keys` are those of all members, by index; who is none any more has one beyond them. Raises StorageError."""

    def __init__(self, folder: Path, keys: Sequence[bytes] = ()) -> None:
        self._path = folder / FILE_NAME
        self._names = [hashlib.blake2b(key, digest_size=NAME_BYTES, person=b"p2pfl-sums-name").digest() for key in keys]
        self._index_of = {name: index for index, name in enumerate(self._names)}
        self.past: list[KeptRecord] = []
        """All that was kept, in order."""
        self._size = 0
        self._read(self._path)
        self._history = SumHistory(0, self.past)

    def add(self, data: bytes, members: frozenset[int]) -> None:
        """Keep a record, if it says anything new; it is on the disk when this returns. Raises StorageError."""
        if not self._history.adds(data, members):
            return
        self._size = append_record(self._path, self._size, self._packed(data, members))
        self.past.append((data, members))
        self._history.keep(data, members)

    def _read(self, path: Path) -> None:
        with storage_errors(path):
            make_folder(path.parent)
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            create_file(path, b"")
            return
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error.strerror or error}") from error
        while self._size < len(raw):
            end = _end(raw, self._size)
            record = None if end is None else self._unpacked(raw[self._size : end])
            if record is None:
                if end is not None and end < len(raw):
                    text = "is damaged: without it this node might sign two sums whose difference is one summand"
                    raise StorageError(f"{path} {text}")
                truncate_file(path, self._size)
                return
            self.past.append(record)
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


def append_record(path: Path, size_bytes: int, record: bytes) -> int:
    """Add a record to a file of this size; it is on the disk when this returns the new size. Raises StorageError."""
    try:
        with storage_errors(path):
            fd = os.open(path, os.O_WRONLY | os.O_APPEND | BINARY | NO_FOLLOW)
            try:
                write_all(fd, record)
                sync(fd)
            finally:
                os.close(fd)
    except StorageError:
        truncate_file(path, size_bytes)
        raise
    return size_bytes + len(record)


def next_life(folder: Path) -> int:
    """Return the number of this start, greater than all before, and keep it; 1 if lost. Raises StorageError."""
    path = folder / LIFE_NAME
    try:
        text = path.read_text(encoding="ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        text = ""
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error
    life = 1 + (int(text) if text.isdecimal() and len(text) < MOST_DIGITS else 0)
    with storage_errors(path):
        make_folder(folder)
    replace_file(path, [str(life).encode()])
    return life


def _end(raw: bytes, start: int) -> int | None:
    """Return the end of the record that begins there; None: it is cut off."""
    head = start + DIGEST_BYTES + COUNT_BYTES
    end = head + NAME_BYTES * int.from_bytes(raw[head - COUNT_BYTES : head], "little") + CHECK_BYTES
    return end if head <= len(raw) and end <= len(raw) else None


def _check(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=CHECK_BYTES, person=b"p2pfl-sums-kept").digest()


def groups_of(federation: FederationConfig) -> tuple[frozenset[int], ...]:
    """Return the groups of which sums are where models are hidden: of colluders + 2 members or a few more, by index."""
    if federation.hides is None:
        return ()
    present = [member.index for member in federation.present]
    count = max(1, len(present) // (federation.hides.colluders + 2))
    bounds = [len(present) * number // count for number in range(count + 1)]
    return tuple(frozenset(present[start:end]) for start, end in pairwise(bounds))


def settings_of(federation: FederationConfig, index: int, *, life: int = 1, **numbers: Any) -> SumSettings:
    """Return the settings of a member's sums; by default they are of its first life."""
    keys = tuple(member.key for member in federation.members)
    return SumSettings(federation=federation_id(federation), members=keys, index=index, life=life, **numbers)


def refuse_few(federation: FederationConfig, *, least: int, colluders: int) -> None:
    """Raises UserError: the members that are there are too few for a sum of so many."""
    count, present = len(federation.members), len(federation.present)
    if count < 3:
        raise UserError("too few nodes for a secure sum: of two, each knows the other's part", value=count)
    if present < max(least, quorum(count, colluders)):
        raise UserError(f"{count - present} of {count} members were removed, and the others are too few for a sum")


def names_of(federation: FederationConfig, members: Iterable[int]) -> str:
    names = [federation.members[member].name for member in sorted(members)]
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


@contextmanager
def alone(node: NodeConfig) -> Iterator[None]:
    """Hold the node's state folder. Raises UserError: a process has it, or it cannot be used."""
    try:
        held = lock_folder(node.state_dir)
    except UserError as error:
        if "in use" in error.message:
            text = f"{node.name} runs, or sums, at this moment"
            raise UserError(text, allowed="one sum at a time, of a node that does not run") from error
        raise
    try:
        yield
    finally:
        os.close(held)


def sum_talk(
    settings: SumSettings,
    identity: Identity,
    kept: KeptSums,
    say: SendMessage,
    *,
    first_wait_s: float,
    alarm: Callable[[str, int | None, str], object],
    draw: Draw = os.urandom,
    meter: Callable[[], float] = time.thread_time,
) -> SumTalk:
    """This node's part in sums. `first_wait_s` is how long to wait before anything was measured."""
    sums = Sums(settings, identity, draw=draw, past=kept.past, first_wait_s=first_wait_s)
    return SumTalk(sums, say, keep=kept.add, alarm=alarm, meter=meter)
