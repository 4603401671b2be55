"""The checks of `p2pfl check` that no feature brings, in one list with those of features.

They find mistakes in the folders of the nodes that are here (settings, keys and ports), addresses whose names are
unknown, data and methods that will not do, too little room on disk or in memory, and a graph or compressors that do not
suit the rule. `launch` makes those that need no model before it starts a node; nothing here imports torch before a
learner is loaded. About the rule they say how many malicious nodes it tolerates here, and which settings work against
it: docs/how-to/liars.md has the figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

from p2pfl.aggregate import advice, liars_of, parse_rule
from p2pfl.compress import parse
from p2pfl.config.load import load_node, node_file, node_mistakes
from p2pfl.config.members import members_file
from p2pfl.config.model import FederationConfig, Member, NodeConfig
from p2pfl.console.output import size
from p2pfl.crypto.identity import Identity, public_text
from p2pfl.engine.changes import check_format
from p2pfl.engine.engine import codecs_of
from p2pfl.engine.state import Codecs, NodeState
from p2pfl.errors import StorageError, UserError
from p2pfl.features import import_declared
from p2pfl.learn.figures import about_lone_classes, own_classes, unscaled
from p2pfl.learn.methods import method_of
from p2pfl.learn.table.rows import mistakes_of
from p2pfl.learn.task import leaves_few_classes
from p2pfl.net.address import is_hidden, misses, parse_address
from p2pfl.net.dial_paths import certificate_of, outlet_of
from p2pfl.node.assembly import durability_of, load_learner, memory_needs, program_bytes
from p2pfl.node.engine_thread import Needs, needs_of
from p2pfl.node.feature import Check, Inspected
from p2pfl.reporting.figures import (
    Bearing,
    bearings,
    compressor_mistakes,
    count,
    fragments_instead,
    names,
    traffic,
)
from p2pfl.storage import peek
from p2pfl.storage.disk import refuse_shared
from topologies import Topology, TopologyError
from topologies.metrics.byzantine import warnings
from topologies.metrics.describe import survey

BLOCK_BYTES, DAY_S = 4096, 86_400
"""What a flush writes at the least."""
OF_ROOM = ("node.state_dir", "node.durability")
"""The keys of the mistakes that are about room."""
TRUST = 'rule = "mean" is no protection against malicious neighbors: one of them can ruin the model of all'
FROZEN = "with share_frozen = false in [gossip] on all nodes, and new state folders, they stay where they are"
TRUST_SUMS = "a secure sum is no protection against malicious members: one of them can spoil every sum, unnoticed"
NEAREST_DECIDE = ("cs+", "hampel")
"""Rules whose radius is the (m - 2b)-th shortest distance, which malicious nodes can set if m <= 3b."""
ROBUST = " What robust means: docs/how-to/which-graph.md"


def checks_of(mixing: MixingCheck, *, counted: bool = False) -> list[Check]:
    """Return all checks, in order; `mixing` comes last. With `counted`, models of built-in tasks are not built."""
    return [FolderCheck(counted=counted), *(kind() for kind in import_declared("CHECKS")), mixing]


class FolderCheck(Check):
    """The folders of the nodes that are here, and their learners."""

    def __init__(self, *, counted: bool = False) -> None:
        self._counted = counted

    def of_files(self, inspected: Inspected) -> None:
        self.before_launch(inspected)

    def before_launch(self, inspected: Inspected) -> None:
        for member in inspected.federation.present:
            _look_into(inspected, member)

    def of_learners(self, inspected: Inspected) -> None:
        """Load the learners, for the checks that follow, and look at their data, method and needs."""
        _load_learners(inspected, counted=self._counted)
        _warn_of_addresses(inspected)
        _warn_of_data(inspected)
        _look_for_room(inspected)
        _look_at_method(inspected)


def _look_into(inspected: Inspected, member: Member) -> None:
    federation = inspected.federation
    file = node_file(federation, member.name)
    if not file.parent.is_dir():
        return
    if mistakes := node_mistakes(file, federation):
        inspected.mistakes.extend(mistakes)
        return
    node = load_node(file, federation)
    inspected.here[member.index] = node
    if is_hidden(member.address, node.listen):
        text = f"{member.name} listens on {node.listen}, where nobody reaches its address {member.address}"
        inspected.warnings.append(f"{text}: set listen in {node.path}")
    if (mistake := wrong_port(inspected.federation, member, node)) is not None:
        inspected.mistakes.append(mistake)
    _look_at_tls(inspected, member, node)
    _look_at_key(inspected, member, node)
    _look_at_state(inspected, node)


def _look_at_state(inspected: Inspected, node: NodeConfig) -> None:
    """Look whether this version can go on with the node's state, as far as we may read it."""
    with suppress(OSError):
        try:
            if node.state_dir.is_dir() and (loaded := peek(node.state_dir)) is not None:
                check_format(loaded.state.header)
        except StorageError as error:
            allowed = "the version that wrote it, or a backup of before"
            inspected.mistakes.append(UserError(str(error), file=node.state_dir, allowed=allowed))


