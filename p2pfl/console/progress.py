"""The progress of a command or a program: one line of words, with a bar on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import click

from p2pfl.console.output import size
from p2pfl.learn.metrics import Measure
from p2pfl.reporting.history import Point
from p2pfl.reporting.measures import in_words


class ProgressView:
    """Words on stderr: in one line with a bar on a terminal, elsewhere now and then in a line of their own."""

    bar_width: ClassVar[int] = 40
    line_every_s: ClassVar[float] = 10.0

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.bar: Any = None
        self.task: Any = None
        if not quiet and sys.stderr.isatty():
            self.bar, self.task = _bar(self.bar_width)
        self.printed_at = time.monotonic()

    def __enter__(self) -> Self:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def show(self, words: str, done: float, total: float | None, *, due: bool = False) -> None:
        """Show how much of the `total`, if that is known, is done; in a line if one is `due`, or the last is old."""
        if self.bar is not None:
            self.bar.update(self.task, total=total, completed=min(done, total or 0), words=words)
        elif not self.quiet and (due or time.monotonic() - self.printed_at >= self.line_every_s):
            self.printed_at = time.monotonic()
            click.echo(words, err=True)


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
