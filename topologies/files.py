"""Reads a graph from a file: node-link JSON (as networkx writes it) or an edge list, one `a b` per line.

Nodes may be called by number, 0 .. n-1, or by name where the caller says what the names are.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from topologies.errors import TopologyError
from topologies.graph import Edge


def read_edges(path: Path, nodes: int, names: Sequence[str] = ()) -> list[Edge]:
    """The edges in the file, between `nodes` nodes.

    Raises:
        TopologyError: the file cannot be read, or names a node that is not there, or joins a node to itself.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TopologyError(f"cannot read the graph file: {error}", key="topology", value=str(path)) from None
    pairs = _from_json(path, text) if path.suffix == ".json" else _from_lines(path, text)
    numbers = {str(i): i for i in range(nodes)} | {name: i for i, name in enumerate(names)}
    return [_numbered(where, pair, numbers, nodes) for where, pair in pairs]


def _numbered(where: str, pair: tuple[str, str], numbers: dict[str, int], nodes: int) -> Edge:
    for end in pair:
        if end not in numbers:
            allowed = f"numbers from 0 to {nodes - 1}, or the names of the nodes"
            raise TopologyError("unknown node", key=where, value=end, allowed=allowed)
    i, j = numbers[pair[0]], numbers[pair[1]]
    if i == j:
        raise TopologyError("an edge joins a node to itself", key=where, value=" ".join(pair))
    return i, j


def _from_lines(path: Path, text: str) -> list[tuple[str, tuple[str, str]]]:
    pairs = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if len(words) >= 2:
            pairs.append((f"{path}:{number}", (words[0], words[1])))
        elif words:
            raise TopologyError("not an edge", key=f"{path}:{number}", value=line, allowed="two nodes per line")
    return pairs


def _from_json(path: Path, text: str) -> list[tuple[str, tuple[str, str]]]:
    where = str(path)
    try:
        document = json.loads(text)
    except ValueError as error:
        raise TopologyError(f"not JSON: {error}", key=where) from None
    links = document.get("edges", document.get("links")) if isinstance(document, dict) else None
    if not isinstance(links, list):
        raise TopologyError("not a node-link graph", key=where, allowed='an object with "nodes" and "edges"')
    if document.get("directed"):
        raise TopologyError("a directed graph", key=where, allowed='"directed": false')
    return [(f"{where}: edge {i}", _ends(f"{where}: edge {i}", link)) for i, link in enumerate(links)]


def _ends(where: str, link: Any) -> tuple[str, str]:
    if isinstance(link, dict) and "source" in link and "target" in link:
        return str(link["source"]), str(link["target"])
    raise TopologyError("not an edge", key=where, value=link, allowed='an object with "source" and "target"')
