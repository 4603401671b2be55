"""The elementwise arithmetic of exchanges and rounds, in two steps: compute a change, then apply it.

The first step measures the result, so that a change that fails a check leaves no trace. The second step cannot fail.
Both process the vectors in tiles that fit in the cache. The operations on a tile are the
same as on the whole vector, in the same order, so the bits do not depend on the tiling.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from p2pfl.engine.state import TILE, Bodies, EdgeState, NodeState, tiles, zeros
from p2pfl.errors import PeerFault
from p2pfl.learn.interface import Vector
from p2pfl.methods import MODEL, Method, New, Round

LEAST_MOVE = 0.1
SAMPLED = 4096
"""The minimum number of coordinates that `has_moved` compares, if there are that many."""


def lead(state: NodeState, edge: EdgeState, factor: float, bodies: Bodies) -> tuple[float, float]:
    """Compute both replicas from the decoded payloads, and what becomes of the channels, which will move by D/n with
    D = k (h_j - h_i), a tile at a time; nothing is kept.

    Without replicas, h_j and h_i are the payloads themselves, and only their slices move. D has the same bits at both
    ends up to its sign. Returns the norms of the neighbor's replica and of the channels after the move, or of these
    slices of them. Raises PeerFault: a payload holds what no encoder sends.
    """
    model, bare, spare = state.channels, bodies.fragment is not None, bodies.scratch.spare
    rate, samples = model.dtype.type(factor), model.dtype.type(state.samples)
    replica_square = model_square = gap_square = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for part, here in bodies.tiles():
            peer, own = bodies.after(edge, part, here)
            replica_square += _square(peer)
            if factor == 0.0 and not bare:
                continue
            if bare and part.start < state.model.size:
                gap_square += _square(np.subtract(peer, own, out=spare[: own.size]))
            move = bodies.move(peer, own, rate)
            after = np.divide(move, samples, out=spare[: move.size])
            model_square += _square(np.add(model[part], after, out=after))
    bodies.gap = gap_square
    return float(np.sqrt(replica_square)), float(np.sqrt(model_square))


def settle(  # noqa: PLR0917 - the exchange, then the method and the payloads
    state: NodeState, edge: EdgeState, factor: float, terms: tuple[float, ...], method: Method, bodies: Bodies
) -> None:
    """Apply what `lead` has computed and checked, and the method's part at the edge.

    With k = 0 the channels do not change, not even -0 to 0.
    """
    if bodies.fragment is not None:
        first = bodies.slices[0]
        edge.gaps[bodies.fragment] = bodies.gap, first.stop - first.start
        if factor == 0.0:
            return
    channels, samples, spare = state.channels, state.channels.dtype.type(state.samples), bodies.scratch.spare
    rate, keeping = channels.dtype.type(factor), factor != 0.0 and method.moves(terms)
    if keeping:
        edge.keep(method.kept_edges, channels)
    for part, here in reversed(list(bodies.tiles())):  # the last ones that `lead` has read are still in the cache
        peer, own = bodies.after(edge, part, here, for_good=True)
        if factor == 0.0:
            continue
        move = bodies.move(peer, own, rate)
        channels[part] += np.divide(move, samples, out=spare[: move.size])
        if keeping:
            kept = {name: vector[part] for name, vector in edge.kept.items()}
            for name, new in method.moved(kept, move, terms).items():
                kept[name][:] = new


def check_moved(  # noqa: PLR0917 - the exchange, then the method and the payloads
    state: NodeState, edge: EdgeState, factor: float, terms: tuple[float, ...], method: Method, bodies: Bodies
) -> None:
    """Check that the vectors the method will keep for the edge after `settle` can be computed and are finite.

    A user's method may do anything with a neighbor's terms. Raises PeerFault if a vector is not finite.
    """
    if factor == 0.0 or not method.moves(terms):
        return
    none, rate = zeros(state.channels), state.channels.dtype.type(factor)
    for part, here in bodies.tiles():
        kept = {name: edge.kept.get(name, none)[part] for name in method.kept_edges}
        peer, own = bodies.after(edge, part, here)
        with np.errstate(all="ignore"):
            moved = method.moved(kept, bodies.move(peer, own, rate), terms)
        if not all(np.isfinite(vector).all() for vector in moved.values()):
            raise PeerFault("the exchange would leave a value on the edge that is not finite")


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """What a learning method sees of its node: see `NodeVectors`."""

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

        A vector that the method has not stored yet equals its `first`; one that was not `given` is zero. Edges to
        members that are `away` are left out.
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
        """Return a view of this part of each vector."""
        channels = {name: vector[part] for name, vector in self.channels.items()}
        kept = {name: vector[part] for name, vector in self.kept.items()}
        given = {name: vector[part] for name, vector in self.given.items()}
        return replace(self, channels=channels, kept=kept, given=given, where=part)

    def sum_of_edges(self, name: str, channel: str = MODEL) -> Vector:
        """Return the sum of a stored vector over the edges, added in neighbor order, in its own memory."""
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

    Returns both, and the norm of all results, which is not finite if any result is not. The memory of `start` is
    overwritten. `given` holds the vectors (d,) that the method gave to the round.
    """
    if not start.shape == end.shape == state.model.shape:
        raise ValueError(f"a round from {start.shape} to {end.shape} where the model has {state.model.shape}")
    seen = NodeSeen.of(state, method, given)
    change = {name: start if name == MODEL else np.zeros_like(start) for name in method.channels}
    kept = {name: np.zeros_like(start) for name in method.kept}
    tile, square = np.empty(min(TILE, start.size), start.dtype), 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for part in tiles(start.size):
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
    """Return the Euclidean distance between two vectors."""
    tile, square = np.empty(min(TILE, vector.size), vector.dtype), 0.0
    for part in tiles(vector.size):
        square += _square(np.subtract(vector[part], other[part], out=tile[: other[part].size]))
    return float(np.sqrt(square))


