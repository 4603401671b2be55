"""`p2pfl check`: read everything that a run would read, and say what would happen. Nothing is started or written.

The task, which is the user's code, is loaded, and so are the data of every node whose folder is here.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from p2pfl.cli.check_folders import look_into_folders
from p2pfl.cli.output import MOST_MISTAKES, Form, format_option, show_mistakes, write_facts, write_json, write_rows

if TYPE_CHECKING:
    from p2pfl.cli.check_tables import TablesFound
    from p2pfl.config.model import FederationConfig, Member, NodeConfig
    from p2pfl.errors import UserError
    from p2pfl.learn.interface import Learner


@dataclass(slots=True)
class Findings:
    """`learners` and `samples` are by member index, for those whose folder is here."""

    mistakes: list[UserError]
    warnings: list[str] = field(default_factory=list)
    learners: dict[int, Learner] = field(default_factory=dict)
    here: dict[int, NodeConfig] = field(default_factory=dict)
    tables: TablesFound | None = None


@click.command(epilog="\b\nExample:\n  p2pfl check ward-7\n  p2pfl check ward-7/federation.toml --format json")
@click.argument("federation", metavar="FEDERATION", type=click.Path(path_type=Path))
@click.option(
    "--byzantine",
    type=click.IntRange(min=0),
    help="Warn if graph or rule do not tolerate this many malicious neighbors of a node.  [default: those of the rule]",
)
@format_option("table", "json")
def check(federation: Path, byzantine: int | None, form: Form) -> int:
    """Show what a federation would do, and every mistake in it.

    FEDERATION is a federation file, or the folder of its federation.toml. Nodes whose folders are next to the file are
    checked too: their settings, key and data. Exits with 2 if there is a mistake, with 3 if the only one is a
    graph that is not connected.
    """
    from p2pfl.cli.main import exit_code  # noqa: PLC0415 - the commands are imported by it
    from p2pfl.config.charter import compacted  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.config.load import read_federation  # noqa: PLC0415 - as above

    described, mistakes = read_federation(federation)
    findings = Findings(mistakes)
    report = {} if described is None else _survey(compacted(described), findings, byzantine)
    report |= {"warnings": findings.warnings, "mistakes": [_as_row(mistake) for mistake in mistakes[:MOST_MISTAKES]]}
    report["mistakes_in_all"] = len(mistakes)
    write_json(report) if form == "json" else _print(report)
    show_mistakes(mistakes)
    return min((exit_code(mistake) for mistake in mistakes), default=0)


def _survey(federation: FederationConfig, findings: Findings, liars: int | None) -> dict[str, Any]:
    from p2pfl.cli.compressors import traffic_facts  # noqa: PLC0415 - as above
    from p2pfl.cli.rules import rule_facts, try_own_rule  # noqa: PLC0415 - as above
    from p2pfl.errors import UserError  # noqa: PLC0415 - as above
    from p2pfl.reporting.liars import bearings  # noqa: PLC0415 - as above

    folders = look_into_folders(federation)
    findings.mistakes += folders.mistakes
    findings.warnings += folders.warnings
    findings.here = folders.here
    _look_at_tables(federation, findings)
    _load_learners(federation, findings)
    _warn(federation, findings)
    _look_for_room(federation, findings)
    _look_at_method(federation, findings)
    privacy = _look_at_privacy(federation, findings)
    traffic, mistakes = traffic_facts(federation, findings.learners.values())
    findings.mistakes.extend(mistakes)
    graph = _graph(federation, findings, liars, traffic["parameters"] if traffic else None)
    try:
        borne = bearings(federation)
        if traffic:
            try_own_rule(federation, borne, traffic["parameters"])
        rule, warnings = rule_facts(federation, borne, graph, liars)
    except UserError as error:  # a rule of the user's own
        borne, rule, warnings = [], None, []
        findings.mistakes.append(_in_file(error, federation))
    findings.warnings.extend(warnings)
    at_most = liars_at_most(federation)
    return {
        "federation": _head(federation),
        "members": [
            _member_row(federation, member, findings)
            | {
                "liars_borne": borne[member.index].borne if borne else None,
                "liars_at_most": at_most[member.index],
            }
            for member in federation.members
        ],
        "targets": _targets(federation, findings),
        "graph": graph,
        "rule": rule,
        "traffic": traffic,
        "tables": findings.tables.rows if findings.tables else None,
        "privacy": privacy,
    }


def _look_at_tables(federation: FederationConfig, findings: Findings) -> None:
    from p2pfl.cli.check_tables import look_at_tables  # noqa: PLC0415 - `--help` stays instant

    findings.tables = look_at_tables(federation, findings.here)
    if findings.tables is not None:
        findings.mistakes.extend(findings.tables.mistakes)
        findings.warnings.extend(findings.tables.warnings)
        logging.getLogger("p2pfl").addHandler(logging.NullHandler())  # the learners would say the same again


def _look_at_privacy(federation: FederationConfig, findings: Findings) -> dict[str, Any] | None:
    from p2pfl.cli.check_privacy import look_at_privacy  # noqa: PLC0415 - `--help` stays instant

    here = sorted(findings.here.keys() & findings.learners.keys())
    trained = {getattr(one, "trained", one.size + one.personal) for one in findings.learners.values()}
    samples = {index: findings.learners[index].samples for index in here}
    found = look_at_privacy(federation, samples, max(trained, default=None))
    told = set(map(str, findings.mistakes))  # by a learner, which has a plan too
    findings.mistakes.extend(mistake for mistake in found.mistakes if str(mistake) not in told)
    findings.warnings.extend(found.warnings)
    if found.facts is not None:
        _look_for_budgets(federation, findings)
    return found.facts


def _look_for_budgets(federation: FederationConfig, findings: Findings) -> None:
    """Warn of nodes that have never run and have no word that their budget begins: they would train nothing."""
    from p2pfl.errors import StorageError, UserError  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.node.permission import permission_file  # noqa: PLC0415 - as above
    from p2pfl.node.spending import purses  # noqa: PLC0415 - as above

    new = [node for node in findings.here.values() if not node.state_dir.exists()]
    without = [node.name for node in new if not permission_file(node.key_file).exists()]
    if without:
        names = "" if len(without) == len(findings.here) else "".join(f" --node {name}" for name in without)
        text = "privacy: without a budget a node trains nothing, and a person begins it, once before the first start"
        findings.warnings.append(f"{text}: p2pfl privacy begin {federation.path.parent}{names}")
    begun = [node.name for node in findings.here.values() if node.name not in without]
    less: dict[str, str] = {}
    with suppress(UserError, StorageError):  # a state that cannot be read is named when the node starts
        less = {one.name: one.unpermitted for one in purses(federation, begun) if begun and one.unpermitted}
    if less:
        figures, names = next(iter(less.values())), ", ".join(less)
        text = f"privacy: less is promised than was permitted ({figures}): {names} will train nothing"
        begin = f"p2pfl privacy begin {federation.path.parent} --raise"
        findings.warnings.append(f"{text} until a person permits it: {begin}")


def _look_at_method(federation: FederationConfig, findings: Findings) -> None:
    from p2pfl.errors import UserError  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.learn.methods import method_of  # noqa: PLC0415 - as above

    findings.warnings.extend(federation.notices)
    try:
        method_of(federation)
    except UserError as error:
        findings.mistakes.append(error)


def _load_learners(federation: FederationConfig, findings: Findings) -> None:
    """If no node's folder is here, the first node's learner, without its data, gives the model's size."""
    from p2pfl.errors import UserError  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.learn.table.mistakes import mistakes_of  # noqa: PLC0415 - as above

    wrong = findings.tables.wrong if findings.tables else set()
    alone = [0] if findings.tables is None or findings.tables.has_schema else []
    indices = [index for index in sorted(findings.here) or alone if index not in wrong]
    for index in indices:
        try:
            findings.learners[index] = _learner(federation, federation.members[index], findings.here.get(index))
        except UserError as error:
            about_data = (error.key or "").startswith("data")
            if findings.here or not about_data:
                findings.mistakes.extend(mistakes_of(error))
            if not about_data:
                return  # the same for every node
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            findings.warnings.append("torch is not installed: the task was not checked")
            return


