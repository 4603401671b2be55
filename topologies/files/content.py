"""The name and content of a graph file, and the checks shared by all formats: it must be a simple undirected graph."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from topologies.errors import TopologyError
from topologies.graph import NODES_LIMIT, Ends, Topology, Weights

SUFFIXES: Mapping[str, str] = {
    ".json": "json",
    **dict.fromkeys((".edges", ".edgelist", ".txt"), "edgelist"),
    ".adjlist": "adjlist",
    ".graphml": "graphml",
    ".gml": "gml",
    ".npz": "npz",
}
"""File formats by suffix."""
_FAMILY_HEAD = re.compile(r"\s*[a-z][a-z0-9-]+\s*:")

Place = Callable[[int], str]
"""Maps the number of an edge to its place in the file, for errors."""


def is_file(spec: str) -> bool:
    """Return True for a graph file, recognized by a folder in its name or by a suffix: `.json`, `.edges`, ...

    Text that begins with `name:` is a family, whose parameters may contain paths.
    """
    if _FAMILY_HEAD.match(spec):
        return False
    return "/" in spec or "\\" in spec or Path(spec).suffix.lower() in SUFFIXES


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The content of a file. `ends`, shape (edges, 2), is as in the file; each end is a position in `labels`.

    `labels` is None if the format calls nodes only by number. `declared` says that the file contains its number of
    nodes, so callers must agree with it; otherwise only nodes named by an edge are known. `weights` are those of
    `ends`, None if the file has none.
    """

    nodes: int
    ends: Ends
    place: Place
    labels: Sequence[str] | None = None
    declared: bool = True
    spec: str | None = None
    seed: int = 0
    weights: Weights | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """The graph of a file. `ends`, shape (edges, 2), holds node numbers. `names` is empty if the file calls nodes by
    number. `weights`, shape (edges,), belong to `ends`.
    """

    nodes: int
    ends: Ends
    names: tuple[str, ...]
    weights: Weights | None


def settle(content: Content, where: str, nodes: int | None = None, names: Sequence[str] = ()) -> Settled:
    """Check the graph of a file. `nodes` and `names` are the caller's; the file must agree.

    Raises TopologyError for nodes that do not exist, an edge from a node to itself, a duplicate edge, or too many
    nodes.
    """
    if nodes is not None and content.declared and content.nodes != nodes:
        raise TopologyError(f"the file has {content.nodes} nodes", key=where, value=nodes, allowed=str(content.nodes))
    total = content.nodes if nodes is None else nodes
    if not 1 <= total <= NODES_LIMIT:
        raise TopologyError("impossible number of nodes", key=where, value=total, allowed=f"from 1 to {NODES_LIMIT}")
    numbers = _numbers(content, where, total, names, is_required=nodes is not None)
    if numbers is None:
        settled = Settled(total, content.ends, tuple(content.labels or ()), content.weights)
    else:
        settled = Settled(total, numbers[content.ends], (), content.weights)
    check_simple(settled.ends, content.place)
    return settled


def _numbers(
    content: Content, where: str, total: int, names: Sequence[str], *, is_required: bool
) -> NDArray[np.int64] | None:
    """Return the number of each label; None if the labels are names and keep the file's own order."""
    if content.labels is None:
        return np.arange(total)
    called = {name: number for number, name in enumerate(names)}
    numbers = np.array([called.get(label, number_of(label)) for label in content.labels], dtype=np.int64)
    strange = np.flatnonzero((numbers < 0) | (numbers >= total))
    if not len(strange):
        return numbers
    counted = all(number_of(label) >= 0 for label in content.labels)
    if names or (is_required and counted and ("0" in content.labels or len(content.labels) != total)):
        raise _unknown(content, where, int(strange[0]), total)
    if len(content.labels) != total:
        text = f"{len(content.labels)} nodes are named, where there should be {total}"
        raise TopologyError(text, key=where, allowed="each of them named, or numbers from 0")
    return None


def number_of(label: str) -> int:
    """Return the number that a label spells without leading zeros, otherwise -1."""
    plain = label.isascii() and label.isdigit() and len(label) < 10 and (label[0] != "0" or label == "0")
    return int(label) if plain else -1


