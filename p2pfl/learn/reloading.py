"""Data that grow while a node runs: the interface that a learner must provide, and the check whether files have
changed.

`node.learner_runner` decides when to read them again, and reports it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from p2pfl.errors import UserError
from p2pfl.learn.interface import Learner
from p2pfl.learn.task import NodeContext, Task
from p2pfl.plugins import FAILURES, describe_failure

if TYPE_CHECKING:
    from p2pfl.learn.samples import DataSets

KEY = "data.reload_s"

Mark = tuple[tuple[int, int, int] | None, ...]
"""The last change (ns), size (bytes) and inode number of each file; None for a file that does not exist."""


@runtime_checkable
class Reloads(Protocol):
    """A learner that can read its node's data again between rounds."""

    samples: int

    @property
    def data_sets(self) -> DataSets:
        """Return the data sets in use."""
        ...

    def data_files(self) -> tuple[Path, ...] | None:
        """Return the files that the data sets come from, or None if unknown. Raises UserError: the task's own code
        fails.
        """
        ...

    def read_again(self) -> DataSets:
        """Read the current data and check them as at the start; the data sets in use do not change. Raises UserError:
        the data are wrong.
        """
        ...

    def adopt(self, sets: DataSets) -> None:
        """Train and test on these sets from now on."""
        ...


def reloads(learner: Learner, every_s: float) -> Reloads:
    """Return the learner if it can read its data again every `every_s` seconds. Raises UserError: it cannot."""
    if not isinstance(learner, Reloads):
        text = "the learner of this task cannot read its data again"
        raise UserError(text, key=KEY, value=every_s, allowed="no reload_s with this task")
    if learner.data_files() == ():
        text = "this task does not read its data from files of this node alone, so they cannot be read again"
        raise UserError(text, key=KEY, value=every_s, allowed="a `path` in [data], whose rows are all this node's")
    return learner


def files_of(task: Task, context: NodeContext) -> tuple[Path, ...] | None:
    """Return the files that a node's data come from, or None if the task does not name them. Raises UserError: the
    task's function fails.
    """
    if task.files is None:
        return None
    try:
        return tuple(Path(file) for file in task.files(context))
    except UserError:
        raise
    except FAILURES as error:
        raise UserError(f"files failed: {describe_failure(error)}", file=task.name, key="files") from error


def mark_of(files: Iterable[Path]) -> Mark:
    """Return a mark that changes whenever one of the files is written to or replaced."""
    return tuple(_mark(file) for file in files)


def _mark(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
