"""A run's whole fault history, known before it starts: joins, crashes, restarts, partitions, sorted by time.

Churn is drawn here, each node from a stream of its own. Faults at one instant happen in the order of the classes below,
then by node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from p2pfl.chance import stream
from sim.worlds.drawn import exponential, require_settled
from sim.worlds.model import LONGEST_S, NANOSECONDS, ChurnSpec, PartitionSpec, UpTimes, WorldSpec, ends, nanoseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejoin:
    """The end of a partition."""

    time_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Separate:
    """A partition begins; `groups` has every node once, sorted."""

    time_ns: int
    groups: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """The first start of a node that was absent at the beginning."""

    time_ns: int
    node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    time_ns: int
    node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """Power off; with `amnesia` the disk is lost too. `returns` is True if a Restart follows."""

    time_ns: int
    node: int
    amnesia: bool
    returns: bool


Fault = Rejoin | Separate | Join | Restart | Crash
_ORDER: dict[type, int] = {kind: place for place, kind in enumerate((Rejoin, Separate, Join, Restart, Crash))}


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    faults: tuple[Fault, ...]
    late: frozenset[int]
    """Nodes that a Join starts; all others start at time 0."""
    crashing: frozenset[int]
    """Nodes that crash at least once."""
    gone: frozenset[int]
    """Nodes whose last crash is for good."""


def plan_faults(world: WorldSpec, nodes: int, seed: int) -> FaultPlan:
    """Plan everything that will happen to `nodes` nodes in a settled world, also beyond the end of the run."""
    require_settled(world)
    faults: list[Fault] = [fault for partition in world.partitions for fault in _partition(partition, nodes)]
    faults += [Join(time_ns=nanoseconds(join.at_s), node=node) for join in world.starts for node in join.nodes]
    lives = UpTimes(world.starts)
    for crash in world.crashes:
        begin, end = ends(crash)
        for node in crash.nodes:
            lives.add(node, begin, end)
            faults += _crash(node, begin, end, amnesia=crash.amnesia)
    if world.churn:
        for node in world.churn.nodes or ():
            faults += _churn(world.churn, node, lives, seed)
    faults.sort(key=lambda fault: (fault.time_ns, _ORDER[type(fault)], getattr(fault, "node", 0)))
    crashes = [fault for fault in faults if isinstance(fault, Crash)]
    return FaultPlan(
        faults=tuple(faults),
        late=frozenset(fault.node for fault in faults if isinstance(fault, Join)),
        crashing=frozenset(crash.node for crash in crashes),
        gone=frozenset(crash.node for crash in crashes if not crash.returns),
    )


def _partition(partition: PartitionSpec, nodes: int) -> tuple[Separate, Rejoin]:
    grouped = {node for group in partition.groups for node in group}
    others = tuple(node for node in range(nodes) if node not in grouped)
    groups = sorted(tuple(sorted(group)) for group in (*partition.groups, others) if group)
    begin, end = nanoseconds(partition.at_s), nanoseconds(partition.until_s)
    return Separate(time_ns=begin, groups=tuple(groups)), Rejoin(time_ns=end)


def _crash(node: int, begin: int, end: int | None, *, amnesia: bool) -> list[Fault]:
    down: list[Fault] = [Crash(time_ns=begin, node=node, amnesia=amnesia, returns=end is not None)]
    return down if end is None else [*down, Restart(time_ns=end, node=node)]


def _churn(churn: ChurnSpec, node: int, lives: UpTimes, seed: int) -> Iterator[Fault]:
    """Draw crashes, but not where the world itself says when the node is down."""
    rng = stream(seed, "churn", node)
    until, now = nanoseconds(churn.until_s), lives.born.get(node, 0)
    while True:
        begin = now + _while_ns(exponential(rng, churn.up_s))
        if begin >= until:
            return
        now = begin + _while_ns(exponential(rng, churn.down_s))
        amnesia = rng.random() < churn.amnesia
        if lives.objection(node, begin, now) is None:
            yield from _crash(node, begin, now, amnesia=amnesia)


def _while_ns(time_s: float) -> int:
    return min(max(1, nanoseconds(time_s)), round(LONGEST_S * NANOSECONDS))
