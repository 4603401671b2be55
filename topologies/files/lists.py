"""Formats that list nodes and edges: edge lists, adjacency lists, node-link JSON, and scipy's .npz.

An edge list has two nodes per line, and behind them a weight or none; `#` begins a comment; it cannot name a node
without edges. A comment such as `# nodes: 7`, as in SNAP's files, says that the nodes are numbered from 0 to 6; it is
checked if the nodes have names. An adjacency list has a node and then its neighbors, and no weights. Node-link JSON, as
networkx writes it, is the only format that keeps everything: names, weights, spec and seed.

scipy's .npz is the adjacency matrix of a graph, which has each edge from both sides. Names, which it lacks, are stored
where other programs do not look: as an additional array.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topologies.errors import TopologyError
from topologies.files.content import (
    Content,
    Place,
    as_ends,
    brief,
    by_label,
    check_simple,
    check_text,
    decoded,
    is_file,
    labels_of,
    lines_of,
    number_of,
    weights_of,
    whole,
)
from topologies.graph import EDGES_LIMIT, NODES_LIMIT, Ends, Topology, WeightColumn, Weights

_HEAD = re.compile(r"#\s*nodes:\s*(\d+)", re.IGNORECASE)
_ATTRIBUTES = re.compile(r"\{(?:'weight': ([^{},]+))?\}")
"""The text that networkx writes after an edge without attributes, or with only a weight."""

SPEC_LIMIT = 10_000
_SHAPE = 'an object with "nodes" and "edges"'


def read_edge_list(data: bytes, where: str) -> Content:
    known: dict[str, int] = {}
    flat, lines = array("q"), array("q")
    total: int | None = None
    column = WeightColumn()
    for number, line in lines_of(data, where):
        words, comment = _split(line)
        if comment and total is None:
            total = _announced(comment, f"{where}:{number}")
        if not words:
            continue
        weight = None if len(words) == 2 else _weight(words, line, f"{where}:{number}")
        column.add(weight, lambda: f"{where}:{number}")  # noqa: B023 - called at once
        flat.append(known.setdefault(words[0], len(known)))
        flat.append(known.setdefault(words[1], len(known)))
        lines.append(number)
    if not known and not total:
        raise TopologyError("no edges", key=where, allowed="two nodes per line")
    weights = column.all(lambda edge: f"{where}:{lines[edge]}")
    return replace(_content(list(known), flat, lines, where, total), weights=weights)


def read_adjacency_list(data: bytes, where: str) -> Content:
    """Read an adjacency list. An edge may be listed at one of its ends, as networkx writes it, or at both."""
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


def write_edge_list(topology: Topology) -> Iterator[str]:
    labels = _words(topology)
    lonely = np.flatnonzero(topology.degrees == 0)
    if topology.names and len(lonely):
        text = "an edge list cannot name a node without edges"
        allowed = "a format that lists the nodes, such as adjlist or json"
        raise TopologyError(text, key="names", value=labels[lonely[0]], allowed=allowed)
    yield f"# nodes: {topology.nodes} edges: {topology.edge_count}\n"
    for (i, j), weight in zip(topology.ends.tolist(), weights_of(topology), strict=True):
        yield f"{labels[i]} {labels[j]}\n" if weight is None else f"{labels[i]} {labels[j]} {weight!r}\n"


def write_adjacency_list(topology: Topology) -> Iterator[str]:
    """Write each edge only at its lower node, as networkx does."""
    labels = _words(topology)
    if topology.weights is not None:
        allowed = "another format, such as json, or a graph without weights"
        raise TopologyError("an adjacency list holds no weights", key="weights", allowed=allowed)
    for node, neighbors in enumerate(topology.adjacency()):
        yield " ".join([labels[node], *(labels[other] for other in neighbors if other > node)]) + "\n"


def read_json(data: bytes, where: str) -> Content:
    document = _document(data, where)
    if document.get("directed"):
        raise TopologyError("a directed graph", key=where, allowed='"directed": false')
    links = _links(document, where)
    pairs = [_json_ends(f"{where}: edge {number}", link) for number, link in enumerate(links)]
    column = WeightColumn()
    for number, link in enumerate(links):
        weight = link.get("weight")
        column.add(str(weight) if isinstance(weight, list | dict) else weight, lambda: f"{where}: edge {number}")  # noqa: B023 - called at once
    labels = _json_nodes(document, where)
    declared = labels is not None
    if labels is None:
        labels = list(dict.fromkeys(end for pair in pairs for end in pair))
    check_text(labels, where)
    weights = column.all(lambda edge: f"{where}: edge {edge}")
    content = by_label(labels, pairs, where, lambda edge: f"{where}: edge {edge}", weights)
    spec, seed = _origin(document, where)
    return replace(content, declared=declared, spec=spec, seed=seed)


def write_json(topology: Topology) -> Iterator[str]:
    labels: list[str] | list[int] = labels_of(topology) if topology.names else list(range(topology.nodes))
    called = [json.dumps(label, ensure_ascii=False) for label in labels]
    origin = json.dumps({"spec": topology.spec, "seed": topology.seed} if _is_spec(topology.spec) else {})
    yield f'{{"directed": false, "multigraph": false, "graph": {origin},\n"nodes": ['
    yield ",\n".join(f'{{"id": {label}}}' for label in called)
    yield '],\n"edges": ['
    between = ""
    for (i, j), weight in zip(topology.ends.tolist(), weights_of(topology), strict=True):
        own = "" if weight is None else f', "weight": {weight!r}'
        yield f'{between}{{"source": {called[i]}, "target": {called[j]}{own}}}'
        between = ",\n"
    yield "]}\n"


def _split(line: str) -> tuple[list[str], str]:
    if "#" not in line:
        return line.split(), ""
    body, mark, comment = line.partition("#")
    return body.split(), mark + comment


def _announced(comment: str, where: str) -> int | None:
    head = _HEAD.match(comment)
    return whole(head[1], where) if head else None


def _weight(words: Sequence[str], line: str, where: str) -> str | None:
    """Return what follows the two nodes; None if that is an empty list of attributes."""
    rest = " ".join(words[2:])
    attributes = _ATTRIBUTES.fullmatch(rest)
    if not rest or (len(words) > 3 and not attributes):
        allowed = "two nodes per line, and a weight or none"
        raise TopologyError("not an edge", key=where, value=line.strip()[:80], allowed=allowed)
    return attributes[1] if attributes else rest


def _content(labels: list[str], flat: Sequence[int], lines: Sequence[int], where: str, total: int | None) -> Content:
    ends = as_ends(flat)
    if all(number_of(label) >= 0 for label in labels):
        # nodes numbered from 1, or with gaps, should keep their numeric order
        order = sorted(range(len(labels)), key=lambda place: number_of(labels[place]))
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
    """Drop the second occurrence of each edge, at its other end."""
    seen: dict[tuple[int, int], int] = {}
    for edge, line in enumerate(lines):
        pair = (flat[2 * edge], flat[2 * edge + 1])
        if pair in seen:
            allowed = f"each neighbor once: it is at {where}:{seen[pair]}"
            raise TopologyError("the same edge twice", key=f"{where}:{line}", allowed=allowed)
        seen[pair] = line
    kept = [pair for pair in seen if pair[0] <= pair[1] or pair[::-1] not in seen]
    return [end for pair in kept for end in pair], [seen[pair] for pair in kept]


def _words(topology: Topology) -> list[str]:
    labels = labels_of(topology)
    for label in labels:
        if "#" in label or label.split() != [label] or label[0] == "\ufeff":
            allowed = "names without spaces and '#', or another format, such as json"
            raise TopologyError("a name that this format cannot hold", key="names", value=label, allowed=allowed)
    return labels


def _document(data: bytes, where: str) -> dict[str, Any]:
    try:
        document = json.loads(decoded(data, where))
    except (ValueError, RecursionError) as error:
        raise error if isinstance(error, TopologyError) else TopologyError(f"not JSON: {error}", key=where) from None
    if not isinstance(document, dict):
        raise TopologyError("not a node-link graph", key=where, allowed=_SHAPE)
    return document


def _links(document: dict[str, Any], where: str) -> list[Any]:
    """Return the edges, which networkx called `links` before version 3.6."""
    links = [document[key] for key in ("edges", "links") if key in document]
    if len(links) != 1 or not isinstance(links[0], list):
        raise TopologyError("not a node-link graph", key=where, allowed=_SHAPE)
    return list(links[0])


def _json_ends(where: str, link: Any) -> tuple[str, str]:
    if not (isinstance(link, dict) and "source" in link and "target" in link):
        allowed = 'an object with "source" and "target"'
        raise TopologyError("not an edge", key=where, value=brief(link), allowed=allowed)
    return _label(link["source"], where), _label(link["target"], where)


def _json_nodes(document: dict[str, Any], where: str) -> list[str] | None:
    nodes = document.get("nodes")
    if nodes is None:
        return None
    if not isinstance(nodes, list) or not all(isinstance(node, dict) and "id" in node for node in nodes):
        raise TopologyError("nodes that are none", key=where, allowed='"nodes": a list of objects with "id"')
    return [_label(node["id"], where) for node in nodes]


def _label(value: Any, where: str) -> str:
    """Read a label. Nodes of some networkx graphs are tuples, which JSON turns into lists."""
    if isinstance(value, list) and all(isinstance(part, str | int) for part in value):
        return str(tuple(value))
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise TopologyError("not a node", key=where, value=brief(value), allowed="a name or a number")
    return str(value)


def _origin(document: dict[str, Any], where: str) -> tuple[str | None, int]:
    """Read the spec and seed from a file. `build` is not called: nobody has checked that the edges match the spec."""
    known = document.get("graph")
    known = known if isinstance(known, dict) else {}
    spec, seed = known.get("spec"), known.get("seed", 0)
    if not isinstance(spec, str | None) or isinstance(seed, bool) or not isinstance(seed, int):
        raise TopologyError("not where a graph comes from", key=where, allowed='"spec": a text, "seed": a whole number')
    if spec is not None and not _is_spec(spec):
        allowed = f"a family with its parameters, up to {SPEC_LIMIT} printable signs"
        raise TopologyError("not a spec", key=where, value=brief(spec), allowed=allowed)
    return spec, seed


def _is_spec(spec: str) -> bool:
    """Return True unless the spec is the path of the file that a graph was read from, which says nothing to others."""
    return bool(spec) and spec.isprintable() and len(spec) <= SPEC_LIMIT and not is_file(spec)


NPZ_NAMES = "p2pfl_names"
"""The array with the names as JSON, in bytes; unlike an array of strings, it keeps every name intact."""

UNPACKED_LIMIT = 1 << 30
"""The maximum size of all arrays: twice what `write_npz` writes for the largest graph that can be held."""

_ALLOWED = "what scipy.sparse.save_npz writes"


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
        entry = links[outside[0]].tolist()
        raise TopologyError("an entry outside the matrix", key=where, value=entry, allowed=_ALLOWED)

    def place(link: int) -> str:
        return f"{where}: entry {links[link, 0]}, {links[link, 1]}"

    weights = None
    if not (np.asarray(entries.data) == 1).all():
        column = WeightColumn()
        for link, weight in enumerate(entries.data.tolist()):
            column.add(weight, lambda: place(link))  # noqa: B023 - called at once
        weights = column.all(place)
    return _numbered_content(int(shape[0]), links, place, names, where, weights=weights)


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
        # scipy would follow a row that ends before it begins into memory outside the array; it looks only at entries
        matrix.check_format(full_check=True)
        if (np.diff(matrix.indptr) < 0).any():
            raise ValueError("a row ends before it begins")
    if matrix.dtype.kind not in "biufc":
        raise ValueError(f"entries of the type {matrix.dtype}")
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


def _numbered_content(
    nodes: int, links: Ends, place: Place, names: Sequence[str], where: str, *, weights: Weights | None
) -> Content:
    """Return nodes 0 .. nodes-1, with or without a name for each; `weights` belong to `links`."""
    if names and len(names) != nodes:
        raise TopologyError("not one name for each node", key=where, value=len(names), allowed=f"none or {nodes}")
    if len(set(names)) != len(names) or not all(names):
        raise TopologyError("the same name twice, or an empty one", key=where, allowed="different names")
    check_text(names, where)
    kept = _from_both_sides(links, place)
    if weights is not None:
        _check_symmetric(links, weights, place)
    return Content(
        nodes=nodes,
        ends=links[kept],
        place=lambda edge: place(int(kept[edge])),
        labels=names or None,
        weights=None if weights is None else weights[kept],
    )


def _check_symmetric(links: Ends, weights: Weights, place: Place) -> None:
    """Refuse an edge, listed once from each side, with two weights. Raises TopologyError."""
    mirrored = weights[np.lexsort((links[:, 0], links[:, 1]))]
    order = np.lexsort((links[:, 1], links[:, 0]))
    odd = np.flatnonzero(weights[order] != mirrored)
    if len(odd):
        link = int(order[odd[0]])
        i, j = links[link].tolist()
        here, back = weights[link], mirrored[odd[0]]
        text = f"asymmetric: the edge has the weight {here:g} from node {i} to node {j}, and {back:g} back"
        raise TopologyError(text, key=place(link), allowed="the same weight in both directions")


def _from_both_sides(links: Ends, place: Place) -> NDArray[np.int64]:
    """Return the places of `links`, shape (links, 2), that count each edge once.

    Raises TopologyError if an edge is listed from only one side, or twice from one side, or joins a node to itself.
    """
    keys, mirrored = (links @ np.array(weights) for weights in ((NODES_LIMIT, 1), (1, NODES_LIMIT)))
    alone = np.flatnonzero(~np.isin(keys, mirrored))
    if len(alone):
        i, j = links[alone[0]].tolist()
        text = f"node {i} has the neighbor {j}, but node {j} has no neighbor {i}"
        raise TopologyError(text, key=place(int(alone[0])), allowed="each edge from both its nodes")
    for side in (links[:, 0] <= links[:, 1], links[:, 0] >= links[:, 1]):
        kept = np.flatnonzero(side)
        check_simple(links[kept], lambda edge: place(int(kept[edge])))  # noqa: B023 - called at once
    return kept
