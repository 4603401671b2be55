"""Reads how many samples of each label each node has: CSV, one row for each node, whole numbers in the columns.

A first row that begins with `name` or `node`, or is one more than there are nodes, is a header. The first column holds
the nodes' names where it is headed so, or holds anything but numbers; then these decide which row is whose, else the
order does.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from topologies.errors import TopologyError, nearest

KEY = "d-cliques:labels"
BYTES_LIMIT = 1 << 26
"""Many times what the counts of a federation need. A device or a pipe may never end."""


def read_counts(path: Path, nodes: int, names: Sequence[str] = ()) -> NDArray[np.int64]:
    """Shape (nodes, labels).

    Raises:
        TopologyError: the file cannot be read, or is not one row of counts for each node, each with a sample at least.
    """
    rows = _rows(path)
    first = rows[0][1] if rows else [""]
    titled = first[0].lower() in {"name", "node"} and first[0] not in names
    rows = rows[1:] if titled or len(rows) == nodes + 1 else rows
    if len(rows) != nodes:
        allowed = f"{nodes} rows, and a header"
        raise TopologyError(f"{path}: not one row for each node", key=KEY, value=len(rows), allowed=allowed)
    named = titled or any(not _is_count(cells[0]) for _, cells in rows)
    counts = np.array([_counts(path, line, cells[named:], len(rows[0][1]) - named) for line, cells in rows])
    called = names or [str(node) for node in range(nodes)]
    if named and (names or {cells[0] for _, cells in rows} == set(called)):
        return counts[_places(path, rows, called)]
    return counts


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    """Line number and cells of each line that is not empty."""
    try:
        reader = csv.reader(io.StringIO(_bytes(path).decode("utf-8-sig"), newline=""))
        return [(reader.line_num, [cell.strip() for cell in row]) for row in reader if any(map(str.strip, row))]
    except TopologyError:
        raise
    except (OSError, ValueError, csv.Error) as error:
        # a ValueError: not UTF-8, or a path that no system knows
        raise TopologyError(f"cannot read the counts of labels: {error}", key=KEY, value=str(path)) from None


def _bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(BYTES_LIMIT + 1)
    if len(data) > BYTES_LIMIT:
        raise TopologyError("too large a file", key=KEY, value=str(path), allowed=f"up to {BYTES_LIMIT} bytes")
    return data


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 15


def _counts(path: Path, line: int, cells: list[str], width: int) -> list[int]:
    counts = [int(cell) for cell in cells if _is_count(cell)]
    if len(counts) != len(cells) or len(cells) != width or sum(counts) == 0:
        allowed = f"{width} whole numbers from 0, not all of them 0"
        raise TopologyError("not counts of labels", key=f"{path}:{line}", value=",".join(cells), allowed=allowed)
    return counts


def _places(path: Path, rows: list[tuple[int, list[str]]], names: Sequence[str]) -> list[int]:
    """The row of each node."""
    place = {cells[0]: number for number, (_, cells) in enumerate(rows)}
    for line, cells in rows:
        if cells[0] not in names:
            raise TopologyError("unknown node", key=f"{path}:{line}", value=cells[0], allowed=nearest(cells[0], names))
    missing = [name for name in names if name not in place]
    if missing:
        raise TopologyError("a row is missing", key=str(path), value=missing[0], allowed="one row for each node")
    return [place[name] for name in names]
