"""The choices that a world leaves open, made once, and contradictions in it. Keys of mistakes are the file's.

The random choices are the same in every version of Python: numbers, and nodes of which the world gives only the number
(liars, slow, late and crashing nodes). Everything is computed from `random()` alone. If the machine's mathematics
library is involved (log, exp), the result is rounded to nine digits, so that machines whose libraries differ in the
last bit agree on it. Before that a world, from a file or built in Python, is checked; nothing random is checked.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, MutableSequence, Sequence
from dataclasses import MISSING, Field, fields, replace
from itertools import pairwise
from random import Random
from typing import Any, TypeVar

from p2pfl.chance import stream
from p2pfl.errors import UserError
from p2pfl.specs import Kind
from sim.attacks import make_attack
from sim.worlds import model
from sim.worlds.model import CrashSpec, JoinSpec, Kinds, PartitionSpec, Spread, UpTimes, WorldSpec, ends, nanoseconds

MOST_CRASHES = 1_000_000
Complaint = tuple[str, str, object, str | None]
"""Key, message, value, and what is allowed."""


def check_world(world: WorldSpec, nodes: int) -> list[UserError]:
    """Return every contradiction in a world of `nodes` nodes; empty if it can be run."""
    mistakes = list(_values(world)) or list(_selector_errors(world, nodes)) or list(_contradictions(world, nodes))
    return [
        UserError(message, file=world.path, key=key, value=value, allowed=allowed)
        for key, message, value, allowed in mistakes
    ]


def selectors(world: WorldSpec) -> list[tuple[str, Any, Kinds]]:
    """Return every part of the world that names nodes or has them drawn at random, with its key and its kinds."""
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
    """Refuse simultaneous partitions, whose meaning would be ambiguous; a single one with more groups is clear."""
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
    """Check that a joining node was never a member before, that a leaving one is a member, and that somebody stays."""
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
            yield key + "leave", f"node {gone[0]} is not a member then", None, "members at that time"
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
    up_times = UpTimes(world.starts)
    for index, crash in enumerate(world.crashes):
        begin, end = ends(crash)
        for node in crash.nodes:
            objection = up_times.objection(node, begin, end)
            if objection:
                yield f"crash[{index}].at_s", f"node {node} {objection}", crash.at_s, "a time at which it is up"
                break
            up_times.add(node, begin, end)
        yield from _happens(f"crash[{index}].", crash.at_s, world)


def _happens(key: str, at_s: float, world: WorldSpec) -> Iterator[Complaint]:
    if at_s >= world.limit_s:
        yield key + "at_s", "never happens", at_s, f"earlier than the end of the run, run.limit_s = {world.limit_s:g}"


def _attack(world: WorldSpec) -> Iterator[Complaint]:
    """Check that a user's own attack exists before anything runs."""
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


T = TypeVar("T")


def settle(world: WorldSpec, nodes: int, seed: int) -> WorldSpec:
    """Make every random choice in a world: afterwards `nodes` names all nodes, and `count` is 0 (None in churn).

    Liars, slow and late nodes are chosen from all nodes, and no node twice for one kind; nodes that crash or churn are
    chosen from the honest ones that are up at that time. What the world itself names stays possible. Settling again
    changes nothing. Raises UserError if the world contradicts itself, or if there are too few nodes to choose from.
    """
    mistakes = check_world(world, nodes)
    if mistakes:
        raise mistakes[0]
    everybody = range(nodes)
    liars = world.liars and _draw_nodes(world, "liars", world.liars, everybody, seed)
    lying = frozenset(liars.nodes if liars else ())
    honest = [node for node in everybody if node not in lying]
    world = replace(world, liars=liars, slow=_draw_disjoint(world, "slow", world.slow, nodes, seed))
    world = replace(world, joins=_draw_disjoint(world, "join", world.joins, nodes, seed))
    world = replace(world, crashes=_settled_crashes(world, honest, seed))
    churn = world.churn
    if churn and churn.nodes is None:
        among = churn if churn.count is not None else replace(churn, count=len(honest))
        churn = replace(_draw_nodes(world, "churn", among, honest, seed), count=None)
    return replace(world, churn=churn)


