"""METIS, the format of graph partitioners: a head `nodes edges`, then the neighbors of each node, counted from 1.

Source: Karypis, METIS 5.1 manual, 4.1.1. Names, which the format does not know, are kept in comments: `% name: "a"`.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator

import numpy as np

from topologies.building import NODES_LIMIT
from topologies.errors import TopologyError
from topologies.files.content import (
    Content,
    as_ends,
    check_simple,
    check_text,
    check_weight,
    labels_of,
    lines_of,
    whole,
)
from topologies.graph import Ends, Topology

_NAME = "% name: "


def read(data: bytes, where: str) -> Content:
    names: list[str] = []
    head: tuple[int, int, bool] | None = None
    flat, lines = array("q"), array("q")
    node = 0
    for number, line in lines_of(data, where):
        place = f"{where}:{number}"
        words = line.split()
        if line.startswith("%"):
            names += name_in(line, place)
        elif head is None:
            head = _head(words, place) if words else None
        elif node < head[0]:
            for neighbor in _neighbors(words, place, weighted=head[2]):
                flat.extend((node, _within(neighbor, head[0], place)))
                lines.append(number)
            node += 1
        elif words:
            raise TopologyError("more lines than nodes", key=place, allowed=f"{head[0]} lines after the head")
    if head is None or node != head[0]:
        nodes = head[0] if head else None
        raise TopologyError("fewer lines than nodes", key=where, value=node, allowed=f"a head and {nodes} lines")
    ends, kept = _from_both_sides(as_ends(flat), lines, where)
    check_simple(ends, lambda edge: f"{where}:{kept[edge]}")
    if len(ends) != head[1]:
        raise TopologyError(
            "another number of edges than the head says", key=where, value=len(ends), allowed=str(head[1])
        )
    return numbered(head[0], ends, kept, names, where)


def numbered(nodes: int, ends: Ends, lines: list[int], names: list[str], where: str) -> Content:
    """Of a format that knows numbers alone. `lines` is empty where the format has none."""
    if names and len(names) != nodes:
        raise TopologyError("not one name for each node", key=where, value=len(names), allowed=f"none or {nodes}")
    if len(set(names)) != len(names) or not all(names):
        raise TopologyError("the same name twice, or an empty one", key=where, allowed="different names")
    check_text(names, where)
    return Content(
        nodes=nodes,
        ends=ends,
        place=lambda edge: f"{where}:{lines[edge]}" if lines else where,
        labels=names or None,
    )


def _head(words: list[str], place: str) -> tuple[int, int, bool]:
    """Nodes, edges, and whether a weight follows each neighbor."""
    allowed = "`nodes edges`, or `nodes edges 1` with weights of 1"
    if not 2 <= len(words) <= 3:
        raise TopologyError("not a head", key=place, value=" ".join(words)[:80], allowed=allowed)
    weights = words[2] if len(words) == 3 else "0"
    if weights.lstrip("0") not in ("", "1"):
        raise TopologyError("nodes with weights or sizes", key=place, value=weights, allowed=allowed)
    nodes, edges = whole(words[0], place), whole(words[1], place)
    if not 1 <= nodes <= NODES_LIMIT:
        raise TopologyError("impossible number of nodes", key=place, value=nodes, allowed=f"from 1 to {NODES_LIMIT}")
    return nodes, edges, weights.endswith("1")


def _neighbors(words: list[str], place: str, *, weighted: bool) -> list[str]:
    if not weighted:
        return words
    if len(words) % 2:
        raise TopologyError("a neighbor without a weight", key=place, allowed="a weight after each neighbor")
    for weight in words[1::2]:
        check_weight(weight, place)
    return words[::2]


def _within(word: str, nodes: int, place: str) -> int:
    if not 1 <= (neighbor := whole(word, place)) <= nodes:
        raise TopologyError("unknown node", key=place, value=neighbor, allowed=f"numbers from 1 to {nodes}")
    return neighbor - 1


def _from_both_sides(ends: Ends, lines: array[int], where: str) -> tuple[Ends, list[int]]:
    """Each edge once; self-loops and repetitions stay, to be found by the check that all formats share."""
    up, down = ends[:, 0] <= ends[:, 1], ends[:, 0] >= ends[:, 1]
    there, back = _keys(ends[up]), _keys(ends[down][:, ::-1])
    for side, others in ((up, back), (down, there)):
        mine = there if side is up else back
        alone = np.flatnonzero(~np.isin(mine, others))
        if len(alone):
            edge = int(np.flatnonzero(side)[alone[0]])
            i, j = (ends[edge] + 1).tolist()
            text = f"node {i} has the neighbor {j}, but node {j} has no neighbor {i}"
            raise TopologyError(text, key=f"{where}:{lines[edge]}", allowed="each edge on the lines of both its nodes")
    chosen = up if len(there) >= len(back) else down
    return ends[chosen], np.asarray(lines)[chosen].tolist()


def _keys(ends: Ends) -> Ends:
    return np.asarray(ends[:, 0] * NODES_LIMIT + ends[:, 1])


def name_in(comment: str, where: str) -> list[str]:
    """The name that a comment keeps, as a list of one or none."""
    if not comment.startswith(_NAME):
        return []
    try:
        name = json.loads(comment.removeprefix(_NAME))
    except (ValueError, RecursionError):
        name = None
    if not isinstance(name, str):
        raise TopologyError("not a name", key=where, value=comment.strip()[:80], allowed=f'{_NAME}"a"')
    return [name]


def name_comments(topology: Topology) -> Iterator[str]:
    if topology.names:
        yield from (f"{_NAME}{json.dumps(label)}\n" for label in labels_of(topology))


def write(topology: Topology) -> Iterator[str]:
    yield from name_comments(topology)
    yield f"{topology.nodes} {topology.edge_count}\n"
    for neighbors in topology.adjacency():
        yield " ".join(str(neighbor + 1) for neighbor in neighbors) + "\n"