def _look_at_tls(inspected: Inspected, member: Member, node: NodeConfig) -> None:
    """Look at the node's certificate, and at its proxy."""
    address = None if member.address is None else parse_address(member.address, "address")
    try:
        outlet_of(node)
        certificate = certificate_of(node)
    except UserError as error:
        inspected.mistakes.append(error)
        return
    if certificate is None:
        if address is not None and address.tls and parse_address(node.listen, "listen").port == address.port:
            text = f"others dial {member.name} by TLS at {address}, and it listens on {node.listen} without"
            inspected.warnings.append(f"{text}: set cert and key under [network] in {node.path}, or another listen")
        return
    if address is not None and address.pin not in ("", certificate.pin):
        text = f"not the certificate that is pinned in the address of {member.name}"
        inspected.mistakes.append(UserError(text, file=certificate.cert, value=certificate.pin, allowed=address.pin))


def wrong_port(federation: FederationConfig, member: Member, node: NodeConfig) -> UserError | None:
    """Return the mistake if others dial a port on which the node does not listen, and which no router forwards."""
    if member.address is None or not misses(member.address, node.listen, node.forwarded_port):
        return None
    signed = federation.edition is not None
    file = members_file(federation) if signed else federation.path
    text = f"others dial another port of {member.name}: its address in {file} is {member.address}"
    port = parse_address(member.address, "address").port
    there = "another address there" + (" (`p2pfl member set --address`)" if signed else "")
    allowed = f"port {port}; or {there}; or forwarded_port = {port}, where a router passes that one on to `listen`"
    key, value = ("listen", node.listen) if node.forwarded_port is None else ("forwarded_port", node.forwarded_port)
    return UserError(text, file=node.path, key=f"node.{key}", value=value, allowed=allowed)


def _look_at_key(inspected: Inspected, member: Member, node: NodeConfig) -> None:
    try:
        with suppress(OSError):  # there is none yet, or only the node's user may read it
            refuse_shared(node.state_dir, user=node.state_dir.stat().st_uid)
        public = Identity.load(node.key_file).public
    except UserError as error:
        inspected.mistakes.append(error)
        return
    if public != member.key:
        text = f"not the key that {inspected.federation.path.name} lists for {member.name}"
        shown, allowed = public_text(public), public_text(member.key)
        inspected.mistakes.append(UserError(text, file=node.key_file, key="public key", value=shown, allowed=allowed))


def _load_learners(inspected: Inspected, *, counted: bool) -> None:
    """Load the learners of the nodes whose folders are here."""
    for index in sorted(inspected.here.keys() - inspected.unusable):
        try:
            inspected.learners[index] = load_learner(inspected.federation, inspected.here[index], counted=counted)
        except UserError as error:
            inspected.mistakes.extend(mistakes_of(error))
            if not (error.key or "").startswith("data"):
                return  # the mistake is the same for every node
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            inspected.warnings.append("torch is not installed: the task was not checked")
            return


