"""The federation's graph: from the spec and the number of members to edges. Every node computes the same from one file.

A spec may name one graph, or an undirected schedule of graphs that repeats: then the union of them holds the sessions.

The `[[edge]]` tables hold settings of single edges of the graph, such as a slow link.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2pfl.config.model import EDGE, Edges, Member
from p2pfl.config.tables import Mistakes, read_table, refuse_special, require
from p2pfl.errors import UserError
from topologies import Topology, TopologyError, build, build_schedule
from topologies.building import kind
from topologies.families import FAMILIES, GraphKind
from topologies.graph import components, ordered
from topologies.schedules.schedule import MixingMatrix

KEY = "federation.topology"


class DisconnectedGraph(UserError):  # noqa: N818 - it names the state of the graph
    """The graph has parts that can never learn from each other."""

    exit_code = 3


def federation_graph(spec: str, names: Sequence[str], seed: int, folder: Path) -> tuple[Topology, tuple[Edges, ...]]:
    """The graph of all sessions and, for a schedule, the edges of each round of its period (else nothing).

    A file is looked up in `folder`, and may call the nodes by name.

    Raises TopologyError: there is no such graph, or it is directed.
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
    """The sorted edges and the schedule, both empty where there is no such graph. Retired members have no edges."""
    there = tuple(member for member in members if not member.retired)
    try:
        refuse_special(mistakes.file.parent / spec)
        topology, schedule = federation_graph(spec, [member.name for member in there], seed, mistakes.file.parent)
    except TopologyError as error:
        mistakes.add(f"{spec}: {_error_text(error)}", KEY, error.value, error.allowed)
        return (), ()
    except UserError as error:
        mistakes.found.append(error)
        return (), ()
    parts = components(topology)
    if len(parts) > 1:
        mistakes.found.append(_disconnected(parts, spec, there, mistakes.file))
    if len(there) == len(members):
        return topology.edges, schedule
    index = [member.index for member in there]  # ascending, so the edges stay sorted
    return _renumbered(topology.edges, index), tuple(_renumbered(edges, index) for edges in schedule)


def _renumbered(edges: Edges, index: Sequence[int]) -> Edges:
    return tuple((index[i], index[j]) for i, j in edges)


def _error_text(error: TopologyError) -> str:
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


Edge = tuple[int, int]

SHOWN = 20
"""The most names listed in an error."""


def read_edge_tables(tables: Any, mistakes: Mistakes) -> tuple[tuple[str, str, str], ...]:
    """Read two sorted names and a compressor from each table. The graph may change, so names need not be
    neighbors now.
    """
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        mistakes.add("must be a list of tables", "edge", None, "[[edge]] once for each edge")
        return ()
    found: dict[tuple[str, str], str] = {}
    for place, table in enumerate(tables):
        prefix = f"edge[{place}]."
        require(table, prefix, EDGE, EDGE, mistakes)
        values = read_table(table, prefix, EDGE, mistakes)
        if len(values) < len(EDGE):
            continue
        one, other = sorted(values["between"])
        if (one, other) in found:
            mistakes.add("the same two nodes as in another table", prefix + "between", [one, other])
        found[one, other] = values["compressor"]
    return tuple((one, other, spec) for (one, other), spec in found.items())


def read_edges(tables: Any, members: Sequence[Member], edges: Edges, mistakes: Mistakes) -> dict[Edge, str]:
    """Read the compressor of each edge that has a table, in the file's order.

    Names are looked up if there are members, and edges if there are any: else the file has worse mistakes.
    """
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        mistakes.add("must be a list of tables", "edge", None, "[[edge]] once for each edge")
        return {}
    graph = _Graph({member.name: member.index for member in members}, frozenset(edges))
    found: dict[Edge, str] = {}
    first: dict[Edge, int] = {}
    for place, table in enumerate(tables):
        prefix = f"edge[{place}]."
        require(table, prefix, EDGE, EDGE, mistakes)
        values = read_table(table, prefix, EDGE, mistakes)
        edge = graph.find(values.get("between"), prefix + "between", mistakes)
        if edge in first:
            both = f"edge[{first[edge]}] and edge[{place}] are between the same nodes"
            mistakes.add(both, prefix + "between", list(values["between"]), "one [[edge]] for each edge")
        elif edge is not None:
            first[edge] = place
            found[edge] = values.get("compressor", "")
    return found


@dataclass(frozen=True, slots=True)
class _Graph:
    index: dict[str, int]
    edges: frozenset[Edge]

    def find(self, names: tuple[str, str] | None, key: str, mistakes: Mistakes) -> Edge | None:
        """Find the edge between two names; None where there is none, which has been reported by then."""
        if names is None or not self.index:
            return None
        strangers = [name for name in names if name not in self.index]
        for name in strangers:
            mistakes.add("no such node", key, name, _listed(self.index))
        if strangers:
            return None
        i, j = sorted(self.index[name] for name in names)
        if self.edges and (i, j) not in self.edges:
            text = f"{names[0]} and {names[1]} are not neighbors in the graph"
            allowed = "; ".join(f"{name} with {_listed(self.neighbors(name))}" for name in names)
            mistakes.add(text, key, list(names), allowed)
            return None
        return i, j

    def neighbors(self, name: str) -> list[str]:
        own, names = self.index[name], list(self.index)
        return [names[other] for other in sorted(a + b - own for a, b in self.edges if own in (a, b))]


def _listed(names: Iterable[str]) -> str:
    known = list(names)
    return ", ".join(known[:SHOWN]) + (f" and {len(known) - SHOWN} more" if len(known) > SHOWN else "")