def neighbor_distance(state: NodeState, peers: Iterable[int]) -> float | None:
    """Return the root mean square distance from this node's model to these neighbors' replicas, relative to its
    norm.

    Where an edge has no replicas, it is the distance of both models in each fragment when that was last exchanged,
    as the messages had it: older, and with the noise of rounding.
    """
    edges = (state.edges.get(peer) for peer in peers)
    known = [edge for edge in edges if edge is not None and edge.record.heard is not None]
    squares = [square for edge in known if (square := _squared_distance(state.model, edge)) is not None]
    if not squares:
        return None
    return float(np.sqrt(np.mean(squares))) / max(norm(state.model), 1e-12)


def _squared_distance(model: Vector, edge: EdgeState) -> float | None:
    """Return the square of the distance to the neighbor's model (d,); None if nothing of it has been seen."""
    if edge.has_replicas:
        return distance(model, edge.peer[: model.size]) ** 2
    gaps = list(edge.gaps.values())
    values = sum(size for _, size in gaps)
    return sum(square for square, _ in gaps) * model.size / values if values else None


def median(vectors: list[Vector]) -> Vector:
    """Return the coordinate median (d,), in the dtype of the first vector."""
    out = np.empty_like(vectors[0])
    for part in tiles(out.size):
        out[part] = np.median([vector[part] for vector in vectors], axis=0)
    return out


def has_moved(own: Vector, others: Sequence[Vector], mixed: Vector) -> bool:
    """Return True if a mix moved a model (d,) by more than LEAST_MOVE of one neighbor's pull in an even mean.

    That neighbor is at the median distance, which fewer than half of the neighbors cannot choose. All vectors are (d,),
    compared on evenly spaced coordinates. The result is also True if that neighbor has the same model.
    """
    some = slice(None, None, max(1, own.size // SAMPLED))
    here = own[some].astype(np.float64)
    far = sorted(norm(other[some] - here) for other in others)[(len(others) - 1) // 2]
    return far == 0 or norm(mixed[some] - here) > LEAST_MOVE * far / (len(others) + 1)


def norm(vector: Vector) -> float:
    """Return the Euclidean norm.

    It is infinite or NaN only if the vector is not finite, even where squares would overflow float32.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.sqrt(sum(_square(vector[part]) for part in tiles(vector.size))))


def _square(tile: Vector) -> float:
    """Return |tile|^2, in the tile's own dtype unless that overflows."""
    square = float(np.dot(tile, tile))
    if np.isfinite(square):
        return square
    wide: NDArray[np.float64] = tile.astype(np.float64)
    return float(np.dot(wide, wide))
