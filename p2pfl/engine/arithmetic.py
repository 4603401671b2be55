"""The elementwise arithmetic of exchanges and rounds, in two steps: compute a change, then carry it out.

The first step writes to its own memory and measures the result, so that a change which fails a check has changed
nothing. The second step cannot fail. Both go through the vectors in tiles that stay in the cache. The operations on a
tile are those on the whole vector, in the same order, so the bits do not depend on the tiles. `sim.lazy.rows` does the
same for many nodes at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from p2pfl.engine.state import TILE, EdgeState, NodeState, zeros
from p2pfl.errors import PeerFault
from p2pfl.learn.interface import Vector
from p2pfl.learn.methods import Method, New, Round
from p2pfl.methods.method import MODEL

LEAST_MOVE = 0.1
SAMPLED = 4096
"""The least number of coordinates that `has_moved` compares, if there are so many."""


def gain(shown: Vector, state: NodeState, edge: EdgeState) -> Vector:
    """Return the difference of `shown` (c d,) and the replica that the neighbor holds, in the scratch memory."""
    state.scratch.fit(state.channels)
    return np.subtract(shown, edge.own, out=state.scratch.move)


def lead(state: NodeState, edge: EdgeState, factor: float) -> tuple[float, float]:
    """Compute both replicas and D = k (h_j - h_i) from the decoded payloads, all in scratch; channels will move by D/n.

    D has the same bits at both ends up to its sign. Returns the norms of the neighbor's replica and of the channels
    after the move.
    """
    scratch, model = state.scratch, state.channels
    rate, samples = model.dtype.type(factor), model.dtype.type(state.samples)
    decoded_peer, decoded_own = scratch.decoded_peer, scratch.decoded_own
    replica_square = model_square = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for part in _tiles(model.size):
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


def settle(state: NodeState, edge: EdgeState, factor: float, terms: tuple[float, ...], method: Method) -> None:
    """Carry out what `lead` computed, and the method's part at the edge.

    With k = 0 nothing changes, not even -0 to 0.
    """
    scratch = state.scratch
    edge.peer, scratch.peer = scratch.peer, edge.peer
    edge.own, scratch.own = scratch.own, edge.own
    if factor == 0.0:
        return
    channels, samples = state.channels, state.channels.dtype.type(state.samples)
    keeping = method.moves(terms)
    if keeping:
        for name in method.kept_edges:
            edge.kept.setdefault(name, zeros(channels))
    for part in _tiles(channels.size):
        move = scratch.move[part]
        channels[part] += np.divide(move, samples, out=scratch.tile[: move.size])
        if keeping:
            kept = {name: vector[part] for name, vector in edge.kept.items()}
            for name, new in method.moved(kept, move, terms).items():
                kept[name][:] = new


def check_moved(state: NodeState, edge: EdgeState, factor: float, terms: tuple[float, ...], method: Method) -> None:
    """Check that the vectors that the method will keep of the edge after `settle` can be computed and are finite.

    A user's method may make anything of a neighbor's terms. Raises PeerFault: a vector is not finite.
    """
    if factor == 0.0 or not method.moves(terms):
        return
    none = zeros(state.channels)
    for part in _tiles(state.channels.size):
        kept = {name: edge.kept.get(name, none)[part] for name in method.kept_edges}
        with np.errstate(all="ignore"):
            moved = method.moved(kept, state.scratch.move[part], terms)
        if not all(np.isfinite(vector).all() for vector in moved.values()):
            raise PeerFault("the exchange would leave something on the edge that is not finite")


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """The view of a node that its learning method gets: see `NodeVectors`."""

    samples: int
    channels: dict[str, Vector]
    kept: dict[str, Vector]
    edges: dict[int, EdgeState]
    places: dict[str, slice]
    given: dict[str, Vector] = field(default_factory=dict)
    where: slice = field(default_factory=lambda: slice(None))

    @classmethod
    def of(
        cls, state: NodeState, method: Method, given: Mapping[str, Vector] | None = None, away: Collection[int] = ()
    ) -> NodeSeen:
        """Return the view of a state.

        A vector that the method has not kept yet is its `first`; one that was not `given` is zero. Edges to members
        that are `away` are left out.
        """
        size = state.model.size
        places = {name: slice(number * size, (number + 1) * size) for number, name in enumerate(method.channels)}
        channels = {name: state.channels[place] for name, place in places.items()}
        kept = {
            name: state.kept[name] if name in state.kept else method.first(name, state.model) for name in method.kept
        }
        nothing = np.broadcast_to(np.zeros((), state.model.dtype), state.model.shape)
        got = {name: (given or {}).get(name, nothing) for name in method.given}
        edges = {peer: edge for peer, edge in state.edges.items() if peer not in away}
        return cls(state.samples, channels, kept, edges, places, got)

    def part(self, part: slice) -> NodeSeen:
        """Return the view of the same part of each vector."""
        channels = {name: vector[part] for name, vector in self.channels.items()}
        kept = {name: vector[part] for name, vector in self.kept.items()}
        given = {name: vector[part] for name, vector in self.given.items()}
        return replace(self, channels=channels, kept=kept, given=given, where=part)

    def sum_of_edges(self, name: str, channel: str = MODEL) -> Vector:
        """Return the sum of a kept vector over the edges, in its own memory, added in the order of the neighbors."""
        place, total = self.places[channel], np.zeros_like(self.channels[channel])
        for peer in sorted(self.edges):
            kept = self.edges[peer].kept.get(name)
            if kept is not None:
                total += kept[place][self.where]
        return total


def round_change(  # noqa: PLR0917 - the state, the round's two models, then what was made of it
    state: NodeState,
    start: Vector,
    end: Vector,
    method: Method,
    about: Round,
    given: Mapping[str, Vector] | None = None,
) -> tuple[New, float]:
    """Compute what a local round from `start` to `end` (d,) adds to each channel, and what the method keeps.

    Returns both, and the norm of all results, which is not finite if any of them is not. The memory of `start` is
    overwritten. `given` holds the vectors (d,) that the method gave to the round.
    """
    if not start.shape == end.shape == state.model.shape:
        raise ValueError(f"a round from {start.shape} to {end.shape} where the model has {state.model.shape}")
    seen = NodeSeen.of(state, method, given)
    change = {name: start if name == MODEL else np.zeros_like(start) for name in method.channels}
    kept = {name: np.zeros_like(start) for name in method.kept}
    tile, square = np.empty(min(TILE, start.size), start.dtype), 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for part in _tiles(start.size):
            moved, here = np.subtract(end[part], start[part], out=tile[: end[part].size]), seen.part(part)
            new = method.trained(moved, here, about)
            if not (new.change.keys() <= change.keys() and new.kept.keys() <= kept.keys()):
                raise ValueError(f"it returns {[*new.change, *new.kept]}, and declares {[*change, *kept]}")
            for name, added in change.items():
                added[part] = new.change.get(name, 0.0)
            for name, vector in kept.items():
                vector[part] = new.kept.get(name, here.kept[name])
                square += _square(vector[part])
            for name, added in change.items():
                square += _square(np.add(here.channels[name], added[part], out=moved))
    return New(change, kept), float(np.sqrt(square))


def distance(vector: Vector, other: Vector) -> float:
    """Return the Euclidean distance of two vectors."""
    tile, square = np.empty(min(TILE, vector.size), vector.dtype), 0.0
    for part in _tiles(vector.size):
        square += _square(np.subtract(vector[part], other[part], out=tile[: other[part].size]))
    return float(np.sqrt(square))


def neighbor_distance(state: NodeState, peers: Iterable[int]) -> float | None:
    """Return the root mean square distance from this node's model to the replicas of these neighbors, over its norm."""
    edges = (state.edges.get(peer) for peer in peers)
    known = [edge.peer for edge in edges if edge is not None and edge.record.heard is not None]
    if not known:
        return None
    model = state.model
    square = np.mean([distance(model, peer[: model.size]) ** 2 for peer in known])
    return float(np.sqrt(square)) / max(norm(model), 1e-12)


