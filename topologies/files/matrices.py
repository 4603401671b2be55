"""scipy's .npz: the adjacency matrix of a graph, which has each edge from both sides.

Names, which the format lacks, are stored where other programs do not look: as an additional array.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topologies.edge_weights import WeightColumn, Weights
from topologies.errors import TopologyError
from topologies.files.content import (
    Content,
    Place,
    check_simple,
    check_text,
    labels_of,
)
from topologies.graph import EDGES_LIMIT, NODES_LIMIT, Ends, Topology

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
        check_simple(links[kept], _kept_places(place, kept))
    return kept


def _kept_places(place: Place, kept: NDArray[np.int64]) -> Place:
    return lambda edge: place(int(kept[edge]))
