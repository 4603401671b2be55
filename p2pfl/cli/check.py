"""`p2pfl check`: read everything that a run would read, and report what would happen. Nothing is started or written.

The task, which is the user's code, is loaded, and so are the data of every node whose folder is here. A training step
of one is timed (a round, if it is short), on a learner that is thrown away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from p2pfl.aggregate import liars_of
from p2pfl.cli.check_brief import WORDS, print_brief, print_words, round_is, round_s, verdict
from p2pfl.cli.check_folders import findings_of, look_into_folders, unknown_names
from p2pfl.cli.mixing import mistake_of_rule, print_rule, print_traffic, rule_facts, traffic_facts, try_own_rule
from p2pfl.config.charter import compacted, federation_id
from p2pfl.config.load import read_federation
from p2pfl.console.output import MOST_MISTAKES, Form, format_option, show_mistakes, write_facts, write_json, write_rows
from p2pfl.crypto.identity import public_text
from p2pfl.engine.arithmetic import codecs_of
from p2pfl.engine.state import NodeState
from p2pfl.errors import UserError
from p2pfl.learn.doubts import about_lone_classes, own_classes, unscaled
from p2pfl.learn.interface import Learner, device_of
from p2pfl.learn.load import make_learner
from p2pfl.learn.methods import method_of
from p2pfl.learn.privacy.plan import protection_of
from p2pfl.learn.shift import label_shift, targets_of
from p2pfl.learn.table.mistakes import mistakes_of
from p2pfl.node.assembly import durability_of, load_learner, memory_needs, program_bytes
from p2pfl.node.engine_thread import needs_of
from p2pfl.node.feature import Findings, Inspected
from p2pfl.reporting.alarms import ALARMS
from p2pfl.reporting.figures import predicted
from p2pfl.reporting.mixing import bearings, slowest_send_s
from topologies import Topology, TopologyError
from topologies.metrics.byzantine import local_tolerance, warnings
from topologies.metrics.describe import survey
from topologies.spectral import EPSILON, rounds_to_consensus

if TYPE_CHECKING:
    from p2pfl.config.model import FederationConfig, Member, NodeConfig


@click.command(
    epilog="\b\nExamples:\n  p2pfl check ward-7\n  p2pfl check ward-7 --all\n  p2pfl check ward-7 --format json"
)
@click.argument("federation", metavar="FEDERATION", type=click.Path(path_type=Path))
@click.option("--all", "in_full", is_flag=True, help="Also show each member, the graph, rule, traffic and privacy.")
@click.option(
    "--byzantine",
    type=click.IntRange(min=0),
    help="Warn if graph or rule do not tolerate this many malicious neighbors of a node.  [default: those of the rule]",
)
@format_option("table", "json")
def check(federation: Path, byzantine: int | None, form: Form, *, in_full: bool) -> int:
    """Find every mistake in a federation, and say what a run would cost.

    FEDERATION is a federation file, or the folder of its federation.toml. Nodes whose folders are next to the file are
    checked too: their settings, key and data. No node is started; one training step is timed. Exits with 2 if there
    is a mistake, with 3 if the only one is a graph that is not connected.
    """
    from p2pfl.cli.main import exit_code  # noqa: PLC0415 - the commands are imported by it

    described, mistakes = read_federation(federation)
    report: dict[str, Any] = {}
    warnings: list[str] = []
    said: list[Findings] = []
    inspected: Inspected | None = None
    if described is not None:
        inspected = Inspected(compacted(described), mistakes, warnings)
        said = findings_of(inspected)
        report = _survey(inspected, said, byzantine)
    report |= {"warnings": warnings, "mistakes": [_as_row(mistake) for mistake in mistakes[:MOST_MISTAKES]]}
    report["mistakes_in_all"] = len(mistakes)
    if form == "json":
        write_json(report)
    else:
        _print(report, inspected, said if in_full else None)
    show_mistakes(mistakes)
    return min((exit_code(mistake) for mistake in mistakes), default=0)


def _survey(inspected: Inspected, findings: Sequence[Findings], liars: int | None) -> dict[str, Any]:
    federation = inspected.federation
    folders = look_into_folders(federation)
    inspected.mistakes += folders.mistakes
    inspected.warnings += [*folders.warnings, *unknown_names(federation, folders.here.values())]
    inspected.here = folders.here
    for one in findings:
        one.of_files(inspected)
    _load_learners(federation, inspected)
    _warn(federation, inspected)
    _look_for_room(federation, inspected)
    _look_at_method(federation, inspected)
    for one in findings:
        one.of_learners(inspected)
    traffic, mistakes = None, list[UserError]()
    if not federation.grows_trees:
        traffic, mistakes = traffic_facts(federation, inspected.learners.values())
    inspected.mistakes.extend(mistakes)
    if traffic and traffic["frozen_parameters"] and traffic["share_frozen"]:
        text = f"{traffic['frozen_parameters']} of {traffic['parameters']} values that nodes send are never trained"
        advice = "with share_frozen = false in [gossip] on all nodes, and new state folders, they stay where they are"
        inspected.warnings.append(f"{text}: {advice}")
    if traffic and not federation.in_step_by:
        _warn_of_links(federation, inspected, traffic["parameters"])
    graph = _graph(federation, inspected, liars, traffic["parameters"] if traffic else None)
    try:
        borne = bearings(federation)
        if traffic:
            try_own_rule(federation, borne, traffic["parameters"])
        rule, warnings = rule_facts(federation, borne, graph, liars)
    except UserError as error:  # a rule of the user's own
        borne, rule, warnings = [], None, []
        inspected.mistakes.append(_in_file(error, federation))
    inspected.warnings.extend(warnings)
    if borne and (alone := mistake_of_rule(federation, borne)):
        inspected.mistakes.append(alone)
    at_most = liars_at_most(federation)
    return {
        "federation": _head(federation, inspected),
        "members": [
            _member_row(federation, member, inspected)
            | {
                "liars_borne": borne[member.index].borne if borne else None,
                "liars_at_most": at_most[member.index],
            }
            for member in federation.members
        ],
        "memory": {federation.members[index].name: needs.parts for index, needs in sorted(inspected.memory.items())},
        "mapped": {
            federation.members[index].name: needs.engine.mapped for index, needs in sorted(inspected.memory.items())
        },
        "targets": _targets(federation, inspected),
        "graph": graph,
        "rule": rule,
        "traffic": traffic,
        **{one.part: one.told() for one in findings if one.part},
    }


def _look_at_method(federation: FederationConfig, inspected: Inspected) -> None:
    inspected.warnings.extend(federation.notices)
    optimizer = federation.training.optimizer
    if optimizer != "sgd" and federation.method.startswith("variate"):
        text = f"its corrections have the size of steps of {optimizer}, beside which gradients are small: nodes may"
        inspected.warnings.append(f'method variate: {text} hardly learn. Write method = "plain" in [training]')
    if federation.method.startswith("fair"):
        text = "helps the worst node where no model suits all; where only labels differ, variate serves it better"
        inspected.warnings.append(f"method fair: {text}: docs/how-to/methods.md")
    try:
        method_of(federation)
    except UserError as error:
        inspected.mistakes.append(error)


def _load_learners(federation: FederationConfig, inspected: Inspected) -> None:
    """Load the learners. If no node's folder is here, load the first node's learner without data, for the model's
    size.
    """
    alone = [0] if inspected.has_model else []
    indices = [index for index in sorted(inspected.here) or alone if index not in inspected.unusable]
    for index in indices:
        try:
            inspected.learners[index] = _learner(federation, federation.members[index], inspected.here.get(index))
        except UserError as error:
            about_data = (error.key or "").startswith("data")
            if inspected.here or not about_data:
                inspected.mistakes.extend(mistakes_of(error))
            if not about_data:
                return  # the mistake is the same for every node
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            inspected.warnings.append("torch is not installed: the task was not checked")
            return


def _learner(federation: FederationConfig, member: Member, node: NodeConfig | None) -> Learner:
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
        share=federation.gossip.patterns,
        file=federation.path,
        protection=protection_of(federation),
    )


def _warn(federation: FederationConfig, inspected: Inspected) -> None:
    for i, j in federation.edges:
        first, second = federation.members[i], federation.members[j]
        if first.address is None and second.address is None and not (federation.discovery or federation.relays):
            text = f"neither {first.name} nor {second.name} has an address for the other to dial"
            ways = "discovery = true in [network] if they are on one LAN, or relays: docs/how-to/relay.md"
            inspected.warnings.append(f"{text}: write one, or {ways}")
    _warn_of_data(federation, inspected)
    if len({learner.shape_digest for learner in inspected.learners.values()}) > 1:
        inspected.warnings.append("the models of the nodes here differ in shape: such nodes cannot mix")


def _warn_of_data(federation: FederationConfig, inspected: Inspected) -> None:
    """Warn about the data of nodes whose folders are here; about classes only if all are here."""
    names = {member.index: member.name for member in federation.present}
    here = {names[index]: one for index, one in inspected.learners.items() if index in inspected.here}
    for name, learner in here.items():
        if text := unscaled(learner):
            inspected.warnings.append(f"{name}: {text}: scale the inputs alike on all nodes")
    if federation.privacy is not None:
        return  # if data are missing, other nodes may have these classes
    told = {name: own_classes(learner) for name, learner in here.items()}
    classes = {name: one for name, one in told.items() if one is not None}
    text = about_lone_classes(federation.gossip.rule, classes) if len(classes) == len(names) else None
    inspected.warnings += [] if text is None else [text]


def _warn_of_links(federation: FederationConfig, inspected: Inspected, size: int) -> None:
    """Warn if a round, with its wait for exchanges, is shorter than one over the links that a node here states."""
    wait_s = federation.gossip.max_wait_s
    slow = {index: slowest_send_s(federation, index, node.network, size) for index, node in inspected.here.items()}
    if max(slow.values(), default=0.0) <= wait_s or federation.privacy is not None:
        return
    most_s = wait_s + (round_s(federation, inspected) or 0.0)
    for name, seconds in ((federation.members[index].name, slow[index]) for index in sorted(slow)):
        if seconds > most_s:
            text = f"{name}: an exchange takes {seconds:.0f} s at its max_kbit_s, and a round at most {most_s:.0f} s"
            inspected.warnings.append(f"{text}: most mix with nobody. {ALARMS['hardly-mixes'].advice}")


def _look_for_room(federation: FederationConfig, inspected: Inspected) -> None:
    """Check that disks and memory have room for the nodes that are here."""
    program = program_bytes(inspected.learners.values())
    for index in sorted(inspected.here.keys() & inspected.learners.keys()):
        node, learner = inspected.here[index], inspected.learners[index]
        peers = federation.neighbors(index)
        try:
            method, private = method_of(federation), federation.privacy is not None
            state = NodeState.new(learner.initial(), learner.samples, peers, learner.local_state(), method)
            codecs = codecs_of(federation, index)
            state.fit_replicas(codecs.need_replicas)
            if not (federation.in_step_by or federation.grows_trees):
                inspected.memory[index] = memory = memory_needs(
                    state, codecs, method, learner, program, mapped=federation.gossip.memory == "mapped"
                )
                memory.refuse_shortage(node)
                memory.refuse_full_disk(node)
            shortage = needs_of(state, durability_of(node, learner, private=private), codecs, method).shortage(node)
        except UserError as error:
            if error.key in (
                "node.state_dir",
                "node.durability",
                "node.memory_mb",
                "gossip.memory",
            ):  # other mistakes are reported elsewhere
                inspected.mistakes.append(error)
        else:
            inspected.warnings += [shortage] if shortage else []


def _head(federation: FederationConfig, inspected: Inspected) -> dict[str, Any]:
    training, edition = federation.training, federation.edition
    has_steps = not federation.grows_trees and round_is(inspected) is None
    mixes = not federation.in_step_by
    return {
        "name": federation.name,
        "file": str(federation.path),
        "id": federation_id(federation).hex(),
        "task": federation.task.name,
        "members_version": None if edition is None else edition.version,
        "rounds": training.rounds,
        "time_s": training.time_s,
        "local_steps": training.local_steps if has_steps else None,
        "local_epochs": training.local_epochs if has_steps else None,
        "rule": federation.gossip.rule if mixes else None,
        "staleness": federation.gossip.staleness if mixes else None,
    }


def _member_row(federation: FederationConfig, member: Member, inspected: Inspected) -> dict[str, Any]:
    learner = inspected.learners.get(member.index) if member.index in inspected.here else None
    return {
        "name": member.name,
        "key": public_text(member.key),
        "address": member.address,
        "neighbors": len(federation.neighbors(member.index)),
        "here": member.index in inspected.here,
        "samples": learner.samples if learner else None,
        "device": device_of(learner) if learner else None,
        "memory_bytes": None if (needs := inspected.memory.get(member.index)) is None else needs.total,
    }


def _targets(federation: FederationConfig, inspected: Inspected) -> dict[str, Any] | None:
    """Return how much the targets of the nodes here differ, or None if they cannot, or must not, be compared."""
    if federation.privacy is not None:
        return None
    here = sorted(inspected.learners.keys() & inspected.here.keys())
    shift = label_shift({federation.members[index].name: targets_of(inspected.learners[index]) for index in here})
    return None if shift is None else asdict(shift) | {"in_words": shift.in_words}


def _graph(federation: FederationConfig, inspected: Inspected, liars: int | None, size: int | None) -> dict[str, Any]:
    """Describe the graph for a model of `size` values, if the size is known and the compressors support it."""
    nodes = len(federation.members)
    known = len(inspected.here) == nodes == len(inspected.learners)
    samples = [inspected.learners[index].samples for index in range(nodes)] if known else None
    facts, warnings = graph_facts(federation, samples, liars, size)
    inspected.warnings.extend(warnings)
    return facts


def _in_file(mistake: UserError, federation: FederationConfig) -> UserError:
    mistake.file = mistake.file or str(federation.path)
    return mistake


def _as_row(mistake: UserError) -> dict[str, Any]:
    return {key: getattr(mistake, key) for key in ("file", "key", "message", "value", "allowed")}


def _print(report: dict[str, Any], inspected: Inspected | None, findings: Sequence[Findings] | None) -> None:
    """Print what a person must know; with `findings`, print the rest too."""
    click.echo(verdict(report["mistakes_in_all"], len(report["warnings"])))
    if inspected is None:
        return
    print_brief(report, inspected.federation, inspected)
    if findings is None:
        click.echo("more: p2pfl check --all")
        return
    _print_in_full(report, inspected, findings)


def _print_in_full(report: dict[str, Any], inspected: Inspected, findings: Sequence[Findings]) -> None:
    click.echo()
    write_facts({key: value for key, value in report["federation"].items() if key != "id"})
    targets = report["targets"] or {"nodes": {}}
    apart = {} if report["targets"] is None else {"targets apart": targets["nodes"].get}
    mixes = inspected.federation.in_step_by == ""
    borne = () if mixes else ("liars_borne", "liars_at_most")
    members = [{key: value for key, value in row.items() if key not in borne} for row in report["members"]]
    rows = [row | {head: of(row["name"]) for head, of in apart.items()} for row in members]
    write_rows(rows, "table")
    if report["targets"] is not None:
        write_facts({"targets apart": targets["in_words"]})
    facts = readable(report["graph"])
    write_facts(facts)
    if report["rule"]:
        print_rule(report["rule"])
    if report["traffic"] and not report.get("shared_noise"):
        print_traffic(report["traffic"])
    for one in findings:
        if report.get(one.part):
            one.show(report[one.part])
    compressed = {"delta", "gamma", "random"} if report["traffic"] else set[str]()
    shown = {key for row in (facts, *rows) for key, value in row.items() if value is not None}
    print_words((shown | compressed) & WORDS.keys())


SWAPPED = 1e-9
"""With a contraction closer to 1 than this, weights leave differences as they are."""
ROBUST = " What robust means: docs/how-to/which-graph.md"
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
    """Return figures and warnings.

    `contraction` is the factor for one exchange on every edge. It uses `samples` if they are known, else equal numbers
    for all nodes, and the model's `size`, if known, for the step sizes that compressors allow. For a schedule, it is
    the factor per round, on average over a period, and the exchanges to consensus count whole periods; the other
    figures are for the union of all rounds. Under a robust rule, mixing is not a Laplacian step, so these figures are
    None; nor are there any where rounds are sums. Warnings assume this number of `liars`, or the rule's own.
    """
    names = [member.name for member in federation.members]
    topology = Topology(federation.topology, len(names), federation.edges, federation.seed, names=names)
    borne = liars_of(federation.gossip.rule)
    expected = borne if liars is None else liars
    facts: dict[str, Any] = {"topology": federation.topology}
    if federation.schedule:
        facts["period"] = len(federation.schedule)
    if federation.edge_weights:
        facts["mixing_weights"] = "those of the file" if not borne else "not used by a robust rule"
    try:
        described = survey(topology, "sample-weighted")
        shrinks = None if borne or federation.in_step_by else predicted(federation, samples, size)
        said = warnings(topology, expected, poor=expected > borne) if described["connected"] else []
    except TopologyError as error:
        facts |= {"nodes": len(names), "edges": len(federation.edges)}
        return facts, [f"the graph was not analyzed: {error}"]
    if federation.edge_weights and shrinks is not None and shrinks > 1.0 - SWAPPED:
        said = [*said, "With these weights models that differ would stay so, or swap in each round. Lower them."]
    facts |= {key: described[key] for key in KEYS}
    facts |= {"contraction": shrinks, "samples_known": None, "epsilon": EPSILON}
    if federation.in_step_by:
        del facts["liars_per_node"]
        facts["exchanges_to_consensus"] = None
        return facts, [f"graph: {text}" for text in said]
    facts["samples_known"] = samples is not None
    period = max(1, len(federation.schedule))
    periods = None if shrinks is None else rounds_to_consensus(shrinks**period)
    facts["exchanges_to_consensus"] = periods and period * periods
    return facts, [f"graph: {text}{ROBUST if '-robust' in text else ''}" for text in said]


def liars_at_most(federation: FederationConfig) -> list[int]:
    """Return, for each member, the most malicious neighbors with which it could still mix under any rule."""
    topology = Topology(federation.topology, len(federation.members), federation.edges, federation.seed)
    found: list[int] = local_tolerance(topology).tolist()
    return found


def readable(graph: dict[str, Any]) -> dict[str, Any]:
    """Format for people: ranges in words, without figures that follow from others."""
    facts = {key: _as_text(value) for key, value in graph.items()}
    if "diameter_bounds" in facts:
        facts["diameter"] = facts.pop("diameter_bounds")
    if "period" in facts:
        said = "contraction and exchanges count single ones, the rest is about all their edges"
        facts["period"] = f"{facts['period']} rounds; {said}"
    facts.pop("liars_per_node", None)
    if liars := graph.get("liars_per_node"):
        (certain, perhaps), (_, possible) = liars["guaranteed"], liars["at_most"]
        words = f"every node mixes with up to {liars['mixes']}; agreement is certain with up to {certain}"
        words += f", perhaps {perhaps}" if perhaps > certain else ""
        facts["liars, if values are trimmed"] = f"{words}, and may fail with more than {possible} even if nobody lies"
    for key in ("connected", "components", "epsilon", "residual", "laplacian_max_eigenvalue"):
        facts.pop(key, None)
    return facts


def _as_text(value: Any) -> Any:
    match value:
        case {"min": low, "mean": mean, "max": high}:
            return str(low) if low == high else f"{low} to {high}, mean {mean:.3g}"
        case dict():
            return ", ".join(f"{key.replace('_', ' ')} {_as_text(part)}" for key, part in value.items())
        case [low, high]:
            return _as_text(low) if low == high else f"{_as_text(low)} to {_as_text(high)}"
        case float():
            return f"{value:.4g}"
        case _:
            return value
