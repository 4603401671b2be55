"""METIS, Matrix Market and scipy's .npz: formats that number the nodes and list each edge from both sides.

METIS has a header `nodes edges`, then the neighbors of each node, counted from 1: Karypis, METIS 5.1 manual, 4.1.1.
Matrix Market lists the entries of the adjacency matrix, counted from 1: Boisvert, Pozo and Remington, The Matrix Market
Exchange Formats (1996). It is read here and not with scipy, whose parser believes the sizes that a file claims, and
crashes the process on some broken files.

Names, which these formats lack, are stored where other programs do not look: in comments, `% name: "a"`, in order; in
an archive, as an additional array.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topologies.edge_weights import WeightColumn, Weights
from topologies.errors import TopologyError
from topologies.files.content import (
    Content,
    Place,
    as_ends,
    check_simple,
    check_text,
    labels_of,
    lines_of,
    weights_of,
    whole,
)
from topologies.graph import EDGES_LIMIT, NODES_LIMIT, Ends, Topology

_NAME = "% name: "
_MARKET = re.compile(
    r"%%MatrixMarket\s+matrix\s+coordinate\s+(pattern|integer|real|double)\s+(general|symmetric)\s*", re.IGNORECASE
)
NPZ_NAMES = "p2pfl_names"
"""The array with the names as JSON, in bytes; unlike an array of strings, it keeps every name intact."""

UNPACKED_LIMIT = 1 << 30
"""The maximum size of all arrays: twice what `write_npz` writes for the largest graph that can be held."""

_ALLOWED = "what scipy.sparse.save_npz writes"


def read_metis(data: bytes, where: str) -> Content:
    names: list[str] = []
    rows = _rows(data, where, names)
    nodes, edges, weighted = _metis_head(next((row for row in rows if row[1]), (1, [])), where)
    flat, lines = array("q"), array("q")
    column = WeightColumn()
    node = 0
    for line, words in rows:
        place = f"{where}:{line}"
        if node == nodes and words:
            raise TopologyError("more lines than nodes", key=place, allowed=f"{nodes} lines after the head")
        if weighted and len(words) % 2:
            raise TopologyError("a neighbor without a weight", key=place, allowed="a weight after each neighbor")
        for weight in words[1::2] if weighted else ():
            column.add(weight, lambda: place)  # noqa: B023 - called at once
        for word in words[::2] if weighted else words:
            flat.extend((node, _node_number(word, nodes, place)))
            lines.append(line)
        node = min(node + 1, nodes)
    if node != nodes:
        raise TopologyError("fewer lines than nodes", key=where, value=node, allowed=f"{nodes} lines after the head")
    weights = column.all(lambda link: f"{where}:{lines[link]}")
    content = _numbered_content(
        nodes, as_ends(flat), lambda link: f"{where}:{lines[link]}", names, where, weights=weights
    )
    if len(content.ends) != edges:
        text = "another number of edges than the head says"
        raise TopologyError(text, key=where, value=len(content.ends), allowed=str(edges))
    return content


def _metis_head(row: tuple[int, list[str]], where: str) -> tuple[int, int, bool]:
    """Return nodes, edges, and whether a weight follows each neighbor."""
    place, words = f"{where}:{row[0]}", row[1]
    if not 2 <= len(words) <= 3 or "".join(words[2:]).lstrip("0") not in {"", "1"}:
        allowed = "`nodes edges`, or `nodes edges 1` with weights of edges; no weights or sizes of nodes"
        raise TopologyError("not a head", key=place, value=" ".join(words)[:80], allowed=allowed)
    return _nodes(words[0], place), whole(words[1], place), "".join(words[2:]).endswith("1")


def write_metis(topology: Topology) -> Iterator[str]:
    """Write the neighbors of each node. METIS itself knows only whole numbers as weights, and refuses others."""
    yield from _name_comments(topology)
    if topology.weights is None:
        yield f"{topology.nodes} {topology.edge_count}\n"
        for neighbors in topology.adjacency():
            yield " ".join([str(neighbor + 1) for neighbor in neighbors]) + "\n"
        return
    yield f"{topology.nodes} {topology.edge_count} 1\n"
    rows: list[list[str]] = [[] for _ in range(topology.nodes)]
    for (i, j), weight in zip(topology.ends.tolist(), topology.weights.tolist(), strict=True):
        rows[i].append(f"{j + 1} {weight!r}")
        rows[j].append(f"{i + 1} {weight!r}")
    for row in rows:
        yield " ".join(row) + "\n"


def read_matrix_market(data: bytes, where: str) -> Content:
    head = _MARKET.fullmatch(first := next(lines_of(data, where))[1])
    if head is None:
        allowed = "%%MatrixMarket matrix coordinate, then pattern, integer or real, then general or symmetric"
        raise TopologyError("not the matrix of a graph", key=f"{where}:1", value=first.strip()[:80], allowed=allowed)
    valued = head[1].lower() != "pattern"
    names: list[str] = []
    rows = ((line, words) for line, words in _rows(data, where, names) if words)
    nodes, entries = _market_sizes(*next(rows, (1, [])), where)
    flat, lines = array("q"), array("q")
    column = WeightColumn()
    for line, words in rows:
        place = f"{where}:{line}"
        if len(words) != 2 + valued:
            allowed = "`row column value`" if valued else "`row column`"
            raise TopologyError("not an entry", key=place, value=" ".join(words)[:80], allowed=allowed)
        if valued:
            column.add(words[2], lambda: place)  # noqa: B023 - called at once
        flat.extend((_node_number(words[0], nodes, place), _node_number(words[1], nodes, place)))
        lines.append(line)
    if len(lines) != entries:
        text = "another number of entries than the file says"
        raise TopologyError(text, key=where, value=len(lines), allowed=str(entries))
    both = head[2].lower() == "general"
    weights = column.all(lambda link: f"{where}:{lines[link]}")
    return _numbered_content(
        nodes, as_ends(flat), lambda link: f"{where}:{lines[link]}", names, where, both=both, weights=weights
    )


def _market_sizes(line: int, words: Sequence[str], where: str) -> tuple[int, int]:
    """Return nodes and entries."""
    place = f"{where}:{line}"
    if len(words) != 3 or words[0] != words[1]:
        found = " ".join(words)[:80] or None
        text = "not the size of a graph's matrix" if words else "the sizes are missing"
        raise TopologyError(text, key=place, value=found, allowed="`rows columns entries`, as many rows as columns")
    return _nodes(words[0], place), whole(words[2], place)


def write_matrix_market(topology: Topology) -> Iterator[str]:
    """Write the lower triangle, as the format requires."""
    yield f"%%MatrixMarket matrix coordinate {'pattern' if topology.weights is None else 'real'} symmetric\n"
    yield from _name_comments(topology)
    yield f"{topology.nodes} {topology.nodes} {topology.edge_count}\n"
    for (i, j), weight in zip(topology.ends.tolist(), weights_of(topology), strict=True):
        yield f"{j + 1} {i + 1}\n" if weight is None else f"{j + 1} {i + 1} {weight!r}\n"


def read_npz(data: bytes, where: str) -> Content:
    """Read an archive without unpickling: scipy and numpy are told not to, and refuse arrays of objects."""
    from scipy.sparse import coo_array  # noqa: PLC0415 - an extra, for this format alone

    matrix, names = _unpack(data, where)
    shape = matrix.shape
    if len(shape) != 2 or shape[0] != shape[1] or not 1 <= shape[0] <= NODES_LIMIT:
        raise TopologyError("not a graph's matrix", key=where, value=shape, allowed=f"square, up to {NODES_LIMIT}")
    if matrix.nnz > 2 * EDGES_LIMIT:
        raise TopologyError("too many edges", key=where, value=int(matrix.nnz) // 2, allowed=f"up to {EDGES_LIMIT}")
    entries = coo_array(matrix)
    links = np.stack([entries.row, entries.col], axis=1).astype(np.int64)
    outside = np.flatnonzero(((links < 0) | (links >= shape[0])).any(axis=1))
    if len(outside):
        found = links[outside[0]].tolist()
        raise TopologyError("an entry outside the matrix", key=where, value=found, allowed=_ALLOWED)

    def place(link: int) -> str:
        return f"{where}: entry {links[link, 0]}, {links[link, 1]}"

    weights = None
    if not (np.asarray(entries.data) == 1).all():
        column = WeightColumn()
        for link, weight in enumerate(entries.data.tolist()):
            column.add(weight, lambda: place(link))  # noqa: B023 - called at once
        weights = column.all(place)
    return _numbered_content(int(shape[0]), links, place, names, where, first=0, weights=weights)


def _unpack(data: bytes, where: str) -> tuple[Any, list[str]]:
    """Return the matrix as scipy has it, and the names."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        matrix, names = _arrays(data) if size <= UNPACKED_LIMIT else (None, [])
    except Exception as error:  # noqa: BLE001 - zipfile, zlib, numpy and scipy fail in many ways, all the file's fault
        raise TopologyError(f"not a sparse matrix of scipy: {error}", key=where, allowed=_ALLOWED) from None
    if matrix is None:
        raise TopologyError("too large", key=where, value=size, allowed=f"{UNPACKED_LIMIT} bytes unpacked")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TopologyError("names that are none", key=where, allowed="a list of texts")
    return matrix, names


