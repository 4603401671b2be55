"""The live view of a launched federation: one line per node on a terminal; elsewhere, now and then, one line for
all.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import click
import msgspec
from rich.console import Console
from rich.live import Live

from p2pfl.console.output import spent_of
from p2pfl.console.overview import view
from p2pfl.console.progress import point_in_words
from p2pfl.fleet.fleet import Child, Fleet
from p2pfl.fleet.report import History
from p2pfl.learn.doubts import about_lone_classes
from p2pfl.learn.metrics import Measure
from p2pfl.reporting.instead_of_scores import instead
from p2pfl.reporting.logs import Logs
from p2pfl.reporting.measures import measures_of, shown, value_of
from p2pfl.reporting.status import NodeLine

LINE_EVERY_S = 2.0


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
            width, height = self.live.console.size
            self.live.update(view(self.overview(), width=width, height=height), refresh=True)
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

    def overview(self) -> dict[str, Any]:
        """Return what `view` draws."""
        federation, measures = self.fleet.federation, self._measures()
        budgets = [child.last.privacy for child in self.fleet.children if child.last and child.last.privacy]
        notes = ["withheld, as computed from the data without noise: losses, and scores on private data"]
        notes = [] if federation.privacy is None else [*notes, *filter(None, [instead(federation.task.name)])]
        return {
            "federation": federation.name,
            "topology": federation.topology,
            "by": f"{self.fleet.elapsed_s:.0f} s",
            "now": 0.0,
            "members": [_row(index, child, measures) for index, child in enumerate(self.fleet.children)],
            "measures": msgspec.to_builtins(shown(measures)),
            "rounds_to_do": federation.training.rounds,
            "privacy": msgspec.to_builtins(budgets[0]) if budgets else None,
            "notes": notes,
            "alarms": [],
            "events": [],
        }

    def _measures(self) -> tuple[Measure, ...]:
        return measures_of(child.last for child in self.fleet.children if child.last is not None)


def _row(index: int, child: Child, measures: Sequence[Measure]) -> dict[str, Any]:
    """Return what the overview shows of a node: what it said last, and whether its process still runs."""
    line, marks = child.last, ["lies"] * child.byzantine
    row = {"index": index, "name": child.name, "phase": child.state, "died": child.died, "standing": marks}
    if line is None:
        return row
    scores, budget = {one.name: value_of(line, one) for one in measures}, line.privacy
    return row | {
        "rounds": line.rounds,
        "scores": scores,
        "main": scores[measures[0].name],
        "tested_round": line.tested_round if line.test_is_stale else None,
        "epsilon": budget.epsilon if budget is not None and budget.state == "open" else spent_of(budget),
        "staleness": None if line.staleness is None else line.staleness.mean,
        "distance": line.neighbor_distance,
        "bytes_sent": line.bytes_sent,
        "live": f"{line.peers}, {line.quarantined} away" if line.quarantined else line.peers,
    }
