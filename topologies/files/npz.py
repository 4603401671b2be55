"""A graph as its sparse adjacency matrix in scipy's .npz. Names are one more array, at which scipy does not look."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from topologies.errors import TopologyError
from topologies.files.content import Content, check_weight, labels_of
from topologies.files.numbers import from_both_sides, numbered
from topologies.graph import EDGES_LIMIT, NODES_LIMIT, Topology

NAMES = "p2pfl_names"
"""The names as JSON, in bytes: unlike an array of texts, it keeps every one as it is."""

UNPACKED_LIMIT = 1 << 30
"""Bytes of all arrays: twice what `write` makes of the largest graph that can be held."""

_ALLOWED = "what scipy.sparse.save_npz writes"


def read(data: bytes, where: str) -> Content:
    """Never unpickles: scipy and numpy are told not to, and refuse arrays of objects."""
    from scipy.sparse import coo_array  # noqa: PLC0415 - an extra, for this format alone

    matrix, names = _unpacked(data, where)
    shape = matrix.shape
    if len(shape) != 2 or shape[0] != shape[1] or not 1 <= shape[0] <= NODES_LIMIT:
        raise TopologyError("not a graph's matrix", key=where, value=shape, allowed=f"square, up to {NODES_LIMIT}")
    if matrix.nnz > 2 * EDGES_LIMIT:
        raise TopologyError("too many edges", key=where, value=int(matrix.nnz) // 2, allowed=f"up to {EDGES_LIMIT}")
    entries = coo_array(matrix)
    links = np.stack([entries.row, entries.col], axis=1).astype(np.int64)
    outside = np.flatnonzero(((links < 0) | (links >= shape[0])).any(axis=1))
    if len(outside):
        raise TopologyError(
            "an entry outside the matrix", key=where, value=links[outside[0]].tolist(), allowed=_ALLOWED
        )

    def place(link: int) -> str:
        return f"{where}: entry {links[link, 0]}, {links[link, 1]}"

    for link in np.flatnonzero(~(np.asarray(entries.data) == 1)):
        check_weight(entries.data[link].item(), place(int(link)))
    kept = from_both_sides(links, place, first=0)
    return numbered(int(shape[0]), links[kept], lambda edge: place(int(kept[edge])), names, where)


def _unpacked(data: bytes, where: str) -> tuple[Any, list[str]]:
    """The matrix as scipy has it, and the names."""
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
        # else a row that ends before it begins would be followed outside of memory
        matrix.check_format(full_check=True)
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return matrix, json.loads(arrays[NAMES].tobytes()) if NAMES in arrays else []


def write(topology: Topology) -> Iterator[bytes]:
    from scipy.sparse import csr_array, save_npz  # noqa: PLC0415 - as above

    starts, neighbors = topology.rows
    ones = np.ones(len(neighbors), dtype=np.int8)
    file = io.BytesIO()
    save_npz(file, csr_array((ones, neighbors, starts), shape=(topology.nodes, topology.nodes)))
    if topology.names:
        array = io.BytesIO()
        np.save(array, np.frombuffer(json.dumps(labels_of(topology)).encode(), dtype=np.uint8))
        with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(zipfile.ZipInfo(f"{NAMES}.npy"), array.getvalue())
    yield file.getvalue()
