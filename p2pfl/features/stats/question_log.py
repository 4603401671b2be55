"""The log of all questions at one site: a line of JSON for each, on the disk before the answer leaves.

How often a member may ask is counted from this file, and so are the serials of its questions.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from p2pfl.errors import StorageError
from p2pfl.foreign import UNREADABLE
from p2pfl.storage.disk import create_file, storage_errors, truncate_file, write_all

FILE_NAME = "stats.log"
DAY = timedelta(hours=24)
ANSWERED, REFUSED = "answered", "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One question. `asker` is a member's name; empty: a program with the folders of all sites."""

    time: datetime
    asker: str
    serial: int
    columns: tuple[str, ...]
    by: str | None
    answer: str
    """ANSWERED or REFUSED."""
    reason: str = ""


class QuestionLog:
    """The log in a node's state folder. Raises StorageError: it is damaged, or the disk refuses."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self.lines: list[LogLine] = []
        with storage_errors(self._path):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._size = 0
        self._read()

    def add(self, line: LogLine) -> None:
        """Keep a line; it is on the disk when this returns. Raises StorageError."""
        facts = asdict(line) | {"time": line.time.isoformat(timespec="seconds"), "columns": list(line.columns)}
        content = json.dumps(facts, ensure_ascii=False).encode() + b"\n"
        try:
            with storage_errors(self._path):
                fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
                try:
                    write_all(fd, content)
                    os.fsync(fd)
                finally:
                    os.close(fd)
        except StorageError:
            truncate_file(self._path, self._size)
            raise
        self._size += len(content)
        self.lines.append(line)

    def serial(self, asker: str) -> int:
        """Return the greatest serial of a member's questions; 0 if it has asked none."""
        return max((line.serial for line in self.lines if line.asker == asker), default=0)

    def today(self, asker: str, now: datetime, answer: str) -> int:
        """Count a member's questions of the last 24 hours, and any that the clock says are to come."""
        return sum(line.asker == asker and line.answer == answer and line.time > now - DAY for line in self.lines)

    def _read(self) -> None:
        try:
            raw = self._path.read_bytes()
        except FileNotFoundError:
            create_file(self._path, b"")
            return
        except OSError as error:
            raise StorageError(f"cannot read {self._path}: {error.strerror or error}") from error
        whole = raw[: raw.rfind(b"\n") + 1]
        if len(whole) < len(raw):  # a crash cut the last line off, before its answer left
            truncate_file(self._path, len(whole))
        self._size = len(whole)
        for number, content in enumerate(whole.splitlines(), start=1):
            try:
                self.lines.append(_line_of(json.loads(content)))
            except (TypeError, *UNREADABLE) as error:
                text = f"{self._path}:{number} is damaged ({error}): without it nobody knows how often was asked"
                raise StorageError(text) from None


def _line_of(facts: Any) -> LogLine:
    line = msgspec.convert(facts, LogLine)
    return line if line.time.tzinfo else replace(line, time=line.time.replace(tzinfo=UTC))
