"""A federation whose members and graph change while it runs, as its world specifies: the federation at each time.

A simulated federation has a row for everyone who is ever a member. A node that is not a member at some time is marked
as retired in the rows for that time: it has no edges, and nothing waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from p2pfl.config.graph import edge_weights, federation_graph
from p2pfl.config.model import Edges, FederationConfig
from p2pfl.errors import UserError
from sim.worlds.model import WorldSpec, nanoseconds
from topologies import TopologyError
from topologies.graph import components


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
    found = [Step(time_ns=0, federation=_federation_of(federation, there, spec, world, "amend"))]
    for place in order:
        amendment = world.amendments[place]
        there = sorted({*there, *amendment.join} - {*amendment.leave})
        spec = amendment.topology or spec
        now = _federation_of(federation, there, spec, world, f"amend[{place}].topology")
        found.append(Step(time_ns=nanoseconds(amendment.at_s), federation=now))
    return tuple(found)


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
    """Convert edges between list positions to edges between members; `members` is ascending, so the order is
    preserved.
    """
    return tuple((members[low], members[high]) for low, high in edges)
