"""The `[[edge]]` tables: what is different on single edges of the graph, such as over a slow link."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from p2pfl.config.model import Edges, Member
from p2pfl.config.schema import EDGE
from p2pfl.config.tables import Mistakes, read_table, require

Edge = tuple[int, int]

SHOWN = 20
"""names in an error."""


def read_edges(tables: Any, members: Sequence[Member], edges: Edges, mistakes: Mistakes) -> dict[Edge, str]:
    """The compressor of each edge that has a table, in the file's order.

    Names are looked up if there are members, and edges if there are any: else the file has worse mistakes.
    """
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        mistakes.add("must be a list of tables", "edge", None, "[[edge]] once for each edge")
        return {}
    graph = _Graph({member.name: member.index for member in members}, frozenset(edges))
    found: dict[Edge, str] = {}
    first: dict[Edge, int] = {}
    for place, table in enumerate(tables):
        prefix = f"edge[{place}]."
        require(table, prefix, EDGE, EDGE, mistakes)
        values = read_table(table, prefix, EDGE, mistakes)
        edge = graph.find(values.get("between"), prefix + "between", mistakes)
        if edge in first:
            both = f"edge[{first[edge]}] and edge[{place}] are between the same nodes"
            mistakes.add(both, prefix + "between", list(values["between"]), "one [[edge]] for each edge")
        elif edge is not None:
            first[edge] = place
            found[edge] = values.get("compressor", "")
    return found


@dataclass(frozen=True, slots=True)
class _Graph:
    index: dict[str, int]
    edges: frozenset[Edge]

    def find(self, names: tuple[str, str] | None, key: str, mistakes: Mistakes) -> Edge | None:
        """The edge between two names; None where there is none, which has been said by then."""
        if names is None or not self.index:
            return None
        strangers = [name for name in names if name not in self.index]
        for name in strangers:
            mistakes.add("no such node", key, name, _listed(self.index))
        if strangers:
            return None
        i, j = sorted(self.index[name] for name in names)
        if self.edges and (i, j) not in self.edges:
            text = f"{names[0]} and {names[1]} are no neighbors in the graph"
            allowed = "; ".join(f"{name} with {_listed(self.neighbors(name))}" for name in names)
            mistakes.add(text, key, list(names), allowed)
            return None
        return i, j

    def neighbors(self, name: str) -> list[str]:
        own, names = self.index[name], list(self.index)
        return [names[other] for other in sorted(a + b - own for a, b in self.edges if own in (a, b))]


def _listed(names: Iterable[str]) -> str:
    known = list(names)
    return ", ".join(known[:SHOWN]) + (f" and {len(known) - SHOWN} more" if len(known) > SHOWN else "")
