"""The federation's graph, and the settings of cores, which follow from `[gossip]` and the graph's diameter.

Every node computes the same edges from the same file. A spec may name one graph, or a repeating undirected schedule of
graphs; then sessions use the union of them. The `[[edge]]` tables have settings for single edges, such as a slow link.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import or_
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from p2pfl.aggregate import Rule, liars_of, make_rule
from p2pfl.config.model import EDGE, Edges, FederationConfig, Member
from p2pfl.config.sections import parse_stop
from p2pfl.config.tables import Mistakes, read_table, require
from p2pfl.core.settings import Conservative, Robust, Settings, parse_staleness
from p2pfl.errors import UserError
from p2pfl.foreign import refuse_special
from topologies import Topology, TopologyError, build, build_schedule
from topologies.families import FAMILIES, kind
from topologies.family import GraphKind
from topologies.graph import components, ordered
from topologies.graph import hops as distances
from topologies.schedule import MixingMatrix

KEY = "federation.topology"
Edge = tuple[int, int]


class DisconnectedGraph(UserError):  # noqa: N818 - it names the state of the graph
    """Raised if the graph has parts that can never learn from each other."""

    exit_code = 3


def federation_graph(
    spec: str, names: Sequence[str], seed: int, folder: Path, *, directed: bool = False
) -> tuple[Topology, tuple[Edges, ...]]:
    """Return the graph of all sessions and, for a schedule, the edges in each round of its period, else an empty tuple.

    A file is looked up in `folder`, and may refer to nodes by name. `directed` lets a directed graph pass, whose edges
    are then those of its links.

    Raises TopologyError: there is no such graph, or it is directed, or models would not come together with its weights.
    """
    graph_kind = kind(spec)
    if graph_kind is GraphKind.DIRECTED and not directed:
        text = "is directed, and stays inside the topology library: in a federation both ends of an edge learn"
        moving = ", ".join(sorted(name for name, family in FAMILIES.items() if family.kind is GraphKind.SCHEDULE))
        allowed = f"an undirected graph, such as ring or hypercube, or an undirected schedule: {moving}"
        raise TopologyError(text, value=spec, allowed=allowed)
    if graph_kind is GraphKind.STATIC:
        topology = build(spec, len(names), seed, names=names, folder=folder)
        _check_weights(topology, names)
        return topology, ()
    schedule = build_schedule(spec, len(names), seed, names=names, folder=folder)
    return schedule.union(), tuple(_edges(mixing) for mixing in schedule.mixings)


def edge_weights(topology: Topology) -> dict[Edge, float]:
    """Return the mixing weight of each edge, in order; empty if the graph has no weights."""
    return {} if topology.weights is None else dict(zip(topology.edges, topology.weights.tolist(), strict=True))


LARGEST_WEIGHT = 0.5
"""With more, one exchange would carry two models past each other."""
ROUNDED = 1e-9
"""The distance beyond its bound that a rounded weight may have."""


def _check_weights(topology: Topology, names: Sequence[str]) -> None:
    sums = dict.fromkeys(range(len(names)), 0.0)
    for (i, j), weight in edge_weights(topology).items():
        sums[i] += weight
        sums[j] += weight
        if weight > LARGEST_WEIGHT + ROUNDED:
            text = f"that of the edge between {names[i]} and {names[j]} is too large"
            allowed = "at most 0.5: then both ends have the same model after an exchange"
            raise TopologyError(text, key="weights", value=weight, allowed=allowed)
    node = max(sums, key=sums.__getitem__)
    if sums[node] > 1.0 + ROUNDED:
        text = f"those of {names[node]} add up to more than 1"
        allowed = "at most 1 at each node; `p2pfl topology convert --weights optimal` writes such weights"
        raise TopologyError(text, key="weights", value=round(sums[node], 9), allowed=allowed)


def _edges(mixing: MixingMatrix) -> Edges:
    pairs = zip(mixing.receivers.tolist(), mixing.senders.tolist(), strict=True)
    return tuple((i, j) for i, j in ordered(pairs).tolist())


class MemberGraph(NamedTuple):
    """The sorted edges between members; those of each round of a schedule; the weight of each if a file has any."""

    edges: Edges = ()
    schedule: tuple[Edges, ...] = ()
    weights: Mapping[Edge, float] = MappingProxyType({})


def read_graph(spec: str, members: tuple[Member, ...], seed: int, mistakes: Mistakes) -> MemberGraph:
    """Return the graph, empty if there is none of this kind. Retired members have no edges."""
    there = tuple(member for member in members if not member.retired)
    try:
        refuse_special(mistakes.file.parent / spec)
        topology, schedule = federation_graph(spec, [member.name for member in there], seed, mistakes.file.parent)
    except TopologyError as error:
        places = () if error.key == "topology" else (spec, error.key)
        mistakes.add(": ".join(filter(None, (*places, error.message))), KEY, error.value, error.allowed)
        return MemberGraph()
    except UserError as error:
        mistakes.errors.append(error)
        return MemberGraph()
    parts = components(topology)
    if len(parts) > 1:
        mistakes.errors.append(_disconnected(parts, spec, there, mistakes.file))
    index = [member.index for member in there]  # ascending, so the edges stay sorted
    edges = _renumbered(topology.edges, index)
    weights = dict(zip(edges, edge_weights(topology).values(), strict=False))
    return MemberGraph(edges, tuple(_renumbered(edges, index) for edges in schedule), weights)


def _renumbered(edges: Edges, index: Sequence[int]) -> Edges:
    return tuple((index[i], index[j]) for i, j in edges)


def _disconnected(parts: list[list[int]], spec: str, members: tuple[Member, ...], file: Path) -> DisconnectedGraph:
    groups = " | ".join(" ".join(members[node].name for node in part[:8]) for part in parts[:8])
    return DisconnectedGraph(
        f"the graph falls into {len(parts)} parts that never hear of each other: {groups}",
        file=file,
        key=KEY,
        value=spec,
        allowed="a connected graph (more edges, or another federation.seed for a random one)",
    )


SHOWN = 20
"""The most names that an error lists."""


def read_edges(tables: Any, members: Sequence[Member], edges: Edges, mistakes: Mistakes) -> dict[Edge, str]:
    """Read the compressor of each edge that has a table, in the file's order. Names are looked up only if there are
    members, and edges only if there are any: otherwise the file has worse mistakes.
    """
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        mistakes.add("must be a list of tables", "edge", None, "[[edge]] once for each edge")
        return {}
    compressors: dict[Edge, str] = {}
    first: dict[Edge, int] = {}
    for place, table in enumerate(tables):
        prefix = f"edge[{place}]."
        require(table, prefix, EDGE, EDGE, mistakes)
        values = read_table(table, prefix, EDGE, mistakes)
        edge = _find_edge(values.get("between"), members, edges, prefix + "between", mistakes)
        if edge in first:
            both = f"edge[{first[edge]}] and edge[{place}] are between the same nodes"
            mistakes.add(both, prefix + "between", list(values["between"]), "one [[edge]] for each edge")
        elif edge is not None:
            first[edge] = place
            compressors[edge] = values.get("compressor", "")
    return compressors


def _find_edge(
    names: tuple[str, str] | None, members: Sequence[Member], edges: Edges, key: str, mistakes: Mistakes
) -> Edge | None:
    """Find the edge between two names. If there is none, report that and return None."""
    index = {member.name: member.index for member in members}
    if names is None or not index:
        return None
    strangers = [name for name in names if name not in index]
    for name in strangers:
        mistakes.add("no such node", key, name, _listed(index))
    if strangers:
        return None
    i, j = sorted(index[name] for name in names)
    if edges and (i, j) not in edges:
        peers = [sorted(a + b - index[name] for a, b in edges if index[name] in (a, b)) for name in names]
        around = [_listed(members[peer].name for peer in some) for some in peers]
        text = f"{names[0]} and {names[1]} are not neighbors in the graph"
        allowed = "; ".join(f"{name} with {some}" for name, some in zip(names, around, strict=True))
        mistakes.add(text, key, list(names), allowed)
        return None
    return i, j


def _listed(names: Iterable[str]) -> str:
    known = list(names)
    return ", ".join(known[:SHOWN]) + (f" and {len(known) - SHOWN} more" if len(known) > SHOWN else "")


FARTHEST = 32
"""Nodes so many hops apart wait for each other to start; each further hop costs a message on every edge."""


def rule_of(federation: FederationConfig) -> Rule | None:
    """Return the rule of the robust profile, else None. Raises UserError: the user's own cannot be imported."""
    return make_rule(federation.gossip.rule, federation.path.parent)


