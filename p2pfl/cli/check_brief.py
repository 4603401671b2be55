"""The first lines of `p2pfl check`: what a person must know before a run, and an explanation of each term used in the
rest.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from p2pfl.cli.mixing import describe_frozen
from p2pfl.console.output import age, size, write_facts
from p2pfl.errors import P2PFLError
from p2pfl.learn.interface import Learner, RoundStart
from p2pfl.node.assembly import load_learner

if TYPE_CHECKING:
    from p2pfl.config.model import FederationConfig
    from p2pfl.node.feature import Inspected

SHORT_ROUND_S = 2.0
"""A round that a single step makes seem shorter than this is trained as a whole, for a better estimate."""
PARTS_NAMED = 4
"""The parts of a node's memory that are named; the others are in `--format json`."""
NAMED = 3
"""The most nodes that a warning names."""

WORDS: Mapping[str, str] = {
    "liars_borne": "malicious neighbors that the node tolerates with this rule",
    "liars_at_most": "malicious neighbors that it could tolerate with any rule, by its number of neighbors",
    "targets apart": "how far the node's targets are from those of all nodes: 0 is alike",
    "algebraic_connectivity": "lambda_2 of the graph: the larger, the faster models agree",
    "certified": "that figure is proven to within a millionth; method: how it was computed",
    "effective_resistance": "how far apart two nodes are when all paths count: the smaller, the better connected",
    "vertex_connectivity": "nodes that must fail to split the rest; edge_connectivity: the same for edges",
    "bridges": "edges whose failure alone splits the graph; cut_nodes: the same for nodes",
    "thinnest_cut": "the narrowest place between two parts of the graph",
    "robustness": "r: of any two separate groups, one has a node with r neighbors outside it",
    "samples_known": "whether contraction uses each node's number of rows, or assumes equal numbers",
    "liars, if values are trimmed": "malicious neighbors of a node, under rules that discard extreme values",
    "contraction": "factor by which one exchange on every edge shrinks the distance between models",
    "exchanges_to_consensus": "exchanges on every edge until that distance is a thousandth",
    "delta": "least share of new information that arrives with one message; the rest follows",
    "gamma": "size of one mixing step",
    "random": "whether the compressor draws at random",
}


def print_brief(report: Mapping[str, Any], federation: FederationConfig, inspected: Inspected) -> None:
    """Print size, rows, costs, duration and promises, then each warning once."""
    facts = {
        "federation": f"{federation.name}: {_count(len(federation.present), 'node')}, {federation.topology}, "
        f"{_count(report['graph']['edges'], 'edge')}, {_sessions(report['graph'])}"
        f"{'in step, by secure sums' if federation.in_step_by else f'rule {federation.gossip.rule}'}",
        "rows": _rows(report["members"]),
        "a round": _round(report, federation, inspected),
        "sent": _sent(report, federation),
        "frozen": describe_frozen(report["traffic"]) if report["traffic"] else None,
        "memory": _memory(report),
        "duration": None if federation.grows_trees else duration(federation, inspected),
        "privacy": _privacy(report.get("privacy")),
    }
    write_facts(facts | inspected.brief)
    for warning in merged(report["warnings"], [member.name for member in federation.present]):
        click.echo(f"warning: {warning}")


def print_words(shown: set[str]) -> None:
    """Explain the terms that were shown."""
    click.echo()
    write_facts({word: meaning for word, meaning in WORDS.items() if word in shown}, "What the words mean")


def verdict(mistakes: int, warnings: int) -> str:
    """Return the first line."""
    return ", ".join(_count(number, word) for number, word in ((mistakes, "mistake"), (warnings, "warning")))


def merged(warnings: Sequence[str], names: Sequence[str]) -> list[str]:
    """Merge warnings that differ only in node names and figures; the first of each kind is shown."""
    name = re.compile(r"(?<![\w-])(?:" + "|".join(map(re.escape, sorted(names, key=len, reverse=True))) + r")(?![\w-])")
    alike: dict[str, list[str]] = {}
    for warning in warnings:
        alike.setdefault(re.sub(r"\d[\d.,e+-]*", "#", name.sub("\0", warning)), []).append(warning)
    return [_join(same, name, len(names)) for same in alike.values()]


def _join(same: Sequence[str], name: re.Pattern[str], nodes: int) -> str:
    first, *others = same
    about = [start.group() for text in others if (start := name.match(text))]
    if not others:
        return first
    if len(about) < len(others):
        return f"{first} ({len(others)} more of this kind: --format json)"
    more = f" and {len(about) - NAMED} more" if len(about) > NAMED else ""
    how = "the same" if len({name.sub("", text) for text in same}) == 1 else "with other figures"
    return f"{first} ({how} for {'every other node' if len(same) == nodes else ', '.join(about[:NAMED]) + more})"