def median(vectors: list[Vector]) -> Vector:
    """Return the coordinate median: (d,), in the type of the first vector."""
    out = np.empty_like(vectors[0])
    for part in _tiles(out.size):
        out[part] = np.median([vector[part] for vector in vectors], axis=0)
    return out


def has_moved(own: Vector, others: Sequence[Vector], mixed: Vector) -> bool:
    """Return True if a mix moved a model (d,) by more than LEAST_MOVE of one neighbor's pull in an even mean.

    That neighbor is at the median distance, which fewer than half of the neighbors cannot choose. All vectors are (d,),
    compared on evenly spaced coordinates. Also True if that neighbor has the same model.
    """
    some = slice(None, None, max(1, own.size // SAMPLED))
    here = own[some].astype(np.float64)
    far = sorted(norm(other[some] - here) for other in others)[(len(others) - 1) // 2]
    return far == 0 or norm(mixed[some] - here) > LEAST_MOVE * far / (len(others) + 1)


def norm(vector: Vector) -> float:
    """Return the Euclidean norm.

    It is infinite or NaN only if the vector is not finite, although squares in float32 could overflow.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.sqrt(sum(_square(vector[part]) for part in _tiles(vector.size))))


def _square(tile: Vector) -> float:
    """Return |tile|^2, in the tile's own type if that does not overflow."""
    square = float(np.dot(tile, tile))
    if np.isfinite(square):
        return square
    wide: NDArray[np.float64] = tile.astype(np.float64)
    return float(np.dot(wide, wide))


def _tiles(size: int) -> Iterator[slice]:
    return (slice(first, min(first + TILE, size)) for first in range(0, size, TILE))
