"""The live view of a launched federation: one line per node on a terminal; elsewhere, now and then, one line for
all.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import click
from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from p2pfl.console.output import figure, footnote, size, spent_of
from p2pfl.console.progress import point_in_words
from p2pfl.fleet.fleet import Child, Fleet
from p2pfl.fleet.report import History
from p2pfl.learn.doubts import about_lone_classes
from p2pfl.learn.metrics import LOSS, Measure
from p2pfl.reporting.instead_of_scores import instead
from p2pfl.reporting.logs import Logs
from p2pfl.reporting.measures import measures_of, shown, value_of
from p2pfl.reporting.status import NodeLine

LINE_EVERY_S = 2.0
BEFORE, AFTER = ("node", "state", "round"), ("staleness", "sent", "peers", "distance")
"""The columns before and after those for the task's measures."""
SUMMED_AFTER = ("sent", "peers")
"""The columns after those if rounds are sums: no model is stale then, or mixed with a neighbor's."""


class LiveView:
    """Draws to stderr, because stdout is for the result. `update` also keeps the history."""

    def __init__(self, fleet: Fleet, *, quiet: bool = False, logs: Logs | None = None) -> None:
        self.fleet = fleet
        self.logs = logs or Logs()
        self.logged: Counter[str] = Counter()
        """The number of lines read from each node."""
        self.classes: dict[str, list[int]] = {}
        """The classes in the data of each node that has reported them."""
        self.named: set[str] = set()
        """The nodes that have died and were named."""
        self.quiet = quiet
        self.history = History()
        self.printed_at = time.monotonic()
        self.live: Live | None = None
        if not quiet and sys.stderr.isatty():
            self.live = Live(console=Console(stderr=True), auto_refresh=False)

    def __enter__(self) -> Self:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live is not None:
            self.live.stop()

    def update(self) -> None:
        point = self.history.look(self.fleet)
        for child in self.fleet.honest:
            for line in child.lines[self.logged[child.name] :]:
                self.logs.line(line)
                self._compare(line)
            self.logged[child.name] = len(child.lines)
        self.logs.point(point)
        for child in self.fleet.children:
            if child.died and child.name not in self.named:
                self._name(child)
        if self.live is not None:
            self.live.update(self._table(), refresh=True)
        elif point is not None and not self.quiet and time.monotonic() - self.printed_at >= LINE_EVERY_S:
            self.printed_at = time.monotonic()
            click.echo(point_in_words(point, self._measures()), err=True)

    def _name(self, child: Child) -> None:
        """Name a node that has died, with the end of its log."""
        self.named.add(child.name)
        lines = child.log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-3:]
        text = "\n  ".join([f"{child.name} {child.state}; its log: {child.log_path}", *lines])
        if self.live is None:
            click.echo(text, err=True)
        else:
            self.live.console.print(text, markup=False, highlight=False)

    def _compare(self, line: NodeLine) -> None:
        """Warn about classes that only one node has, once all nodes have reported theirs."""
        if line.classes is not None:
            self.classes[line.node] = line.classes
            text = about_lone_classes(self.fleet.federation.gossip.rule, self.classes)
            if text is not None and len(self.classes) == len(self.fleet.honest):
                click.echo(f"warning: {text}", err=True)

    def _table(self) -> Table:
        title = f"{self.fleet.federation.name}: {self.fleet.federation.topology}, {self.fleet.elapsed_s:.0f} s"
        table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
        measures = self._measures()
        names = [*BEFORE, *(one.label for one in self._shown_measures(measures)), *self._last_columns]
        rows = [self._row(child, measures) for child in self.fleet.children]
        kept = self._fitting([names, *rows])
        for name in (names[place] for place in kept):
            table.add_column(name, justify="left" if name in ("node", "state") else "right")
        for child, cells in zip(self.fleet.children, rows, strict=True):
            cells[0] += " [red]lies[/]" * child.byzantine
            table.add_row(*(cells[place] for place in kept))
        rounds = self.fleet.federation.training.rounds
        lines = [child.last for child in self.fleet.children if child.last is not None]
        notes = [
            footnote(
                line.node,
                value=value_of(line, measures[0]),
                stale=line.test_is_stale,
                after=line.tested_round,
                of=rounds or line.rounds,
            )
            for line in lines
        ]
        if self.fleet.federation.privacy is not None:
            notes.append("withheld, as computed from the data without noise: losses, and scores on private data")
            notes.append(instead(self.fleet.federation.task.name))
        table.caption, table.caption_justify = "\n".join(filter(None, notes)) or None, "left"
        return table

    def _fitting(self, rows: Sequence[Sequence[str]]) -> list[int]:
        """Return the places of the columns that fit the terminal; further measures are the first to be left out."""
        left = 10_000 if self.live is None else self.live.console.width
        many, last = len(rows[0]), len(self._last_columns)
        kept = []
        for place in (*range(len(BEFORE) + 1), *range(many - last, many), *range(len(BEFORE) + 1, many - last)):
            left -= 3 + max(Text.from_markup(row[place]).cell_len for row in rows)
            kept += [place] if left >= 0 or place < len(BEFORE) else []
        return sorted(kept)

    def _shown_measures(self, measures: Sequence[Measure]) -> tuple[Measure, ...]:
        """Return the measures that get a column; in a private run only those that some node reports."""
        lines = [child.last for child in self.fleet.children if child.last is not None]
        if self.fleet.federation.privacy is None:
            return shown(measures)
        return tuple(one for one in shown(measures) if any(value_of(line, one) is not None for line in lines))

    @property
    def _last_columns(self) -> tuple[str, ...]:
        after = AFTER if not self.fleet.federation.in_step_by else SUMMED_AFTER
        return after if self.fleet.federation.privacy is None else ("epsilon", *after)

    def _measures(self) -> tuple[Measure, ...]:
        return measures_of(child.last for child in self.fleet.children if child.last is not None)

    def _row(self, child: Child, measures: Sequence[Measure]) -> list[str]:
        line = child.last
        style = "red" if child.died else "green" if child.exit_code == 0 else "yellow"
        if line is None:
            return [
                child.name,
                f"[{style}]{child.state}[/]",
                *["-"] * (1 + len(self._shown_measures(measures)) + len(self._last_columns)),
            ]
        rounds = self.fleet.federation.training.rounds
        last = {
            "epsilon": spent_of(line.privacy) or "-",
            "staleness": _figure(None if line.staleness is None else line.staleness.mean, ".1f"),
            "sent": size(line.bytes_sent),
            "peers": f"{line.peers}, {line.quarantined} away" if line.quarantined else str(line.peers),
            "distance": _figure(line.neighbor_distance, ".1e"),
        }
        return [
            child.name,
            f"[{style}]{child.state}[/]",
            _rounds(line.rounds, rounds),
            *(
                figure(value_of(line, one), stale=line.test_is_stale, form=_form(one)) or "-"
                for one in self._shown_measures(measures)
            ),
            *(last[column] for column in self._last_columns),
        ]


def _rounds(done: int, of: int | None) -> str:
    """Return the rounds done as text. Rounds beyond the requested ones, trained with nodes that have not finished, are
    shown separately.
    """
    if of is None:
        return str(done)
    return f"{done}/{of}" if done <= of else f"{of}/{of} +{done - of}"


def _form(measure: Measure) -> str:
    """Return the number format, which depends on whether lower is better: such a figure may have any magnitude."""
    return ".3f" if measure.higher_is_better or measure.name == LOSS.name else ".4g"


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
