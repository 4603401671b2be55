"""The parts of `p2pfl check` about how a federation mixes: its rule, and what its compressors send.

About the rule it says how many malicious nodes it tolerates in this federation and which settings work against it, and
separates guarantees from mere measurements: docs/how-to/liars.md has the figures.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from p2pfl.aggregate import Advice, Neighborhood, advice, liars_of, parse_rule
from p2pfl.compress import parse
from p2pfl.config.graph import rule_of
from p2pfl.config.model import FederationConfig
from p2pfl.config.tables import read_document
from p2pfl.console.output import cell, size, write_facts, write_rows
from p2pfl.errors import P2PFLError, UserError
from p2pfl.learn.interface import Learner, RoundStart
from p2pfl.learn.methods import method_of
from p2pfl.learn.task import leaves_few_classes
from p2pfl.node.assembly import load_learner
from p2pfl.node.feature import Check, Inspected
from p2pfl.reporting.alarms import ALARMS
from p2pfl.reporting.figures import (
    Bearing,
    bearings,
    compressor_mistakes,
    count,
    names,
    predicted,
    slowest_send_s,
    traffic,
)
from topologies import Topology, TopologyError
from topologies.metrics.byzantine import local_tolerance, warnings
from topologies.metrics.describe import survey
from topologies.spectral import EPSILON, rounds_to_consensus

TRUST = 'rule = "mean" is no protection against malicious neighbors: one of them can ruin the model of all'
FROZEN = "with share_frozen = false in [gossip] on all nodes, and new state folders, they stay where they are"
TRUST_SUMS = "a secure sum is no protection against malicious members: one of them can spoil every sum, unnoticed"
HONEST_EACH = 4
"""With fewer honest neighbors per malicious one, `check` warns."""
CONNECTED_EACH = 2.6
"""The algebraic connectivity among honest nodes, per malicious node, above which the guarantee of cs+ held."""
NEAREST_DECIDE = ("cs+", "hampel")
"""Rules whose radius is the (m - 2b)-th shortest distance, which malicious nodes can set if m <= 3b."""
TRIED_AT_MOST = 10**7
"""The largest total size, in numbers, at which a user's own rule is tested."""
MEASURED = "how well honest nodes learn among malicious ones: docs/how-to/liars.md"
SHORT_ROUND_S = 2.0
"""A round that a single step makes seem shorter than this is trained as a whole, for a better estimate."""
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


