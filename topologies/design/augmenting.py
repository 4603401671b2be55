"""Add edges to a graph, one at a time, each where it raises the algebraic connectivity most; and, if asked, exchange
them for edges with which fewer rounds are needed (`fewer_rounds`).

An edge (i, j) adds b b^T to the Laplacian, b = e_i - e_j. Ghosh and Boyd (Growing Well-connected Graphs, CDC 2006)
choose the edge by its first-order gain, the squared length of b within the eigenspace of lambda_2, which is (v_i -
v_j)^2 for a single Fiedler vector v. The gain is an upper bound too, and the eigenvalue that the edge actually gives is
the root of an equation in one unknown (Golub, Some Modified Matrix Eigenvalue Problems, 1973): so candidates are
evaluated exactly, the most promising first, until no other can be better.

If lambda_2 is m-fold, one edge lifts one of its m eigenvalues but not lambda_2 itself. The edge chosen is the one that
lifts that eigenvalue highest, so that after m edges all are lifted. A disconnected graph is the same case with lambda_2
= 0: its components are joined first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from topologies.chance import generator
from topologies.design.fewer_rounds import LIMIT, WORK, best_for_rounds
from topologies.eigen.extremes import DENSE_LIMIT, EFFORT_LIMIT, Tell, effort, silent
from topologies.errors import TopologyError
from topologies.graph import Edge, Ends, Topology, component_count
from topologies.laplacian import Array, Laplacian
from topologies.spectral import (
    BY_DEGREE,
    EPSILON,
    check_weights,
    fiedler_vector,
    plain_extremes,
    rounds_to_consensus,
    spectrum,
)
from topologies.timing.latencies import Latencies
from topologies.timing.pace import timing

BLOCK = 256
"""The number of candidates whose equations are solved together."""
SAME = 1e-9
"""The relative difference below which eigenvalues count as equal, or edges as equally good."""
BISECTIONS = 60
EXTREME = 64
"""The number of nodes considered at either end of the Fiedler vector, on graphs too large for all eigenvectors."""
LOOKS = 10
"""The cost of each added edge, including its description, in eigenvalue problems like that of lambda_2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AugmentStep:
    """The state after `edge` was added; before the first, `edge` is None. `method` says how the edge was chosen.

    `seconds` to consensus are None where nothing says how far nodes are, or if it is never reached.
    """

    edge: Edge | None
    components: int
    algebraic_connectivity: float
    mixing_rate: float
    rounds: int | None
    method: str
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Augmented:
    topology: Topology
    steps: tuple[AugmentStep, ...]


def augment(
    topology: Topology,
    count: int,
    max_degree: int | None = None,
    *,
    weights: str = "metropolis",
    epsilon: float = EPSILON,
    minimize: str | None = None,
    distances: Latencies | None = None,
    train_s: float = 0.0,
    tell: Tell = silent,
) -> Augmented:
    """Add `count` edges, none at a node that has `max_degree` neighbors. `steps` has `count` + 1 entries. `tell`
    receives progress messages.

    Up to 1,000 nodes each edge is the best single one; above that it is the best to first order between the extreme
    nodes of the Fiedler vector. With `minimize="rounds"` these edges are then exchanged for ones with which the mixing
    rate under `weights` is lower, up to 500 nodes. Raises TopologyError if there is no place for these edges, if
    finding them would take too long, or if a disconnected graph cannot be joined within the degree. With `distances`
    each step tells the time to consensus where a round trains `train_s` seconds.
    """
    check_weights(weights, BY_DEGREE)
    if count < 1:
        raise TopologyError("nothing to add", key="add", value=count, allowed="from 1")
    if max_degree is not None and max_degree < 1:
        raise TopologyError("impossible value", key="max-degree", value=max_degree, allowed="from 1")
    if topology.implicit:
        _ = topology.ends  # raises
    _check_minimize(topology, minimize)
    _check_count(topology, count)
    added: dict[Edge, str] = {}
    grown = topology
    for done in range(count):
        tell(f"added {done} of {count} edges")
        edge, added[edge] = best_edge(grown, max_degree, done)
        grown = with_edge(grown, edge)
    if minimize is not None:
        added = _exchange(topology, added, max_degree, weights, tell)
    grown = topology
    steps = [_step(topology, None, "as given", weights, epsilon)]
    for edge, method in added.items():
        topology = with_edge(topology, edge)
        steps.append(_step(topology, edge, method, weights, epsilon))
    if distances is not None:
        for place, step in enumerate(steps):
            grown = grown if step.edge is None else with_edge(grown, step.edge)
            found = timing(grown, distances, weights=weights, epsilon=epsilon, train_s=train_s)
            steps[place] = replace(step, seconds=found["consensus_s"])
    topology.spec = f"{topology.spec} and {count} more"
    return Augmented(topology=topology, steps=tuple(steps))


SWEEPS = 3


