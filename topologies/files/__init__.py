"""The graph formats: from a file in any of them to a `Topology`, and back.

Each kind of format has a module, which imports nothing from here.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from topologies.errors import TopologyError, nearest, not_written, refuse_gone
from topologies.files import lists, markup
from topologies.files.content import SUFFIXES, Content, Settled, settle
from topologies.graph import Topology

BYTES_LIMIT = 1 << 30
"""The size of an edge list with as many edges as memory can hold. A device or a pipe may never end."""
PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Format:
    """A format. `read` gets the whole file and its name for errors; `write` yields it in pieces."""

    read: Callable[[bytes, str], Content]
    write: Callable[[Topology], Iterable[str] | Iterable[bytes]]
    text: bool = True


FORMATS: Mapping[str, Format] = {
    "json": Format(lists.read_json, lists.write_json),
    "edgelist": Format(lists.read_edge_list, lists.write_edge_list),
    "adjlist": Format(lists.read_adjacency_list, lists.write_adjacency_list),
    "graphml": Format(markup.read_graphml, markup.write_graphml),
    "gml": Format(markup.read_gml, markup.write_gml),
    "npz": Format(lists.read_npz, lists.write_npz, text=False),
}

STREAM = Path("-")
"""Standard input or output."""


def format_of(path: Path, name: str | None = None) -> Format:
    """Return the format `name`, or else the suffix's; a stream is JSON. Raises TopologyError if it is unknown, or is
    binary and the target a stream.
    """
    if name is not None and name not in FORMATS:
        refuse_gone("format", name)
        raise TopologyError("unknown format", key="format", value=name, allowed=nearest(name, FORMATS))
    if path == STREAM:
        form = FORMATS[name or "json"]
        if not form.text:
            raise TopologyError("not text, so it needs a file", key="format", value=name, allowed="a path instead of -")
        return form
    suffix = path.suffix.lower()
    if name is None and suffix and suffix not in SUFFIXES:
        refuse_gone("format", suffix)
        allowed = f"{', '.join(SUFFIXES)}; or say which of {', '.join(FORMATS)} it is"
        raise TopologyError("a graph format is not known by this suffix", key=str(path), value=suffix, allowed=allowed)
    return FORMATS[name or SUFFIXES.get(suffix, "edgelist")]


def read_topology(path: Path | str, nodes: int | None = None, form: str | None = None) -> Topology:
    """Read the graph in a file, with the names of its nodes, and the spec and seed from which it claims to be built.

    Nodes called 0 .. n-1 are numbers; any others, such as 1 .. n, are names. `nodes` must agree with a file that
    contains its number of nodes; an edge list need not. `form` is the name of a format, if the suffix is not enough.
    Raises TopologyError if there is no such file, or if it is not a simple undirected graph, or has weights that are no
    positive numbers.
    """
    where, content = _content(Path(path), form)
    settled = settle(content, where, nodes)
    spec = content.spec if content.spec is not None else where
    return Topology(spec, settled.nodes, settled.ends, content.seed, names=settled.names, weights=settled.weights)


def read_edges(path: Path | str, nodes: int, names: Sequence[str] = ()) -> Settled:
    """Read the edges in the file between `nodes` nodes, which it calls by number or by one of `names`.

    Raises TopologyError as `read_topology` does, or if the file names a node that does not exist.
    """
    where, content = _content(Path(path), None)
    return settle(content, where, nodes, names)


def _content(path: Path, form: str | None) -> tuple[str, Content]:
    where = "/dev/stdin" if path == STREAM else str(path)
    reader = format_of(path, form)
    try:
        data = _bytes(path)
    except (OSError, ValueError) as error:
        # a ValueError means a path with a zero byte
        text = f"cannot read the graph file: {getattr(error, 'strerror', error)}"
        raise TopologyError(text, key="topology", value=where, allowed="a graph file") from None
    if len(data) > BYTES_LIMIT:
        raise TopologyError("too large a file", key="topology", value=where, allowed=f"up to {BYTES_LIMIT} bytes")
    if not data or data.isspace():
        raise TopologyError("an empty file", key="topology", value=where, allowed="a graph file")
    return where, reader.read(data, where)


def _bytes(path: Path) -> bytes:
    if path == STREAM:
        return _first_bytes(sys.stdin.buffer)
    with path.open("rb") as file:
        return _first_bytes(file)


def _first_bytes(file: BinaryIO) -> bytes:
    """Read the file, or a little more than the limit, in pieces: one large read would allocate all of it."""
    held = io.BytesIO()
    while held.tell() <= BYTES_LIMIT and (piece := file.read(PIECE_BYTES)):
        held.write(piece)
    return held.getvalue()


def write_topology(topology: Topology, path: Path | str, form: str | None = None) -> None:
    """Write a graph. Nodes keep their names, edges their weights; node-link JSON also keeps spec and seed.

    An existing file is replaced only after all of the new one is written. Raises TopologyError if the format cannot
    hold this graph, or if the file cannot be written.
    """
    path = Path(path)
    pieces = _encoded(topology, path, form)
    first = next(pieces)

    def write(file: BinaryIO) -> None:
        file.write(first)
        file.writelines(pieces)
        file.flush()

    try:
        if path == STREAM:
            sys.stdout.flush()
            write(sys.stdout.buffer)
        else:
            replace(path, write)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise not_written("cannot write the graph file", error, key="target", path=path) from None


def _encoded(topology: Topology, path: Path, form: str | None) -> Iterator[bytes]:
    for piece in format_of(path, form).write(topology):
        yield piece.encode() if isinstance(piece, str) else piece


def replace(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Write next to the file, or to a link's target, then rename over it. A device is written to directly."""
    if path.is_dir() or (path.exists() and not path.is_file()):
        with path.open("wb") as file:
            write(file)
    else:
        _replace(Path(os.path.realpath(path)), write)


def _replace(path: Path, write: Callable[[BinaryIO], None]) -> None:
    aside = path.with_name(f".{path.name[:100]}.{os.getpid()}.part")
    try:
        with aside.open("xb") as file:
            write(file)
        if path.exists():
            shutil.copymode(path, aside)
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