class MixingCheck(Check):
    """The graph, the rule and the traffic. Warnings assume so many `liars`, or the rule's own number."""

    def __init__(self, liars: int | None = None) -> None:
        self._liars = liars
        self.graph: dict[str, Any] = {}
        self.rule: dict[str, Any] | None = None
        self.traffic: dict[str, Any] | None = None
        self.borne: list[Bearing] = []

    def before_launch(self, inspected: Inspected) -> None:
        inspected.mistakes += compressor_mistakes(inspected.federation)
        if (alone := mistake_of_rule(inspected.federation, bearings(inspected.federation))) is not None:
            inspected.mistakes.append(alone)

    def of_learners(self, inspected: Inspected) -> None:
        federation = inspected.federation
        if not federation.grows_trees:
            self.traffic, mistakes = traffic_facts(federation, inspected.learners.values())
            inspected.mistakes.extend(mistakes)
        self._warn_of_traffic(inspected)
        size, nodes = self.traffic["parameters"] if self.traffic else None, len(federation.members)
        known = len(inspected.here) == nodes == len(inspected.learners)
        samples = [inspected.learners[index].samples for index in range(nodes)] if known else None
        self.graph, warnings = graph_facts(federation, samples, self._liars, size)
        inspected.warnings.extend(warnings)
        try:
            self.borne = bearings(federation)
            if size is not None:
                try_own_rule(federation, self.borne, size)
            self.rule, warnings = rule_facts(federation, self.borne, self.graph, self._liars)
        except UserError as error:  # a rule of the user's own
            error.file = error.file or str(federation.path)
            inspected.mistakes.append(error)
            self.borne = []
        else:
            inspected.warnings.extend(warnings)
            if (alone := mistake_of_rule(federation, self.borne)) is not None:
                inspected.mistakes.append(alone)

    def _warn_of_traffic(self, inspected: Inspected) -> None:
        """Warn of values that are sent in vain, and of rounds that are shorter than an exchange over the links that a
        node here states.
        """
        federation, traffic = inspected.federation, self.traffic
        if not traffic:
            return
        if traffic["frozen_parameters"] and traffic["share_frozen"]:
            text = f"{traffic['frozen_parameters']} of {traffic['parameters']} values that nodes send are never trained"
            advice = (
                "with share_frozen = false in [gossip] on all nodes, and new state folders, they stay where they are"
            )
            inspected.warnings.append(f"{text}: {advice}")
        wait_s, size, here = federation.gossip.max_wait_s, traffic["parameters"], inspected.here
        slow = {index: slowest_send_s(federation, index, node.network, size) for index, node in here.items()}
        if federation.in_step_by or federation.privacy is not None or max(slow.values(), default=0.0) <= wait_s:
            return
        most_s = wait_s + (round_s(federation, inspected) or 0.0)
        for name, seconds in ((federation.members[index].name, slow[index]) for index in sorted(slow)):
            if seconds > most_s:
                text = (
                    f"{name}: an exchange takes {seconds:.0f} s at its max_kbit_s, and a round at most {most_s:.0f} s"
                )
                inspected.warnings.append(f"{text}: most mix with nobody. {ALARMS['hardly-mixes'].advice}")


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


def rule_facts(
    federation: FederationConfig, all_of_them: list[Bearing], graph: Mapping[str, Any], expected: int | None
) -> tuple[dict[str, Any], list[str]]:
    """Return figures and warnings. `graph` comes from `graph_facts`; `expected` is the number of malicious neighbors
    that the user expects.
    """
    b, rule = all_of_them[0].liars, federation.gossip.rule
    borne = [one.borne for one in all_of_them]
    facts: dict[str, Any] = {
        "rule": rule,
        "liars": b,
        "liars_borne": {"min": min(borne), "max": max(borne)},
        "neighbors_needed": all_of_them[0].needed,
        "never_mix": [federation.members[node].name for node, one in enumerate(all_of_them) if b and not one.mixes],
        "honest_neighbors": None,
        "guaranteed": None,
        "measured": None,
    }
    if federation.in_step_by:
        return facts, [TRUST_SUMS]
    if not b:
        return facts, [TRUST + _instead(federation, all_of_them, expected)]
    honest = [one.neighbors - b for one in all_of_them if one.mixes]
    if honest:
        facts["honest_neighbors"] = {"min": min(honest), "max": max(honest)}
        facts |= {"guaranteed": guaranteed(rule), "measured": MEASURED}
    said = [
        *_about_nodes(federation, all_of_them, expected),
        *_about_radius(federation, all_of_them),
        *_about_graph(rule, b, graph),
        *_about_keys(federation),
    ]
    return facts, [f"rule: {text}" for text in said]


def mistake_of_rule(federation: FederationConfig, all_of_them: Sequence[Bearing]) -> UserError | None:
    """Return the mistake of a rule under which no node at all mixes; if only some do not, that is a warning."""
    if federation.in_step_by or any(one.mixes for one in all_of_them):
        return None
    most, needed = max(one.neighbors for one in all_of_them), all_of_them[0].needed
    return UserError(
        f"every node would mix with nobody and learn alone, because the rule needs {needed} neighbors and none has "
        f"more than {most}",
        file=str(federation.path),
        key="gossip.rule",
        value=federation.gossip.rule,
        allowed=f"a graph in which nodes have {needed} neighbors or more, or a lower b",
    )


