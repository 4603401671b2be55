"""From a spec to a graph. Everything that needs one string for a graph comes through here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from topologies.errors import TopologyError
from topologies.families import FAMILIES
from topologies.files import read_edges
from topologies.graph import Topology, ordered
from topologies.specs import is_file, parse

NODES_LIMIT = 1_000_000


def build(spec: str, nodes: int, seed: int = 0, *, names: Sequence[str] = ()) -> Topology:
    """The graph that `spec` describes, the same for the same arguments; it need not be connected.

    A spec may be the path of a graph file, whose nodes are numbers or, where given, `names`.

    Raises:
        TopologyError: the spec cannot be read, or there is no such graph of this size.
    """
    if isinstance(nodes, bool) or not isinstance(nodes, int) or not 1 <= nodes <= NODES_LIMIT:
        raise TopologyError("impossible size", key="nodes", value=nodes, allowed=f"from 1 to {NODES_LIMIT}")
    if is_file(spec):
        return Topology(spec, nodes, read_edges(Path(spec), nodes, names), seed)
    parsed = parse(spec)
    return Topology(spec, nodes, ordered(FAMILIES[parsed.name].build(nodes, parsed.parameters, seed)), seed)