def _warn_of_addresses(inspected: Inspected) -> None:
    federation = inspected.federation
    for i, j in federation.edges:
        first, second = federation.members[i], federation.members[j]
        if first.address is None and second.address is None and not (federation.discovery or federation.relays):
            text = f"neither {first.name} nor {second.name} has an address for the other to dial"
            ways = "discovery = true in [network] if they are on one LAN, or relays: docs/how-to/relay.md"
            inspected.warnings.append(f"{text}: write one, or {ways}")


def _warn_of_data(inspected: Inspected) -> None:
    """Warn about the data of nodes whose folders are here; about classes only if all are here."""
    federation = inspected.federation
    names = {member.index: member.name for member in federation.present}
    here = {names[index]: learner for index, learner in inspected.learners.items() if index in inspected.here}
    for name, learner in here.items():
        if text := unscaled(learner):
            inspected.warnings.append(f"{name}: {text}: scale the inputs alike on all nodes")
    if len({learner.shape_digest for learner in inspected.learners.values()}) > 1:
        inspected.warnings.append("the models of the nodes here differ in shape: such nodes cannot mix")
    if federation.privacy is not None:
        return  # if data are missing, other nodes may have these classes
    of_nodes = {name: own_classes(learner) for name, learner in here.items()}
    classes = {name: own for name, own in of_nodes.items() if own is not None}
    text = about_lone_classes(federation.gossip.rule, classes) if len(classes) == len(names) else None
    inspected.warnings += [] if text is None else [text]


def _look_for_room(inspected: Inspected) -> None:
    """Check that disks and memory have room for the nodes that are here."""
    federation = inspected.federation
    is_counted = any(not hasattr(learner, "train") for learner in inspected.learners.values())
    program = None if is_counted else program_bytes(inspected.learners.values())
    written: list[tuple[float, str]] = []
    for index in sorted(inspected.here.keys() & inspected.learners.keys()):
        node, learner = inspected.here[index], inspected.learners[index]
        peers = federation.neighbors(index)
        try:
            method, private = method_of(federation), federation.privacy is not None
            state = NodeState.new(learner.initial(), learner.samples, peers, learner.local_state(), method)
            codecs = codecs_of(federation, index)
            state.fit_replicas(codecs.need_replicas)
            needs = needs_of(state, durability_of(node, learner, private=private), codecs, method)
            if not (federation.in_step_by or federation.grows_trees):
                inspected.memory[index] = memory_needs(state, codecs, method, learner, program)
                used = federation.edges_at_once / max(1, len(federation.edges))
                written.append(_written(node, needs, state, codecs, used))
            shortage = needs.shortage(node)
        except UserError as error:
            if error.key in OF_ROOM:  # other mistakes are reported elsewhere
                inspected.mistakes.append(error)
        else:
            inspected.warnings += [shortage] if shortage else []
    if written:
        inspected.brief["disk"] = f"estimate: {max(written)[1]}"


def _written(node: NodeConfig, needs: Needs, state: NodeState, codecs: Codecs, used: float) -> tuple[float, str]:
    """Return the bytes that a node writes in a day, and how: with a log some two flushes for each edge in a round, of
    which it uses the share `used` of its edges.
    """
    if not needs.logging:
        a_day = DAY_S / node.snapshot_s * needs.snapshot_bytes
        return a_day, f"{size(a_day)} written a day by the busiest node here, a snapshot every {node.snapshot_s:g} s"
    payloads = (codecs.of(peer).size_bytes(state.channels.size) for peer in state.edges)
    a_round = 2 * state.model.nbytes + used * sum(2 * BLOCK_BYTES + payload for payload in payloads)
    a_day = DAY_S * a_round
    return a_day, f"{size(a_round)} written a round by the busiest node here, {size(a_day)} a day at a round a second"


def _look_at_method(inspected: Inspected) -> None:
    federation = inspected.federation
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


