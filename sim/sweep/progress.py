"""How far a sweep is, on stderr: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self

import click

from sim.sweep.run import Standing

LINE_EVERY_S = 10.0


class ProgressView:
    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.printed_at: float | None = None
        self.bar: Any = None
        self.task: Any = None
        if not quiet and sys.stderr.isatty():
            self.bar, self.task = _bar()

    def __enter__(self) -> Self:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def update(self, standing: Standing) -> None:
        if self.bar is not None:
            ended = standing.done + standing.failed
            self.bar.update(self.task, total=standing.total, completed=ended, words=in_words(standing))
        elif not self.quiet and self._due(standing):
            self.printed_at = time.monotonic()
            click.echo(in_words(standing), err=True)

    def _due(self, standing: Standing) -> bool:
        """The first and the last always."""
        return not standing.left or self.printed_at is None or time.monotonic() - self.printed_at >= LINE_EVERY_S


def in_words(standing: Standing) -> str:
    failed = f", {standing.failed} failed" if standing.failed else ""
    text = f"{standing.done} of {standing.total} runs done{failed}"
    if standing.left and standing.time_left_s is not None:
        text += f", {duration(standing.time_left_s)} left"
    return text


def duration(seconds: float) -> str:
    """Two units at most: `40 s`, `12 min`, `3 h 20 min`."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _bar() -> tuple[Any, Any]:
    from rich.console import Console  # noqa: PLC0415 - only for who has a terminal
    from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415 - as above

    bar = Progress(BarColumn(), TextColumn("{task.fields[words]}"), console=Console(stderr=True), transient=True)
    return bar, bar.add_task("", total=None, words="")
