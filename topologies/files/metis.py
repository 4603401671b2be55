"""METIS, the format of graph partitioners: a head `nodes edges`, then the neighbors of each node, counted from 1.

Source: Karypis, METIS 5.1 manual, 4.1.1.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from topologies.errors import TopologyError
from topologies.files.content import Content, as_ends, check_weight, lines_of, whole
from topologies.files.numbers import check_nodes, from_both_sides, name_comments, name_in, numbered
from topologies.graph import Topology


@dataclass(frozen=True, slots=True)
class _Head:
    """`weighted`: a weight follows each neighbor."""

    nodes: int
    edges: int
    weighted: bool


def read(data: bytes, where: str) -> Content:
    names: list[str] = []
    head: _Head | None = None
    flat, lines = array("q"), array("q")
    node = 0
    for number, line in lines_of(data, where):
        place = f"{where}:{number}"
        if line.startswith("%"):
            names += name_in(line, place)
            continue
        words = line.split()
        if head is None:
            head = _head(words, place) if words else None
        elif node < head.nodes:
            neighbors = _neighbors(words, place, head)
            flat.extend(end for neighbor in neighbors for end in (node, neighbor))
            lines.extend([number] * len(neighbors))
            node += 1
        elif words:
            raise TopologyError("more lines than nodes", key=place, allowed=f"{head.nodes} lines after the head")
    if head is None or node != head.nodes:
        allowed = f"{head.nodes} lines after the head" if head else "a head, and a line for each node"
        raise TopologyError("fewer lines than nodes", key=where, value=node, allowed=allowed)
    return _content(head, flat, lines, names, where)


def _head(words: Sequence[str], place: str) -> _Head:
    allowed = "`nodes edges`, or `nodes edges 1` with weights of 1"
    if not 2 <= len(words) <= 3:
        raise TopologyError("not a head", key=place, value=" ".join(words)[:80], allowed=allowed)
    weights = words[2] if len(words) == 3 else "0"
    if weights.lstrip("0") not in {"", "1"}:
        raise TopologyError("nodes with weights or sizes", key=place, value=weights, allowed=allowed)
    head = _Head(whole(words[0], place), whole(words[1], place), weights.endswith("1"))
    check_nodes(head.nodes, place)
    return head


def _neighbors(words: Sequence[str], place: str, head: _Head) -> list[int]:
    if head.weighted:
        if len(words) % 2:
            raise TopologyError("a neighbor without a weight", key=place, allowed="a weight after each neighbor")
        for weight in words[1::2]:
            check_weight(weight, place)
        words = words[::2]
    neighbors = [whole(word, place) - 1 for word in words]
    for neighbor in neighbors:
        if not 0 <= neighbor < head.nodes:
            allowed = f"numbers from 1 to {head.nodes}"
            raise TopologyError("unknown node", key=place, value=neighbor + 1, allowed=allowed)
    return neighbors


def _content(head: _Head, flat: Sequence[int], lines: Sequence[int], names: Sequence[str], where: str) -> Content:
    links = as_ends(flat)
    kept = from_both_sides(links, lambda link: f"{where}:{lines[link]}", first=1)
    if len(kept) != head.edges:
        allowed = str(head.edges)
        raise TopologyError("another number of edges than the head says", key=where, value=len(kept), allowed=allowed)
    return numbered(head.nodes, links[kept], lambda edge: f"{where}:{lines[kept[edge]]}", names, where)


def write(topology: Topology) -> Iterator[str]:
    yield from name_comments(topology)
    yield f"{topology.nodes} {topology.edge_count}\n"
    for neighbors in topology.adjacency():
        yield " ".join([str(neighbor + 1) for neighbor in neighbors]) + "\n"