def require_settled(world: WorldSpec) -> None:
    """Refuse a world with open choices, because a run would omit nodes. Raises ValueError."""
    if any(part.count for _, part, _ in selectors(world)) or (world.churn and world.churn.nodes is None):
        raise ValueError("this world is not settled")


def quantized(value: float) -> float:
    """Round `value` to nine significant digits."""
    return float(f"{value:.8e}")


def uniform(rng: Random, low: float, high: float) -> float:
    return low + (high - low) * rng.random()


def log_uniform(rng: Random, low: float, high: float) -> float:
    """Draw between `low` and `high`, both above 0, uniformly in the logarithm."""
    share = rng.random()
    return min(high, max(low, quantized(low * math.exp(share * math.log(high / low)))))


def exponential(rng: Random, mean: float) -> float:
    return quantized(-mean * math.log(1.0 - rng.random()))


def below(rng: Random, bound: int) -> int:
    """Draw an integer from 0 to `bound` - 1; the bias is below `bound` / 2^53."""
    return int(rng.random() * bound)


def choice(rng: Random, items: Sequence[T]) -> T:
    return items[below(rng, len(items))]


def shuffle(rng: Random, items: MutableSequence[T]) -> None:
    """Shuffle in place, by Fisher and Yates."""
    for last in range(len(items) - 1, 0, -1):
        other = below(rng, last + 1)
        items[last], items[other] = items[other], items[last]


def permutation(rng: Random, count: int) -> list[int]:
    order = list(range(count))
    shuffle(rng, order)
    return order


def sample(rng: Random, items: Sequence[T], count: int) -> list[T]:
    """Choose `count` different items, in the order they have in `items`."""
    return [items[place] for place in sorted(permutation(rng, len(items))[:count])]


def draw(rng: Random, spread: Spread) -> float:
    """Draw one value; a constant draws nothing from `rng`."""
    match spread.kind:
        case "constant":
            return spread.low
        case "uniform":
            return uniform(rng, spread.low, spread.high)
        case "log-uniform":
            return log_uniform(rng, spread.low, spread.high)
    raise ValueError(f"a spread is constant, uniform or log-uniform, not {spread.kind!r}")


def _draw_disjoint(world: WorldSpec, section: str, parts: tuple[Any, ...], nodes: int, seed: int) -> tuple[Any, ...]:
    taken = {node for part in parts for node in part.nodes}
    settled = []
    for index, part in enumerate(parts):
        unborn = _crashed_by(world, part.at_s) if isinstance(part, JoinSpec) else ()
        free = [node for node in range(nodes) if node not in taken and node not in unborn]
        settled.append(_draw_nodes(world, f"{section}[{index}]", part, free, seed))
        taken.update(settled[-1].nodes)
    return tuple(settled)


def _crashed_by(world: WorldSpec, at_s: float) -> set[int]:
    """Return the nodes that the world itself crashes no later than that; they cannot start only then."""
    return {node for crash in world.crashes if ends(crash)[0] <= nanoseconds(at_s) for node in crash.nodes}


def _settled_crashes(world: WorldSpec, honest: Iterable[int], seed: int) -> tuple[CrashSpec, ...]:
    up_times = UpTimes(world.starts)
    for crash in world.crashes:
        _book(up_times, crash)
    settled = []
    for index, crash in enumerate(world.crashes):
        free = [node for node in honest if not up_times.objection(node, *ends(crash))] if crash.count else []
        chosen = _draw_nodes(world, f"crash[{index}]", crash, free, seed)
        if crash.count:
            _book(up_times, chosen)
        settled.append(chosen)
    return tuple(settled)


def _book(up_times: UpTimes, crash: CrashSpec) -> None:
    for node in crash.nodes:
        up_times.add(node, *ends(crash))


def _draw_nodes(world: WorldSpec, key: str, part: Any, free: Iterable[int], seed: int) -> Any:
    if not part.count:
        return part if part.nodes is not None else replace(part, nodes=())
    candidates = list(free)
    if part.count > len(candidates):
        text = f"there are only {len(candidates)} nodes to choose from"
        allowed = "honest nodes that are up at that time" if key.startswith(("crash", "churn")) else "each node once"
        raise UserError(text, file=world.path, key=f"{key}.count", value=part.count, allowed=allowed)
    return replace(part, nodes=tuple(sample(stream(seed, "chosen", key), candidates, part.count)), count=0)
