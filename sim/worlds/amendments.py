"""A federation whose members and graph change while it runs, as its world says: the federation at each time.

A simulated federation has a row for everybody who is ever a member. A node that is not a member at a time is retired in
the rows of that time: it has no edges, and nobody waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from p2pfl.config.graph import federation_graph
from p2pfl.config.model import Edges, FederationConfig
from p2pfl.errors import UserError
from sim.worlds.model import WorldSpec, nanoseconds
from topologies import TopologyError
from topologies.graph import components


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The federation from a time on; all nodes hear of the change at once."""

    time_ns: int
    federation: FederationConfig


def steps_of(federation: FederationConfig, world: WorldSpec) -> tuple[Step, ...]:
    """Return the federation at the beginning, then after each change.

    Raises UserError: the members at a time cannot form such a graph, or it is not connected.
    """
    if not world.amendments:
        return (Step(time_ns=0, federation=federation),)
    order = sorted(range(len(world.amendments)), key=lambda place: (world.amendments[place].at_s, place))
    later = {node for amendment in world.amendments for node in amendment.join}
    there = [member.index for member in federation.members if member.index not in later]
    spec = federation.topology
    found = [Step(time_ns=0, federation=_federation_of(federation, there, spec, world, "amend"))]
    for place in order:
        amendment = world.amendments[place]
        there = sorted({*there, *amendment.join} - {*amendment.leave})
        spec = amendment.topology or spec
        now = _federation_of(federation, there, spec, world, f"amend[{place}].topology")
        found.append(Step(time_ns=nanoseconds(amendment.at_s), federation=now))
    return tuple(found)


def all_edges(steps: tuple[Step, ...]) -> Edges:
    """Return the edges of all times."""
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
    )


def _member_edges(edges: Edges, members: list[int]) -> Edges:
    """Turn edges between places in the list into edges between members; `members` ascends, so their order stays."""
    return tuple((members[low], members[high]) for low, high in edges)