def _learner(federation: FederationConfig, member: Member, node: NodeConfig | None) -> Learner:
    from p2pfl.learn.load import make_learner  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.learn.privacy.protection import protection_of  # noqa: PLC0415 - as above
    from p2pfl.node.assembly import load_learner  # noqa: PLC0415 - as above

    if node is not None:
        return load_learner(federation, node)
    return make_learner(
        federation.task,
        federation.training,
        seed=federation.seed,
        node_index=member.index,
        node_count=len(federation.members),
        node_name=member.name,
        base_dir=federation.path.parent,
        local={},
        local_dir=federation.path.parent,
        share=federation.gossip.share,
        file=federation.path,
        protection=protection_of(federation),
    )


def _warn(federation: FederationConfig, findings: Findings) -> None:
    for i, j in federation.edges:
        first, second = federation.members[i], federation.members[j]
        if first.address is None and second.address is None and not federation.discovery:
            text = f"neither {first.name} nor {second.name} has an address for the other to dial"
            findings.warnings.append(f"{text}: write one, or discovery = true in [network] if they are on one LAN")
    _warn_of_data(federation, findings)
    if len({learner.shape_digest for learner in findings.learners.values()}) > 1:
        findings.warnings.append("the models of the nodes here differ in shape: such nodes cannot mix")


