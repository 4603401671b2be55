"""Matrix Market: a graph as the entries of its adjacency matrix, counted from 1.

Source: Boisvert, Pozo and Remington, The Matrix Market Exchange Formats (1996). Read here and not with scipy, whose
parser believes the sizes that a file claims, and crashes the process on some broken files.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence

from topologies.errors import TopologyError
from topologies.files.content import Content, as_ends, check_weight, lines_of, whole
from topologies.files.numbers import check_nodes, from_both_sides, name_comments, name_in, numbered
from topologies.graph import Topology

_HEAD = re.compile(
    r"%%MatrixMarket\s+matrix\s+coordinate\s+(pattern|integer|real|double)\s+(general|symmetric)\s*", re.IGNORECASE
)


def read(data: bytes, where: str) -> Content:
    lines = lines_of(data, where)
    valued, symmetric = _head(next(lines)[1], f"{where}:1")
    names: list[str] = []
    sizes: tuple[int, int] | None = None
    flat, places = array("q"), array("q")
    for number, line in lines:
        place = f"{where}:{number}"
        words = line.split()
        if line.startswith("%"):
            names += name_in(line, place)
        elif words and sizes is None:
            sizes = _sizes(words, place)
        elif words and sizes is not None:
            flat.extend(_entry(words, sizes[0], place, valued=valued))
            places.append(number)
    if sizes is None:
        raise TopologyError("the sizes are missing", key=where, allowed="`rows columns entries` below the head")
    if len(places) != sizes[1]:
        text = "another number of entries than the file says"
        raise TopologyError(text, key=where, value=len(places), allowed=str(sizes[1]))
    return _content(sizes[0], flat, places, names, where, symmetric=symmetric)


def _head(line: str, place: str) -> tuple[bool, bool]:
    """Whether each entry has a value, and whether only one half of the matrix is there."""
    head = _HEAD.fullmatch(line)
    if head is None:
        allowed = "%%MatrixMarket matrix coordinate, then pattern, integer or real, then general or symmetric"
        raise TopologyError("not the matrix of a graph", key=place, value=line.strip()[:80], allowed=allowed)
    return head[1].lower() != "pattern", head[2].lower() == "symmetric"


def _sizes(words: Sequence[str], place: str) -> tuple[int, int]:
    """Nodes and entries."""
    sizes = [whole(word, place) for word in words]
    if len(sizes) != 3 or sizes[0] != sizes[1]:
        allowed = "`rows columns entries`, as many rows as columns"
        raise TopologyError("not the size of a graph's matrix", key=place, value=" ".join(words)[:80], allowed=allowed)
    check_nodes(sizes[0], place)
    return sizes[0], sizes[2]


def _entry(words: Sequence[str], nodes: int, place: str, *, valued: bool) -> tuple[int, int]:
    if len(words) != 2 + valued:
        allowed = "`row column value`" if valued else "`row column`"
        raise TopologyError("not an entry", key=place, value=" ".join(words)[:80], allowed=allowed)
    if valued:
        check_weight(words[2], place)
    row, column = whole(words[0], place), whole(words[1], place)
    if not (1 <= row <= nodes and 1 <= column <= nodes):
        allowed = f"numbers from 1 to {nodes}"
        raise TopologyError("unknown node", key=place, value=f"{row} {column}", allowed=allowed)
    return row - 1, column - 1


def _content(
    nodes: int, flat: Sequence[int], lines: Sequence[int], names: Sequence[str], where: str, *, symmetric: bool
) -> Content:
    entries = as_ends(flat)
    if symmetric:
        return numbered(nodes, entries, lambda edge: f"{where}:{lines[edge]}", names, where)
    kept = from_both_sides(entries, lambda entry: f"{where}:{lines[entry]}", first=1)
    return numbered(nodes, entries[kept], lambda edge: f"{where}:{lines[kept[edge]]}", names, where)


def write(topology: Topology) -> Iterator[str]:
    """The lower triangle, as the format asks for."""
    yield "%%MatrixMarket matrix coordinate pattern symmetric\n"
    yield from name_comments(topology)
    yield f"{topology.nodes} {topology.nodes} {topology.edge_count}\n"
    for i, j in topology.ends.tolist():
        yield f"{j + 1} {i + 1}\n"