def duration(federation: FederationConfig, inspected: Inspected) -> str:
    """Say how long training may take. A step on a node's data is timed only if no privacy is promised."""
    training = federation.training
    sooner = "" if training.stop is None else f", or less: stop = {training.stop!r}"
    if training.time_s is not None:
        return f"{age(training.time_s)} of training on each node (time_s){sooner}"
    seconds = None if federation.privacy is not None else round_s(federation, inspected)
    if seconds is None or training.rounds is None:
        return f"not known before a first run{sooner}"
    total = age(seconds * training.rounds) if seconds * training.rounds >= 1 else "1 s"
    alone = "if each has a machine as fast as this one to itself"
    return f"estimate: {total} of training on each node, {alone}; exchanges, tests and waiting come on top{sooner}"


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


def _rows(members: Sequence[Mapping[str, Any]]) -> str:
    rows = [member["samples"] for member in members if member["samples"] is not None]
    if not rows and any(member["here"] for member in members):
        return "not known before the mistakes are mended"
    if not rows:
        return "not known: no node's data are here"
    each = str(rows[0]) if min(rows) == max(rows) else f"{min(rows):,} to {max(rows):,}"
    elsewhere = len(members) - len(rows)
    other = f"; the data of {_count(elsewhere, 'other node')} are not here" if elsewhere else ""
    return f"{sum(rows):,} to train on, {each} on a node{other}"


def round_is(inspected: Inspected) -> str | None:
    """Return what a round is if a learner's rounds have no steps, else None."""
    found = (getattr(learner, "round_is", None) for learner in inspected.learners.values())
    return next((str(what) for what in found if what), None)


def _round(report: Mapping[str, Any], federation: FederationConfig, inspected: Inspected) -> str:
    training, traffic = federation.training, report["traffic"]
    steps = f"{training.local_steps} steps" if training.local_steps else _count(training.local_epochs or 0, "epoch")
    trained = round_is(inspected) or f"{steps} of training"
    if not traffic:
        return trained
    bound = "" if traffic["exact"] else "at most "
    return f"{trained}, and {bound}{_sizes(traffic['bytes_per_round_busiest_node'])} sent by the busiest node"


def _memory(report: Mapping[str, Any]) -> str | None:
    """Say how much the largest node here will take, and for what."""
    largest = max(report["memory"].values(), key=lambda parts: sum(parts.values()), default=None)
    if largest is None:
        return None
    named = sorted(largest.items(), key=lambda part: -part[1])
    parts = ", ".join(f"{name} {size(found)}" for name, found in named[:PARTS_NAMED])
    mapped = max(report["mapped"].values())
    on_disk = f"; {size(mapped)} in a mapped file" if mapped else ""
    whole = size(sum(largest.values()))
    return f"estimate: up to {whole} a node ({parts}), and what the model computes on the way{on_disk}"


def _sent(report: Mapping[str, Any], federation: FederationConfig) -> str | None:
    traffic, rounds, closing = report["traffic"], federation.training.rounds, federation.training.closing_rounds
    if not traffic or rounds is None:
        return None
    low, high = (each * (rounds + closing) for each in traffic["bytes_per_round_all_nodes"])
    in_which = f"{rounds} rounds" + (f" and {closing} closing ones" if closing else "")
    return f"estimate: {_sizes([low, high])} by all nodes in {in_which}; vitals and rounds beyond come on top"


def _privacy(facts: Mapping[str, Any] | None) -> str | None:
    if not facts or not facts["nodes"]:
        return None
    most = max(row["epsilon"] for row in facts["nodes"])
    protected = "each row" if facts["unit"] == "record" else "all rows of a node together"
    return f"epsilon up to {most:.4g} for {protected}; more in docs/how-to/privacy.md"


def _count(number: int, word: str) -> str:
    return f"{number or 'no'} {word}{'s' * (number != 1)}"


def _sessions(graph: Mapping[str, Any]) -> str:
    """Say how many sessions a node keeps for all rounds of a schedule."""
    return f"up to {graph['degree']['max']} sessions a node, " if "period" in graph and "degree" in graph else ""


def _sizes(bounds: Sequence[float]) -> str:
    low, high = bounds
    return size(low) if low == high else f"{size(low)} to {size(high)}"
