"""The progress of a run on stderr: a bar on a terminal, an occasional line elsewhere, and nothing if it is quiet.

How a process of ours ended, in words.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import click

from p2pfl.console.output import ProgressView
from p2pfl.learn.metrics import Measure
from p2pfl.reporting.measures import Point, in_words
from p2pfl.system import KILL

FORESEEABLE_FROM = 0.02
"""The time left is shown after this fraction of the rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgress:
    """The progress of a run: `rounds` of all nodes together, of `rounds_to_do`, None if not known beforehand."""

    time_s: float
    rounds: int
    rounds_to_do: int | None
    point: Point | None
    """The latest entry of the history."""
    measures: Sequence[Measure] = ()
    """The task's measures, the main one first; empty until they are known."""
    foreseen: str | None = None
    """The time and memory that the run will take, said once before it begins."""


def silent(_progress: RunProgress) -> None:
    """Show nothing, as `on_progress` of a run: it then measures nothing to foresee its time either."""


class RunView(ProgressView):
    line_every_s: ClassVar[float] = 5.0

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__(quiet=quiet)
        self.latest: RunProgress | None = None
        self.started_at = time.monotonic()

    def update(self, progress: RunProgress) -> None:
        now = time.monotonic()
        if self.latest is None:
            self.started_at = now  # setting up says nothing about the time left
        self.latest = progress
        if self.quiet:
            return
        if progress.foreseen is not None:
            click.echo(self.anew + progress.foreseen, err=True)
            return
        part = progress.rounds / progress.rounds_to_do if progress.rounds_to_do else None
        self.show(run_in_words(progress, now - self.started_at), part=part)


def run_in_words(progress: RunProgress, elapsed_s: float) -> str:
    done, total = progress.rounds, progress.rounds_to_do
    parts = [f"{done:,} of {total:,} rounds" if total else f"{done:,} rounds", f"{progress.time_s:.4g} virtual s"]
    point = progress.point
    if learned := None if point is None else in_words(point, progress.measures):
        parts.append(learned)
    if total and done >= total:
        parts.append("closing")
    elif total and done > FORESEEABLE_FROM * total:
        parts.append(f"{duration(elapsed_s * (total - done) / done)} left")
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """Format seconds in two units at most: `40 s`, `12 min`, `3 h 20 min`."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def how_it_died(code: int | None) -> str:
    """Say how a process died that should have lived on; `code` is its exit code, negative for a signal."""
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in list(signal.Signals) else f"signal {-code}"
        out_of_memory = ": out of memory, or by hand" if -code == KILL else ""
        return f"its process was killed ({name}{out_of_memory})"
    return f"its process ended by itself (exit code {code})"