def _warn_of_data(federation: FederationConfig, findings: Findings) -> None:
    """Of the nodes whose folders are here; what concerns all of them, only if all are."""
    from p2pfl.cli.check_tables import warn_of_figures, warn_of_tests  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.learn.doubts import about_lone_classes, own_classes, unscaled  # noqa: PLC0415 - as above

    names = {member.index: member.name for member in federation.present}
    here = {names[index]: one for index, one in findings.learners.items() if index in findings.here}
    for name, learner in here.items():
        if text := unscaled(learner):
            findings.warnings.append(f"{name}: {text}: scale the inputs alike on all nodes")
    if findings.tables is not None:
        findings.warnings += warn_of_tests(findings.tables, here)
        findings.warnings += warn_of_figures(findings.tables, federation)
    if federation.privacy is not None:
        return  # what each of them holds is nothing for the others
    classes = {name: found for name, learner in here.items() if (found := own_classes(learner)) is not None}
    text = about_lone_classes(federation.gossip.rule, classes) if len(classes) == len(names) else None
    findings.warnings += [] if text is None else [text]


def _look_for_room(federation: FederationConfig, findings: Findings) -> None:
    """Check that the disks of the nodes that are here can hold their states."""
    from p2pfl.engine.codecs import codecs_of  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.engine.state import NodeState  # noqa: PLC0415 - as above
    from p2pfl.errors import UserError  # noqa: PLC0415 - as above
    from p2pfl.learn.methods import method_of  # noqa: PLC0415 - as above
    from p2pfl.node.assembly import durability_of  # noqa: PLC0415 - as above
    from p2pfl.node.engine_thread import needs_of  # noqa: PLC0415 - as above

    for index in sorted(findings.here.keys() & findings.learners.keys()):
        node, learner = findings.here[index], findings.learners[index]
        peers = federation.neighbors(index)
        try:
            method, private = method_of(federation), federation.privacy is not None
            state = NodeState.new(learner.initial(), learner.samples, peers, learner.local_state(), method)
            needs = needs_of(state, durability_of(node, learner, private=private), codecs_of(federation, index), method)
            shortage = needs.shortage(node)
        except UserError as error:
            if error.key in ("node.state_dir", "node.durability"):  # others are found elsewhere
                findings.mistakes.append(error)
        else:
            findings.warnings += [shortage] if shortage else []


def _head(federation: FederationConfig) -> dict[str, Any]:
    from p2pfl.config.identity import federation_id  # noqa: PLC0415 - `--help` stays instant

    training, edition = federation.training, federation.edition
    return {
        "name": federation.name,
        "file": str(federation.path),
        "id": federation_id(federation).hex(),
        "task": federation.task.name,
        "members_version": None if edition is None else edition.version,
        "rounds": training.rounds,
        "time_s": training.time_s,
        "local_steps": training.local_steps,
        "local_epochs": training.local_epochs,
        "rule": federation.gossip.rule,
        "staleness": federation.gossip.staleness,
    }


