"""GraphML and GEXF: nodes with an `id`, edges with `source` and `target`, whatever else a program wrote beside them.

Read as a stream with expat, not with networkx: a document type, and so every entity bomb, is refused before anything
is expanded; an edge to a node that is not listed is a mistake, not a new node; and each mistake has its line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from xml.parsers import expat
from xml.sax.saxutils import quoteattr

from topologies.errors import TopologyError
from topologies.files.content import Content, brief, by_label, check_weight, decoded, labels_of
from topologies.graph import Topology

Attributes = Mapping[str, str]


def read_graphml(data: bytes, where: str) -> Content:
    return _Reader("graphml", where).read(decoded(data, where))


def read_gexf(data: bytes, where: str) -> Content:
    return _Reader("gexf", where).read(decoded(data, where))


class _Reader:
    def __init__(self, root: str, where: str) -> None:
        self.root = root
        self.where = where
        self.open: list[str] = []
        self.graphs = 0
        self.labels: list[str] = []
        self.pairs: list[tuple[str, str]] = []
        self.lines: list[int] = []
        self.weight_keys: set[str] = set()
        self.weight: list[str] | None = None
        self.parser = expat.ParserCreate("utf-8")
        self.parser.StartElementHandler = self.start
        self.parser.EndElementHandler = self.end
        self.parser.CharacterDataHandler = self.text
        self.parser.StartDoctypeDeclHandler = self.doctype

    def read(self, text: str) -> Content:
        try:
            self.parser.Parse(text, True)  # noqa: FBT003 - expat's signature: the text is all there is
        except expat.ExpatError as error:
            message = f"not XML: {expat.errors.messages[error.code]}"
            raise TopologyError(message, key=f"{self.where}:{error.lineno}") from None
        if not self.graphs:
            raise TopologyError("no graph", key=self.where, allowed=f"a <graph> within <{self.root}>")
        return by_label(self.labels, self.pairs, self.where, lambda edge: f"{self.where}:{self.lines[edge]}")

    def mistake(self, text: str, allowed: str, value: object = None) -> TopologyError:
        place = f"{self.where}:{self.parser.CurrentLineNumber}"
        return TopologyError(text, key=place, value=brief(value), allowed=allowed)

    def doctype(self, *_: object) -> None:
        raise self.mistake("a document type", "XML without <!DOCTYPE>: its entities could grow without end")

    def start(self, tag: str, attributes: Attributes) -> None:
        name = tag.rpartition(":")[2]
        if not self.open and name != self.root:
            raise self.mistake(f"not a {self.root} document", f"<{self.root}> at the top", name)
        self.open.append(name)
        match name:
            case "key" if attributes.get("attr.name") == "weight" and "id" in attributes:
                self.weight_keys.add(attributes["id"])
            case "graph":
                self.graph(attributes)
            case "node":
                self.labels.append(self.needed(attributes, "id"))
            case "edge":
                self.edge(attributes)
            case "hyperedge":
                raise self.mistake("an edge of many nodes", "edges between two nodes")
            case "data" if "edge" in self.open and attributes.get("key") in self.weight_keys:
                self.weight = []

    def end(self, _tag: str) -> None:
        if self.open.pop() == "data" and self.weight is not None:
            check_weight("".join(self.weight).strip(), f"{self.where}:{self.parser.CurrentLineNumber}")
            self.weight = None

    def text(self, text: str) -> None:
        if self.weight is not None:
            self.weight.append(text)

    def graph(self, attributes: Attributes) -> None:
        self.graphs += 1
        if self.graphs > 1:
            raise self.mistake("a second graph", "one graph in a file")
        if "directed" in (attributes.get("edgedefault"), attributes.get("defaultedgetype")):
            raise self.mistake("a directed graph", "an undirected one")

    def edge(self, attributes: Attributes) -> None:
        kind = attributes.get("type", "undirected")
        if attributes.get("directed", "false") in {"true", "1"} or kind in {"directed", "mutual"}:
            raise self.mistake("a directed edge", "undirected ones")
        self.pairs.append((self.needed(attributes, "source"), self.needed(attributes, "target")))
        self.lines.append(self.parser.CurrentLineNumber)
        if "weight" in attributes:
            check_weight(attributes["weight"], f"{self.where}:{self.parser.CurrentLineNumber}")

    def needed(self, attributes: Attributes, key: str) -> str:
        if not attributes.get(key):
            raise self.mistake(f"without {key!r}", f"<{self.open[-1]}> with {key!r}")
        return attributes[key]


def write_graphml(topology: Topology) -> Iterator[str]:
    labels = _quoted(topology)
    yield '<?xml version="1.0" encoding="utf-8"?>\n<graphml xmlns="http://graphml.graphdrawing.org/xmlns">\n'
    yield '<graph edgedefault="undirected">\n'
    for label in labels:
        yield f"<node id={label}/>\n"
    for i, j in topology.ends.tolist():
        yield f"<edge source={labels[i]} target={labels[j]}/>\n"
    yield "</graph>\n</graphml>\n"


def write_gexf(topology: Topology) -> Iterator[str]:
    labels = _quoted(topology)
    yield '<?xml version="1.0" encoding="utf-8"?>\n<gexf xmlns="http://www.gexf.net/1.2draft" version="1.2">\n'
    yield '<graph defaultedgetype="undirected" mode="static">\n<nodes>\n'
    for label in labels:
        yield f"<node id={label} label={label}/>\n"
    yield "</nodes>\n<edges>\n"
    for edge, (i, j) in enumerate(topology.ends.tolist()):
        yield f'<edge id="{edge}" source={labels[i]} target={labels[j]}/>\n'
    yield "</edges>\n</graph>\n</gexf>\n"


def _quoted(topology: Topology) -> list[str]:
    labels = labels_of(topology)
    for label in labels:
        if any((code < 0x20 and code not in (9, 10, 13)) or code in (0xFFFE, 0xFFFF) for code in map(ord, label)):
            allowed = "names without control characters, or another format, such as json"
            raise TopologyError("a name that XML cannot hold", key="names", value=label, allowed=allowed)
    return [quoteattr(label) for label in labels]
