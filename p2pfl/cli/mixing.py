"""The parts of `p2pfl check` about how a federation mixes: its rule, and what its compressors send.

About the rule it says how many malicious nodes it tolerates in this federation and which settings work against it, and
separates guarantees from mere measurements: docs/how-to/liars.md has the figures.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from p2pfl.aggregate import Advice, Neighborhood, advice, parse_rule
from p2pfl.compress import parse
from p2pfl.config.graph import rule_of
from p2pfl.config.model import FederationConfig
from p2pfl.config.tables import read_document
from p2pfl.console.output import cell, size, write_facts, write_rows
from p2pfl.errors import UserError
from p2pfl.learn.interface import Learner
from p2pfl.learn.methods import method_of
from p2pfl.learn.partition import leaves_few_classes
from p2pfl.reporting.mixing import Bearing, compressor_mistakes, count, names, traffic

TRUST = 'rule = "mean" is no protection against malicious neighbors: one of them can ruin the model of all'
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
