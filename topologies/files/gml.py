"""GML, the format of Gephi, igraph and Newman's collection: `node [ id 0 label "a" ]`, `edge [ source 0 target 1 ]`.

Source: Himsolt, GML: A portable graph file format (1997). Text beyond ASCII is written as `&#233;`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.entities import name2codepoint
from typing import Any

from topologies.errors import TopologyError
from topologies.files.content import Content, by_label, check_weight, decoded, labels_of
from topologies.graph import Topology

_TOKEN = re.compile(
    r'(?P<space>\s+|\#[^\n]*)|(?P<key>[A-Za-z]\w*)|(?P<number>[+-]?[0-9.][0-9.eE+-]*)|"(?P<text>[^"]*)"'
    r"|(?P<begin>\[)|(?P<end>\])"
)
_ESCAPE = re.compile(r"&(?:#([0-9]{1,7})|#x([0-9A-Fa-f]{1,6})|([A-Za-z][A-Za-z0-9]*));")

Record = dict[str, Any]
LINE = ""
"""The key under which a record keeps the line where it began: no key of a file is empty."""


def read(data: bytes, where: str) -> Content:
    graph = _parse(decoded(data, where), where).get("graph", [])
    if len(graph) != 1 or not isinstance(graph[0], dict):
        raise TopologyError("not one graph", key=where, allowed="a GML file with one `graph [ ... ]`")
    if _first(graph[0], "directed") not in (None, "0"):
        raise TopologyError("a directed graph", key=where, allowed="directed 0")
    nodes, edges = _records(graph[0], "node", where), _records(graph[0], "edge", where)
    ids = [_needed(node, "id", where) for node in nodes]
    names = [_first(node, "label") for node in nodes]
    named = all(names) and len(set(names)) == len(names)
    lines = [edge[LINE] for edge in edges]
    for edge in edges:
        for weight in edge.get("weight", ()):
            check_weight(weight, f"{where}:{edge[LINE]}")
    pairs = [(_needed(edge, "source", where), _needed(edge, "target", where)) for edge in edges]
    content = by_label(ids, pairs, where, lambda edge: f"{where}:{lines[edge]}")
    labels = [str(name) for name in names] if named else ids
    return Content(nodes=content.nodes, ends=content.ends, place=content.place, labels=labels)


def _parse(text: str, where: str) -> dict[str, list[Any]]:
    """Lists of the values of each key; a value is text, or such a record again."""
    open_records: list[Record] = [{LINE: 1}]
    key, line, at = None, 1, 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        kind = token.lastgroup if token else None
        if token is None or ((kind == "key") != (key is None) and kind not in {"space", "end"}):
            found = text[at : at + 30].partition("\n")[0]
            raise TopologyError("not GML", key=f"{where}:{line}", value=found, allowed="`key value` or `key [ ... ]`")
        at = token.end()
        match kind:
            case "key":
                key = token[0]
            case "begin":
                inner: Record = {LINE: line}
                open_records[-1].setdefault(str(key), []).append(inner)
                open_records.append(inner)
                key = None
            case "end":
                if key is not None or len(open_records) == 1:
                    raise TopologyError("not GML", key=f"{where}:{line}", value="]", allowed="what began with [")
                open_records.pop()
            case "number" | "text":
                value = token[0] if kind == "number" else _unescaped(token["text"])
                open_records[-1].setdefault(str(key), []).append(value)
                key = None
        line += token[0].count("\n")
    if len(open_records) > 1 or key is not None:
        raise TopologyError("not GML: the file ends too early", key=f"{where}:{line}", allowed="a ] for each [")
    return open_records[0]


def _records(graph: Record, key: str, where: str) -> list[Record]:
    found = graph.get(key, [])
    if not all(isinstance(record, dict) for record in found):
        raise TopologyError(f"a {key} that is none", key=where, allowed=f"{key} [ ... ]")
    return list(found)


def _first(record: Record, key: str) -> Any:
    values = record.get(key, [])
    return values[0] if values and isinstance(values[0], str) else None


def _needed(record: Record, key: str, where: str) -> str:
    value = _first(record, key)
    if not value:
        raise TopologyError(f"without {key!r}", key=f"{where}:{record[LINE]}", allowed=f"one {key!r}")
    return str(value)


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(_character, text) if "&" in text else text


def _character(escape: re.Match[str]) -> str:
    decimal, hexadecimal, name = escape.groups()
    code = int(decimal) if decimal else int(hexadecimal, 16) if hexadecimal else name2codepoint.get(name, -1)
    return chr(code) if 0 <= code < 0xD800 or 0xE000 <= code < 0x110000 else escape[0]


def write(topology: Topology) -> Iterator[str]:
    yield "graph [\n"
    for node, label in enumerate(labels_of(topology)):
        yield f'  node [\n    id {node}\n    label "{_escaped(label)}"\n  ]\n'
    for i, j in topology.ends.tolist():
        yield f"  edge [\n    source {i}\n    target {j}\n  ]\n"
    yield "]\n"


def _escaped(label: str) -> str:
    if label.isascii() and label.isalnum():
        return label
    return "".join(sign if " " <= sign <= "~" and sign not in '"&' else f"&#{ord(sign)};" for sign in label)
