"""`p2pfl launch`: run all nodes of a federation as processes on this machine, watch them, and write one report at the
end. The live view has one line per node on a terminal; elsewhere it is, now and then, one line for all.

`p2pfl demo`, the typical use on one machine, makes such a federation first: nodes with a few of the digits each, which
end with a model of all ten.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click
import msgspec
from rich.console import Console
from rich.live import Live

from p2pfl.aggregate import make_rule
from p2pfl.cli.checks import MixingCheck, checks_of
from p2pfl.cli.new import check_graph
from p2pfl.compress import make_compressor, require_fit
from p2pfl.config.load import load_config, node_file
from p2pfl.config.model import TrainingConfig, usual_method
from p2pfl.config.writing import HAS_SCHEMA, beside, toml_value
from p2pfl.console.output import (
    Form,
    ProgressView,
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
from p2pfl.fleet.fleet import STOPPED, Attackers, Child, Fleet, Lies, claimed, find_attackers
from p2pfl.fleet.report import History, add_references, final_report, refuse_references
from p2pfl.learn.metrics import Measure
from p2pfl.learn.task import parse_partition
from p2pfl.methods import CONSERVATIVE, ROBUST, from_here, make_method
from p2pfl.net.address import free_ports
from p2pfl.node.feature import Inspected
from p2pfl.node.folders import appearing, complete, make_node, own_graph
from p2pfl.reporting.figures import AGREED, bearings, in_words
from p2pfl.reporting.measures import measures_of, shown, value_of
from p2pfl.reporting.plot import check_picture, check_target
from p2pfl.reporting.report import instead

if TYPE_CHECKING:
    from p2pfl.config.model import FederationConfig
    from p2pfl.reporting.report import Report


class LiveView(ProgressView):
    """Draws to stderr, because stdout is for the result. `update` also keeps the history."""

    line_every_s: ClassVar[float] = 2.0

    def __init__(self, fleet: Fleet) -> None:
        super().__init__()
        self.fleet = fleet
        self.named: set[str] = set()
        """The nodes that have died and were named."""
        self.history = History()
        self.live: Live | None = None
        if sys.stderr.isatty():
            self.live = Live(console=Console(stderr=True), auto_refresh=False)

    def update(self) -> None:
        point = self.history.look(self.fleet)
        for child in self.fleet.children:
            if child.died and child.name not in self.named:
                self._name(child)
        if self.live is not None:
            width, height = self.live.console.size
            self.live.update(view(self.overview(), width=width, height=height), refresh=True)
        elif point is not None:
            self.show(point_in_words(point, self._measures()))

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
            "rounds_to_do": federation.training.trained_rounds,
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
    scores, budget = {measure.name: value_of(line, measure) for measure in measures}, line.privacy
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


@click.command(epilog="\b\nExamples:\n  p2pfl launch ward-7\n  p2pfl launch ward-7 --report run1.json --references")
@click.argument("federation", metavar="FEDERATION", type=click.Path(path_type=Path))
@click.option(
    "--report",
    type=click.Path(path_type=Path),
    help="Where to write the report; by default report.json next to FEDERATION; - is stdout.",
)
@click.option("--references", is_flag=True, help="Compare: each node alone, and all data in one place.")
@format_option("table", "json")
def launch(*, federation: Path, report: Path | None, references: bool, form: Form) -> int:
    """Run all nodes of a federation as processes on this machine.

    Each runs as under `p2pfl run`, with its log in NAME/node.log. Ctrl-C stops all of them cleanly; launched again,
    they continue where they stopped. While they run, a second launch is refused. Exits with 0 if every node finished, 1
    if one died or waited for neighbors in vain, and 130 after Ctrl-C.
    """
    report, form = report_target(report, form)
    described = load_config(federation)
    elsewhere = [node.name for node in described.present if not node_file(described, node.name).parent.is_dir()]
    if elsewhere:
        text = f"no folder here for {', '.join(elsewhere)}: launch needs all members on this machine"
        allowed = "p2pfl run FEDERATION --node NAME for each of those that are here"
        raise UserError(text, file=described.path.parent, key="node", allowed=allowed)
    if references:
        refuse_references(described, "--references")
    _require_flawless(described)
    report = report or described.path.parent / REPORT_FILE
    return run_fleet(described, report=report, references=references, form=form)


def _require_flawless(federation: FederationConfig) -> None:
    """Find what all nodes would fail on, as far as that needs no torch. Raises ExceptionGroup of UserErrors."""
    inspected = Inspected(federation, [])
    for check in checks_of(MixingCheck()):
        check.before_launch(inspected)
    if inspected.mistakes:
        raise ExceptionGroup("mistakes that `p2pfl check` finds", inspected.mistakes)
    for warning in inspected.warnings:
        click.echo(f"warning: {warning}", err=True)


def run_fleet(
    federation: FederationConfig,
    *,
    report: Path,
    form: Form,
    plot: Path | None = None,
    references: bool = False,
    lies: Lies | None = None,
) -> int:
    """Start the nodes, show their progress, write report and picture, and return the exit code."""
    check_target(report, key="--report")
    if plot is not None:
        check_picture(plot)
    fleet = Fleet(federation, lies)
    with claimed(federation, [child.node for child in fleet.children]):
        written = asyncio.run(_watch(fleet))
        if references:
            _compare(written, fleet)
        _show(written, form)
        write_report(written, report)
        click.echo(f"report: {report}", err=True)
    if plot is not None and written.history:
        written.plot(plot)
        click.echo(f"picture: {plot}", err=True)
    return _judge(fleet, written)


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
    stranded = [node for node in honest if node.stranded]
    for row in stranded:
        click.echo(f"{row.name}: waited in vain for a neighbor after round {row.rounds}; no other node runs", err=True)
    if written.died or failed:
        return 1
    return STOPPED if fleet.stopping else int(bool(stranded))


async def _watch(fleet: Fleet) -> Report:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, fleet.stop)
    view = LiveView(fleet)
    with view.live or nullcontext():  # it holds the terminal
        await fleet.run(view.update)
    return final_report(fleet, view.history.points)


def _show(report: Report, form: Form) -> None:
    if form == "json":
        click.echo(report.to_json())
        return
    measures = measures_of([report, *report.nodes])
    write_rows(node_rows(report.nodes, measures), "table")
    older = [node for node in report.nodes if node.test_is_stale and value_of(node, measures[0]) is not None]
    for note in footnote([node.tested_round or 0 for node in older]):
        click.echo(note)
    of_whom = "honest node" if report.byzantine else "node"
    success, predicted = report.attack_success, report.contraction.predicted
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
        "contraction, predicted": AGREED if predicted is not None and predicted < 1e-12 else predicted,
        "contraction, measured": report.contraction.measured,
        "sent in all": size(report.bytes_sent or 0),
        "seconds": report.wall_time_s,
    }
    write_facts(facts)


MARK = ".p2pfl-demo"
MOST_OF_DEMO = 64
PARAMETERS = 2_410
"""The number of parameters in the digits model, known here without importing torch."""


EPILOG = """\b
Examples:
  p2pfl demo
  p2pfl demo --nodes 5 --topology star --partition iid --rounds 20
  p2pfl demo --topology complete --byzantine 1 --attack foe --rule hampel:b=1
