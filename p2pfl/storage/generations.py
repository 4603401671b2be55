"""File names: `snapshot-00000007` and the log that continues it, `log-00000007`."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from p2pfl.errors import StorageError
from p2pfl.storage.disk import discard

_NAME = re.compile(r"(snapshot|log)-(\d{8,19})(\.tmp)?")


def snapshot_path(folder: Path, generation: int) -> Path:
    return folder / f"snapshot-{generation:08d}"


def log_path(folder: Path, generation: int) -> Path:
    return folder / f"log-{generation:08d}"


def snapshots(folder: Path) -> list[int]:
    """Generations that have a snapshot, whole or not, oldest first."""
    return sorted(generation for stem, generation, part in _files(folder) if stem == "snapshot" and not part)


def logs(folder: Path) -> list[int]:
    return sorted(generation for stem, generation, part in _files(folder) if stem == "log" and not part)


def newest(folder: Path) -> int:
    """The highest generation in use, 0 for none."""
    return max((generation for _, generation, _ in _files(folder)), default=0)


def discard_unfinished(folder: Path) -> None:
    for stem, generation, part in _files(folder):
        if part:
            discard(folder / f"{stem}-{generation:08d}.tmp")


def discard_before(folder: Path, generation: int) -> bool:
    """Whether there was anything. What cannot be removed now does no harm and is tried again later."""
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
