"""The bound by which a site has answered about each of its tables: two answers with different bounds have different
bins, whose difference could tell of fewer rows than either shows.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from p2pfl.errors import StorageError, UserError
from p2pfl.foreign import UNREADABLE
from p2pfl.storage.disk import replace_file, storage_errors

FILE_NAME = "stats.bounds"
MOST_KEPT = 50


def keep_bound(folder: Path, data: bytes, least_rows: int) -> None:
    """Remember the bound for the table with this digest. Raises UserError: it was answered about with another one;
    StorageError.
    """
    path = folder / FILE_NAME
    try:
        kept = msgspec.msgpack.decode(path.read_bytes(), type=dict[bytes, int])
    except FileNotFoundError:
        kept = {}
    except (OSError, *UNREADABLE) as error:
        raise StorageError(f"{path} cannot be read: {error}") from error
    before = kept.get(data)
    if before is not None and before != least_rows:
        text = (
            f"least_rows was {before} in an earlier question about the same table: two answers could tell of few rows"
        )
        raise UserError(text, key="stats.least_rows", value=least_rows, allowed=f"{before}, the most of all sites")
    if before is None:
        kept[data] = least_rows
        with storage_errors(path):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, [msgspec.msgpack.encode(dict([*kept.items()][-MOST_KEPT:]))])