"""


@click.command(epilog=EPILOG)
@click.option("--nodes", type=click.IntRange(2, MOST_OF_DEMO), default=8, show_default=True, help="How many processes.")
@click.option("--topology", default="ring", show_default=True, help="The graph: see `p2pfl topology list`.")
@click.option("--rounds", type=click.IntRange(1), default=40, show_default=True, help="Rounds that each node trains.")
@click.option(
    "--partition",
    default="shards:2",
    show_default=True,
    help="Who holds which digits: iid, dirichlet:ALPHA[,LEAST], shards:K, classes:K, sizes:A,B,..., draw:K.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of model and partition.")
@click.option(
    "--compressor", default="q4", show_default=True, help="How messages are compressed: `p2pfl list compressors`."
)
@click.option("--rule", default="mean", show_default=True, help="Rule for mixing neighbors: see `p2pfl list rules`.")
@click.option(
    "--method", metavar="SPEC", help="Learning method: `p2pfl list methods`.  [default: the rule's usual one]"
)
@click.option(
    "--byzantine",
    type=click.IntRange(0),
    default=0,
    metavar="K",
    show_default=True,
    help="Number of malicious nodes, spread over the graph.",
)
@click.option("--attack", metavar="NAME", help="What malicious nodes do: see `p2pfl list attacks`.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path),
    default=Path("p2pfl-demo"),
    show_default=True,
    help="Folder for the federation; replaces an older demo.",
)
@click.option(
    "--report", type=click.Path(path_type=Path), help="The report's file; by default report.json in DIR; - is stdout."
)
@click.option("--plot", type=click.Path(path_type=Path), help="Also draw accuracy and consensus distance over time.")
@format_option("table", "json")
def demo(
    *,
    nodes: int,
    topology: str,
    byzantine: int,
    attack: str | None,
    folder: Path,
    report: Path | None,
    plot: Path | None,
    form: Form,
    **said: Any,
) -> int:
    """Watch several nodes on this machine learn handwritten digits, without a server.

    Each node is a process with images of a few of the ten digits, which come with p2pfl, and talks only to its
    neighbors in the graph. A report follows at the end. After Ctrl-C, `p2pfl launch DIR` continues the run.
    """
    report, form = report_target(report, form)
    if report is not None:
        check_target(report, key="--report", coming=folder)
    if plot is not None:
        check_picture(plot, coming=folder)
    attackers = _find_attackers(nodes, byzantine, attack)
    if find_spec("torch") is None:
        raise ModuleNotFoundError("the digits are learned with torch", name="torch")
    said["method"] = said["method"] or usual_method(said["rule"])
    _check_options(said)
    check_graph(topology, nodes, said["seed"])
    described = load_config(_make(folder, nodes, topology, said))
    _require_flawless(described)
    lies = None
    if attackers is not None and attack is not None:
        lies = Lies(attackers=attackers, spec=attack, names=attackers.choose(described, byzantine))
        verb = "lies" if byzantine == 1 else "lie"
        click.echo(f"{', '.join(lies.names)} {verb} to every neighbor: {attack}", err=True)
        for warning in about_liars(described, lies.names):
            click.echo(f"warning: {warning}", err=True)
    return run_fleet(described, report=report or folder / REPORT_FILE, plot=plot, form=form, lies=lies)


def _find_attackers(nodes: int, byzantine: int, attack: str | None) -> Attackers | None:
    """Return the attackers, or None if no option asks for any. Raises UserError: the options contradict each other."""
    if not byzantine and attack is None:
        return None
    if not byzantine:
        raise UserError("an attack without liars", key="--attack", value=attack, allowed="with --byzantine K")
    if byzantine >= nodes:
        text = f"no honest node is left of {nodes}"
        raise UserError(text, key="--byzantine", value=byzantine, allowed=f"0 to {nodes - 1}")
    if attack is None:
        raise UserError("liars without an attack", key="--byzantine", value=byzantine, allowed="with --attack NAME")
    attackers = find_attackers()
    attackers.check(attack)
    return attackers


def about_liars(federation: FederationConfig, liars: Sequence[str]) -> list[str]:
    """Warn if the rule does not tolerate these malicious nodes."""
    of_all, lying = bearings(federation), {federation.member(name).index for name in liars}
    rule, borne = of_all[0].rule, of_all[0].liars
    if not borne:
        return [f'rule = "{rule}" trusts every neighbor: expect malicious nodes to ruin what honest nodes learn']
    most = max(len(lying.intersection(federation.neighbors(node))) for node in set(range(len(of_all))) - lying)
    return [f"{most} malicious among the neighbors of a node, {rule} tolerates {borne}"] if most > borne else []


def _check_options(said: Mapping[str, Any]) -> None:
    """Raise all mistakes in these options, each under its option's name."""
    profile, mistakes = CONSERVATIVE if said["rule"] == "mean" else ROBUST, []
    checks: dict[str, Callable[[str], object]] = {
        "compressor": lambda spec: require_fit(make_compressor(spec), PARAMETERS),
        "rule": make_rule,
        "method": lambda spec: make_method(spec, TrainingConfig(), profile=profile),
        "partition": parse_partition,
    }
    for name, check in checks.items():
        try:
            check(said[name])
        except UserError as error:
            error.file, error.key = None, f"--{name}"
            mistakes.append(error)
    if mistakes:
        raise ExceptionGroup("mistakes in the options", mistakes)


