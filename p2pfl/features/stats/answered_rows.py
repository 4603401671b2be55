"""The tables about which a site has answered, as keyed hashes of their rows, so that no two differ by a few rows.

Whoever gets the same figures before and after one row was added learns that row. So a table that differs from one of
those by too few rows is not answered about, in all its rows or in a group.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from p2pfl.errors import StorageError
from p2pfl.foreign import UNREADABLE
from p2pfl.storage.disk import replace_file, storage_errors

FILE_NAME = "stats.rows"
HASH_BYTES = 16
MOST_KEPT = 50
"""The latest tables that are remembered."""

Rows = Counter[bytes]


class AnsweredTable(Struct, frozen=True, kw_only=True, array_like=True):
    """Hashes of rows, one after the other, by value in the column of the groups; with none there is one group."""

    by: str | None
    groups: dict[int, bytes]


@dataclass(frozen=True, slots=True)
class HashedTable:
    """The rows of a table in each group."""

    by: str | None
    groups: Mapping[int, Rows]

    @property
    def rows(self) -> Rows:
        return sum(self.groups.values(), Counter())

    @property
    def digest(self) -> bytes:
        """32 bytes by which sums of these rows are known, whatever is asked about them."""
        hashes = b"".join(sorted(self.rows.elements()))
        return hashlib.blake2b(hashes, digest_size=32, person=b"p2pfl-stats-rows").digest()


def hashed(columns: Mapping[str, NDArray[np.float64]], by: str | None, key: bytes) -> HashedTable:
    """Hash each row of columns (n,) with a key of the site."""
    table = np.ascontiguousarray(np.stack([columns[name] for name in sorted(columns)], axis=1))
    groups = np.zeros(len(table)) if by is None else np.nan_to_num(columns[by], nan=-1.0)
    found: dict[int, Rows] = {}
    for row, group in zip(table, groups.astype(np.int64).tolist(), strict=True):
        name = hashlib.blake2b(row.tobytes(), digest_size=HASH_BYTES, key=key).digest()
        found.setdefault(group, Counter())[name] += 1
    return HashedTable(by, found)


class AnsweredRows:
    """What is kept in a node's state folder. Raises StorageError: it is damaged, or cannot be read."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._tables: list[HashedTable] = []
        try:
            kept = msgspec.msgpack.decode(self._path.read_bytes(), type=list[AnsweredTable])
        except FileNotFoundError:
            return
        except (OSError, *UNREADABLE) as error:
            text = "without it a question might tell of the few rows by which the table has changed"
            raise StorageError(f"{self._path} cannot be read: {error}: {text}") from error
        self._tables = [_unpacked(one) for one in kept]

    def is_too_near(self, table: HashedTable, least_rows: int) -> bool:
        """Return True if this table differs from an earlier one by fewer rows, but not by none."""
        return any(_differ_by_few(table, before, least_rows) for before in self._tables)

    def keep(self, table: HashedTable) -> None:
        """Remember a table; it is on the disk when this returns. Raises StorageError."""
        if table in self._tables:
            return
        self._tables = [*self._tables, table][-MOST_KEPT:]
        with storage_errors(self._path):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(self._path, [msgspec.msgpack.encode([_packed(one) for one in self._tables])])


def _differ_by_few(table: HashedTable, before: HashedTable, least_rows: int) -> bool:
    if _is_few(table.rows, before.rows, least_rows):
        return True
    groups = table.groups.keys() | before.groups.keys() if table.by == before.by else ()
    none = Rows()
    return any(_is_few(table.groups.get(one, none), before.groups.get(one, none), least_rows) for one in groups)


def _is_few(now: Rows, before: Rows, least_rows: int) -> bool:
    return 0 < max((now - before).total(), (before - now).total()) < least_rows


def _packed(table: HashedTable) -> AnsweredTable:
    groups = {group: b"".join(sorted(rows.elements())) for group, rows in sorted(table.groups.items())}
    return AnsweredTable(by=table.by, groups=groups)


def _unpacked(kept: AnsweredTable) -> HashedTable:
    found = {}
    for group, raw in kept.groups.items():
        found[group] = Counter(raw[at : at + HASH_BYTES] for at in range(0, len(raw), HASH_BYTES))
    return HashedTable(kept.by, found)
