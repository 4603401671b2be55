"""`p2pfl launch`: run all nodes of a federation as processes on this machine, watch them, and write one report at the
end. The live view has one line per node on a terminal; elsewhere it is, now and then, one line for all.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import click
import msgspec
from rich.console import Console
from rich.live import Live

from p2pfl.cli.checks import MixingCheck, checks_of
from p2pfl.config.load import load_config, node_file
from p2pfl.console.output import (
    Form,
    beyond_facts,
    footnote,
    format_option,
    learned_facts,
    node_rows,
    point_in_words,
    privacy_facts,
    reference_facts,
    report_target,
    size,
    spent_of,
    write_facts,
    write_report,
    write_rows,
)
from p2pfl.console.overview import view
from p2pfl.errors import UserError
from p2pfl.fleet.fleet import Child, Fleet, Lies
from p2pfl.fleet.report import History, add_references, final_report, refuse_references
from p2pfl.fleet.starting import claimed
from p2pfl.learn.metrics import Measure
from p2pfl.net.address import require_free
from p2pfl.node.feature import Inspected
from p2pfl.reporting.figures import in_words
from p2pfl.reporting.measures import measures_of, shown, value_of
from p2pfl.reporting.plot import check_picture, check_target
from p2pfl.reporting.report import instead

if TYPE_CHECKING:
    from p2pfl.config.model import FederationConfig, NodeConfig
    from p2pfl.reporting.report import EdgeTraffic, NodeReport, Report

LINE_EVERY_S = 2.0


class LiveView:
    """Draws to stderr, because stdout is for the result. `update` also keeps the history."""

    def __init__(self, fleet: Fleet, *, quiet: bool = False) -> None:
        self.fleet = fleet
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


REPORT_FILE = "report.json"
STOPPED = 130
REFERENCES = "Compare: each node alone, and all data in one place."
ALONE = 5
MOST_ALONE = 0.1
"""The largest share of its rounds that a node may train without a neighbor for the run to count as done."""


@click.command(epilog="\b\nExamples:\n  p2pfl launch ward-7\n  p2pfl launch ward-7 --report run1.json --plot run1.png")
@click.argument("federation", metavar="FEDERATION", type=click.Path(path_type=Path))
@click.option(
    "--report",
    type=click.Path(path_type=Path),
    help="Where to write the report; by default report.json next to FEDERATION; - is stdout.",
)
@click.option("--plot", type=click.Path(path_type=Path), help="Also draw accuracy and consensus distance over time.")
@click.option("--references", is_flag=True, help=REFERENCES)
@click.option("--quiet", is_flag=True, help="No live view.")
@format_option("table", "json")
def launch(*, federation: Path, report: Path | None, references: bool, form: Form, **how: Any) -> int:
    """Run all nodes of a federation as processes on this machine.

    Each runs as under `p2pfl run`, with its log in NAME/node.log. Ctrl-C stops all of them cleanly; launched again,
    they continue where they stopped. While they run, a second launch is refused. Exits with 0 if every node finished, 1
    if one died, 130 after Ctrl-C, and 5 if a node waited for neighbors in vain or trained too long without any.
    """
    report, form = report_target(report, form)
    described = load_config(federation)
    _require_here(described)
    if references:
        refuse_references(described, "--references")
    _require_flawless(described)
    report = report or described.path.parent / REPORT_FILE
    return run_fleet(described, report=report, references=references, form=form, **how)


def _require_here(federation: FederationConfig) -> None:
    elsewhere = [one.name for one in federation.present if not node_file(federation, one.name).parent.is_dir()]
    if elsewhere:
        text = f"no folder here for {', '.join(elsewhere)}: launch needs all members on this machine"
        allowed = "p2pfl run FEDERATION --node NAME for each of those that are here"
        raise UserError(text, file=federation.path.parent, key="node", allowed=allowed)


def _require_flawless(federation: FederationConfig) -> None:
    """Find every mistake on which all nodes would fail, or wait in vain: the part of `p2pfl check` that does not need
    torch.

    Raises ExceptionGroup of UserErrors.
    """
    found = Inspected(federation, [])
    for one in checks_of(MixingCheck()):
        one.before_launch(found)
    if found.mistakes:
        raise ExceptionGroup("mistakes that `p2pfl check` finds", found.mistakes)
    for warning in found.warnings:
        click.echo(f"warning: {warning}", err=True)


def run_fleet(
    federation: FederationConfig,
    *,
    report: Path,
    plot: Path | None,
    quiet: bool,
    form: Form,
    references: bool = False,
    lies: Lies | None = None,
) -> int:
    """Start the nodes, show their progress, write report and picture, and return the exit code."""
    check_target(report, key="--report")
    if plot is not None:
        check_picture(plot)
    fleet = Fleet(federation, lies)
    with claimed(federation, [child.node for child in fleet.children]):
        _require_free_ports([child.node for child in fleet.children])
        written = asyncio.run(_watch(fleet, quiet=quiet))
        if references:
            _compare(written, fleet)
        _show(written, form)
        write_report(written, report)
        click.echo(f"report: {report}", err=True)
    if plot is not None and written.history:
        written.plot(plot)
        click.echo(f"picture: {plot}", err=True)
    return _judge(fleet, written)


def _require_free_ports(nodes: Iterable[NodeConfig]) -> None:
    """Refuse ports that other processes use, where nodes would fail to start. Raises ExceptionGroup of UserErrors."""
    mistakes = []
    for node in nodes:
        for key, place in (("listen", node.listen), ("status_listen", node.status_listen)):
            try:
                if place is not None:
                    require_free(place, f"node.{key}")
            except UserError as error:
                error.file = str(node.path)
                mistakes.append(error)
    if mistakes:
        raise ExceptionGroup("ports that other processes use", mistakes)


def _compare(written: Report, fleet: Fleet) -> None:
    """Add what the nodes learn without each other, except after Ctrl-C, or if no node has ended well."""
    if fleet.stopping or not any(node.finished for node in written.nodes):
        click.echo("no references: the run did not end", err=True)
        return
    click.echo("references: each node alone, then all data in one place", err=True)
    add_references(written, fleet.federation, fleet.children)


def _judge(fleet: Fleet, written: Report) -> int:
    """Return the exit code; if it is not 0, print why on stderr."""
    for text in written.warnings:
        click.echo(f"warning: {text}", err=True)
    honest = [node for node in written.nodes if not node.byzantine]
    failed = [node.name for node in honest if node.failed_rounds and node.failed_rounds >= (node.rounds or 0)]
    for name in failed:
        click.echo(f"{name}: every round failed; its log says why", err=True)
    if written.died or failed:
        return 1
    return STOPPED if fleet.stopping else _left_alone(honest)


def _left_alone(nodes: list[NodeReport]) -> int:
    """Return the exit code of a run in which every node ended; it depends on whether each had neighbors."""
    code = 0
    for node in nodes:
        alone, rounds = node.rounds_without_neighbor, node.rounds or 0
        if node.stranded:
            click.echo(f"{node.name}: waited in vain for a neighbor after round {rounds}; no other node runs", err=True)
            code = ALONE
        elif alone > MOST_ALONE * rounds:
            click.echo(f"{node.name}: {alone} of {rounds} rounds without a neighbor", err=True)
            code = ALONE
    return code


async def _watch(fleet: Fleet, *, quiet: bool) -> Report:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, fleet.stop)
    with LiveView(fleet, quiet=quiet) as view:
        await fleet.run(view.update)
    return final_report(fleet, view.history.points)


def _show(report: Report, form: Form) -> None:
    if form == "json":
        click.echo(report.to_json())
        return
    measures = measures_of([report, *report.nodes])
    write_rows(node_rows(report.nodes, measures), "table")
    to_do = report.config["training"]["rounds"]
    for node in report.nodes:
        of = to_do or node.rounds
        value, after = value_of(node, measures[0]), node.tested_round
        if note := footnote(node.name, value=value, stale=node.test_is_stale, after=after, of=of):
            click.echo(note)
    of_whom = "honest node" if report.byzantine else "node"
    success = report.attack_success
    mixes = any(node.staleness is not None for node in report.nodes)
    facts = {
        "byzantine": f"{', '.join(report.byzantine)}: {report.attack}" if report.byzantine else None,
        **learned_facts(report, worst_of=of_whom),
        **reference_facts(report),
        "attack success, mean": success and success.mean,
        "attack success, most": success and success.max,
        "held against": in_words(report.held_against),
        **privacy_facts(report),
        **beyond_facts(report),
        "consensus distance": report.consensus_distance,
        "algebraic connectivity": report.algebraic_connectivity if mixes else None,
        "contraction, predicted": _without_rounding_noise(report.contraction.predicted),
        "contraction, measured": report.contraction.measured,
        "sent in all": size(report.bytes_sent or 0),
        "sent by compressor": _by_compressor(report.compressors),
        "seconds": report.wall_time_s,
    }
    write_facts(facts)


def _without_rounding_noise(factor: float | None) -> float | None:
    """Return a predicted contraction, 0 where only rounding keeps it from that: on a complete graph of equal nodes."""
    return 0.0 if factor is not None and factor < 1e-12 else factor


def _by_compressor(compressors: dict[str, EdgeTraffic]) -> str | None:
    """Return the traffic by compressor, if there are several."""
    told = [f"{spec} {size(row.bytes_sent)} on {row.edges} edges" for spec, row in compressors.items()]
    return ", ".join(told) if len(told) > 1 else None