def _member_row(federation: FederationConfig, member: Member, findings: Findings) -> dict[str, Any]:
    from p2pfl.crypto.identity import public_text  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.learn.interface import device_of  # noqa: PLC0415 - as above

    learner = findings.learners.get(member.index) if member.index in findings.here else None
    return {
        "name": member.name,
        "key": public_text(member.key),
        "address": member.address,
        "neighbors": len(federation.neighbors(member.index)),
        "here": member.index in findings.here,
        "samples": learner.samples if learner else None,
        "device": device_of(learner) if learner else None,
    }


def _targets(federation: FederationConfig, findings: Findings) -> dict[str, Any] | None:
    """How far the targets of the nodes that are here are apart; None where they cannot, or must not, be compared."""
    from dataclasses import asdict  # noqa: PLC0415 - `--help` stays instant

    from p2pfl.learn.shift import label_shift, targets_of  # noqa: PLC0415 - as above

    if federation.privacy is not None:
        return None
    here = sorted(findings.learners.keys() & findings.here.keys())
    found = label_shift({federation.members[index].name: targets_of(findings.learners[index]) for index in here})
    return None if found is None else asdict(found) | {"in_words": found.in_words}


def _graph(federation: FederationConfig, findings: Findings, liars: int | None, size: int | None) -> dict[str, Any]:
    """`size` is that of the model, if the compressors fit it."""
    nodes = len(federation.members)
    known = len(findings.here) == nodes == len(findings.learners)
    samples = [findings.learners[index].samples for index in range(nodes)] if known else None
    facts, warnings = graph_facts(federation, samples, liars, size)
    findings.warnings.extend(warnings)
    return facts


def _in_file(mistake: UserError, federation: FederationConfig) -> UserError:
    mistake.file = mistake.file or str(federation.path)
    return mistake


def _as_row(mistake: UserError) -> dict[str, Any]:
    return {key: getattr(mistake, key) for key in ("file", "key", "message", "value", "allowed")}


def _print(report: dict[str, Any]) -> None:
    from p2pfl.cli.check_privacy import print_privacy  # noqa: PLC0415 - as above
    from p2pfl.cli.check_tables import print_tables  # noqa: PLC0415 - as above
    from p2pfl.cli.compressors import print_traffic  # noqa: PLC0415 - as above
    from p2pfl.cli.rules import print_rule  # noqa: PLC0415 - as above

    if "members" in report:
        write_facts({key: value for key, value in report["federation"].items() if key != "id"})
        targets = report["targets"] or {"nodes": {}}
        apart = {} if report["targets"] is None else {"targets apart": targets["nodes"].get}
        rows = [row | {head: of(row["name"]) for head, of in apart.items()} for row in report["members"]]
        write_rows(rows, "table")
        if report["targets"] is not None:
            write_facts({"targets apart": targets["in_words"]})
        write_facts(readable(report["graph"]))
        if report["rule"]:
            print_rule(report["rule"])
        if report["traffic"]:
            print_traffic(report["traffic"])
        if report["tables"]:
            print_tables(report["tables"])
        if report["privacy"]:
            print_privacy(report["privacy"])
    for warning in report["warnings"]:
        click.echo(f"\nwarning: {warning}")
    count = report["mistakes_in_all"]
    click.echo(f"\n{count or 'no'} mistake{'s' * (count != 1)}")


KEYS = (
    "nodes",
    "edges",
    "connected",
    "components",
    "degree",
    "diameter",
    "diameter_bounds",
    "algebraic_connectivity",
    "laplacian_max_eigenvalue",
    "method",
    "residual",
    "certified",
    "effective_resistance",
    "edge_connectivity",
    "vertex_connectivity",
    "bridges",
    "cut_nodes",
    "thinnest_cut",
    "robustness",
    "liars_per_node",
)