class MixingCheck(Check):
    """The graph, the rule and the traffic."""

    def __init__(self) -> None:
        self.graph: dict[str, Any] = {}
        self.rule: dict[str, Any] | None = None
        self.traffic: dict[str, Any] | None = None
        self.borne: list[Bearing] = []

    def before_launch(self, inspected: Inspected) -> None:
        task, file = inspected.federation.task.name, inspected.federation.path
        place = task.rpartition(":")[0]
        if place.endswith(".py") and not (code := file.parent / place).is_file():
            mistake = UserError(f"there is no file {code.absolute()}", file=file, key="task.name", value=task)
            inspected.mistakes.append(mistake)
        inspected.mistakes += compressor_mistakes(inspected.federation)
        if (alone := mistake_of_rule(inspected.federation, bearings(inspected.federation))) is not None:
            inspected.mistakes.append(alone)

    def of_learners(self, inspected: Inspected) -> None:
        federation = inspected.federation
        if not federation.grows_trees:
            self.traffic = _traffic(inspected)
        self.graph = _graph(inspected)
        try:
            self.borne = bearings(federation)
        except UserError as error:  # a rule of the user's own
            error.file = error.file or str(federation.path)
            inspected.mistakes.append(error)
            return
        self.rule = _rule(inspected, self.borne, self.graph)
        if (alone := mistake_of_rule(federation, self.borne)) is not None:
            inspected.mistakes.append(alone)


def _graph(inspected: Inspected) -> dict[str, Any]:
    """Return figures, of a schedule those of the union of all rounds, and warn as of as many malicious neighbors as the
    rule tolerates.
    """
    federation = inspected.federation
    names = [member.name for member in federation.members]
    topology = Topology(federation.topology, len(names), federation.edges, federation.seed, names=names)
    facts: dict[str, Any] = {"topology": federation.topology}
    if federation.schedule:
        facts["period"] = len(federation.schedule)
    try:
        described = survey(topology)
        said = warnings(topology, liars_of(federation.gossip.rule)) if described["connected"] else []
    except TopologyError as error:
        inspected.warnings.append(f"the graph was not analyzed: {error}")
        return facts | {"nodes": len(names), "edges": len(federation.edges)}
    inspected.warnings += [f"graph: {text}{ROBUST if '-robust' in text else ''}" for text in said]
    return facts | described


def _rule(inspected: Inspected, of_all: list[Bearing], graph: Mapping[str, Any]) -> dict[str, Any]:
    federation, b, borne = inspected.federation, of_all[0].liars, [row.borne for row in of_all]
    if federation.in_step_by:
        inspected.warnings.append(TRUST_SUMS)
    elif not b:
        few_classes = leaves_few_classes(str(federation.task.options.get("partition", "")))
        rule = advice(few_classes=few_classes, honest_each=max(0, min(row.neighbors for row in of_all) - 1)).rules[0]
        inspected.warnings.append(f"{TRUST}. A rule such as {rule}:b=1 tolerates one per node: docs/how-to/liars.md")
    else:
        about = (_about_nodes(federation, of_all), _about_radius(federation, of_all), _about_graph(b, graph))
        inspected.warnings += [f"rule: {text}" for text in chain(*about, _about_compressors(federation))]
    return {
        "rule": federation.gossip.rule,
        "liars": b,
        "liars_borne": {"min": min(borne), "max": max(borne)},
        "neighbors_needed": of_all[0].needed,
        "never_mix": [federation.members[node].name for node, row in enumerate(of_all) if b and not row.mixes],
    }


def mistake_of_rule(federation: FederationConfig, all_of_them: Sequence[Bearing]) -> UserError | None:
    """Return the mistake of a rule under which no node at all mixes; if only some do not, that is a warning."""
    if federation.in_step_by or any(row.mixes for row in all_of_them):
        return None
    most, needed = max(row.neighbors for row in all_of_them), all_of_them[0].needed
    return UserError(
        f"every node would mix with nobody and learn alone, because the rule needs {needed} neighbors and none has "
        f"more than {most}",
        file=str(federation.path),
        key="gossip.rule",
        value=federation.gossip.rule,
        allowed=f"a graph in which nodes have {needed} neighbors or more, or a lower b",
    )


