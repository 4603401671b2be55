"""One undirected simple graph as plain values. `spectral` and `metrics` compute how it mixes.

Edges may bring weights along, from a file or a `networkx.Graph`: each is a positive number, and all edges have one, or
none has. A weight is a mixing weight: in one round, the share of their difference by which both ends of the edge move
toward each other. `spectral` says which weights a graph can mix with.

Edges are kept as one numpy array, so that a graph of a million nodes takes tens of megabytes. A family whose graph is
too large to hold, such as a complete graph of a million nodes, is described by its formulas alone: it is `implicit`.

Below are building blocks for graphs: lines, cycles, cliques, boxes, as arrays of shape (edges, 2).
"""

from __future__ import annotations

import math
import operator
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from topologies.errors import DisconnectedError, TopologyError

NetworkxGraph: TypeAlias = Any
"""A `networkx.Graph`, which is not imported for this."""
Weights = NDArray[np.float64]
"""One weight for each edge, shape (edges,)."""
ALLOWED = "a number above 0"


class WeightColumn:
    """The weights of the edges, one after the other; it takes no memory until an edge has one."""

    def __init__(self) -> None:
        self._known = array("d")
        self._count = 0

    def add(self, weight: object, place: Callable[[], str]) -> None:
        """Take the next edge's weight, None if it has none. Raises TopologyError, with its `place`, if it is not a
        positive finite number.
        """
        if weight is not None:
            self._known.extend([math.nan] * (self._count - len(self._known)))
            self._known.append(positive(weight, place))
        self._count += 1

    def all(self, place: Callable[[int], str]) -> Weights | None:
        """Return the weights, None if no edge has one, or all are 1. Raises TopologyError if some edges have none; the
        error has the `place` of the first of these.
        """
        if not self._known:
            return None
        weights = np.array([*self._known, *[math.nan] * (self._count - len(self._known))])
        missing = np.flatnonzero(np.isnan(weights))
        if (weights[~np.isnan(weights)] == 1.0).all():
            return None
        if len(missing):
            allowed = "a weight on every edge, or on none"
            raise TopologyError("an edge without a weight", key=place(int(missing[0])), allowed=allowed)
        return weights