def _arrays(data: bytes) -> tuple[Any, Any]:
    from scipy.sparse import load_npz  # noqa: PLC0415 - as above

    matrix = load_npz(io.BytesIO(data))
    if matrix.format in {"csr", "csc", "bsr"}:
        # scipy would follow a row that ends before it begins into memory outside the array
        matrix.check_format(full_check=True)
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return matrix, json.loads(arrays[NPZ_NAMES].tobytes()) if NPZ_NAMES in arrays else []


def write_npz(topology: Topology) -> Iterator[bytes]:
    from scipy.sparse import csr_array, save_npz  # noqa: PLC0415 - as above

    starts, neighbors = topology.rows
    values: NDArray[Any] = np.ones(len(neighbors), dtype=np.int8)
    if topology.weights is not None:
        both = np.concatenate([topology.ends, topology.ends[:, ::-1]])
        values = np.concatenate([topology.weights] * 2)[np.lexsort((both[:, 1], both[:, 0]))]
    file = io.BytesIO()
    save_npz(file, csr_array((values, neighbors, starts), shape=(topology.nodes, topology.nodes)))
    if topology.names:
        held = io.BytesIO()
        np.save(held, np.frombuffer(json.dumps(labels_of(topology)).encode(), dtype=np.uint8))
        with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(zipfile.ZipInfo(f"{NPZ_NAMES}.npy"), held.getvalue())
    yield file.getvalue()