def try_own_rule(federation: FederationConfig, all_of_them: list[Bearing], size: int) -> None:
    """Test a user's own rule on made-up models of this size, unless they would be too large.

    Raises UserError: it fails, or does not return a model.
    """
    rule, count = rule_of(federation), all_of_them[0].needed
    mixed = any(one.mixes for one in all_of_them) and parse_rule(federation.gossip.rule).is_object
    if rule is None or not mixed or (count + 1) * size > TRIED_AT_MOST:
        return
    own, *others = np.random.default_rng(0).standard_normal((count + 1, size), np.float32)
    weights = np.full(count, 1 / (count + 1))
    rule.mix(Neighborhood(own=own, others=others, weights=weights, peers=tuple(range(count))))


def guaranteed(rule: str) -> str:
    """Say what the rule by itself guarantees, whatever the task."""
    parsed = parse_rule(rule)
    if parsed.is_object:
        return "nothing: the rule is your own"
    proven = f"its bound: p2pfl list rules {rule}"
    return proven if parsed.before else parsed.entry.guaranteed or proven


def print_rule(facts: Mapping[str, Any]) -> None:
    """Print the figures for people; for the mean, only the warning."""
    if not facts["liars"]:
        return
    write_facts(
        {
            "": "",
            "liars that each node tolerates": _range(facts["liars_borne"]),
            "neighbors it needs to mix": facts["neighbors_needed"],
            "honest neighbors beside liars": facts["honest_neighbors"] and _range(facts["honest_neighbors"]),
            "never mix": ", ".join(facts["never_mix"]) or None,
            "guaranteed": facts["guaranteed"],
            "only measured": facts["measured"],
        }
    )


def _instead(federation: FederationConfig, of_all: Sequence[Bearing], expected: int | None) -> str:
    rule = _advice(federation, of_all, expected or 1).rules[0]
    if not expected:
        return f". A rule such as {rule}:b=1 tolerates one per node: docs/how-to/liars.md"
    return f", and you expect {expected}. {rule}:b={expected} would tolerate that many per node: docs/how-to/liars.md"


def _advice(federation: FederationConfig, of_all: Sequence[Bearing], b: int) -> Advice:
    """Return the advice for the node with the fewest neighbors."""
    fewest = min(one.neighbors for one in of_all)
    return advice(few_classes=_few_classes(federation), honest_each=max(0, fewest - b) / b)


def _few_classes(federation: FederationConfig) -> bool:
    return leaves_few_classes(str(federation.task.options.get("partition", "")))


def _about_nodes(federation: FederationConfig, of_all: list[Bearing], expected: int | None) -> Iterator[str]:
    rule, b, needed = federation.gossip.rule, of_all[0].liars, of_all[0].needed
    if expected is not None and expected > b:
        yield f"{rule} tolerates {b} malicious among a node's neighbors, and you expect {expected}. Raise b."
    idle = [node for node, one in enumerate(of_all) if not one.mixes]
    if 0 < len(idle) < len(of_all):
        verb = "it has" if len(idle) == 1 else "they have"
        yield (
            f"{names(federation, idle)} would mix with nobody and learn alone: {rule} needs {needed} neighbors, "
            f"and {verb} fewer. Add edges, or lower b."
        )
    if tight := [node for node, one in enumerate(of_all) if one.neighbors == needed]:
        yield (f"{names(federation, tight)} would stop mixing whenever one neighbor is away: {rule} needs {needed}.")
    poor = [node for node, one in enumerate(of_all) if one.mixes and one.neighbors - b < HONEST_EACH * b]
    if poor:
        verb = "has" if len(poor) == 1 else "have"
        yield (
            f"beside {count(b, 'liar')} {names(federation, poor)} {verb} fewer than {HONEST_EACH * b} honest "
            f"neighbors. It works, but more were measured to learn better under attack, best 8 for each liar. Here, "
            f"{_advice(federation, of_all, b).measured}."
        )