def positive(value: object, place: Callable[[], str]) -> float:
    """Read a weight. Raises TopologyError if it is not a positive finite number."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0.0 < number < math.inf:
        shown = value if isinstance(value, float) else str(value)[:80]
        raise TopologyError("impossible weight", key=place(), value=shown, allowed=ALLOWED)
    return number


Edge = tuple[int, int]
Ends = NDArray[np.int64]
"""Pairs of nodes, shape (edges, 2)."""
Ints = NDArray[np.int64]
NONE: Ends = np.empty((0, 2), np.int64)
NODES_LIMIT = 2_000_000
EDGES_LIMIT = 50_000_000
"""The maximum number of edges held in memory; a larger graph is described by its formulas, or not at all."""


class Topology:
    """A graph. Nodes are 0 .. nodes-1, edges are pairs (i, j) with i < j.

    `spec` names the origin of the edges; a graph made by hand may carry any text. `names` are the nodes' names in a
    file, or empty. Only `build` sets `formula`: the closed forms of exactly this graph. `weights`, shape (edges,), are
    the edges' own mixing weights in the order of `ends`; None if the degrees decide, as they do in all families.
    """

    def __init__(
        self,
        spec: str,
        nodes: int,
        edges: Ends | Iterable[Sequence[int]] | None,
        seed: int = 0,
        *,
        names: Sequence[str] = (),
        formula: Any = None,
        weights: Sequence[float] | Weights | None = None,
    ) -> None:
        """Build a graph from `edges` in any order and direction; repetitions count as one edge. None makes an implicit
        graph. `weights` has one number for each of `edges`, none of which may then be repeated.

        Raises TopologyError if there are no nodes, if there is not one name per node, if an edge is not a pair of
        existing nodes, or if weights are not positive numbers.
        """
        self.spec = spec
        self.nodes = whole_number(nodes, "nodes", 1)
        self.seed = seed
        self.names = tuple(names)
        if self.names and len(self.names) != nodes:
            allowed = f"{nodes} different ones, or none"
            raise TopologyError("not one name for each node", key="names", value=len(self.names), allowed=allowed)
        self.formula = formula
        given: Any = list(edges) if isinstance(edges, Iterable) and not isinstance(edges, np.ndarray) else edges
        self._ends = None if given is None else ordered(given)
        self.weights = None if weights is None or given is None else ordered_weights(given, weights)
        if self._ends is not None and len(self._ends) and self._ends[:, 1].max() >= nodes:
            node = int(self._ends[:, 1].max())
            raise TopologyError("unknown node", key="edges", value=node, allowed=f"from 0 to {nodes - 1}")

    @classmethod
    def from_networkx(cls, graph: NetworkxGraph) -> Self:
        """Take the nodes and edges of a `networkx.Graph`; what cannot be kept is refused, as in a file.

        Nodes that are the numbers 0 .. n-1 stay these; others are numbered in the order of the graph, and `names` has
        their names. Weights are kept, unless all are one. Raises TopologyError for directed graphs, multigraphs,
        self-loops, weights on some edges only, or that are not positive numbers, no nodes, and names that are equal as
        text.
        """
        if isinstance(graph, Topology) or not _is_of_networkx(graph):
            raise TopologyError("not a graph of networkx", key="graph", value=str(graph), allowed="a networkx.Graph")
        if graph.is_directed() or graph.is_multigraph():
            kind, way = (
                ("directed", "graph.to_undirected()") if graph.is_directed() else ("a multigraph", "nx.Graph(graph)")
            )
            raise TopologyError(f"the graph is {kind}", key="graph", allowed=f"an undirected simple graph, as {way}")
        nodes = list(graph.nodes)
        numbered = all(type(node) is int for node in nodes) and set(nodes) == set(range(len(nodes)))
        place = {node: node if numbered else number for number, node in enumerate(nodes)}
        column, joined = WeightColumn(), list(graph.edges(data="weight"))
        for left, right, weight in joined:
            if left == right:
                raise TopologyError("an edge from a node to itself", key="graph", value=left, allowed="no self-loops")
            column.add(weight, lambda: f"graph: edge {left!r} - {right!r}")  # noqa: B023 - called at once
        names = [] if numbered else [str(node) for node in nodes]
        if len(set(names)) != len(names):
            raise TopologyError("two nodes have the same name as text", key="graph", allowed="different names")
        ends = np.array([(place[left], place[right]) for left, right, _ in joined], np.int64).reshape(-1, 2)
        weights = column.all(lambda edge: "graph: edge {!r} - {!r}".format(*joined[edge][:2]))
        spec = str(getattr(graph, "name", "")) or "networkx graph"
        return cls(spec, len(nodes), ends, names=names, weights=weights)

    @property
    def implicit(self) -> bool:
        return self._ends is None

    @property
    def ends(self) -> Ends:
        """The edges as a read-only array of shape (edges, 2), each i < j, sorted, without repetition."""
        if self._ends is None:
            text = f"{self.spec} on {self.nodes} nodes has {self.edge_count} edges, more than can be held"
            raise TopologyError(text, key="nodes", value=self.nodes, allowed="fewer nodes where edges are needed")
        return self._ends

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """The edges as tuples, for graphs the size of a federation."""
        return tuple((i, j) for i, j in self.ends.tolist())

    @property
    def edge_count(self) -> int:
        return int(self.formula.edges) if self._ends is None else len(self._ends)

    @cached_property
    def degrees(self) -> NDArray[np.int64]:
        """The degree of each node. Shape (nodes,)."""
        return np.bincount(self.ends.ravel(), minlength=self.nodes)

    @cached_property
    def rows(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Neighbors in compressed rows: node i has `neighbors[starts[i] : starts[i + 1]]`, ascending."""
        # the lower neighbors of a node come first; as `ends` is sorted, both they and the higher ones are in order
        low, high = self.ends[:, 0], self.ends[:, 1]
        order = np.argsort(np.concatenate([high, low]), kind="stable")
        return np.concatenate([[0], np.cumsum(self.degrees)]), np.concatenate([low, high])[order]

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """The lowest-numbered node that each node can reach. Shape (nodes,)."""
        labels = np.arange(self.nodes)
        left, right = self.ends[:, 0], self.ends[:, 1]
        while True:
            a, b = labels[left], labels[right]
            apart = a != b
            if not apart.any():
                return labels
            # the larger root is attached below the smaller one, then every path to a root is shortened
            np.minimum.at(labels, np.maximum(a, b)[apart], np.minimum(a, b)[apart])
            while not np.array_equal(shorter := labels[labels], labels):
                labels = shorter

    def adjacency(self) -> list[list[int]]:
        """The neighbors of each node, ascending."""
        starts, neighbors = self.rows
        flat, cuts = neighbors.tolist(), starts.tolist()
        return [flat[a:b] for a, b in pairwise(cuts)]

    def __eq__(self, other: object) -> bool:
        """Two graphs are equal if they have the same nodes, edges and weights, whatever their specs."""
        if not isinstance(other, Topology):
            return NotImplemented
        if self.implicit or other.implicit:
            return (self.spec, self.nodes, self.seed) == (other.spec, other.nodes, other.seed)
        same = self.nodes == other.nodes and np.array_equal(self.ends, other.ends)
        if self.weights is None or other.weights is None:
            return same and self.weights is other.weights
        return same and np.array_equal(self.weights, other.weights)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Topology({self.spec!r}, nodes={self.nodes}, edges={self.edge_count}, seed={self.seed})"

    def to_networkx(self) -> Any:
        """The same graph as a `networkx.Graph` with integer nodes, and the weights if it has any."""
        import networkx as nx  # noqa: PLC0415 - a quarter of a second that only this caller needs

        graph = nx.Graph()
        graph.add_nodes_from(range(self.nodes))
        if self.weights is None:
            graph.add_edges_from(self.ends.tolist())
        else:
            graph.add_weighted_edges_from((*edge, w) for edge, w in zip(self.edges, self.weights.tolist(), strict=True))
        return graph

    def with_weights(self, weights: Sequence[float] | Weights | None) -> Topology:
        """Return the same graph with one weight for each of `ends`, or with none."""
        return Topology(
            self.spec, self.nodes, self.ends, self.seed, names=self.names, formula=self.formula, weights=weights
        )