def graph_facts(
    federation: FederationConfig, samples: Sequence[float] | None, liars: int | None, size: int | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Figures and warnings.

    `contraction` is that of one exchange on every edge; with `samples` where they are known, else as if all nodes had
    equally many; with the model's `size` where it is known, for the steps that compressors allow. Of a schedule it is
    that of one round, on average over a period, and the exchanges to consensus are those of whole periods; the other
    figures are those of the union of all rounds. Under a robust rule mixing is no Laplacian step, and no such figure
    holds: None. The graph is warned of for so many `liars`, or those of the rule.
    """
    from p2pfl.aggregate import liars_of  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.reporting.figures import predicted  # noqa: PLC0415 - as above
    from topologies import Topology, TopologyError  # noqa: PLC0415 - as above
    from topologies.metrics.byzantine import warnings  # noqa: PLC0415 - as above
    from topologies.metrics.describe import survey  # noqa: PLC0415 - as above
    from topologies.spectral import EPSILON, rounds_to_consensus  # noqa: PLC0415 - as above

    names = [member.name for member in federation.members]
    topology = Topology(federation.topology, len(names), federation.edges, federation.seed, names=names)
    borne = liars_of(federation.gossip.rule)
    expected = borne if liars is None else liars
    facts: dict[str, Any] = {"topology": federation.topology}
    if federation.schedule:
        facts["period"] = len(federation.schedule)
    try:
        described = survey(topology, "sample-weighted")
        shrinks = None if borne else predicted(federation, samples, size)
        said = warnings(topology, expected, poor=expected > borne) if described["connected"] else []
    except TopologyError as error:
        facts |= {"nodes": len(names), "edges": len(federation.edges)}
        return facts, [f"the graph was not analyzed: {error}"]
    facts |= {key: described[key] for key in KEYS}
    facts |= {"contraction": shrinks, "samples_known": samples is not None, "epsilon": EPSILON}
    period = max(1, len(federation.schedule))
    periods = None if shrinks is None else rounds_to_consensus(shrinks**period)
    facts["exchanges_to_consensus"] = periods and period * periods
    return facts, [f"graph: {text}" for text in said]


def liars_at_most(federation: FederationConfig) -> list[int]:
    """For each member, the most malicious neighbors with which it could still mix, whatever the rule's b."""
    from topologies import Topology  # noqa: PLC0415 - `--help` stays instant
    from topologies.metrics.byzantine import local_tolerance  # noqa: PLC0415 - as above

    topology = Topology(federation.topology, len(federation.members), federation.edges, federation.seed)
    found: list[int] = local_tolerance(topology).tolist()
    return found


def readable(graph: dict[str, Any]) -> dict[str, Any]:
    """Format for people: ranges in words, without what follows from the rest."""
    facts = {key: _said(value) for key, value in graph.items()}
    if "diameter_bounds" in facts:
        facts["diameter"] = facts.pop("diameter_bounds")
    if "period" in facts:
        said = "contraction and exchanges count single ones, the rest is about all their edges"
        facts["period"] = f"{facts['period']} rounds; {said}"
    facts.pop("liars_per_node", None)
    if liars := graph.get("liars_per_node"):
        (certain, perhaps), (_, possible) = liars["guaranteed"], liars["at_most"]
        words = f"every node mixes beside {liars['mixes']}; that all agree is certain with {certain}"
        words += f", perhaps with {perhaps}" if perhaps > certain else ""
        facts["liars, if values are trimmed"] = f"{words}, possible with {possible} at most"
    for key in ("connected", "components", "epsilon", "residual", "laplacian_max_eigenvalue"):
        facts.pop(key, None)
    return facts


def _said(value: Any) -> Any:
    match value:
        case {"min": low, "mean": mean, "max": high}:
            return str(low) if low == high else f"{low} to {high}, mean {mean:.3g}"
        case dict():
            return ", ".join(f"{key.replace('_', ' ')} {_said(part)}" for key, part in value.items())
        case [low, high]:
            return _said(low) if low == high else f"{_said(low)} to {_said(high)}"
        case float():
            return f"{value:.4g}"
        case _:
            return value