def _about_radius(federation: FederationConfig, of_all: list[Bearing]) -> Iterator[str]:
    """Warn about nodes that b malicious neighbors can isolate with the `mirror` attack."""
    rule, b = federation.gossip.rule, of_all[0].liars
    if parse_rule(rule).name not in NEAREST_DECIDE:
        return
    if alone := [node for node, one in enumerate(of_all) if one.mixes and one.neighbors <= 3 * b]:
        verb, shows = "has" if len(alone) == 1 else "have", "shows" if b == 1 else "show"
        yield (
            f"{names(federation, alone)} {verb} {3 * b} neighbors or fewer and can be cut off: {count(b, 'liar')} that "
            f"{shows} a node its own model {'leaves' if b == 1 else 'leave'} it no radius under {rule}, so that it "
            f"hears nobody and learns alone. It needs {3 * b + 1} neighbors or more."
        )


def _about_graph(rule: str, b: int, graph: Mapping[str, Any]) -> Iterator[str]:
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
    if rule.startswith("cs+"):
        left, wanted = round(graph["algebraic_connectivity"] - b, 6), CONNECTED_EACH * b
        if left <= wanted:
            yield (
                f"the guarantee of cs+ needs equal weights, and an algebraic connectivity above about {wanted:.1f} "
                f"among the honest; of this graph's {graph['algebraic_connectivity']:.3g} at least "
                f"{max(0.0, left):.3g} is left beside "
                "liars, and no more is sure."
            )


def _about_keys(federation: FederationConfig) -> Iterator[str]:
    """Warn about settings that a robust rule ignores, and about settings that work against it."""
    told = _file_tables(federation)
    if "gamma" in told.get("gossip", {}):
        yield "gossip.gamma has no effect here: it scales exchanges that move models, and these move none."
    if _few_classes(federation):
        partition = federation.task.options["partition"]
        yield (
            f"task.partition = {partition!r} leaves each node a few classes. What only one neighbor knows looks like "
            "an attack, and is discarded: with shards:2 of ten digits accuracy fell from 0.96 to 0.72 with no attack "
            "under trimmed-mean:b=1, to 0.69 under nnm+trimmed-mean:b=1, to 0.65 under hampel:b=1, and to 0.86 under "
            "hampel:b=1,cut=1e9."
        )
    specs = {federation.gossip.compressor, *federation.edge_compressors.values()}
    for spec in sorted(specs):
        if parse(spec).sparsifier:
            yield (
                f"{spec} sends a neighbor's model piece by piece, and the rule judges what has arrived so far: under "
                "hampel:b=1 accuracy was measured to fall from 0.96 to 0.95 with top-k:0.05+q8 and to 0.70 with "
                "random-k:0.05+q8. q4, q8 or rotate+sign send all of it."
            )


def _file_tables(federation: FederationConfig) -> dict[str, dict[str, Any]]:
    """Read the file itself, because a Federation does not distinguish a default from the same value in the file."""
    found = read_document(federation.path)
    return {key: table for key, table in found.items() if isinstance(table, dict)}


def _range(bounds: Mapping[str, int]) -> str:
    low, high = bounds["min"], bounds["max"]
    return cell(low) if low == high else cell([low, high])


def traffic_facts(
    federation: FederationConfig, learners: Collection[Learner]
) -> tuple[dict[str, Any] | None, list[UserError]]:
    """Return figures and mistakes; no figures if there is a mistake or the model's size is unknown.

    `personal_parameters` has the minimum and maximum over these learners.
    """
    shared = next((learner.size for learner in learners), None)
    mistakes = compressor_mistakes(federation, shared)
    if shared is None or mistakes:
        return None, mistakes
    personal = [learner.personal for learner in learners]
    facts = {
        "share": list(federation.gossip.share),
        "personal_parameters": [min(personal), max(personal)],
        "frozen_parameters": max(getattr(learner, "frozen", 0) for learner in learners),
        "share_frozen": federation.gossip.share_frozen,
    }
    try:
        channels = len(method_of(federation).channels)
    except UserError:  # the check of the method reports it
        channels = 1
    return facts | traffic(federation, shared * channels) | {"parameters": shared}, []