def _about_nodes(federation: FederationConfig, of_all: list[Bearing]) -> Iterator[str]:
    rule, needed = federation.gossip.rule, of_all[0].needed
    idle = [node for node, row in enumerate(of_all) if not row.mixes]
    if 0 < len(idle) < len(of_all):
        verb = "it has" if len(idle) == 1 else "they have"
        yield (
            f"{names(federation, idle)} would mix with nobody and learn alone: {rule} needs {needed} neighbors, "
            f"and {verb} fewer. Add edges, or lower b."
        )
    if tight := [node for node, row in enumerate(of_all) if row.neighbors == needed]:
        yield (f"{names(federation, tight)} would stop mixing whenever one neighbor is away: {rule} needs {needed}.")


def _about_radius(federation: FederationConfig, of_all: list[Bearing]) -> Iterator[str]:
    """Warn about nodes that b malicious neighbors can isolate with the `mirror` attack."""
    rule, b = federation.gossip.rule, of_all[0].liars
    if parse_rule(rule).name not in NEAREST_DECIDE:
        return
    if alone := [node for node, row in enumerate(of_all) if row.mixes and row.neighbors <= 3 * b]:
        verb, shows = "has" if len(alone) == 1 else "have", "shows" if b == 1 else "show"
        yield (
            f"{names(federation, alone)} {verb} {3 * b} neighbors or fewer and can be cut off: {count(b, 'liar')} that "
            f"{shows} a node its own model {'leaves' if b == 1 else 'leave'} it no radius under {rule}, so that it "
            f"hears nobody and learns alone. It needs {3 * b + 1} neighbors or more."
        )


def _about_graph(b: int, graph: Mapping[str, Any]) -> Iterator[str]:
    if "robustness" not in graph or not graph["connected"]:
        return
    cut = graph["thinnest_cut"]
    thin = cut is not None and cut["edges"] <= 2 * b and cut["smaller_side"] > 1
    if graph["bridges"] or graph["cut_nodes"] or thin or graph["robustness"][1] <= b:
        yield (
            "the graph has a bottleneck. What comes across it is the outlier, and a robust rule discards it even if "
            "nobody is malicious: two cliques of 8 joined by one edge were measured to fall from 0.96 to 0.94, and to "
            "stay five times as far apart. Add edges across it."
        )


def _about_compressors(federation: FederationConfig) -> Iterator[str]:
    for spec in sorted({federation.gossip.compressor, *federation.edge_compressors.values()}):
        if parse(spec).sparsifier:
            yield (
                f"{spec} sends a neighbor's model piece by piece, and the rule judges what has arrived so far: under "
                "hampel:b=1 accuracy was measured to fall from 0.96 to 0.95 with top-k:0.05+q8 and to 0.70 with "
                "random-k:0.05+q8. q4, q8 or rotate+sign send all of it."
            )


def _traffic(inspected: Inspected) -> dict[str, Any] | None:
    """Return figures; None if there is a mistake or the model's size is unknown. `personal_parameters` has the minimum
    and maximum over the learners. Warns of values that are sent in vain.
    """
    federation, learners = inspected.federation, inspected.learners.values()
    shared = next((learner.size for learner in learners), None)
    mistakes = compressor_mistakes(federation, shared)
    inspected.mistakes += mistakes
    if shared is None or mistakes:
        return None
    personal = [learner.personal for learner in learners]
    frozen = max(getattr(learner, "frozen", 0) for learner in learners)
    if frozen and federation.gossip.share_frozen:
        inspected.warnings.append(f"{frozen} of {shared} values that nodes send are never trained: {FROZEN}")
    try:
        channels = len(method_of(federation).channels)
    except UserError:  # the check of the method reports it
        channels = 1
    inspected.warnings += filter(None, [fragments_instead(federation, shared * channels)])
    return {
        "share": list(federation.gossip.share),
        "personal_parameters": [min(personal), max(personal)],
        "frozen_parameters": frozen,
        "share_frozen": federation.gossip.share_frozen,
        **traffic(federation, shared * channels),
        "parameters": shared,
    }
