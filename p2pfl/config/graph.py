"""The federation's graph: the spec and the number of members to edges. Every node computes the same from one file."""

from __future__ import annotations

from pathlib import Path

from p2pfl.config.model import Member
from p2pfl.config.tables import Mistakes
from p2pfl.errors import UserError
from topologies import Topology, TopologyError, build
from topologies.graph import components
from topologies.specs import is_file

KEY = "federation.topology"


class DisconnectedGraph(UserError):  # noqa: N818 - it names the state of the graph
    """What one part learns could never reach the other."""

    exit_code = 3


def federation_topology(spec: str, members: tuple[Member, ...], seed: int, folder: Path) -> Topology:
    """A graph file is looked up in `folder`, and may call the nodes by name.

    Raises:
        TopologyError: there is no such graph.
    """
    place = str(folder / spec) if is_file(spec) else spec
    return build(place, len(members), seed, names=[member.name for member in members])


def read_edges(spec: str, members: tuple[Member, ...], seed: int, mistakes: Mistakes) -> tuple[tuple[int, int], ...]:
    """The sorted edges, or none where there is no such graph or it is not connected."""
    try:
        topology = federation_topology(spec, members, seed, mistakes.file.parent)
    except TopologyError as error:
        mistakes.add(f"{spec}: {_said(error)}", KEY, error.value, error.allowed)
        return ()
    parts = components(topology)
    if len(parts) > 1:
        mistakes.found.append(_disconnected(parts, spec, members, mistakes.file))
    return topology.edges


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
