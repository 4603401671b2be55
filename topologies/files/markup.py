"""GraphML and GML, formats of Gephi, yEd and igraph: networkx writes them, and reads them after a scan of the
raw text.

The scan comes first because XML can define entities that grow without end, and because networkx silently ignores a
second graph, or the direction of some edges.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from topologies.errors import TopologyError
from topologies.files.content import Content, brief, by_label, check_text, decoded, labels_of
from topologies.graph import Topology, WeightColumn

BYTES_LIMIT = 1 << 24
"""The size of 350,000 edges. networkx needs 25 times the size of an honest file, and a hundred times that of a hostile
one.
"""

_REFUSED = (
    (r"<!(?:DOCTYPE|ENTITY)", "a document type", "XML without <!DOCTYPE>: its entities could grow without end"),
    (r"""\s(?:directed\s*=\s*["']1|type\s*=\s*["']mutual)["']""", "a directed edge", "undirected ones"),
    (r"\0", "a zero byte", "XML in UTF-8"),
)
_GRAPH = re.compile(r"<(?:[\w.-]+:)?graph[\s/>]")
_DECLARATION = re.compile(r"\s*<\?xml\s[^>]*>")


class _Ids(list[str]):
    """The ids that networkx asks to convert: those of all nodes, then of the two ends of each edge."""

    def __call__(self, name: str | None) -> str:
        if not name:
            allowed = "each <node> with 'id', each <edge> with 'source' and 'target'"
            raise TopologyError("a node without 'id', or an edge without an end", allowed=allowed)
        self.append(name)
        return name


def read_graphml(data: bytes, where: str) -> Content:
    import networkx as nx  # noqa: PLC0415 - a quarter of a second that only these formats need

    text, ids = _checked_text(data, where), _Ids()
    graph = _parsed(lambda: nx.parse_graphml(text, node_type=ids), where, "GraphML")
    if graph.is_multigraph():
        twice = next((f"{i}, {j}" for i, j, _ in graph.edges if graph.number_of_edges(i, j) > 1), None)
        raise TopologyError("the same edge twice", key=where, value=brief(twice), allowed="each edge once")
    nodes = len(ids) - 2 * graph.number_of_edges()
    ends = iter(ids[nodes:])
    return _content(ids[:nodes], list(zip(ends, ends, strict=True)), graph, where)


def _checked_text(data: bytes, where: str) -> str:
    """Return the text without its XML declaration: whatever encoding that names, the text is UTF-8.

    Raises TopologyError if it is too large, has markup that a graph does not need, or contains a second graph.
    """
    text = _small(data, where)
    for pattern, what, allowed in _REFUSED:
        if match := re.search(pattern, text):
            raise TopologyError(what, key=f"{where}:{_line(text, match)}", allowed=allowed)
    for match in list(_GRAPH.finditer(text))[1:]:
        raise TopologyError("a second graph", key=f"{where}:{_line(text, match)}", allowed="one graph in a file")
    declaration = _DECLARATION.match(text)
    return text[declaration.end() :] if declaration else text


def _small(data: bytes, where: str) -> str:
    if len(data) > BYTES_LIMIT:
        allowed = f"up to {BYTES_LIMIT} bytes; other formats, such as edgelist, may be larger"
        raise TopologyError("too large a file for this format", key=where, value=len(data), allowed=allowed)
    return decoded(data, where)


def _line(text: str, match: re.Match[str]) -> int:
    return text.count("\n", 0, match.start()) + 1


def _parsed(parse: Callable[[], Any], where: str, form: str) -> Any:
    import networkx as nx  # noqa: PLC0415 - as above

    try:
        with warnings.catch_warnings(action="ignore"):
            graph = parse()
    except TopologyError as error:
        raise TopologyError(error.message, key=where, allowed=error.allowed) from None
    except Exception as error:  # noqa: BLE001 - networkx fails in many ways, all the file's fault
        said = str(error) if isinstance(error, nx.NetworkXException | SyntaxError) else "networkx cannot read it"
        plain = "".join(sign for sign in said[:160] if sign.isprintable())
        raise TopologyError(f"not {form}: {plain}", key=where, allowed=f"what networkx reads as {form}") from None
    if graph.is_directed():
        raise TopologyError("a directed graph", key=where, allowed="an undirected one")
    return graph


def _content(labels: Sequence[str], pairs: Sequence[tuple[str, str]], graph: Any, where: str) -> Content:
    def place(edge: int) -> str:
        return f"{where}: edge {brief(pairs[edge][0])}, {brief(pairs[edge][1])}"

    # `pairs` may come in another order than networkx lists the edges
    by_pair = {frozenset((str(i), str(j))): weight for i, j, weight in graph.edges(data="weight")}
    column = WeightColumn()
    for number, pair in enumerate(pairs):
        column.add(by_pair.get(frozenset(pair)), lambda: place(number))  # noqa: B023 - called at once
    return by_label(labels, pairs, where, place, column.all(place))


def read_gml(data: bytes, where: str) -> Content:
    """Read GML: Himsolt, GML: A portable graph file format (1997). Labels are names if each node has its own."""
    import networkx as nx  # noqa: PLC0415 - as above

    text = _small(data, where)
    graph = _parsed(lambda: nx.parse_gml(text, label=None), where, "GML")
    ids = [str(node) for node in graph]
    if "" in ids:
        raise TopologyError("without 'id'", key=where, allowed="node [ id 0 ]")
    content = _content(ids, [(str(i), str(j)) for i, j in graph.edges()], graph, where)
    # networkx reads the labels "()" and "[]" as an empty tuple and an empty list
    names = ["" if isinstance(name, dict | None) else str(name) for _, name in graph.nodes(data="label")]
    labels = names if all(names) and len(set(names)) == len(names) else ids
    check_text(labels, where)
    return replace(content, labels=labels)


def write_graphml(topology: Topology) -> Iterator[str]:
    import networkx as nx  # noqa: PLC0415 - as above

    return _lines(nx.generate_graphml(_named(topology, check=True)))


def write_gml(topology: Topology) -> Iterator[str]:
    import networkx as nx  # noqa: PLC0415 - as above

    return _lines(nx.generate_gml(_named(topology, check=False)))


def _named(topology: Topology, *, check: bool) -> Any:
    """Return the graph of networkx, whose nodes have their names; `check` refuses those that XML cannot hold."""
    import networkx as nx  # noqa: PLC0415 - as above

    labels = labels_of(topology)
    for label in labels if check else ():
        if any((code < 0x20 and code not in (9, 10, 13)) or code in (0xFFFE, 0xFFFF) for code in map(ord, label)):
            allowed = "names without control characters, or another format, such as json"
            raise TopologyError("a name that XML cannot hold", key="names", value=label, allowed=allowed)
    return nx.relabel_nodes(topology.to_networkx(), dict(enumerate(labels)))


def _lines(lines: Iterable[str]) -> Iterator[str]:
    return (f"{line}\n" for line in lines)
