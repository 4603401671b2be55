"""The contradictions in a world, whether it came from a file or was built in Python. Keys are those of the file.

Nothing random is checked here: `drawn` draws such that nothing contradicts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from itertools import pairwise
from typing import Any

from p2pfl.errors import UserError
from p2pfl.specs import Kind
from sim.attacks import make_attack
from sim.worlds import model
from sim.worlds.model import Kinds, PartitionSpec, UpTimes, WorldSpec, ends, nanoseconds

MOST_CRASHES = 1_000_000
Complaint = tuple[str, str, object, str | None]
"""Key, message, value, and what is allowed."""


def check_world(world: WorldSpec, nodes: int) -> list[UserError]:
    """Return every contradiction in a world of `nodes` nodes; empty if it can be run."""
    found = list(_values(world)) or list(_selector_errors(world, nodes)) or list(_contradictions(world, nodes))
    return [
        UserError(message, file=world.path, key=key, value=value, allowed=allowed)
        for key, message, value, allowed in found
    ]


def selectors(world: WorldSpec) -> list[tuple[str, Any, Kinds]]:
    """Return every part of the world that names nodes or lets chance choose them, with its key and its kinds."""
    many: list[tuple[str, Any, Kinds]] = [(f"slow[{i}].", part, model.SLOW) for i, part in enumerate(world.slow)]
    many += [(f"join[{i}].", part, model.JOIN) for i, part in enumerate(world.joins)]
    many += [(f"crash[{i}].", part, model.CRASH) for i, part in enumerate(world.crashes)]
    many += [("churn.", world.churn, model.CHURN)] if world.churn else []
    return many + ([("liars.", world.liars, model.LIARS)] if world.liars else [])


# -- each value by itself ---------------------------------------------------------------------------------------------


def _values(world: WorldSpec) -> Iterator[Complaint]:
    tables: list[tuple[str, Any, Kinds]] = [
        ("compute.", world.compute, model.COMPUTE),
        ("links.", world.links, model.LINKS),
        ("run.", world, model.RUN),
        *((f"partition[{i}].", part, model.PARTITION) for i, part in enumerate(world.partitions)),
        *((f"amend[{i}].", part, model.AMEND) for i, part in enumerate(world.amendments)),
        *selectors(world),
    ]
    for prefix, part, known in tables:
        for field in fields(part):
            value = getattr(part, field.name)
            if field.name in known and value != _default(field) and not _readable(known[field.name], value):
                yield prefix + field.name, "impossible value", value, known[field.name].allowed


def _default(field: Field[Any]) -> object:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _readable(kind: Kind, value: object) -> bool:
    try:
        kind.read(value)
    except ValueError:
        return False
    return True


# -- which nodes are meant
# ------------------------------------------------------------------------------------------------


def _selector_errors(world: WorldSpec, nodes: int) -> Iterator[Complaint]:
    within = f"indices from 0 to {nodes - 1}, each once"
    for prefix, part, _ in selectors(world):
        named = part.nodes or ()
        if not _are_nodes(named, nodes):
            yield prefix + "nodes", "no such nodes", _brief(named), within
        if named and part.count:
            yield prefix + "count", f"cannot be combined with {prefix}nodes", part.count, "one of the two"
        if not 0 <= (part.count or 0) <= nodes:
            yield prefix + "count", "more than there are nodes", part.count, f"a whole number from 0 to {nodes}"
    for index, partition in enumerate(world.partitions):
        for place, group in enumerate(partition.groups):
            if not _are_nodes(group, nodes):
                yield f"partition[{index}].groups[{place}]", "no such nodes", _brief(group), within


def _are_nodes(named: tuple[int, ...], nodes: int) -> bool:
    return len(set(named)) == len(named) and all(type(node) is int and 0 <= node < nodes for node in named)


def _brief(named: tuple[int, ...]) -> str:
    return f"{named[:8]}"[:100]


# -- parts of the world against each other
# -----------------------------------------------------------------------------------


def _contradictions(world: WorldSpec, nodes: int) -> Iterator[Complaint]:
    yield from _compute(world)
    yield from _partitions(world, nodes)
    yield from _slow(world)
    yield from _joins(world)
    yield from _amendments(world, nodes)
    yield from _crashes(world)
    yield from _churn(world, nodes)
    yield from _attack(world)
    if world.liars and (lying := len(world.liars.nodes) or world.liars.count) >= nodes:
        yield "liars", f"{lying} liars among {nodes} nodes leave nobody honest", None, f"up to {nodes - 1}"


def _compute(world: WorldSpec) -> Iterator[Complaint]:
    defaults = type(world.compute)()
    if world.compute.round_s is not None and world.compute.step_s != defaults.step_s:
        yield "compute.round_s", "cannot be combined with compute.step_s", world.compute.round_s, "one of the two"
    if world.compute.trace is not None and world.compute.speed != defaults.speed:
        yield "compute.trace", "cannot be combined with compute.speed", str(world.compute.trace), "one of the two"


def _partitions(world: WorldSpec, nodes: int) -> Iterator[Complaint]:
    for index, partition in enumerate(world.partitions):
        key = f"partition[{index}]."
        grouped = Counter(node for group in partition.groups for node in group)
        node, times = max(grouped.items(), key=lambda item: item[1], default=(0, 0))
        if times > 1:
            yield key + "groups", f"node {node} is in two groups", None, "each node in one group at most"
        elif not all(partition.groups) or len(partition.groups) + (len(grouped) < nodes) < 2:
            yield key + "groups", "separates nobody", None, "two groups, or one that leaves out some node; none empty"
        if not nanoseconds(partition.at_s) < nanoseconds(partition.until_s):
            yield key + "until_s", "ends before it begins", partition.until_s, f"later than {partition.at_s:g}"
        yield from _happens(key, partition.at_s, world)
    yield from _overlaps(world.partitions)


def _overlaps(partitions: tuple[PartitionSpec, ...]) -> Iterator[Complaint]:
    """Refuse two partitions at a time, which could be read in several ways; one with more groups is clear."""
    order = sorted(range(len(partitions)), key=lambda index: (partitions[index].at_s, index))
    for first, second in pairwise(order):
        if nanoseconds(partitions[second].at_s) < nanoseconds(partitions[first].until_s):
            text = f"begins before partition[{first}] ends"
            allowed = "one partition at a time: write what holds at once as one partition of more groups"
            yield f"partition[{second}].at_s", text, partitions[second].at_s, allowed


def _slow(world: WorldSpec) -> Iterator[Complaint]:
    for index, slow in enumerate(world.slow):
        if slow.far_s == 0 and slow.bandwidth is None and slow.speed == 1:
            yield f"slow[{index}]", "changes nothing", None, "far_s, bandwidth or speed"
    yield from _repetitions("slow", [slow.nodes for slow in world.slow])


def _joins(world: WorldSpec) -> Iterator[Complaint]:
    for index, join in enumerate(world.joins):
        yield from _happens(f"join[{index}].", join.at_s, world)
    yield from _repetitions("join", [join.nodes for join in world.joins])


def _amendments(world: WorldSpec, nodes: int) -> Iterator[Complaint]:
    """Check that a node that joins was never a member before, one that leaves is a member, and somebody stays."""
    late = {node for join in world.joins for node in join.nodes}
    joined = Counter(node for amendment in world.amendments for node in amendment.join)
    there = {node for node in range(nodes) if node not in joined}
    if world.amendments and world.liars is not None:
        yield "amend", "cannot be combined with liars", None, "one of the two"
    for index in sorted(range(len(world.amendments)), key=lambda place: (world.amendments[place].at_s, place)):
        amendment, key = world.amendments[index], f"amend[{index}]."
        yield from _happens(key, amendment.at_s, world)
        again = [node for node in amendment.join if joined[node] > 1 or node in late]
        if again:
            yield key + "join", f"node {again[0]} joins twice", None, "each node in one [[join]] or [[amend]]"
        gone = [node for node in amendment.leave if node not in there]
        if gone:
            yield key + "leave", f"node {gone[0]} is no member then", None, "members of that time"
        there = (there | {*amendment.join}) - {*amendment.leave}
        if len(there) < 2:
            yield key + "leave", "leaves fewer than two members", None, "two or more who stay"


def _repetitions(section: str, groups: list[tuple[int, ...]]) -> Iterator[Complaint]:
    first: dict[int, int] = {}
    for index, group in enumerate(groups):
        for node in group:
            if node in first:
                yield (
                    f"{section}[{index}].nodes",
                    f"node {node} is in {section}[{first[node]}] too",
                    None,
                    "one of the two",
                )
                break
            first[node] = index


def _crashes(world: WorldSpec) -> Iterator[Complaint]:
    lives = UpTimes(world.starts)
    for index, crash in enumerate(world.crashes):
        begin, end = ends(crash)
        for node in crash.nodes:
            objection = lives.objection(node, begin, end)
            if objection:
                yield f"crash[{index}].at_s", f"node {node} {objection}", crash.at_s, "a time at which it is up"
                break
            lives.add(node, begin, end)
        yield from _happens(f"crash[{index}].", crash.at_s, world)


def _happens(key: str, at_s: float, world: WorldSpec) -> Iterator[Complaint]:
    if at_s >= world.limit_s:
        yield key + "at_s", "never happens", at_s, f"earlier than the end of the run, run.limit_s = {world.limit_s:g}"


def _attack(world: WorldSpec) -> Iterator[Complaint]:
    """Check that an attack of the user's own exists before anything runs."""
    if world.liars is not None:
        try:
            make_attack(world.liars.attack)
        except UserError as error:
            yield "liars.attack", error.message, error.value, error.allowed


def _churn(world: WorldSpec, nodes: int) -> Iterator[Complaint]:
    churn = world.churn
    if churn is None:
        return
    hit = len(churn.nodes) if churn.nodes is not None else nodes if churn.count is None else churn.count
    expected = hit * churn.until_s / (churn.up_s + churn.down_s)
    if expected > MOST_CRASHES:
        text = f"means about {expected:.0f} crashes"
        yield "churn.up_s", text, churn.up_s, f"at most {MOST_CRASHES} crashes: longer times, or an earlier until_s"
