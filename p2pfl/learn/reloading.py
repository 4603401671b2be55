"""Data that grow while a node runs: what a learner must offer, and whether files have changed.

`node.reloading` decides when they are read again, and reports it.
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
"""The last change in ns, the size in bytes and the inode number of each file; None: it does not exist."""


@runtime_checkable
class Reloads(Protocol):
    """A learner that can read its node's data again, between two of its rounds."""

    samples: int

    @property
    def data_sets(self) -> DataSets:
        """The data sets in use."""
        ...

    def data_files(self) -> tuple[Path, ...] | None:
        """The files behind the data sets; None if unknown. Raises UserError: the task's own code fails."""
        ...

    def read_again(self) -> DataSets:
        """Read the present data and check them as at the start; those in use stay. Raises UserError: they are wrong."""
        ...

    def adopt(self, sets: DataSets) -> None:
        """Learn from these from now on, and be tested on them."""
        ...


def reloads(learner: Learner, every_s: float) -> Reloads:
    """The learner as one that reads its data again every `every_s` seconds. Raises UserError: it cannot."""
    if not isinstance(learner, Reloads):
        text = "the learner of this task cannot read its data again"
        raise UserError(text, key=KEY, value=every_s, allowed="no reload_s with this task")
    if learner.data_files() == ():
        text = "this task does not read its data from files of this node alone, so nothing can be read again"
        raise UserError(text, key=KEY, value=every_s, allowed="a `path` in [data], whose rows are all this node's")
    return learner


def files_of(task: Task, context: NodeContext) -> tuple[Path, ...] | None:
    """The files behind a node's data; None: the task does not say. Raises UserError: its function fails."""
    if task.files is None:
        return None
    try:
        return tuple(Path(file) for file in task.files(context))
    except UserError:
        raise
    except FAILURES as error:
        raise UserError(f"files failed: {describe_failure(error)}", file=task.name, key="files") from error


def mark_of(files: Iterable[Path]) -> Mark:
    """A mark that changes as soon as one of the files is written to or replaced."""
    return tuple(_mark(file) for file in files)


def _mark(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
