"""The folder of a sweep: a report for each finished run, a note for each failed one, and the results so far.

A file is there as a whole or not at all: written aside, flushed and renamed. One sweep at a time holds the folder.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from p2pfl.errors import StorageError, UserError
from sim.sweeps.model import Job

RUNS, FAILURES, LOCK = "runs", "failures", "lock"
RESULTS_JSON, RESULTS_CSV = "results.json", "results.csv"


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder where it is not there, and keep other sweeps out of it; a dead one holds nothing.
        Raises UserError: another sweep runs in it, it is something else's folder, or it cannot be made.
        """
        self._make()
        with (self.path / LOCK).open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                text = "another sweep is at work in this folder"
                raise UserError(text, key="--out", value=str(self.path), allowed="another folder, or wait") from None
            for left in [*self.path.glob("*.part"), *self.path.glob("*/*.part")]:
                left.unlink()
            yield

    def _make(self) -> None:
        wanted = "a new folder, or that of a sweep"
        if self.path.is_dir() and any(self.path.iterdir()) and not (self.path / RUNS).is_dir():
            raise UserError("is not a sweep's folder", key="--out", value=str(self.path), allowed=wanted)
        try:
            (self.path / RUNS).mkdir(parents=True, exist_ok=True)
            (self.path / FAILURES).mkdir(exist_ok=True)
        except OSError as error:
            text = f"cannot be made: {error.strerror}"
            raise UserError(text, key="--out", value=str(self.path), allowed=wanted) from None

    def report(self, key: str) -> bytes | None:
        return _read(self._place(RUNS, key))

    def keep_report(self, job: Job, report: bytes) -> None:
        """A run that failed before has not failed any more."""
        replace(self._place(RUNS, job.key), report)
        self.forget_failure(job.key)

    def failure(self, key: str) -> str | None:
        """Why the run failed, in one line."""
        found = _read(self._place(FAILURES, key))
        with suppress(ValueError, KeyError, TypeError):
            return None if found is None else str(json.loads(found)["reason"])
        return "unknown: its note cannot be read"

    def keep_failure(self, job: Job, reason: str, trace: str | None) -> None:
        note = {"reason": reason, "seed": job.seed, "options": dict(job.options), "trace": trace}
        replace(self._place(FAILURES, job.key), json.dumps(note, indent=1, default=str).encode())

    def forget_failure(self, key: str) -> None:
        self._place(FAILURES, key).unlink(missing_ok=True)

    def _place(self, part: str, key: str) -> Path:
        return self.path / part / f"{key}.json"


def replace(path: Path, content: bytes) -> None:
    """Replace the whole file or leave the old one, power loss included. Raises StorageError: the disk refused."""
    aside = path.with_name(f".{path.name}.part")
    try:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
        _sync(path.parent)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error


def _sync(folder: Path) -> None:
    """Renames are durable only when their folder is."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
