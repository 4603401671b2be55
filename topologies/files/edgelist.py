"""Edge lists: two nodes on each line, `#` begins a comment. Adjacency lists: a node and then its neighbors.

An edge list cannot name a node without edges. A comment `# nodes: 7`, as SNAP's files have it, says that the nodes
are those numbered from 0 to 6; it is checked where the nodes have names.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence

import numpy as np

from topologies.errors import TopologyError
from topologies.files.content import Content, as_ends, as_number, check_weight, labels_of, lines_of, whole
from topologies.graph import Topology

_HEAD = re.compile(r"#\s*nodes:\s*(\d+)", re.IGNORECASE)
_ATTRIBUTES = re.compile(r"\{(?:'weight': ([^{},]+))?\}")
"""What networkx writes behind an edge, where nothing else is known of it."""


def read_edge_list(data: bytes, where: str) -> Content:
    known: dict[str, int] = {}
    flat, lines = array("q"), array("q")
    total: int | None = None
    for number, line in lines_of(data, where):
        words, comment = _split(line)
        if comment and total is None:
            total = _announced(comment, f"{where}:{number}")
        if not words:
            continue
        if len(words) != 2:
            _check_rest(words, line, f"{where}:{number}")
        flat.append(known.setdefault(words[0], len(known)))
        flat.append(known.setdefault(words[1], len(known)))
        lines.append(number)
    if not known and not total:
        raise TopologyError("no edges", key=where, allowed="two nodes per line")
    return _content(list(known), flat, lines, where, total)


def read_adjacency_list(data: bytes, where: str) -> Content:
    """An edge may be named by one of its ends, as networkx writes it, or by both."""
    rows = [(number, words) for number, line in lines_of(data, where) if (words := _split(line)[0])]
    if not rows:
        raise TopologyError("no nodes", key=where, allowed="a node and then its neighbors on each line")
    known = {label: place for place, label in enumerate(dict.fromkeys(words[0] for _, words in rows))}
    flat, lines = array("q"), array("q")
    for number, words in rows:
        node = known[words[0]]
        for word in words[1:]:
            flat.extend((node, known.setdefault(word, len(known))))
            lines.append(number)
    return _content(list(known), *_one_way(flat, lines, where), where, len(known))


def _split(line: str) -> tuple[list[str], str]:
    if "#" not in line:
        return line.split(), ""
    body, mark, comment = line.partition("#")
    return body.split(), mark + comment


def _announced(comment: str, where: str) -> int | None:
    head = _HEAD.match(comment)
    return whole(head[1], where) if head else None


def _check_rest(words: Sequence[str], line: str, where: str) -> None:
    rest = " ".join(words[2:])
    attributes = _ATTRIBUTES.fullmatch(rest)
    if not rest or (len(words) > 3 and not attributes):
        raise TopologyError("not an edge", key=where, value=line.strip()[:80], allowed="two nodes per line")
    weight = attributes[1] if attributes else rest
    if weight is not None:
        check_weight(weight, where)


def _content(labels: list[str], flat: Sequence[int], lines: Sequence[int], where: str, total: int | None) -> Content:
    ends = as_ends(flat)
    if all(as_number(label) >= 0 for label in labels):
        # whoever numbers nodes, be it from 1 or with gaps, wants them in that order
        order = sorted(range(len(labels)), key=lambda place: as_number(labels[place]))
        labels = [labels[place] for place in order]
        ends = np.argsort(np.array(order, dtype=np.int64))[ends]
    return Content(
        nodes=len(labels) if total is None else total,
        ends=ends,
        place=lambda edge: f"{where}:{lines[edge]}",
        labels=labels,
        declared=total is not None,
    )


def _one_way(flat: array[int], lines: array[int], where: str) -> tuple[list[int], list[int]]:
    """Drop the second mention of each edge, at its other end."""
    seen: dict[tuple[int, int], int] = {}
    for edge, line in enumerate(lines):
        pair = (flat[2 * edge], flat[2 * edge + 1])
        if pair in seen:
            allowed = f"each neighbor once: it is at {where}:{seen[pair]}"
            raise TopologyError("the same edge twice", key=f"{where}:{line}", allowed=allowed)
        seen[pair] = line
    kept = [pair for pair in seen if pair[0] <= pair[1] or pair[::-1] not in seen]
    return [end for pair in kept for end in pair], [seen[pair] for pair in kept]


def write_edge_list(topology: Topology) -> Iterator[str]:
    labels = _words(topology)
    lonely = np.flatnonzero(topology.degrees == 0)
    if topology.names and len(lonely):
        text = "an edge list cannot name a node without edges"
        allowed = "a format that lists the nodes, such as adjlist or json"
        raise TopologyError(text, key="names", value=labels[lonely[0]], allowed=allowed)
    yield f"# nodes: {topology.nodes} edges: {topology.edge_count}\n"
    for i, j in topology.ends.tolist():
        yield f"{labels[i]} {labels[j]}\n"


def write_adjacency_list(topology: Topology) -> Iterator[str]:
    """Each edge at its lower node alone, as networkx does."""
    labels = _words(topology)
    for node, neighbors in enumerate(topology.adjacency()):
        yield " ".join([labels[node], *(labels[other] for other in neighbors if other > node)]) + "\n"


def _words(topology: Topology) -> list[str]:
    labels = labels_of(topology)
    for label in labels:
        if "#" in label or label.split() != [label] or label[0] == "\ufeff":
            allowed = "names without spaces and '#', or another format, such as json"
            raise TopologyError("a name that this format cannot hold", key="names", value=label, allowed=allowed)
    return labels
