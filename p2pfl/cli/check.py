"""`p2pfl check`: read everything that a run would read, and report what would happen. Nothing is started or written.

The task, the user's code, is loaded, and the data of all nodes here; the model of a built-in task is counted, without
torch. The first lines are what a person must know before a run; `--all` and JSON have every figure, and build it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from p2pfl import limits as all_limits
from p2pfl.cli.checks import MixingCheck, checks_of
from p2pfl.config.charter import compacted, federation_id
from p2pfl.config.load import read_federation
from p2pfl.config.model import FederationConfig, Member
from p2pfl.console.output import (
    MOST_MISTAKES,
    Form,
    format_option,
    show_mistakes,
    size,
    write_facts,
    write_json,
    write_rows,
)
from p2pfl.crypto.identity import public_text
from p2pfl.learn.interface import device_of
from p2pfl.limits import (
    CHANNEL_AT_ONCE,
    CHANNEL_PER_S,
    CHUNK_BYTES,
    LEAST_NEWS,
    NEIGHBOR_BURST_S,
    QUOTA_BURST_S,
    Limits,
)
from p2pfl.node.assembly import resident_bytes
from p2pfl.node.feature import Check, Inspected

OF_A_MISTAKE = ("file", "key", "message", "value", "allowed")
PARTS_NAMED = 4
"""The parts of a node's memory that are named; the others are in `--format json`."""
LIMIT = re.compile(r" *(\w+)(?:: [\w| ]+)? = .+?  # (.+?)(?:; honest: (.+))?")
"""A line of p2pfl/limits.py."""


@click.command(
    epilog="\b\nExamples:\n  p2pfl check ward-7\n  p2pfl check ward-7 --all\n  p2pfl check ward-7 --format json\n"
    "  p2pfl check --limits"
)
@click.argument("federation", metavar="FEDERATION", required=False, type=click.Path(path_type=Path))
@click.option("--limits", is_flag=True, help="Only each limit on what peers and time may cost; without FEDERATION too.")
@click.option(
    "--all", "in_full", is_flag=True, help="Also tables, how much the nodes' data differ, noise, arrays, all memory."
)
@format_option("table", "json")
def check(federation: Path | None, form: Form, *, in_full: bool, limits: bool) -> int:
    """Find every mistake in a federation, and say what a run would cost.

    FEDERATION is a federation file, or the folder of its federation.toml. Nodes whose folders are next to the file are
    checked too: their settings, key and data. No node is started. With --format json it also shows each member, the
    graph, the rule and the traffic. Exits with 2 if there is a mistake, with 3 if the only one is a graph that is not
    connected.
    """
    from p2pfl.cli.main import ENTRY_POINTS, exit_code  # noqa: PLC0415 - the commands are imported by it

    if federation is None and not limits:
        raise click.MissingParameter(param_hint="'FEDERATION'", param_type="argument")
    described, mistakes = read_federation(federation) if federation else (None, [])
    report: dict[str, Any] = {}
    warnings: list[str] = []
    checks: list[Check] = []
    inspected: Inspected | None = None
    if described is not None:
        inspected = Inspected(compacted(described), mistakes, warnings)
        counted = form == "table" and not in_full and find_spec("torch") is not None
        joined = _joined_checks(ENTRY_POINTS) if in_full else ()
        checks = [*checks_of(mixing := MixingCheck(), counted=counted), *joined]
        report = _survey(inspected, checks, mixing)
    if limits:
        used = used_limits(inspected.federation, report["traffic"]) if inspected else {}
        rows = limit_rows(used, in_words=form == "table")
        write_rows(rows, form)
        show_mistakes(mistakes)
        return min((exit_code(mistake) for mistake in mistakes), default=0)
    rows = [{key: getattr(mistake, key) for key in OF_A_MISTAKE} for mistake in mistakes[:MOST_MISTAKES]]
    report |= {"warnings": warnings, "mistakes": rows, "mistakes_in_all": len(mistakes)}
    if form == "json":
        write_json(report)
    else:
        click.echo(f"{_count(len(mistakes), 'mistake')}, {_count(len(warnings), 'warning')}")
        if inspected is not None:
            print_brief(report, inspected.federation, inspected)
            click.echo("" if in_full else f"more: p2pfl check {federation} --all, or --format json")
        for section in checks if in_full else ():
            if report.get(section.part):
                section.show(report[section.part])
    show_mistakes(mistakes)
    return min((exit_code(mistake) for mistake in mistakes), default=0)


def limit_rows(used: Mapping[str, str], *, in_words: bool) -> list[dict[str, Any]]:
    """Return the lines of p2pfl/limits.py; `used` says what some are, or what they allow, in one federation."""
    rows = []
    for line in inspect.getsource(all_limits).splitlines():
        if found := LIMIT.fullmatch(line):
            name, bounds, honest = found.groups()
            value = getattr(all_limits if name.isupper() else Limits(), name)
            rows.append({"limit": name, "value": value, "bounds": bounds, "honest": honest, "here": used.get(name)})
    for name, per_s in CHANNEL_PER_S.items():
        most = [per_s, CHANNEL_AT_ONCE[name]]
        bounds = "messages per second on this extension channel, and at once"
        rows.append({"limit": f"channel {name}", "value": most, "bounds": bounds, "honest": None, "here": None})
    shown = [key for key in rows[0] if used or key != "here"]
    return [{key: _limit(row) if key == "value" and in_words else row[key] for key in shown} for row in rows]


