"""The federation's graph: the spec and the number of members to edges. Every node computes the same from one file.

A spec may name one graph, or an undirected schedule of graphs that repeats: then the union of them holds the sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from p2pfl.config.model import Edges, Member
from p2pfl.config.tables import Mistakes
from p2pfl.errors import UserError
from topologies import Topology, TopologyError, build, build_schedule
from topologies.building import kind
from topologies.families import FAMILIES, GraphKind
from topologies.graph import components, ordered
from topologies.schedules.schedule import MixingMatrix

KEY = "federation.topology"


class DisconnectedGraph(UserError):  # noqa: N818 - it names the state of the graph
    """What one part learns could never reach the other."""

    exit_code = 3


def federation_graph(spec: str, names: Sequence[str], seed: int, folder: Path) -> tuple[Topology, tuple[Edges, ...]]:
    """The graph of all sessions, and for a schedule the edges of each round of its period, else nothing.

    A file is looked up in `folder`, and may call the nodes by name.

    Raises:
        TopologyError: there is no such graph, or it is directed.
    """
    found = kind(spec)
    if found is GraphKind.DIRECTED:
        text = "is directed, and stays inside the topology library: in a federation both ends of an edge learn"
        raise TopologyError(text, value=spec, allowed=_undirected())
    if found is GraphKind.STATIC:
        return build(spec, len(names), seed, names=names, folder=folder), ()
    schedule = build_schedule(spec, len(names), seed, names=names, folder=folder)
    return schedule.union(), tuple(_edges(mixing) for mixing in schedule.mixings)


def _edges(mixing: MixingMatrix) -> Edges:
    pairs = zip(mixing.receivers.tolist(), mixing.senders.tolist(), strict=True)
    return tuple((i, j) for i, j in ordered(pairs).tolist())


def _undirected() -> str:
    moving = ", ".join(sorted(name for name, family in FAMILIES.items() if family.kind is GraphKind.SCHEDULE))
    return f"an undirected graph, such as ring or hypercube, or an undirected schedule: {moving or 'none here'}"


def read_graph(
    spec: str, members: tuple[Member, ...], seed: int, mistakes: Mistakes
) -> tuple[Edges, tuple[Edges, ...]]:
    """The sorted edges and the schedule, both empty where there is no such graph."""
    try:
        topology, schedule = federation_graph(spec, [member.name for member in members], seed, mistakes.file.parent)
    except TopologyError as error:
        mistakes.add(f"{spec}: {_said(error)}", KEY, error.value, error.allowed)
        return (), ()
    parts = components(topology)
    if len(parts) > 1:
        mistakes.found.append(_disconnected(parts, spec, members, mistakes.file))
    return topology.edges, schedule


def _said(error: TopologyError) -> str:
    return f"{error.key}: {error.message}" if error.key else error.message


def _disconnected(parts: list[list[int]], spec: str, members: tuple[Member, ...], file: Path) -> DisconnectedGraph:
    groups = " | ".join(" ".join(members[node].name for node in part[:8]) for part in parts[:8])
    return DisconnectedGraph(
        f"the graph falls into {len(parts)} parts that never hear of each other: {groups}",
        file=file,
        key=KEY,
        value=spec,
        allowed="a connected graph (more edges, or another federation.seed for a random one)",
    )
