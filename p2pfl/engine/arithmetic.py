"""The elementwise arithmetic of exchanges and rounds, in two steps: what a change leads to, then the change itself.

The first step writes to memory of its own and measures what it finds, so that a change which fails a check has touched
nothing. The second cannot fail. Both go through the vectors in tiles that stay in the cache, and a tile's operations
are those of the whole vector in the same order: the bits do not depend on the tiles. `sim.lazy.rows` does the same for
many nodes at once.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from p2pfl.engine.state import TILE, EdgeState, NodeState
from p2pfl.learn.interface import Vector


def gain(state: NodeState, edge: EdgeState) -> Vector:
    """What is shown, over the replica that the neighbor holds of it: (d,), in the scratch memory."""
    state.scratch.fit(state.model)
    return np.subtract(state.shown, edge.own, out=state.scratch.move)


def lead(state: NodeState, edge: EdgeState, factor: float) -> tuple[float, float]:
    """From the decoded payloads to both replicas and D = k (h_j - h_i), all in scratch; the model will move by D/n.

    D has the same bits at both ends up to its sign.

    Returns the norms of the neighbor's replica and of the model after the move.
    """
    scratch, model = state.scratch, state.model
    rate, samples = model.dtype.type(factor), model.dtype.type(state.samples)
    decoded_peer, decoded_own = scratch.decoded_peer, scratch.decoded_own
    replica_square = model_square = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for part in _parts(model.size):
            peer = np.add(edge.peer[part], decoded_peer[part], out=scratch.peer[part])
            own = np.add(edge.own[part], decoded_own[part], out=scratch.own[part])
            replica_square += _square(peer)
            if factor == 0.0:
                continue
            move = np.subtract(peer, own, out=scratch.move[part])
            move *= rate
            after = np.divide(move, samples, out=scratch.tile[: move.size])
            model_square += _square(np.add(model[part], after, out=after))
    return float(np.sqrt(replica_square)), float(np.sqrt(model_square))


def settle(state: NodeState, edge: EdgeState, factor: float, scale: float) -> None:
    """Carry out what `lead` found: x += D/n, and the edge's flow S += scale D. Where k = 0 nothing moves, not even
    -0 to 0.
    """
    scratch = state.scratch
    edge.peer, scratch.peer = scratch.peer, edge.peer
    edge.own, scratch.own = scratch.own, edge.own
    if factor == 0.0:
        return
    model, samples, rate = state.model, state.model.dtype.type(state.samples), state.model.dtype.type(scale)
    flow = edge.flow
    if flow is None and scale:
        flow = edge.flow = np.zeros(model.shape, model.dtype)
    for part in _parts(model.size):
        move = scratch.move[part]
        model[part] += np.divide(move, samples, out=scratch.tile[: move.size])
        if flow is not None and scale:
            flow[part] += np.multiply(move, rate, out=scratch.tile[: move.size])


def correction(state: NodeState, beta: float) -> Vector:
    """The control variate C = -(beta/n) sum_j S_ij, a new vector (d,): what has flowed, taken back from each gradient.

    Computed from the edges, in the order of the neighbors, whenever it is needed: so sum_i n_i C_i is zero as soon as
    the two ends of each edge hold opposite flows, whatever else a node has lost.
    """
    total = np.zeros(state.model.shape, state.model.dtype)
    for peer in sorted(state.edges):
        flow = state.edges[peer].flow
        if flow is not None:
            total += flow
    total *= total.dtype.type(-beta / state.samples)
    return total


def learned(state: NodeState, start: Vector, end: Vector, rho: float) -> tuple[Vector, float]:
    """What is to be added, rho (end - start), written over `start` (d,), and the norm of the model with it added."""
    if not start.shape == end.shape == state.model.shape:
        raise ValueError(f"a round from {start.shape} to {end.shape} where the model has {state.model.shape}")
    tile, square = np.empty(min(TILE, start.size), start.dtype), 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for part in _parts(start.size):
            delta = np.subtract(end[part], start[part], out=start[part])
            delta *= start.dtype.type(rho)
            square += _square(np.add(state.model[part], delta, out=tile[: delta.size]))
    return start, float(np.sqrt(square))


def distance(one: Vector, other: Vector) -> float:
    """Euclidean."""
    tile, square = np.empty(min(TILE, one.size), one.dtype), 0.0
    for part in _parts(one.size):
        square += _square(np.subtract(one[part], other[part], out=tile[: other[part].size]))
    return float(np.sqrt(square))


def median(vectors: list[Vector]) -> Vector:
    """Coordinate by coordinate: (d,), in the type of the first."""
    out = np.empty_like(vectors[0])
    for part in _parts(out.size):
        out[part] = np.median([vector[part] for vector in vectors], axis=0)
    return out


def norm(vector: Vector) -> float:
    """Infinite or NaN only if the vector is not finite: a sum of squares in float32 overflows long before."""
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.sqrt(sum(_square(vector[part]) for part in _parts(vector.size))))


def _square(tile: Vector) -> float:
    """|tile|^2, in the tile's own type where that does."""
    square = float(np.dot(tile, tile))
    if np.isfinite(square):
        return square
    wide: NDArray[np.float64] = tile.astype(np.float64)
    return float(np.dot(wide, wide))


def _parts(size: int) -> Iterator[slice]:
    return (slice(first, min(first + TILE, size)) for first in range(0, size, TILE))
