"""How far a run or a sweep is, on stderr.

A bar on a terminal, a line now and then elsewhere, nothing where quiet is wanted.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import click

if TYPE_CHECKING:
    from sim.simulation import RunProgress
    from sim.sweeps.run import SweepStanding

FORESEEABLE_FROM = 0.02
"""The time left is shown after this share of the rounds."""


class ProgressView:
    """What is shown of anything: one line of words, and a bar where there is a terminal."""

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


class RunView(ProgressView):
    line_every_s: ClassVar[float] = 5.0
    bar_width: ClassVar[int] = 20

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__(quiet=quiet)
        self.latest: RunProgress | None = None
        self.started_at = self.printed_at = time.monotonic()

    def update(self, progress: RunProgress) -> None:
        now = time.monotonic()
        again = self.latest is not None and progress.rounds < self.latest.rounds
        if self.latest is None:
            self.started_at = now  # setting up says nothing about the time left
        self.latest = progress
        if self.quiet:
            return
        if again:
            self.started_at = now
            click.echo("a message may be refused: begun again, one operation at a time", err=True)
        words = run_in_words(progress, now - self.started_at)
        if self.bar is not None:
            total = progress.rounds_to_do
            self.bar.update(self.task, total=total, completed=min(progress.rounds, total or 0), words=words)
        elif now - self.printed_at >= self.line_every_s:
            self.printed_at = now
            click.echo(words, err=True)


class SweepView(ProgressView):
    line_every_s: ClassVar[float] = 10.0

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__(quiet=quiet)
        self.printed_at: float | None = None

    def update(self, standing: SweepStanding) -> None:
        if self.bar is not None:
            ended = standing.done + standing.failed
            self.bar.update(self.task, total=standing.total, completed=ended, words=sweep_in_words(standing))
        elif not self.quiet and self._due(standing):
            self.printed_at = time.monotonic()
            click.echo(sweep_in_words(standing), err=True)

    def _due(self, standing: SweepStanding) -> bool:
        """The first and the last always."""
        return not standing.left or self.printed_at is None or time.monotonic() - self.printed_at >= self.line_every_s


def run_in_words(progress: RunProgress, elapsed_s: float) -> str:
    done, total = progress.rounds, progress.rounds_to_do
    parts = [f"{done:,} of {total:,} rounds" if total else f"{done:,} rounds", f"{progress.time_s:.4g} virtual s"]
    point = progress.point
    if point is not None and point.accuracy is not None:
        parts.append(f"accuracy {point.accuracy.mean:.3f} (worst {point.accuracy.min:.3f})")
    elif point is not None and point.loss is not None:
        parts.append(f"loss {point.loss.mean:.4g}")
    if total and done >= total:
        parts.append("closing")
    elif total and done > FORESEEABLE_FROM * total:
        parts.append(f"{duration(elapsed_s * (total - done) / done)} left")
    return ", ".join(parts)


def sweep_in_words(standing: SweepStanding) -> str:
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


def _bar(width: int) -> tuple[Any, Any]:
    from rich.console import Console  # noqa: PLC0415 - only for who has a terminal
    from rich.progress import BarColumn, TextColumn  # noqa: PLC0415 - as above
    from rich.progress import Progress as Bar  # noqa: PLC0415 - as above

    columns = (BarColumn(bar_width=width), TextColumn("{task.fields[words]}", markup=False))
    bar = Bar(*columns, console=Console(stderr=True), transient=True)
    return bar, bar.add_task("", total=None, words="setting up")