def ordered(pairs: Ends | Iterable[Sequence[int]]) -> Ends:
    """Sort pairs in any order and direction as `Topology.ends` needs them. Self-loops are left out."""
    given = _whole_pairs(pairs)
    low, high = np.minimum(given[:, 0], given[:, 1]), np.maximum(given[:, 0], given[:, 1])
    if len(given) and (low.min() < 0 or high.max() >= 1 << 31):
        node = int(low.min() if low.min() < 0 else high.max())
        raise TopologyError("unknown node", key="edges", value=node, allowed="numbers of nodes, from 0")
    # both ends in one number: sorting single numbers is several times faster than sorting pairs
    both = (low << 32 | high)[low != high]
    if not (both[1:] > both[:-1]).all():
        both.sort()
        both = both[np.append(True, both[1:] != both[:-1])]
    ends = np.stack([both >> 32, both & 0xFFFFFFFF], axis=1)
    ends.setflags(write=False)
    return ends


def ordered_weights(pairs: Ends | Sequence[Sequence[int]], weights: Sequence[float] | Weights) -> Weights:
    """Return the weights of `pairs`, none of which is repeated, in the order of `ordered(pairs)`. Read-only.

    Raises TopologyError if there is not one positive finite number for each pair.
    """
    given = _whole_pairs(pairs)
    low, high = np.minimum(given[:, 0], given[:, 1]), np.maximum(given[:, 0], given[:, 1])
    values = np.array(weights, dtype=np.float64)
    if values.shape != (len(given),) or len(ordered(given)) != len(given):
        text = "not one weight for each edge"
        raise TopologyError(text, key="weights", value=len(values), allowed=f"{len(given)}, and each edge once")
    if not (np.isfinite(values) & (values > 0.0)).all():
        worst = float(values[~(np.isfinite(values) & (values > 0.0))][0])
        raise TopologyError("impossible weight", key="weights", value=worst, allowed=ALLOWED)
    values = values[np.lexsort((high, low))]
    values.setflags(write=False)
    return values