def _make(folder: Path, nodes: int, topology: str, said: Mapping[str, Any]) -> Path:
    """Write the demo's federation file into a new folder; remove only what an earlier demo left there."""
    target = folder.absolute()
    if target.is_dir() and any(target.iterdir()) and not (target / MARK).is_file():
        raise UserError("is not a demo", key="--dir", value=str(folder), allowed="a new folder, or an older demo's")
    with appearing(target, replacing=(target / MARK).is_file()) as staging:
        (staging / MARK).touch()
        members = [make_node(staging, f"node{index}", port) for index, port in enumerate(free_ports(nodes))]
        tables = [f'[[node]]\nname = "{m.name}"\nkey = "{m.key}"\naddress = "{m.address}"\n' for m in members]
        own = {key: from_here(said[key]) for key in ("rule", "method")}
        more = "".join(f"{key} = {toml_value(value)}\n" for key, value in beside(own["rule"]).items())
        head = TEXT.format(**{**said, **own}, topology=own_graph(topology, staging), more=more)
        (staging / "federation.toml").write_text(HAS_SCHEMA + head + "\n".join(tables), encoding="utf-8")
        complete(staging)
    return folder / "federation.toml"


TEXT = """\
# Made by `p2pfl demo`; `p2pfl launch` on this folder continues where it stopped; malicious nodes are honest then.

[federation]
name = "demo"
seed = {seed}
topology = "{topology}"

[task]
name = "digits"
partition = "{partition}"

[training]
rounds = {rounds}
method = "{method}"
{more}
[gossip]
compressor = "{compressor}"
rule = "{rule}"

"""