def _unknown(content: Content, where: str, label: int, total: int) -> TopologyError:
    edges = np.flatnonzero((content.ends == label).any(axis=1))
    key = content.place(int(edges[0])) if len(edges) else where
    name = None if content.labels is None else brief(content.labels[label])
    allowed = f"numbers from 0 to {total - 1}, or the names of the nodes"
    return TopologyError("unknown node", key=key, value=name, allowed=allowed)


def check_simple(ends: Ends, place: Place) -> None:
    """Refuse an edge that joins a node to itself, or occurs twice in either direction. Raises TopologyError."""
    loops = np.flatnonzero(ends[:, 0] == ends[:, 1])
    if len(loops):
        allowed = "edges between two different nodes"
        raise TopologyError("an edge joins a node to itself", key=place(int(loops[0])), allowed=allowed)
    low, high = ends.min(axis=1, initial=NODES_LIMIT), ends.max(axis=1, initial=0)
    order = np.lexsort((high, low))
    same = np.flatnonzero((np.diff(low[order]) == 0) & (np.diff(high[order]) == 0))
    if len(same):
        first, again = int(order[same[0]]), int(order[same[0] + 1])
        raise TopologyError("the same edge twice", key=place(again), allowed=f"each edge once: it is at {place(first)}")


def by_label(
    labels: Sequence[str],
    pairs: Sequence[tuple[str, str]],
    where: str,
    place: Place,
    weights: Weights | None = None,
) -> Content:
    """Return the content of a file that lists its nodes, each once, and joins only those nodes. `weights` belong to
    `pairs`.
    """
    known = {label: number for number, label in enumerate(labels)}
    if len(known) != len(labels):
        twice = next(label for number, label in enumerate(labels) if known[label] != number)
        raise TopologyError("the same node twice", key=where, value=brief(twice), allowed="each node once")
    for number, pair in enumerate(pairs):
        for end in pair:
            if end not in known:
                raise TopologyError(
                    "unknown node", key=place(number), value=brief(end), allowed="the nodes that are listed"
                )
    return Content(
        nodes=len(labels),
        ends=as_ends([known[end] for pair in pairs for end in pair]),
        place=place,
        labels=labels,
        weights=weights,
    )


def as_ends(flat: Sequence[int]) -> Ends:
    return np.array(flat, dtype=np.int64).reshape(-1, 2)


def decoded(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TopologyError("not UTF-8", key=f"{where}:{line}", allowed="a text file in UTF-8") from None


def lines_of(data: bytes, where: str) -> Iterator[tuple[int, str]]:
    """Yield each line with its number from 1, without holding all of them."""
    try:
        yield from enumerate(io.TextIOWrapper(io.BytesIO(data), "utf-8-sig"), start=1)
    except UnicodeDecodeError:
        decoded(data, where)


def brief(value: object) -> object:
    """Shorten a value from a file, however long or deep, for an error."""
    if isinstance(value, list | dict):
        return f"a {type(value).__name__} of {len(value)}"
    return value if isinstance(value, float | None) else str(value)[:80]


def weights_of(topology: Topology) -> Iterator[float | None]:
    """Yield the weight of each of the topology's `ends`, None if it has none."""
    return iter([None] * topology.edge_count if topology.weights is None else topology.weights.tolist())


def labels_of(topology: Topology) -> list[str]:
    """Return each node's name, or else its number. Raises TopologyError if a name is missing, repeated or not text."""
    labels = list(topology.names) or [str(node) for node in range(topology.nodes)]
    if len(set(labels)) != topology.nodes or len(labels) != topology.nodes or "" in labels:
        raise TopologyError("not one name for each node", key="names", allowed=f"{topology.nodes} different names")
    check_text(labels, "names")
    return labels


def check_text(labels: Sequence[str], where: str) -> None:
    """Refuse names that are not text, as JSON can spell half a character. Raises TopologyError."""
    try:
        "\n".join(labels).encode()
    except UnicodeEncodeError:
        raise TopologyError("a name that is no text", key=where, allowed="names that UTF-8 can hold") from None


def whole(word: str, where: str, least: int = 0) -> int:
    """Read an integer. Raises TopologyError if it is not a number, or absurdly long."""
    if word.isascii() and word.isdigit() and len(word) <= 18 and int(word) >= least:
        return int(word)
    raise TopologyError("not a number", key=where, value=brief(word), allowed=f"a whole number from {least}")