def _whole_pairs(pairs: object) -> Ends:
    """Convert pairs to an array. Numbers are not rounded: half a node is the caller's mistake."""
    listed: Any = list(pairs) if isinstance(pairs, Iterable) and not isinstance(pairs, np.ndarray) else pairs
    try:
        given = np.asarray(listed)
    except ValueError:
        # rows of different lengths
        given = np.empty(1)
    if given.shape == (0,):
        given = given.reshape(0, 2)
    if given.ndim != 2 or given.shape[1] != 2 or (len(given) and given.dtype.kind not in "iu"):
        raise TopologyError("not pairs of nodes", key="edges", value=listed, allowed="pairs (i, j) of whole numbers")
    return given.astype(np.int64, copy=False)


def whole_number(value: object, key: str, least: int | None = None) -> int:
    """Return `value`, of any integer type, as an int. Raises TopologyError if it is none, or below `least`."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        message = "impossible size" if key == "nodes" else "not a whole number"
        allowed = "a whole number" if least is None else f"a whole number from {least}"
        raise TopologyError(message, key=key, value=repr(value) if value is None else value, allowed=allowed)
    return number


def require_graph(value: object) -> Topology:
    """Return the graph, a `networkx.Graph` converted. Raises TopologyError for a spec, or anything else that is no
    graph.
    """
    if isinstance(value, Topology):
        return value
    if not _is_of_networkx(value):
        allowed = "a Topology or a networkx.Graph; build it first, such as by build('ring', 5)"
        raise TopologyError("not a graph", key="topology", value=str(value), allowed=allowed)
    return Topology.from_networkx(value)


def _is_of_networkx(value: object) -> bool:
    """True for a graph of networkx, judged by one method: a look at `edges` may build them."""
    return callable(getattr(value, "is_multigraph", None))


WALKED = 200_000
"""The most arcs that are searched without scipy, where it is there: its import takes longer."""


def hops(topology: Topology, start: int) -> NDArray[np.int64]:
    """Count the hops from `start` to each node, -1 if there is no path. Shape (nodes,)."""
    distances = np.full(topology.nodes, -1)
    if 2 * topology.edge_count > WALKED and find_spec("scipy"):
        order, ends = _levels(topology, start)
        distances[order] = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
        return distances
    (starts, neighbors), hops_to = (part.data for part in topology.rows), distances.data
    hops_to[start] = 0
    reached = [start]
    for node in reached:
        for place in range(starts[node], starts[node + 1]):
            other = neighbors[place]
            if hops_to[other] < 0:
                hops_to[other] = hops_to[node] + 1
                reached.append(other)
    return distances


def _levels(topology: Topology, start: int) -> tuple[Ints, list[int]]:
    """Return the nodes in the order of a breadth-first search, and where in it each level ends."""
    from scipy.sparse import csr_array  # noqa: PLC0415 - not needed for small graphs
    from scipy.sparse.csgraph import breadth_first_order  # noqa: PLC0415 - as above

    starts, neighbors = topology.rows
    arcs = csr_array((np.ones(len(neighbors)), neighbors, starts), shape=(topology.nodes, topology.nodes))
    order, before = breadth_first_order(arcs, start)
    place = np.empty(topology.nodes, np.int64)
    place[order] = np.arange(len(order))
    # parents come in the order of their children, so a level ends where the first child of the next node would be
    firsts = (1 + np.searchsorted(place[before[order[1:]]], np.arange(len(order) + 1))).tolist()
    ends = [1]
    while ends[-1] < len(order):
        ends.append(firsts[ends[-1]])
    return order, ends


def components(topology: Topology) -> list[list[int]]:
    """Return the connected components, each ascending, ordered by their lowest node."""
    labels = topology.labels
    order = np.argsort(labels, kind="stable")
    cuts = np.flatnonzero(np.diff(labels[order])) + 1
    return [part.tolist() for part in np.split(order, cuts)]


def component_count(topology: Topology) -> int:
    if topology.formula is not None and topology.formula.low > 0.0:
        return 1
    return int(np.count_nonzero(topology.labels == np.arange(topology.nodes)))


def require_connected(topology: Topology) -> None:
    """Require a connected graph. Raises DisconnectedError if nodes cannot reach each other, TopologyError if there is
    only one node.
    """
    if topology.nodes < 2:
        raise TopologyError("nothing to agree on", key="nodes", value=topology.nodes, allowed="from 2")
    if (parts := component_count(topology)) > 1:
        text = f"not connected, its {parts} components never agree with each other"
        raise DisconnectedError(text, key="topology", value=topology.spec, allowed="a connected graph")


def pairs(left: Ints, right: Ints | int) -> Ends:
    """Join left[k] to right[k] by edge k; a single number is repeated."""
    return np.stack(np.broadcast_arrays(left, np.asarray(right, np.int64)), axis=1)


def together(*parts: Ends) -> Ends:
    return np.concatenate([NONE, *parts])


def line(members: Ints) -> Ends:
    return pairs(members[:-1], members[1:])


def cycle(members: Ints) -> Ends:
    """Build a cycle; two members make one edge, a single member none."""
    return line(members) if len(members) < 3 else pairs(members, np.roll(members, -1))


def box(sides: Sequence[int], *, around: bool) -> Ends:
    """Build the product of paths, or of rings if it goes `around`, one per length in `sides`. The last side varies
    fastest: with two sides, node r * cols + c is in row r. A ring of two has one edge.
    """
    node = np.arange(int(np.prod(sides, dtype=np.int64)))
    parts, stride = [], 1
    for side in reversed(sides):
        place = node // stride % side
        here = node if around and side > 2 else node[place < side - 1]
        step = np.where(place[here] < side - 1, stride, stride - stride * side)
        parts.append(pairs(here, here + step))
        stride *= side
    return together(*parts)


def even(nodes: int, groups: int) -> Ints:
    """Return the starts of `groups` even blocks of consecutive nodes, the larger ones first, and the end. Shape (groups
    + 1,).
    """
    size, more = divmod(nodes, groups)
    group = np.arange(groups + 1)
    return group * size + np.minimum(group, more)


def cliques(starts: Ints) -> Ends:
    """Return all pairs within each block of nodes starts[k] .. starts[k + 1] - 1."""
    first, sizes = starts[:-1], np.diff(starts)
    parts = []
    for size in np.unique(sizes).tolist():
        i, j = all_pairs(size).T
        heads = first[sizes == size][:, None]
        parts.append(pairs((heads + i).ravel(), (heads + j).ravel()))
    return together(*parts)


def all_pairs(nodes: int) -> Ends:
    """Return all pairs in order, without the n^2 mask of `numpy.triu_indices`."""
    later = np.arange(nodes - 1, -1, -1)
    left = np.repeat(np.arange(nodes), later)
    firsts = np.cumsum(later) - later
    right = np.arange(len(left)) - np.repeat(firsts, later) + left + 1
    return pairs(left, right)