def _rows(data: bytes, where: str, names: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield each line that is not a comment, with its number. Names in comments are added to `names`."""
    for line, text in lines_of(data, where):
        if text.startswith("%"):
            names += _name_in(text, f"{where}:{line}")
        else:
            yield line, text.split()


def _nodes(word: str, place: str) -> int:
    """Read the number of nodes, which is checked before anything of that size is allocated."""
    nodes = whole(word, place)
    if not 1 <= nodes <= NODES_LIMIT:
        raise TopologyError("impossible number of nodes", key=place, value=nodes, allowed=f"from 1 to {NODES_LIMIT}")
    return nodes


def _node_number(word: str, nodes: int, place: str) -> int:
    """Read a node number, returned from 0, that a file counts from 1."""
    number = whole(word, place)
    if not 1 <= number <= nodes:
        raise TopologyError("unknown node", key=place, value=number, allowed=f"numbers from 1 to {nodes}")
    return number - 1


def _numbered_content(
    nodes: int,
    links: Ends,
    place: Place,
    names: Sequence[str],
    where: str,
    *,
    first: int = 1,
    both: bool = True,
    weights: Weights | None = None,
) -> Content:
    """Return nodes 0 .. nodes-1, with or without a name for each. `both`: each edge is listed from both sides.
    `weights` belong to `links`.
    """
    if names and len(names) != nodes:
        raise TopologyError("not one name for each node", key=where, value=len(names), allowed=f"none or {nodes}")
    if len(set(names)) != len(names) or not all(names):
        raise TopologyError("the same name twice, or an empty one", key=where, allowed="different names")
    check_text(names, where)
    kept = _from_both_sides(links, place, first=first) if both else np.arange(len(links))
    if weights is not None and both:
        _check_symmetric(links, weights, place, first)
    return Content(
        nodes=nodes,
        ends=links[kept],
        place=lambda edge: place(int(kept[edge])),
        labels=names or None,
        weights=None if weights is None else weights[kept],
    )


def _check_symmetric(links: Ends, weights: Weights, place: Place, first: int) -> None:
    """Refuse an edge, listed once from each side, with two weights. Raises TopologyError."""
    mirrored = weights[np.lexsort((links[:, 0], links[:, 1]))]
    order = np.lexsort((links[:, 1], links[:, 0]))
    odd = np.flatnonzero(weights[order] != mirrored)
    if len(odd):
        link = int(order[odd[0]])
        i, j = (links[link] + first).tolist()
        here, back = weights[link], mirrored[odd[0]]
        text = f"asymmetric: the edge has the weight {here:g} from node {i} to node {j}, and {back:g} back"
        raise TopologyError(text, key=place(link), allowed="the same weight in both directions")


def _from_both_sides(links: Ends, place: Place, *, first: int) -> NDArray[np.int64]:
    """Return the `links`, shape (links, 2), with each edge counted once. Nodes are numbered from 0 here, and from
    `first` in the file.

    Raises TopologyError if an edge is listed from only one side, or twice from one side, or joins a node to itself.
    """
    keys, mirrored = (links @ np.array(weights) for weights in ((NODES_LIMIT, 1), (1, NODES_LIMIT)))
    alone = np.flatnonzero(~np.isin(keys, mirrored))
    if len(alone):
        i, j = (links[alone[0]] + first).tolist()
        text = f"node {i} has the neighbor {j}, but node {j} has no neighbor {i}"
        raise TopologyError(text, key=place(int(alone[0])), allowed="each edge from both its nodes")
    for side in (links[:, 0] <= links[:, 1], links[:, 0] >= links[:, 1]):
        kept = np.flatnonzero(side)
        check_simple(links[kept], _kept_places(place, kept))
    return kept


def _kept_places(place: Place, kept: NDArray[np.int64]) -> Place:
    return lambda edge: place(int(kept[edge]))


def _name_in(comment: str, where: str) -> list[str]:
    """Return the name in a comment, as a list of one or none."""
    if not comment.startswith(_NAME):
        return []
    try:
        name = json.loads(comment.removeprefix(_NAME))
    except (ValueError, RecursionError):
        name = None
    if not isinstance(name, str):
        raise TopologyError("not a name", key=where, value=comment.strip()[:80], allowed=f'{_NAME}"a"')
    return [name]


def _name_comments(topology: Topology) -> Iterator[str]:
    if topology.names:
        yield from (f"{_NAME}{json.dumps(label)}\n" for label in labels_of(topology))
