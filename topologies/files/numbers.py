"""What METIS files and matrices share: nodes are known by number alone, and each edge is there from both sides.

Names, which these formats do not know, are kept in comments that other programs skip: `% name: "a"`, in order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from topologies.errors import TopologyError
from topologies.files.content import Content, Place, check_simple, check_text, labels_of
from topologies.graph import NODES_LIMIT, Ends, Topology

_NAME = "% name: "


def numbered(nodes: int, ends: Ends, place: Place, names: Sequence[str], where: str) -> Content:
    """Nodes 0 .. nodes-1, with or without a name for each."""
    if names and len(names) != nodes:
        raise TopologyError("not one name for each node", key=where, value=len(names), allowed=f"none or {nodes}")
    if len(set(names)) != len(names) or not all(names):
        raise TopologyError("the same name twice, or an empty one", key=where, allowed="different names")
    check_text(names, where)
    return Content(nodes=nodes, ends=ends, place=place, labels=names or None)


def from_both_sides(links: Ends, place: Place, *, first: int) -> NDArray[np.int64]:
    """Which of the `links`, shape (links, 2), are left if each edge is counted once. Nodes are numbered from 0 here,
    and from `first` in the file.

    Raises:
        TopologyError: an edge is there from one side only, or twice from one side, or joins a node to itself.
    """
    keys, mirrored = (links @ np.array(weights) for weights in ((NODES_LIMIT, 1), (1, NODES_LIMIT)))
    alone = np.flatnonzero(~np.isin(keys, mirrored))
    if len(alone):
        i, j = (links[alone[0]] + first).tolist()
        text = f"node {i} has the neighbor {j}, but node {j} has no neighbor {i}"
        raise TopologyError(text, key=place(int(alone[0])), allowed="each edge from both its nodes")
    for side in (links[:, 0] <= links[:, 1], links[:, 0] >= links[:, 1]):
        kept = np.flatnonzero(side)
        check_simple(links[kept], _of(place, kept))
    return kept


def _of(place: Place, kept: NDArray[np.int64]) -> Callable[[int], str]:
    return lambda edge: place(int(kept[edge]))


def check_nodes(nodes: int, where: str) -> None:
    """Before anything of that size is made."""
    if not 1 <= nodes <= NODES_LIMIT:
        raise TopologyError("impossible number of nodes", key=where, value=nodes, allowed=f"from 1 to {NODES_LIMIT}")


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
