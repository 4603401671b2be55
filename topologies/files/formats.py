"""Which formats there are, and which one a file has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from topologies.errors import TopologyError, nearest
from topologies.files import edgelist, gml, matrixmarket, metis, nodelink, npz, xml
from topologies.files.content import Content
from topologies.graph import Topology


@dataclass(frozen=True, slots=True)
class Format:
    """`read` gets the whole file and what to call it in an error; `write` gives it in pieces."""

    suffixes: tuple[str, ...]
    read: Callable[[bytes, str], Content]
    write: Callable[[Topology], Iterable[str] | Iterable[bytes]]
    text: bool = True


FORMATS: Mapping[str, Format] = {
    "json": Format((".json",), nodelink.read, nodelink.write),
    "edgelist": Format((".edges", ".edgelist", ".txt"), edgelist.read_edge_list, edgelist.write_edge_list),
    "adjlist": Format((".adjlist",), edgelist.read_adjacency_list, edgelist.write_adjacency_list),
    "graphml": Format((".graphml",), xml.read_graphml, xml.write_graphml),
    "gexf": Format((".gexf",), xml.read_gexf, xml.write_gexf),
    "gml": Format((".gml",), gml.read, gml.write),
    "metis": Format((".metis", ".graph"), metis.read, metis.write),
    "mtx": Format((".mtx",), matrixmarket.read, matrixmarket.write),
    "npz": Format((".npz",), npz.read, npz.write, text=False),
}

SUFFIXES: Mapping[str, str] = {suffix: name for name, form in FORMATS.items() for suffix in form.suffixes}
STREAM = Path("-")
"""Standard input or output."""


def format_of(path: Path, name: str | None = None) -> Format:
    """The format called `name`, else that of the suffix; a stream is JSON, a file without a suffix an edge list.

    Raises:
        TopologyError: there is no such format, or a stream of bytes is asked for.
    """
    if name is not None and name not in FORMATS:
        raise TopologyError("unknown format", key="format", value=name, allowed=nearest(name, FORMATS))
    if path == STREAM:
        found = FORMATS[name or "json"]
        if not found.text:
            raise TopologyError("not text, so it needs a file", key="format", value=name, allowed="a path instead of -")
        return found
    suffix = path.suffix.lower()
    if name is None and suffix and suffix not in SUFFIXES:
        allowed = f"{', '.join(SUFFIXES)}; or say which of {', '.join(FORMATS)} it is"
        raise TopologyError("a graph format is not known by this suffix", key=str(path), value=suffix, allowed=allowed)
    return FORMATS[name or SUFFIXES.get(suffix, "edgelist")]