def _limit(row: Mapping[str, Any]) -> str:
    match row["limit"].upper().rpartition("_")[2], row["value"]:
        case _, None:
            return "none"
        case _, [*numbers]:
            return ", ".join(f"{number:,g}" for number in numbers)
        case "BYTES", number:
            return f"{number:,} B"
        case "S", number:
            return f"{number:,g} {'/s' if row['limit'].upper().endswith('_PER_S') else 's'}"
        case _, number:
            return f"{number:,}" if isinstance(number, int) else f"{number:g}"


def used_limits(federation: FederationConfig, traffic: Mapping[str, Any] | None) -> dict[str, str]:
    """Say what limits that depend on a federation are in this one, for a node with the most neighbors."""
    members, present = len(federation.members), federation.present
    neighbors = max((len(federation.neighbors(member.index)) for member in present), default=0)
    used = dict.fromkeys(("MOST_GROUPS", "MOST_RELAY_LINES", "MOST_SHARED"), _count(neighbors, "neighbor"))
    used |= {
        "QUOTA_BURST_S": f"{QUOTA_BURST_S + NEIGHBOR_BURST_S * neighbors:g} s",
        "LEAST_NEWS": f"{max(LEAST_NEWS, 2 * members):g}",
        "MOST_MEMBERS": _count(members, "row"),
        "MOST_CHARACTERS": f"{federation.path.stat().st_size:,}",
    }
    if traffic:
        body = max(row["message_bytes"] for row in (traffic, *traffic["edges"]))
        used["partial_bytes"] = size((body + 2**20) * max(1, neighbors))
        used["CHUNK_BYTES"] = f"{size(body)} in {_count(-(-body // CHUNK_BYTES), 'chunk')}"
    return used


def _joined_checks(group: str) -> list[Check]:
    """Return the checks that other packages declare beside the commands that they add: they take time."""
    modules = [import_module(name) for name in sorted({entry.module for entry in entry_points(group=group)})]
    places = [declared.partition(":") for module in modules if (declared := vars(module).get("CHECKS"))]
    return [getattr(import_module(place), name)() for place, _, name in places]


def _survey(inspected: Inspected, checks: Sequence[Check], mixing: MixingCheck) -> dict[str, Any]:
    federation = inspected.federation
    for section in checks:
        section.of_files(inspected)
    for section in checks:
        section.of_learners(inspected)
    borne = mixing.borne
    names = {member.index: member.name for member in federation.members}
    return {
        "federation": {
            "name": federation.name,
            "file": str(federation.path),
            "id": federation_id(federation).hex(),
            "task": federation.task.name,
            "members_version": None if federation.edition is None else federation.edition.version,
        },
        "members": [
            _member_row(federation, member, inspected) | {"liars_borne": borne[member.index].borne if borne else None}
            for member in federation.members
        ],
        "memory": {names[index]: needs for index, needs in sorted(inspected.memory.items())},
        "graph": mixing.graph,
        "rule": mixing.rule,
        "traffic": mixing.traffic,
        **{section.part: section.told() for section in checks if section.part},
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
        "memory_bytes": None if (needs := inspected.memory.get(member.index)) is None else sum(needs.values()),
    }


def print_brief(report: Mapping[str, Any], federation: FederationConfig, inspected: Inspected) -> None:
    """Print size, rows, costs, duration and promises, then each warning once."""
    facts = {
        "federation": f"{federation.name}: {_count(len(federation.present), 'node')}, {federation.topology}, "
        f"{_count(report['graph']['edges'], 'edge')}, "
        f"{'in step, by secure sums' if federation.in_step_by else f'rule {federation.gossip.rule}'}",
        "rows": _rows(report["members"]),
        "a round": _round(report, federation, inspected),
        "sent": _sent(report, federation),
        "memory": _memory(report),
        "privacy": _privacy(report.get("privacy")),
    }
    write_facts(facts | inspected.brief)
    for warning in merged(report["warnings"], [member.name for member in federation.present]):
        click.echo(f"warning: {warning}")


def merged(warnings: Sequence[str], names: Sequence[str]) -> list[str]:
    """Merge warnings that differ only in node names and figures; the first of each kind is shown."""
    name = re.compile(r"(?<![\w-])(?:" + "|".join(map(re.escape, sorted(names, key=len, reverse=True))) + r")(?![\w-])")
    alike: dict[str, list[str]] = {}
    for warning in warnings:
        alike.setdefault(re.sub(r"\d[\d.,e+-]*", "#", name.sub("\0", warning)), []).append(warning)
    more = " ({} more of this kind: --format json)"
    return [first + (more.format(len(others)) if others else "") for first, *others in alike.values()]


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


def _round(report: Mapping[str, Any], federation: FederationConfig, inspected: Inspected) -> str:
    training, traffic = federation.training, report["traffic"]
    steps = f"{training.local_steps} steps" if training.local_steps else _count(training.local_epochs or 0, "epoch")
    named = (getattr(learner, "round_is", None) for learner in inspected.learners.values())
    trained = next(filter(None, named), f"{steps} of training")
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
    parts = ", ".join(f"{name} {size(needed)}" for name, needed in named[:PARTS_NAMED])
    whole = size(sum(largest.values()))
    program = "" if "program" in largest or resident_bytes() is None else "the program, which --all measures, and "
    return f"estimate: {program}up to {whole} a node ({parts}), and what the model computes on the way"


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


def _sizes(bounds: Sequence[float]) -> str:
    low, high = bounds
    return size(low) if low == high else f"{size(low)} to {size(high)}"
