"""The progress of a command or a program: one line of words, with a bar on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any, ClassVar, Self

from p2pfl.console.output import size
from p2pfl.learn.metrics import Measure
from p2pfl.reporting.history import Point
from p2pfl.reporting.measures import in_words, measures_of


class ProgressView:
    """The progress of a command: one line of words, and a bar on a terminal."""

    bar_width: ClassVar[int] = 40

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.bar: Any = None
        self.task: Any = None
        if not quiet and sys.stderr.isatty():
            self.bar, self.task = _bar(self.bar_width)

    def __enter__(self) -> Self:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()


class PointView(ProgressView):
    """Shows on a terminal how far real nodes are, each of which trains so many `rounds`, if that is known."""

    bar_width: ClassVar[int] = 20

    def __init__(self, rounds: int | None, *, quiet: bool = False) -> None:
        super().__init__(quiet=quiet)
        self.rounds = rounds

    def update(self, point: Point) -> None:
        if self.bar is not None:
            done = 0.0 if point.rounds is None else point.rounds.mean
            words = point_in_words(point, measures_of([point]))
            self.bar.update(self.task, total=self.rounds, completed=min(done, self.rounds or 0), words=words)


def silent(_progress: Any) -> None:
    """Show no progress; for programs whose runs are a part of something larger."""


def point_in_words(point: Point, measures: Sequence[Measure]) -> str:
    parts = [f"{point.time_s:6.1f} s"]
    if point.rounds is not None:
        parts.append(f"round {point.rounds.mean:.0f}")
    if learned := in_words(point, measures):
        parts.append(learned)
    if point.consensus_distance is not None:
        parts.append(f"apart {point.consensus_distance:.2e}")
    parts.append(f"sent {size(point.bytes_sent or 0)}")
    return ", ".join(parts)


def _bar(width: int) -> tuple[Any, Any]:
    from rich.console import Console  # noqa: PLC0415 - only for who has a terminal
    from rich.progress import BarColumn, TextColumn  # noqa: PLC0415 - as above
    from rich.progress import Progress as Bar  # noqa: PLC0415 - as above

    columns = (BarColumn(bar_width=width), TextColumn("{task.fields[words]}", markup=False))
    # what is printed to a file or a pipe meanwhile must not go to the terminal
    bar = Bar(*columns, console=Console(stderr=True), transient=True, redirect_stdout=sys.stdout.isatty())
    return bar, bar.add_task("", total=None, words="setting up")
