"""How far a run is, on stderr: a bar on a terminal, a line now and then elsewhere, nothing where quiet is wanted."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self

import click

from sim.simulation import Progress
from sim.sweep.progress import duration

LINE_EVERY_S = 5.0
FORESEEABLE_FROM = 0.02
"""share of the rounds after which the time left is told."""


class ProgressView:
    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.latest: Progress | None = None
        self.started_at = self.printed_at = time.monotonic()
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

    def update(self, progress: Progress) -> None:
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
        words = in_words(progress, now - self.started_at)
        if self.bar is not None:
            total = progress.rounds_to_do
            self.bar.update(self.task, total=total, completed=min(progress.rounds, total or 0), words=words)
        elif now - self.printed_at >= LINE_EVERY_S:
            self.printed_at = now
            click.echo(words, err=True)


def in_words(progress: Progress, elapsed_s: float) -> str:
    done, total = progress.rounds, progress.rounds_to_do
    parts = [f"{done:,} of {total:,} rounds" if total else f"{done:,} rounds", f"{progress.time_s:.4g} virtual s"]
    point = progress.point or {}
    if point.get("accuracy"):
        parts.append(f"accuracy {point['accuracy']['mean']:.3f} (worst {point['accuracy']['min']:.3f})")
    elif point.get("loss"):
        parts.append(f"loss {point['loss']['mean']:.4g}")
    if total and done >= total:
        parts.append("closing")
    elif total and done > FORESEEABLE_FROM * total:
        parts.append(f"{duration(elapsed_s * (total - done) / done)} left")
    return ", ".join(parts)


def _bar() -> tuple[Any, Any]:
    from rich.console import Console  # noqa: PLC0415 - only for who has a terminal
    from rich.progress import BarColumn, TextColumn  # noqa: PLC0415 - as above
    from rich.progress import Progress as Bar  # noqa: PLC0415 - as above

    columns = (BarColumn(bar_width=20), TextColumn("{task.fields[words]}", markup=False))
    bar = Bar(*columns, console=Console(stderr=True), transient=True)
    return bar, bar.add_task("", total=None, words="setting up")
