"""The course of a settled world, known before a run starts: speeds, faults, changes of the federation.

*Speeds*: how long a node's local round takes, in nanoseconds, computed with integers so that it is equal on every
machine. A round is work, counted in nanoseconds at speed 1, a speed is work per nanosecond, and the round ends in the
first nanosecond in which all its work is done.

*Faults*: joins, crashes, restarts, partitions, sorted by time. Churn is drawn here, for each node from its own stream.
Simultaneous faults happen in the order of their classes, then by node.

*Changes*: a federation whose members and graph change has a row for everyone who is ever a member. A node that is not a
member at some time is marked as retired in the rows for that time: it has no edges, and nothing waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from p2pfl.chance import stream
from p2pfl.config.graph import edge_weights, federation_graph
from p2pfl.config.model import Edges, FederationConfig
from p2pfl.errors import UserError
from sim.worlds.model import (
    LONGEST_S,
    NANOSECONDS,
    ChurnSpec,
    PartitionSpec,
    UpTimes,
    WorldSpec,
    ends,
    nanoseconds,
)
from sim.worlds.settling import draw, exponential, require_settled
from topologies import TopologyError
from topologies.graph import components

UNIT = 10**15
"""The unit in which speeds are integers; the slowest still has nine digits."""
LONGEST_NS = round(LONGEST_S * NANOSECONDS)


class NodeSpeed:
    """One node's speed. Jitter is drawn from the node's own stream, once per call of `round_ns`."""

    def __init__(
        self, speed: float, *, step_s: float, round_s: float | None, jitter: float, rng: Random | None
    ) -> None:
        self._speed = max(1, round(speed * UNIT))
        self._step_units = round(step_s * NANOSECONDS * 1000) * (UNIT // 1000)
        self._round_units = None if round_s is None else round(round_s * NANOSECONDS * 1000) * (UNIT // 1000)
        self._jitter = jitter
        self._rng = rng

    @property
    def speed(self) -> float:
        return self._speed / UNIT

    def round_ns(self, steps: int) -> int:
        """Return the duration of a round of `steps` local steps: at least 1, at most `LONGEST_NS`."""
        work = self._step_units * steps if self._round_units is None else self._round_units
        if self._rng is not None:
            work += work * round(self._jitter * self._rng.random() * UNIT) // UNIT
        return min(max(1, -(-work // self._speed)), LONGEST_NS)

    def estimate_ns(self, steps: int) -> int:
        """Estimate a round's duration without jitter: nothing is drawn."""
        work = self._step_units * steps if self._round_units is None else self._round_units
        return min(max(1, work // self._speed), LONGEST_NS)


def node_speeds(world: WorldSpec, federation: FederationConfig) -> tuple[NodeSpeed, ...]:
    """Return the speed of each member in a settled world."""
    require_settled(world)
    compute, seed = world.compute, federation.seed
    factors = {node: slow.speed for slow in world.slow for node in slow.nodes}
    rng = stream(seed, "speeds")
    return tuple(
        NodeSpeed(
            draw(rng, compute.speed) * factors.get(node, 1.0),
            step_s=compute.step_s,
            round_s=compute.round_s,
            jitter=compute.jitter,
            rng=stream(seed, "round jitter", node) if compute.jitter else None,
        )
        for node in range(len(federation.members))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejoin:
    """The end of a partition."""

    time_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Separate:
    """A partition begins; `groups` contains every node once, sorted."""

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
    """Nodes started by a Join; all others start at time 0."""
    crashing: frozenset[int]
    """Nodes that crash at least once."""
    gone: frozenset[int]
    """Nodes that never return from their last crash."""


def plan_faults(world: WorldSpec, nodes: int, seed: int) -> FaultPlan:
    """Plan everything that will happen to `nodes` nodes in a settled world, even beyond the end of the run."""
    require_settled(world)
    faults: list[Fault] = [fault for partition in world.partitions for fault in _partition(partition, nodes)]
    faults += [Join(time_ns=nanoseconds(join.at_s), node=node) for join in world.starts for node in join.nodes]
    up_times = UpTimes(world.starts)
    for crash in world.crashes:
        begin, end = ends(crash)
        for node in crash.nodes:
            up_times.add(node, begin, end)
            faults += _crash(node, begin, end, amnesia=crash.amnesia)
    if world.churn:
        for node in world.churn.nodes or ():
            faults += _churn(world.churn, node, up_times, seed)
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


def _churn(churn: ChurnSpec, node: int, up_times: UpTimes, seed: int) -> Iterator[Fault]:
    """Draw crashes, except where the world itself says when the node is down."""
    rng = stream(seed, "churn", node)
    until, now = nanoseconds(churn.until_s), up_times.born.get(node, 0)
    while True:
        begin = now + _while_ns(exponential(rng, churn.up_s))
        if begin >= until:
            return
        now = begin + _while_ns(exponential(rng, churn.down_s))
        amnesia = rng.random() < churn.amnesia
        if up_times.objection(node, begin, now) is None:
            yield from _crash(node, begin, now, amnesia=amnesia)


def _while_ns(time_s: float) -> int:
    return min(max(1, nanoseconds(time_s)), round(LONGEST_S * NANOSECONDS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The federation from some time on; all nodes are told about the change at once."""

    time_ns: int
    federation: FederationConfig


def steps_of(federation: FederationConfig, world: WorldSpec) -> tuple[Step, ...]:
    """Return the federation at the beginning, then after each change.

    Raises UserError if the members at some time cannot form such a graph, or if it is not connected.
    """
    if not world.amendments:
        return (Step(time_ns=0, federation=federation),)
    order = sorted(range(len(world.amendments)), key=lambda place: (world.amendments[place].at_s, place))
    later = {node for amendment in world.amendments for node in amendment.join}
    there = [member.index for member in federation.members if member.index not in later]
    spec = federation.topology
    steps = [Step(time_ns=0, federation=_federation_of(federation, there, spec, world, "amend"))]
    for place in order:
        amendment = world.amendments[place]
        there = sorted({*there, *amendment.join} - {*amendment.leave})
        spec = amendment.topology or spec
        now = _federation_of(federation, there, spec, world, f"amend[{place}].topology")
        steps.append(Step(time_ns=nanoseconds(amendment.at_s), federation=now))
    return tuple(steps)


def all_edges(steps: tuple[Step, ...]) -> Edges:
    """Return the edges of all times together."""
    if len(steps) == 1:
        return steps[0].federation.edges
    return tuple(sorted({edge for step in steps for edge in step.federation.edges}))


def _federation_of(
    federation: FederationConfig, present: list[int], spec: str, world: WorldSpec, key: str
) -> FederationConfig:
    names = [federation.members[node].name for node in present]
    try:
        graph, schedule = federation_graph(spec, names, federation.seed, federation.path.parent)
    except TopologyError as error:
        raise UserError(error.message, file=world.path, key=key, value=spec, allowed=error.allowed) from None
    if len(components(graph)) > 1:
        text = f"the graph of {len(present)} members falls into parts"
        raise UserError(text, file=world.path, key=key, value=spec, allowed="a connected graph")
    members = tuple(replace(member, retired=member.index not in present) for member in federation.members)
    return replace(
        federation,
        topology=spec,
        members=members,
        edges=_member_edges(graph.edges, present),
        schedule=tuple(_member_edges(edges, present) for edges in schedule),
        edge_weights={(present[i], present[j]): weight for (i, j), weight in edge_weights(graph).items()},
    )


def _member_edges(edges: Edges, members: list[int]) -> Edges:
    """Convert edges between list positions to edges between members; `members` ascends, so their order is kept."""
    return tuple((members[low], members[high]) for low, high in edges)