def settings_of(
    federation: FederationConfig,
    *,
    hops: int,
    gammas: Mapping[int, float] | None = None,
    shares: Mapping[int, float] | None = None,
    least: int = 0,
    fragments: Mapping[int, int] | None = None,
) -> Settings:
    """Build the settings of one core. `hops` is the distance of the farthest member; `gammas` has, by neighbor, the
    values that differ from `gossip.gamma`, and `shares` the weights of the edges, if the graph has any; `least` is the
    number of neighbors that the rule itself needs; `fragments` counts those of a model, by neighbor without replicas.
    """
    training, gossip = federation.training, federation.gossip
    liars = liars_of(gossip.rule)
    return Settings(
        rounds=training.rounds,
        time_s=training.time_s,
        closing_rounds=training.closing_rounds,
        closing_trains=training.closing == "train",
        profile=Robust(liars=liars, least=least)
        if liars
        else Conservative(gamma=gossip.gamma, gammas=gammas or {}, shares=shares or {}),
        staleness=parse_staleness(gossip.staleness),
        speed_limit=training.speed_correction,
        stop=None if training.stop is None else parse_stop(training.stop),
        when_through=training.when_through,
        start_wait_s=gossip.start_wait_s,
        linger_s=gossip.linger_s,
        max_wait_s=gossip.max_wait_s,
        exchanges_per_s=gossip.exchanges_per_s,
        members=len(federation.members),
        retired=federation.retired,
        hops=hops,
        fragments=fragments or {},
        audit_every=gossip.audit_every,
    )