def _exchange(
    topology: Topology, added: dict[Edge, str], max_degree: int | None, weights: str, tell: Tell
) -> dict[Edge, str]:
    """Replace edges that were added, each in turn by the one that leaves the lowest mixing rate, while that helps.

    Adding one such edge after the other would be worse: where lambda_2 is a multiple eigenvalue no single edge lowers
    the rate much, and the least bad one prepares nothing.
    """
    for sweep in range(SWEEPS):
        before = dict(added)
        for place, edge in enumerate(before):
            tell(f"exchanged {place} of {len(before)} edges, turn {sweep + 1} of at most {SWEEPS}")
            rest = topology
            for other in added:
                rest = rest if other == edge else with_edge(rest, other)
            if component_count(rest) > 1:
                continue
            pairs = _places(rest, max_degree, 0)
            best, method = best_for_rounds(rest, pairs, weights, edge, WORK // len(added))
            fresh: Edge = (int(pairs[best, 0]), int(pairs[best, 1]))
            if fresh != edge:
                added = {fresh if other == edge else other: how for other, how in added.items()} | {fresh: method}
        if added == before:
            break
    return added


def _check_minimize(topology: Topology, minimize: str | None) -> None:
    if minimize not in {None, "rounds"}:
        allowed = "rounds; without it lambda_2 is maximized"
        raise TopologyError("unknown criterion", key="minimize", value=minimize, allowed=allowed)
    if minimize is not None and topology.nodes > LIMIT:
        text = "too large to look for the fewest rounds"
        raise TopologyError(text, key="nodes", value=topology.nodes, allowed=f"up to {LIMIT}, or without --minimize")


def _check_count(topology: Topology, count: int) -> None:
    n, edges = topology.nodes, topology.edge_count
    if count > (room := n * (n - 1) // 2 - edges):
        text = "more than there are pairs of nodes that are not joined"
        raise TopologyError(text, key="add", value=count, allowed=f"up to {room}")
    exact = n**3 // 60 if n <= DENSE_LIMIT else 0  # if all pairs promise the same, as in a ring, each is evaluated
    most = EFFORT_LIMIT // (LOOKS * effort(n, edges) + exact)
    if most < 1:
        text = f"too large to add edges to: {n} nodes and {edges} edges"
        raise TopologyError(text, key="nodes", value=n, allowed="a smaller graph")
    if count > most:
        text = f"would take too long on {n} nodes and {edges} edges"
        raise TopologyError(text, key="add", value=count, allowed=f"up to {most} on a graph of this size")


def with_edge(topology: Topology, edge: Edge) -> Topology:
    ends = np.concatenate([topology.ends, [edge]])
    return Topology(topology.spec, topology.nodes, ends, topology.seed, names=topology.names)


def _step(topology: Topology, edge: Edge | None, method: str, weights: str, epsilon: float) -> AugmentStep:
    found = spectrum(topology, weights)
    return AugmentStep(
        edge=edge,
        components=component_count(topology),
        algebraic_connectivity=found.algebraic_connectivity,
        mixing_rate=found.mixing_rate,
        rounds=rounds_to_consensus(found.mixing_rate, epsilon) if topology.nodes > 1 else 0,
        method=method,
    )


def best_edge(topology: Topology, max_degree: int | None = None, done: int = 0) -> tuple[Edge, str]:
    """Return the best edge, the first on ties, and how it was found. Raises TopologyError if no edge has room."""
    apart = component_count(topology) > 1
    if topology.nodes > DENSE_LIMIT and not apart:
        return _by_extremes(topology, max_degree, done), "first order"
    if topology.nodes > DENSE_LIMIT:
        text = "too large to join its components"
        raise TopologyError(text, key="nodes", value=topology.nodes, allowed=f"up to {DENSE_LIMIT}, or connected")
    pairs = _places(topology, max_degree, done)
    values, vectors = np.linalg.eigh(Laplacian.plain(topology).dense())
    first, width = _space(values, topology.nodes - 1, component_count(topology))
    gains = _gains(vectors[:, first : first + width], pairs)
    order = np.argsort(-np.round(gains / max(gains.max(), 1e-300), 9), kind="stable")
    if apart and gains.max() < SAME:
        raise TopologyError(
            "no two components can be joined", key="max-degree", value=max_degree, allowed="a larger one"
        )
    best = _exact(values, vectors, (first, width), pairs[order], gains[order])
    i, j = pairs[order[best]].tolist()
    how = "joins two components" if apart else "exact" if width == 1 else f"exact, one of {width} equal eigenvalues"
    return (i, j), how


def _space(values: Array, last: int, parts: int) -> tuple[int, int]:
    """Return the position of the first eigenvalue equal to lambda_2, and how many there are. With several components
    all are 0.
    """
    if parts > 1:
        return 0, parts
    width = int(np.count_nonzero(values[1:] <= values[1] + SAME * max(1.0, values[last])))
    return 1, width


def _gains(basis: Array, pairs: Ends) -> Array:
    """Return the squared norm of b within the eigenspace. `basis` has shape (n, width), the result (pairs,)."""
    gains = np.zeros(len(pairs))
    for vector in basis.T:
        gains += (vector[pairs[:, 0]] - vector[pairs[:, 1]]) ** 2
    return gains


def _places(topology: Topology, max_degree: int | None, done: int) -> Ends:
    """Return all pairs that may be joined, ascending."""
    free = np.ones((topology.nodes, topology.nodes), dtype=bool)
    free[topology.ends[:, 0], topology.ends[:, 1]] = False
    if max_degree is not None:
        full = topology.degrees >= max_degree
        free[full] = False
        free[:, full] = False
    pairs = np.argwhere(np.triu(free, 1))
    if not len(pairs):
        raise _no_room(topology, max_degree, done)
    return pairs


def _no_room(topology: Topology, max_degree: int | None, done: int) -> TopologyError:
    n = topology.nodes
    if topology.edge_count == n * (n - 1) // 2:
        return TopologyError("every pair of nodes is joined", key="add", value=done + 1, allowed=f"up to {done}")
    text = "no two nodes that are not joined have room for another neighbor"
    return TopologyError(text, key="max-degree", value=max_degree, allowed=f"a larger one, or add up to {done}")


def _exact(values: Array, vectors: Array, space: tuple[int, int], pairs: Ends, gains: Array) -> int:
    """Find the edge that lifts an eigenvalue highest, as a position in `pairs`, which are in order of decreasing
    `gains`.
    """
    low = float(values[space[0]])
    best, place = -1.0, 0
    for begin in range(0, len(pairs), BLOCK):
        if begin and low + float(gains[begin]) <= best * (1.0 + SAME):
            break  # the gain is an upper bound
        block = slice(begin, begin + BLOCK)
        lifted = _lifts(values, vectors, space, pairs[block], gains[block])
        found = int(np.argmax(lifted >= lifted.max() * (1.0 - SAME)))
        if lifted[found] > best * (1.0 + SAME):
            best, place = float(lifted[found]), begin + found
    return place


def _lifts(values: Array, vectors: Array, space: tuple[int, int], pairs: Ends, gains: Array) -> Array:
    """Compute the value to which each edge lifts one eigenvalue of the space. Shape (pairs,).

    It is the root x between low and the next eigenvalue of 1 = sum over k of (b . v_k)^2 / (x - values_k), whose right
    side falls from infinity; if that is still above 1 at the next eigenvalue, the result is that eigenvalue.
    """
    start, width = space
    low = float(values[start])
    above = values[start + width :]
    parts = (vectors[pairs[:, 0], start + width :] - vectors[pairs[:, 1], start + width :]) ** 2
    bottom = np.full(len(pairs), low)
    top = low + gains
    if len(above):
        top = np.minimum(top, above[0])
    for _ in range(BISECTIONS):
        middle = (bottom + top) / 2.0
        with np.errstate(divide="ignore", invalid="ignore"):
            total = gains / (middle - low) + (parts / (middle[:, None] - above)).sum(axis=1)
        right = total > 1.0
        bottom, top = np.where(right, middle, bottom), np.where(right, top, middle)
    return np.asarray((bottom + top) / 2.0)


def _by_extremes(topology: Topology, max_degree: int | None, done: int) -> Edge:
    """Find the largest (v_i - v_j)^2 among pairs of extreme nodes that are not joined."""
    vector = fiedler_vector(topology)
    order = np.argsort(vector, kind="stable")
    if max_degree is not None:
        order = order[topology.degrees[order] < max_degree]
    joined = set(map(tuple, topology.ends[np.isin(topology.ends, order).all(axis=1)].tolist()))
    pairs = sorted((_pair(i, j) for i, j in _ends_of(order)), key=lambda p: (-((vector[p[0]] - vector[p[1]]) ** 2), p))
    for pair in pairs:
        if pair not in joined:
            return pair
    raise _no_room(topology, max_degree, done)


def _ends_of(order: NDArray[np.int64]) -> Iterator[Edge]:
    below, above = order[:EXTREME].tolist(), order[-EXTREME:].tolist()
    return ((i, j) for i in below for j in above if i != j)


def _pair(i: int, j: int) -> Edge:
    return (i, j) if i < j else (j, i)


def by_chance(topology: Topology, count: int, max_degree: int | None, seed: int, draws: int) -> float:
    """Return the mean algebraic connectivity over `draws` with `count` random edges added, or as many as there is room
    for.
    """
    rng = generator(seed, 0xED6E)
    return float(np.mean([_one_draw(topology, count, max_degree, rng) for _ in range(draws)]))


def _one_draw(topology: Topology, count: int, max_degree: int | None, rng: np.random.Generator) -> float:
    n = topology.nodes
    joined = set(map(tuple, topology.ends.tolist()))
    room = np.full(n, n) if max_degree is None else max_degree - topology.degrees
    fresh: list[Edge] = []
    for _ in range(1_000 * count):
        if len(fresh) == count:
            break
        i, j = sorted(rng.integers(0, n, size=2).tolist())
        if i != j and (i, j) not in joined and min(room[i], room[j]) > 0:
            fresh.append((i, j))
            joined.add((i, j))
            room[[i, j]] -= 1
    ends = np.concatenate([topology.ends, np.array(fresh, dtype=np.int64).reshape(-1, 2)])
    return plain_extremes(Topology(topology.spec, n, ends)).low
