"""The number of liars a graph tolerates when each node discards the b largest and the b smallest values it receives.

There are three answers, none implied by fast mixing. The tolerance of a single node: of m neighbors it must keep one
after discarding 2b. The guarantee: on a (2F+1)-robust graph, with up to F liars among each node's neighbors, the honest
nodes agree on values within their own range. The upper limit: without (F+1)-robustness they may fail to agree even if
nobody lies. This concerns agreement; how well they learn is another question.

Source: LeBlanc, Zhang, Koutsoukos and Sundaram (IEEE JSAC 31, 2013), F-local model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from topologies.errors import TopologyError
from topologies.graph import Topology
from topologies.metrics import IntegerBounds, degree_range
from topologies.metrics.cuts import Cut, CutPoints, cut_points, shores, sweep_cut
from topologies.metrics.robustness import Robustness, robustness

CAUTION = "That a graph mixes fast does not mean that it tolerates liars."
NAMED = 5
"""The number of nodes or edges that a warning names; it counts the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """The number of liars among a node's neighbors that a graph tolerates.

    `local`: the tolerance of the node with the lowest degree; `guaranteed`: the F for which the honest nodes agree
    whoever lies; `possible`: the F above which they may not agree even without liars, or a node cannot mix.
    """

    local: int
    guaranteed: IntegerBounds
    possible: IntegerBounds


def tolerance(topology: Topology, robust: Robustness | None = None) -> Tolerance:
    """Compute the tolerance; `robust` is the graph's robustness, if already known."""
    robust = robust or robustness(topology)
    local = max(0, (degree_range(topology)[0] - 1) // 2)
    low, high = robust.lower, robust.upper
    return Tolerance(
        local=local,
        guaranteed=IntegerBounds(max(0, (low - 1) // 2), max(0, (high - 1) // 2), robust.method),
        possible=IntegerBounds(min(local, max(0, low - 1)), min(local, max(0, high - 1)), robust.method),
    )


def warnings(topology: Topology, liars: int) -> list[str]:
    """Describe the faults of a connected graph with `liars` among a node's neighbors, the most serious first.

    Each has one sentence on the fault and one on what to do, with the nodes' names if the graph has them; empty if
    there are none. Nodes with too few neighbors are not named.
    Raises TopologyError if `liars` is below 0.
    """
    if isinstance(liars, bool) or not isinstance(liars, int) or liars < 0:
        raise TopologyError("impossible number of liars", key="liars", value=liars, allowed="a whole number from 0")
    if topology.nodes == 1:
        return []
    points = cut_points(topology)
    thin = sweep_cut(topology) if liars else None
    texts = (_bottlenecks(topology, points) if points else []) + (_thin(topology, thin, liars) if thin else [])
    if liars:
        texts += _fragile(robustness(topology, cut=thin), liars)
    return texts


def _bottlenecks(topology: Topology, points: CutPoints) -> list[str]:
    texts = []
    if points.bridges:
        first = [f"{_name(topology, i)}-{_name(topology, j)}" for i, j in points.bridges[:NAMED]]
        named = _named("edge", first, len(points.bridges))
        what = "is a bridge: if it" if len(points.bridges) == 1 else "are bridges: if one"
        texts.append(f"{named} {what} fails, the graph splits. Add a second way around.")
    if points.nodes:
        what = "is the only way" if len(points.nodes) == 1 else "are each the only way"
        texts.append(f"{_nodes(topology, points.nodes)} {what} between others. Join the neighbors to each other.")
    return [text[:1].upper() + text[1:] for text in texts]


def _thin(topology: Topology, cut: Cut, liars: int) -> list[str]:
    """Warn of a thin cut: if the edges between two sides touch at most 2b nodes on either, robustness is at most 2b."""
    touched = min([cut.edges, *shores(topology, cut)])
    needed = 2 * liars + 1
    if touched >= needed or cut.edges <= 1:
        return []
    what = f"{cut.edges} edges join {_nodes(topology, cut.side)} to the other {cut.other}"
    what = f"Only {what}" if touched == cut.edges else f"The {what}, all by way of {touched} of the nodes"
    return [f"{what}. With {_liars(liars)} there should be {needed} that share no node: add edges across."]


def _fragile(robustness: Robustness, liars: int) -> list[str]:
    needed = 2 * liars + 1
    if robustness.lower >= needed:
        return []
    why = f"as {_liars(liars)} in a neighborhood need{'s' if liars == 1 else ''}"
    if robustness.upper <= liars:
        what = (
            f"The graph is {robustness.upper}-robust: discarding {liars} can keep two groups apart though nobody lies"
        )
    elif robustness.upper < needed:
        what = f"The graph is not {needed}-robust, {why}, but {robustness.upper} at most"
    else:
        what = f"The graph is not proven {needed}-robust, {why}, but {robustness.lower}"
    return [f"{what}. Add edges, or take a denser random graph.", CAUTION]


def _liars(count: int) -> str:
    return "1 liar" if count == 1 else f"{count} liars"


def _nodes(topology: Topology, nodes: Sequence[int]) -> str:
    return _named("node", [_name(topology, node) for node in nodes[:NAMED]], len(nodes))


def _name(topology: Topology, node: int) -> str:
    return topology.names[node] if topology.names else str(node)


def _named(word: str, first: Sequence[str], count: int) -> str:
    more = f" and {count - len(first)} more" if count > len(first) else ""
    return f"{word}{'' if count == 1 else 's'} {', '.join(first)}{more}"
