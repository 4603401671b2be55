"""All families by name, and from a spec, `name` or `name:key=value,...`, to a graph or a schedule.

Each module of this package lists its own families; add a new one here. Every use of a spec goes through this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topologies.chance import check_seed
from topologies.errors import TopologyError, nearest, refuse_gone
from topologies.families.classic import CIRCULANTS, CLASSIC
from topologies.families.cliques import CLIQUES, D_CLIQUES
from topologies.families.random import RANDOM
from topologies.families.schedules import DRAWN, POWERS
from topologies.family import Family, FamilyParameter, GraphKind, GraphRequest
from topologies.files import read_edges, read_topology
from topologies.files.content import is_file
from topologies.graph import EDGES_LIMIT, NODES_LIMIT, Topology, whole_number
from topologies.schedule import Schedule

FAMILIES: Mapping[str, Family] = {
    **CLASSIC,
    **CIRCULANTS,
    **CLIQUES,
    **D_CLIQUES,
    **RANDOM,
    **POWERS,
    **DRAWN,
}


@dataclass(frozen=True, slots=True)
class Spec:
    """The name of a family and a value for each of its parameters."""

    name: str
    parameters: Mapping[str, Any]


def parse(text: str) -> Spec:
    """Parse a spec and fill in defaults. Raises TopologyError for an unknown family or key, or a wrong value."""
    name, colon, rest = (part.strip() for part in text.partition(":"))
    if name not in FAMILIES:
        refuse_gone("topology", name)
        refuse_gone("format", Path(name).suffix.lower())
        raise TopologyError(
            "unknown topology", key="topology", value=text, allowed=nearest(name, FAMILIES) + ", or a graph file"
        )
    known = FAMILIES[name].parameters
    values = {key: parameter.default for key, parameter in known.items()}
    values.update(_settings(name, rest, known) if colon else {})
    return Spec(name, values)


def kind(spec: str) -> GraphKind:
    """Say whether `spec` names one graph, a schedule, or something directed; a file counts as one graph."""
    return GraphKind.STATIC if is_file(spec) else FAMILIES[parse(spec).name].kind


def is_static(spec: str) -> bool:
    """True if `resolve` can build it: a file, standard input (`-`), or a family of one undirected graph."""
    return spec == "-" or kind(spec) is GraphKind.STATIC


def build(
    spec: str, nodes: int, seed: int = 0, *, names: Sequence[str] = (), folder: Path | str | None = None
) -> Topology:
    """Build the graph described by `spec`. The same arguments give the same graph; it need not be connected.

    A spec may be the path of a graph file, whose nodes are numbers or, if given, `names`. A relative path to a graph
    file, or among a family's parameters, starts at `folder`, by default the working directory. Raises TopologyError if
    the spec cannot be read, if there is no such graph of this size, or if it is not a static graph.
    """
    nodes, seed = _checked(spec, nodes, seed, names)
    if is_file(spec):
        return _from_file(spec, Path(folder or "") / spec, nodes, seed, names)
    family, request = _request(spec, nodes, seed, names, folder)
    if family.build is None:
        raise TopologyError("changes over time or is directed", key="topology", value=spec, allowed="a static graph")
    form = family.closed(request) if family.closed and nodes > 1 else None
    if form is not None and form.edges > EDGES_LIMIT:
        return Topology(spec, nodes, None, seed, formula=form)
    _check_edges(family, request)
    return Topology(spec, nodes, family.build(request), seed, formula=form)


def resolve(spec: str, nodes: int | None = None, seed: int = 0) -> Topology:
    """Build the graph that a command names: a graph file contains its number of nodes; `-` is standard input.

    `nodes`, if given, must agree with the file. The nodes keep their names from the file. The spec and seed that a file
    claims are kept, but only its edges are trusted. Raises TopologyError as `build` does, or if the number of nodes is
    not given.
    """
    if spec == "-" or is_file(spec):
        if nodes is not None:
            nodes, _ = _checked(spec, nodes, seed)
        return read_topology(spec, nodes)
    if nodes is None:
        kind(spec)
        allowed = "-n N: only a graph file says itself how many nodes there are"
        raise TopologyError("how many nodes?", key="nodes", allowed=allowed)
    return build(spec, nodes, seed)


def build_schedule(
    spec: str, nodes: int, seed: int = 0, *, names: Sequence[str] = (), folder: Path | str | None = None
) -> Schedule:
    """Build the schedule, or the directed graph, that `spec` describes; the arguments are the same as for `build`.

    Raises TopologyError if the spec cannot be read, if there is none of this size, or if it is a static graph.
    """
    nodes, seed = _checked(spec, nodes, seed, names)
    family, request = _request(spec, nodes, seed, names, folder)
    if family.schedule is None:
        raise TopologyError("neither changes over time nor is directed", key="topology", value=spec)
    return family.schedule(request)


def _from_file(spec: str, path: Path, nodes: int, seed: int, names: Sequence[str]) -> Topology:
    if names:
        own = read_edges(path, nodes, names)
        return Topology(spec, nodes, own.ends, seed, weights=own.weights)
    graph = read_topology(path, nodes)
    return Topology(spec, nodes, graph.ends, seed, names=graph.names, weights=graph.weights)


def _request(
    spec: str, nodes: int, seed: int, names: Sequence[str], folder: Path | str | None
) -> tuple[Family, GraphRequest]:
    parsed = parse(spec)
    request = GraphRequest(
        spec=spec, nodes=nodes, parameters=parsed.parameters, seed=seed, names=names, folder=Path(folder or "")
    )
    return FAMILIES[parsed.name], request


def _check_edges(family: Family, request: GraphRequest) -> None:
    limit = family.edges_limit or EDGES_LIMIT
    edges = family.expected(request) if family.expected else 0
    if edges > limit:
        raise TopologyError(
            f"{request.spec} on {request.nodes} nodes has about {edges:.1e} edges, too many to hold",
            key="nodes",
            value=request.nodes,
            allowed=f"fewer nodes or another parameter, for at most {limit} edges",
        )


def _checked(spec: str, nodes: int, seed: int, names: Sequence[str] = ()) -> tuple[int, int]:
    """Check the arguments; return nodes and seed as ints. Raises TopologyError if one of the four is impossible."""
    if not isinstance(spec, str):
        raise TopologyError("not a spec", key="topology", value=repr(spec), allowed="a text, such as 'ring'")
    nodes = whole_number(nodes, "nodes", 1)
    if nodes > NODES_LIMIT:
        raise TopologyError("impossible size", key="nodes", value=nodes, allowed=f"from 1 to {NODES_LIMIT}")
    different = {name for name in names if isinstance(name, str)}
    if len(names) and not len(names) == len(different) == nodes:
        allowed = f"{nodes} different texts"
        raise TopologyError("not one name for each node", key="names", value=len(different), allowed=allowed)
    return nodes, check_seed(whole_number(seed, "seed"))


def _settings(name: str, text: str, parameters: Mapping[str, FamilyParameter]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if key not in parameters:
            raise TopologyError(f"unknown parameter of {name}", key=name, value=key, allowed=nearest(key, parameters))
        if not equals or key in settings:
            raise TopologyError("needs key=value, each key once", key=f"{name}:{key}", value=part)
        settings[key] = _value(name, key, value, parameters[key])
    return settings


def _value(name: str, key: str, text: str, parameter: FamilyParameter) -> Any:
    try:
        return parameter.read(text)
    except ValueError:
        refuse_gone(f"{name}:{key}", text)
        raise TopologyError("impossible value", key=f"{name}:{key}", value=text, allowed=parameter.allowed) from None
