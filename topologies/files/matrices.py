"""A graph as its sparse adjacency matrix: Matrix Market text, or scipy's .npz. Names are kept beside it."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topologies.building import EDGES_LIMIT, NODES_LIMIT
from topologies.errors import TopologyError
from topologies.files.content import Content, check_weight, decoded, labels_of
from topologies.files.metis import name_comments, name_in, numbered
from topologies.graph import Topology

NAMES = "p2pfl_names"
"""An array of the archive that scipy does not look at: the names as JSON, in bytes."""

UNPACKED_LIMIT = 64 * EDGES_LIMIT
"""Bytes of an archive's arrays: what the largest graph that can be held needs."""

_HEAD = re.compile(
    r"%%MatrixMarket\s+matrix\s+(coordinate|array)\s+(pattern|integer|real|double|unsigned-integer)\s+"
    r"(general|symmetric)\s*\n",
    re.IGNORECASE,
)


def read_matrix_market(data: bytes, where: str) -> Content:
    text = decoded(data, where)
    head = _HEAD.match(text)
    if head is None:
        allowed = "%%MatrixMarket matrix coordinate, pattern, integer or real, general or symmetric"
        raise TopologyError(
            "not a matrix of a graph", key=f"{where}:1", value=text[:80].split("\n")[0], allowed=allowed
        )
    names = _check_sizes(text, where, dense=head[1].lower() == "array")
    from scipy.io import mmread  # noqa: PLC0415 - an extra, for this format alone

    try:
        matrix = mmread(io.BytesIO(data), spmatrix=False)
    except (ValueError, OverflowError, TypeError, OSError) as error:
        raise TopologyError(f"not a Matrix Market file: {error}", key=where) from None
    return _from_matrix(matrix, names, where)


def _check_sizes(text: str, where: str, *, dense: bool) -> list[str]:
    """Before anything of the size that the head tells is allocated. The names in the comments."""
    names: list[str] = []
    start = 0
    for number in range(1, text.count("\n") + 2):
        end = text.find("\n", start)
        line = text[start : end if end >= 0 else len(text)]
        start = end + 1
        if line.startswith("%"):
            names += name_in(line, f"{where}:{number}")
        elif line.strip():
            _check_size(line.split(), f"{where}:{number}", len(text), dense=dense)
            return names
    raise TopologyError("the sizes are missing", key=where, allowed="`rows columns entries`")


def _check_size(words: list[str], place: str, length: int, *, dense: bool) -> None:
    sizes = [int(word) if word.isascii() and word.isdigit() and len(word) <= 18 else -1 for word in words]
    if len(sizes) != (2 if dense else 3) or min(sizes) < 0 or sizes[0] != sizes[1]:
        allowed = "`rows columns entries`, as many rows as columns"
        raise TopologyError("not the size of a graph's matrix", key=place, value=" ".join(words)[:80], allowed=allowed)
    if not 1 <= sizes[0] <= NODES_LIMIT:
        raise TopologyError("impossible number of nodes", key=place, value=sizes[0], allowed=f"from 1 to {NODES_LIMIT}")
    entries = sizes[0] * (sizes[0] + 1) // 2 if dense else sizes[2]
    # an entry takes two bytes at least: a number and what parts it from the next
    if 2 * entries > length + 2:
        raise TopologyError(
            "more entries than the file can hold", key=place, value=entries, allowed="as many as follow"
        )


def read_npz(data: bytes, where: str) -> Content:
    """Never unpickles: scipy and numpy are told not to, and arrays of objects are refused."""
    from scipy.sparse import load_npz  # noqa: PLC0415 - an extra, for this format alone

    _check_archive(data, where)
    try:
        matrix = load_npz(io.BytesIO(data))
        if matrix.format in {"csr", "csc", "bsr"}:
            matrix.check_format(full_check=True)
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            kept = bytes(archive[NAMES].tobytes()) if NAMES in archive else b"[]"
        names = json.loads(kept)
    except Exception as error:  # noqa: BLE001 - the next line says why
        # the archive, its arrays and scipy's classes fail in many ways, all of which are the file's fault
        raise TopologyError(f"not a sparse matrix of scipy: {error}", key=where) from None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TopologyError("names that are none", key=where, allowed="a list of texts")
    return _from_matrix(matrix, names, where)


def _check_archive(data: bytes, where: str) -> None:
    if not zipfile.is_zipfile(io.BytesIO(data)):
        raise TopologyError("not a sparse matrix of scipy", key=where, allowed="what scipy.sparse.save_npz writes")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, ValueError, OSError) as error:
        raise TopologyError(f"not a sparse matrix of scipy: {error}", key=where) from None
    if size > UNPACKED_LIMIT:
        raise TopologyError("too large", key=where, value=size, allowed=f"{UNPACKED_LIMIT} bytes unpacked")


def _from_matrix(matrix: Any, names: list[str], where: str) -> Content:
    from scipy.sparse import coo_array  # noqa: PLC0415 - as above

    shape = matrix.shape
    if len(shape) != 2 or shape[0] != shape[1] or not 1 <= shape[0] <= NODES_LIMIT:
        raise TopologyError("not a graph's matrix", key=where, value=shape, allowed=f"square, up to {NODES_LIMIT}")
    entries = coo_array(matrix)
    rows, columns = (np.asarray(side, dtype=np.int64) for side in (entries.row, entries.col))
    if len(rows) and (min(rows.min(), columns.min()) < 0 or max(rows.max(), columns.max()) >= shape[0]):
        raise TopologyError("an entry outside the matrix", key=where, allowed=f"{shape[0]} rows and columns")
    _check_entries(rows, columns, np.asarray(entries.data), where)
    ends = np.stack([rows, columns], axis=1)[rows <= columns]
    return numbered(int(shape[0]), ends, [], names, where)


def _check_entries(rows: NDArray[np.int64], columns: NDArray[np.int64], data: NDArray[Any], where: str) -> None:
    """All one, and the same on both sides of the diagonal."""
    other = np.flatnonzero(data != 1)
    if len(other):
        edge = other[0]
        check_weight(data[edge].item(), f"{where}: entry {rows[edge] + 1} {columns[edge] + 1}")
    there, back = rows * NODES_LIMIT + columns, columns * NODES_LIMIT + rows
    alone = np.flatnonzero(~np.isin(there, back))
    if len(alone):
        entry = f"{rows[alone[0]] + 1} {columns[alone[0]] + 1}"
        allowed = "a symmetric matrix: an undirected graph"
        raise TopologyError("an entry without its mirror image", key=where, value=entry, allowed=allowed)


def write_matrix_market(topology: Topology) -> Iterator[str]:
    """The lower triangle, as the format asks for."""
    yield "%%MatrixMarket matrix coordinate pattern symmetric\n"
    yield from name_comments(topology)
    yield f"{topology.nodes} {topology.nodes} {topology.edge_count}\n"
    for i, j in topology.ends.tolist():
        yield f"{j + 1} {i + 1}\n"


def write_npz(topology: Topology) -> Iterator[bytes]:
    from scipy.sparse import csr_array, save_npz  # noqa: PLC0415 - an extra, for this format alone

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
