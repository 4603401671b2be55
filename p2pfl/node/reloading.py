"""Reads a node's data again between its rounds, so that n grows with them while it runs.

A file is read once it has stopped changing: it must look the same twice, `SETTLED_S` apart, and again after it was
read. Whatever is wrong with it, the node goes on with the data that it has.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from p2pfl.errors import P2PFLError
from p2pfl.learn.interface import Learner
from p2pfl.learn.reloading import Mark, Reloads, mark_of, reloads
from p2pfl.plugins import FAILURES, describe_failure

log = logging.getLogger("p2pfl")

SETTLED_S = 2.0
"""A file that has not changed for so long counts as complete."""


@dataclass(frozen=True, slots=True)
class DataNews:
    """A change of the data: they were replaced, or they were `refused`."""

    text: str
    refused: bool = False
    counts: str = field(default="", compare=False)
    """The number of rows before and now, if it has changed: all that a node with a privacy budget reports."""


@dataclass(slots=True, eq=False)
class Reloading:
    """Reads data again when their files have changed; `look` runs between two rounds, in the thread that trains."""

    learner: Reloads
    every_s: float
    clock: Callable[[], float] = time.monotonic
    due_s: float = field(init=False)
    """The time at which files are checked next."""
    handled: Mark | None = None
    """The mark of the files when they were last read; they may have changed since the node's start read them."""
    seen: Mark | None = None
    """The latest mark of the files."""
    refusal: str = ""
    """The mistake in the present files; empty while there is none."""

    def __post_init__(self) -> None:
        self.due_s = self.clock() + self.every_s

    def look(self) -> DataNews | None:
        """Read the data again if it is time for that and they have changed; return the news, if any."""
        if self.clock() < self.due_s:
            return None
        self.due_s = self.clock() + self.every_s
        try:
            return self._look()
        except P2PFLError as error:
            return self._refuse(str(error))
        except FAILURES as error:
            return self._refuse(describe_failure(error))

    def _look(self) -> DataNews | None:
        files = self.learner.data_files()
        if files is None:
            return self._read()
        mark = mark_of(files)
        if mark == self.handled:
            return None
        if mark != self.seen:
            self._wait_until_settled(mark)
            return None
        self.handled = mark
        return self._read()

    def _wait_until_settled(self, mark: Mark) -> None:
        self.seen = mark
        self.due_s = min(self.due_s, self.clock() + SETTLED_S)

    def _read(self) -> DataNews | None:
        before, n = self.learner.data_sets, self.learner.samples
        found = self.learner.read_again()
        files = self.learner.data_files()
        if files is not None and mark_of(files) != self.handled:
            log.info("the data changed while they were read: reading them again")
            self.handled = None
            self._wait_until_settled(mark_of(files))
            return None
        self.learner.adopt(found)
        was_refused, self.refusal = bool(self.refusal), ""
        if not (was_refused or found.differ_from(before)):
            return None
        text = f"{n} to {self.learner.samples} samples"
        counts = "" if n == self.learner.samples else text
        if not found.compare_with(before):
            text += "; rows of the test set are others than before, so that scores do not compare with earlier ones"
        return DataNews(text, counts=counts)

    def _refuse(self, text: str) -> DataNews | None:
        """Report a mistake once: the same one is found again until a person corrects it."""
        text = f"{' '.join(text.split())}; the node goes on with the {self.learner.samples} samples that it has"
        if text == self.refusal:
            return None
        self.refusal = text
        return DataNews(text, refused=True)


def reloading_of(learner: Learner, every_s: float | None) -> Reloading | None:
    """Return None if the node reads its data at its start alone.

    Raises UserError: the learner cannot read them again.
    """
    return None if every_s is None else Reloading(reloads(learner, every_s), every_s)
