"""Node-link JSON, as networkx writes it. The one format that keeps everything: names, spec and seed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from topologies.errors import TopologyError
from topologies.files.content import Content, brief, by_label, check_text, check_weight, decoded, labels_of
from topologies.graph import Topology
from topologies.specs import is_file

SPEC_LIMIT = 10_000
_SHAPE = 'an object with "nodes" and "edges"'


def read(data: bytes, where: str) -> Content:
    document = _document(data, where)
    if document.get("directed"):
        raise TopologyError("a directed graph", key=where, allowed='"directed": false')
    links = _links(document, where)
    pairs = [_ends(f"{where}: edge {number}", link) for number, link in enumerate(links)]
    labels = _nodes(document, where)
    declared = labels is not None
    if labels is None:
        labels = list(dict.fromkeys(end for pair in pairs for end in pair))
    check_text(labels, where)
    content = by_label(labels, pairs, where, lambda edge: f"{where}: edge {edge}")
    spec, seed = _origin(document, where)
    return replace(content, declared=declared, spec=spec, seed=seed)


def _document(data: bytes, where: str) -> dict[str, Any]:
    try:
        document = json.loads(decoded(data, where))
    except (ValueError, RecursionError) as error:
        raise error if isinstance(error, TopologyError) else TopologyError(f"not JSON: {error}", key=where) from None
    if not isinstance(document, dict):
        raise TopologyError("not a node-link graph", key=where, allowed=_SHAPE)
    return document


def _links(document: dict[str, Any], where: str) -> list[Any]:
    """They were `links` to networkx before version 3.6."""
    found = [document[key] for key in ("edges", "links") if key in document]
    if len(found) != 1 or not isinstance(found[0], list):
        raise TopologyError("not a node-link graph", key=where, allowed=_SHAPE)
    return list(found[0])


def _ends(where: str, link: Any) -> tuple[str, str]:
    if not (isinstance(link, dict) and "source" in link and "target" in link):
        allowed = 'an object with "source" and "target"'
        raise TopologyError("not an edge", key=where, value=brief(link), allowed=allowed)
    if "weight" in link:
        check_weight(link["weight"], where)
    return _label(link["source"], where), _label(link["target"], where)


def _nodes(document: dict[str, Any], where: str) -> list[str] | None:
    nodes = document.get("nodes")
    if nodes is None:
        return None
    if not isinstance(nodes, list) or not all(isinstance(node, dict) and "id" in node for node in nodes):
        raise TopologyError("nodes that are none", key=where, allowed='"nodes": a list of objects with "id"')
    return [_label(node["id"], where) for node in nodes]


def _label(value: Any, where: str) -> str:
    """The nodes of some graphs of networkx are tuples, which JSON makes lists."""
    if isinstance(value, list) and all(isinstance(part, str | int) for part in value):
        return str(tuple(value))
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise TopologyError("not a node", key=where, value=brief(value), allowed="a name or a number")
    return str(value)


def _origin(document: dict[str, Any], where: str) -> tuple[str | None, int]:
    """`build` is not asked: whether the edges are those of the spec, nobody has checked."""
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
    """Not the path of the file that a graph was read from, which says nothing to others."""
    return bool(spec) and spec.isprintable() and len(spec) <= SPEC_LIMIT and not is_file(spec)


def write(topology: Topology) -> Iterator[str]:
    labels: list[str] | list[int] = labels_of(topology) if topology.names else list(range(topology.nodes))
    called = [json.dumps(label, ensure_ascii=False) for label in labels]
    origin = json.dumps({"spec": topology.spec, "seed": topology.seed} if _is_spec(topology.spec) else {})
    yield f'{{"directed": false, "multigraph": false, "graph": {origin},\n"nodes": ['
    yield ",\n".join(f'{{"id": {label}}}' for label in called)
    yield '],\n"edges": ['
    between = ""
    for i, j in topology.ends.tolist():
        yield f'{between}{{"source": {called[i]}, "target": {called[j]}}}'
        between = ",\n"
    yield "]}\n"