def all_shares(federation: FederationConfig) -> list[dict[int, float]]:
    """Return the mixing weights of each member's edges by neighbor; empty if the graph's file has none."""
    shares: list[dict[int, float]] = [{} for _ in federation.members]
    for (i, j), weight in federation.edge_weights.items():
        shares[i][j] = shares[j][i] = weight
    return shares


def hops(federation: FederationConfig, member: int) -> int:
    """Return the distance of the farthest node from `member`, between 1 and FARTHEST."""
    graph = Topology(KEY, len(federation.members), federation.edges)
    return int(distances(graph, member).clip(1, FARTHEST).max())


def all_hops(federation: FederationConfig) -> list[int]:
    """Compute `hops` of all: sets of nodes reached, as bits of numbers, are joined with the neighbors', hop by hop."""
    neighbors: list[list[int]] = [[] for _ in federation.members]
    for i, j in federation.edges:
        neighbors[i].append(j)
        neighbors[j].append(i)
    reached, depth = [1 << node for node in range(len(neighbors))], [1] * len(neighbors)
    for hop in range(1, FARTHEST + 1):
        wider = [reduce(or_, (reached[peer] for peer in neighbors[node]), own) for node, own in enumerate(reached)]
        grown = [node for node, own in enumerate(reached) if wider[node] != own]
        if not grown:
            break
        for node in grown:
            depth[node] = hop
        reached = wider
    return depth