def print_traffic(facts: dict[str, Any]) -> None:
    """Print the traffic as a table."""
    few, most = facts["personal_parameters"]
    bound, least = ("", "") if facts["exact"] else ("at most ", "at least ")
    write_facts(
        {
            "": "",
            "parameters shared": f"{facts['parameters']}, {size(facts['model_bytes'])} as float32",
            "parameters personal": None if not most else str(most) if few == most else f"{few} to {most}",
            "parameters frozen": describe_frozen(facts),
            "share": None if not most else ", ".join(facts["share"]),
            "bytes per round, busiest node": bound + _sizes(facts["bytes_per_round_busiest_node"]),
            "bytes per round, all nodes": bound + _sizes(facts["bytes_per_round_all_nodes"]),
            "bytes in float32": _sizes(facts["float32_bytes_per_round_all_nodes"]),
            "times smaller": least + cell(facts["times_smaller"]),
        }
    )
    write_rows([compressor_row(row) for row in facts["compressors"]], "table")
    if facts["edges"]:
        rows = [{"edge": " - ".join(row["between"]), **_message(row)} for row in facts["edges"]]
        write_rows(rows, "table")


def describe_frozen(facts: dict[str, Any]) -> str | None:
    """Say how many parameters are not trained, and whether they are sent; None if all are trained."""
    if not facts["frozen_parameters"]:
        return None
    sent = "are sent with the others" if facts["share_frozen"] else "are not sent: nodes compare a hash of them"
    return f"{facts['frozen_parameters']:,}, which {sent}"


def compressor_row(row: dict[str, Any]) -> dict[str, str]:
    """Return the columns for one compressor's figures."""
    told = {"edges": cell(row["edges"])} if "edges" in row else {}
    return (
        _message(row)
        | {"bits per parameter": f"{row['bits_per_parameter']:.3g}"}
        | {"times smaller": ("" if row["exact"] else "at least ") + cell(row["times_smaller"])}
        | {key: cell(row[key]) for key in ("delta", "gamma", "random")}
        | told
    )


def _message(row: dict[str, Any]) -> dict[str, str]:
    bound = "" if row["exact"] else "at most "
    return {"compressor": row["compressor"], "message": bound + size(row["message_bytes"])}


def _sizes(bounds: list[int]) -> str:
    low, high = bounds
    return f"{size(low)} to {size(high)}"


def round_s(federation: FederationConfig, inspected: Inspected) -> float | None:
    """Time training on the first node that is here, on a separate learner: a step, or a whole round if that is short.

    None: no node here can train.
    """
    index = min(inspected.here.keys() & inspected.learners.keys(), default=None)
    if index is None or inspected.mistakes:
        return None
    training = federation.training
    one_step = replace(federation, training=replace(training, local_steps=1, local_epochs=None))
    node = inspected.here[index]
    try:
        learner = load_learner(one_step, node)
        with _threads(node.threads):
            _train_s(learner)  # the first step also warms up what later ones use
            if getattr(learner, "round_is", None):
                return _train_s(learner)
            per_epoch = math.ceil(learner.samples / training.batch_size)
            seconds = _train_s(learner) * (training.local_steps or per_epoch * (training.local_epochs or 1))
            return _train_s(load_learner(federation, node)) if seconds < SHORT_ROUND_S else seconds
    except P2PFLError:
        return None


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Let torch, if the task uses it, compute with as many threads as the node will."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _train_s(learner: Learner) -> float:
    start = RoundStart(learner.initial())
    began = perf_counter()
    learner.train(start, 0)
    return perf_counter() - began


def round_is(inspected: Inspected) -> str | None:
    """Return what a round is if a learner's rounds have no steps, else None."""
    found = (getattr(learner, "round_is", None) for learner in inspected.learners.values())
    return next((str(what) for what in found if what), None)
