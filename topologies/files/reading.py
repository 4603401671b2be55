"""From a graph file to a `Topology`."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from topologies.errors import TopologyError
from topologies.files.content import Content, settle
from topologies.files.formats import STREAM, format_of
from topologies.graph import Ends, Topology

BYTES_LIMIT = 1 << 30
"""An edge list of as many edges as can be held. A device or a pipe may never end."""
PIECE_BYTES = 1 << 20


def read_topology(path: Path | str, nodes: int | None = None, form: str | None = None) -> Topology:
    """The graph in a file, with the names that it gives its nodes, and the spec and seed that it says it comes from.

    Nodes called 0 .. n-1 are numbers; any others, such as 1 .. n, are names. `nodes` has to agree with a file that says
    itself how many there are; an edge list need not. `form` is the name of a format, where the suffix does not tell.

    Raises:
        TopologyError: no such file, or it is no simple undirected graph without weights.
    """
    where, content = _content(Path(path), form)
    settled = settle(content, where, nodes)
    spec = content.spec if content.spec is not None else where
    return Topology(spec, settled.nodes, settled.ends, content.seed, names=settled.names)


def read_edges(path: Path | str, nodes: int, names: Sequence[str] = ()) -> Ends:
    """The edges in the file, between `nodes` nodes that it calls by number or by one of `names`. Shape (edges, 2).

    Raises:
        TopologyError: as `read_topology`, or the file names a node that is not there.
    """
    where, content = _content(Path(path), None)
    return settle(content, where, nodes, names).ends


def _content(path: Path, form: str | None) -> tuple[str, Content]:
    where = "/dev/stdin" if path == STREAM else str(path)
    found = format_of(path, form)
    try:
        data = _bytes(path)
    except (OSError, ValueError) as error:
        # a ValueError: a path with a zero byte in it
        text = f"cannot read the graph file: {getattr(error, 'strerror', error)}"
        raise TopologyError(text, key="topology", value=where, allowed="a graph file") from None
    if len(data) > BYTES_LIMIT:
        raise TopologyError("too large a file", key="topology", value=where, allowed=f"up to {BYTES_LIMIT} bytes")
    if not data or data.isspace():
        raise TopologyError("an empty file", key="topology", value=where, allowed="a graph file")
    return where, found.read(data, where)


def _bytes(path: Path) -> bytes:
    if path == STREAM:
        return _first_bytes(sys.stdin.buffer)
    with path.open("rb") as file:
        return _first_bytes(file)


def _first_bytes(file: BinaryIO) -> bytes:
    """All of it, or a little more than the limit. In pieces: to read so much at once takes as much memory at once."""
    held = io.BytesIO()
    while held.tell() <= BYTES_LIMIT and (piece := file.read(PIECE_BYTES)):
        held.write(piece)
    return held.getvalue()
