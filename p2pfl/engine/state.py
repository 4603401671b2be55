"""The part of a node's state that must survive: channels, the method's vectors, and the replicas of every edge; and
what an exchange does to it.

Only one thread at a time writes to it (the engine's). `engine` changes the state; `changes` turns it into bytes.

The arithmetic of an exchange has two steps. `lead` computes what changes and measures it, so that a change that fails a
check leaves no trace; `settle_vectors` applies it, and cannot fail. Both process the vectors in tiles that fit in the
cache, as `rounds` does. The operations on a tile are the same as on the whole vector, in the same order, so the bits do
not depend on the tiling.

`Scratch` and `Bodies` are the memory of an exchange, which is computed twice: once to check it, once to carry it out.
So that nothing of the model's size lies between the two, both decode the payloads again, tile by tile, where the
compressor can (`TiledCompressor`). With the others, and for vectors too small to matter, both payloads are decoded
once, into two vectors that are kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from p2pfl.compress import Compressor, Fragments, LazyRow, Payload, Reader, TiledCompressor
from p2pfl.core.members import FIRST_LIFETIME, Lifetime
from p2pfl.core.messages import DIGEST_BYTES, EdgeRecord
from p2pfl.core.settings import Best
from p2pfl.errors import PeerFault
from p2pfl.learn.interface import Vector
from p2pfl.learn.privacy.accounting import Ledger
from p2pfl.methods import Method

TILE = 1 << 16
"""The number of values in a tile; a few float32 tiles fit into a one-megabyte L2 cache."""
SMALL = 1 << 20
"""Vectors of up to this many values are decoded whole: two of them take 8 MB, and decoding them again takes time."""


def tiles(size: int) -> Iterator[slice]:
    """Split `size` values into tiles."""
    return (slice(first, min(first + TILE, size)) for first in range(0, size, TILE))


def works_in_tiles(codec: Compressor, size: int) -> bool:
    """Return True if vectors of `size` values are encoded and decoded in tiles."""
    return size > SMALL and isinstance(codec, TiledCompressor)


class Scratch:
    """Tiles, and vectors (d,) where payloads are decoded whole; all allocated on first use and kept. All edges of a
    node share one instance.
    """

    peer: Vector
    own: Vector
    move: Vector
    spare: Vector
    decoded_peer: NDArray[np.float32]
    decoded_own: NDArray[np.float32]

    def __init__(self) -> None:
        self._dtype: np.dtype[Any] | None = None
        self._whole: dict[str, Vector] = {}

    def fit(self, dtype: np.dtype[Any]) -> None:
        """Make the tiles: `peer` and `own` hold replicas, `move` a tile of D, `spare` what follows from it."""
        if self._dtype is None or self._dtype != dtype:  # None equals float64
            vectors: NDArray[Any] = np.empty((4, TILE), dtype)
            self.peer, self.own, self.move, self.spare = vectors
            decoded: NDArray[np.float32] = vectors[:2] if dtype == np.float32 else np.empty((2, TILE), np.float32)
            self.decoded_peer, self.decoded_own = decoded
            self._dtype, self._whole = dtype, {}

    @property
    def nbytes(self) -> int:
        """The bytes of the vectors, without tiles."""
        return sum(vector.nbytes for vector in self._whole.values())

    def whole(self, name: str, size: int, dtype: np.dtype[Any] | type[np.float32] = np.float32) -> Vector:
        """Return the vector (size,) of that name; what an earlier exchange has left there is overwritten."""
        vector = self._whole.get(name)
        if vector is None or vector.size < size or vector.dtype != dtype:
            vector = self._whole[name] = np.empty(size, dtype)
        return vector[:size]

    def shown(self, name: str, codec: Compressor, payload: Payload, size: int) -> Shown:
        """Return a payload of `size` values to be decoded, or decoded in the vector of that name. Raises PeerFault."""
        if works_in_tiles(codec, size):
            assert isinstance(codec, TiledCompressor)  # noqa: S101 - for the type checker
            return codec.reader(payload, size)
        return codec.decode(payload, size, self.whole(name, size))

    def encode(
        self, codec: Compressor, shown: Vector, replica: Vector, *, chance: int, bodies: Bodies | None = None
    ) -> Payload:
        """Encode the difference of two vectors (d,); `bodies` get the payload as this node's own."""
        self.fit(shown.dtype)
        if works_in_tiles(codec, shown.size):
            assert isinstance(codec, TiledCompressor)  # noqa: S101 - as above

            def gain_of(part: slice) -> Vector:
                gain: Vector = np.subtract(shown[part], replica[part], out=self.spare[: part.stop - part.start])
                return gain

            payload = codec.encode_row(LazyRow(shown.size, shown.dtype, gain_of), chance=chance)
            if bodies is not None:
                bodies.own = codec.reader(payload, shown.size)
            return payload
        name = "own" if shown.dtype == np.float32 else "gain"
        gain = np.subtract(shown, replica, out=self.whole(name, shown.size, shown.dtype))
        if bodies is None:
            return codec.encode(gain, chance=chance)
        decoded = self.whole("own", shown.size)
        payload = codec.encode(gain, chance=chance, decoded=decoded)
        bodies.own = decoded
        return payload


class Replicas(Protocol):
    """Both replicas of an edge (c d,), or two empty vectors."""

    own: Vector
    peer: Vector


Shown = Reader | NDArray[np.float32]
"""A payload: a function that decodes a tile of it, or its values."""


@dataclass(slots=True)
class Bodies:
    """The two payloads of one exchange of an edge: `peer` is the neighbor's, `own` this node's, once there is one.

    On an edge without replicas both hold the values of `fragment`, in these `slices` of the channels, and `gap` becomes
    the square of the distance between the two models there. Elsewhere `fragment` is None.
    """

    scratch: Scratch
    slices: Sequence[slice]
    peer: Shown
    own: Shown | None = None
    fragment: int | None = None
    gap: float = 0.0

    def tiles(self) -> Iterator[tuple[slice, slice]]:
        """Yield the tiles of the exchange: their places in the channels, and in the payloads."""
        before = 0
        for whole in self.slices:
            size = whole.stop - whole.start
            for part in tiles(size):
                there, here = whole.start, before
                yield slice(there + part.start, there + part.stop), slice(here + part.start, here + part.stop)
            before += size

    def after(self, edge: Replicas, part: slice, here: slice, *, for_good: bool = False) -> tuple[Vector, Vector]:
        """Return a tile of both replicas as they are after the exchange, the neighbor's first: what was decoded, added
        to the replica if there is one, `for_good` or in scratch memory. Raises PeerFault.
        """
        scratch, own = self.scratch, self.own
        if own is None:
            raise ValueError("an exchange without this node's payload")
        shown = _tile(self.peer, here, scratch.decoded_peer), _tile(own, here, scratch.decoded_own)
        size = here.stop - here.start
        if self.fragment is None:
            out = (edge.peer[part], edge.own[part]) if for_good else (scratch.peer[:size], scratch.own[:size])
            return np.add(edge.peer[part], shown[0], out=out[0]), np.add(edge.own[part], shown[1], out=out[1])
        return _cast(shown[0], scratch.peer[:size]), _cast(shown[1], scratch.own[:size])

    def shown_by_peer(self, here: slice) -> Vector:
        """Return a tile of the neighbor's payload, in the dtype of the channels. Raises PeerFault."""
        scratch = self.scratch
        return _cast(_tile(self.peer, here, scratch.decoded_peer), scratch.peer[: here.stop - here.start])

    def move(self, peer: Vector, own: Vector, rate: np.floating[Any]) -> Vector:
        """Return a tile of D from tiles of both replicas; its memory is that of the next one, too."""
        move: Vector = np.subtract(peer, own, out=self.scratch.move[: own.size])
        move *= rate
        return move


def gathered_values(channels: Vector, slices: Sequence[slice], spare: Vector) -> Vector | LazyRow:
    """Return the values in these slices of the channels, end to end: a view if they are there in one piece, else values
    that are put together a tile at a time in `spare`.
    """
    if len(slices) == 1:
        return channels[slices[0]]

    def values_of(part: slice) -> Vector:
        out, before = spare[: part.stop - part.start], 0
        for whole in slices:
            size = whole.stop - whole.start
            first, end = max(part.start, before), min(part.stop, before + size)
            if first < end:
                there = whole.start - before
                out[first - part.start : end - part.start] = channels[there + first : there + end]
            before += size
        return out

    return LazyRow(sum(part.stop - part.start for part in slices), channels.dtype, values_of)


def _tile(shown: Shown, here: slice, out: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a tile of a payload, decoded in `out` if it is not decoded yet."""
    if isinstance(shown, np.ndarray):
        return shown[here]
    tile = out[: here.stop - here.start]
    shown(here, tile)
    return tile


def _cast(values: Vector, out: Vector) -> Vector:
    """Return the values in the dtype of `out`, which is used if they have another."""
    if values.dtype == out.dtype:
        return values
    np.copyto(out, values)
    return out


@dataclass(slots=True)
class EdgeState:
    """An edge's vectors: `own` is the replica of our channels shared with the neighbor, `peer` the one of its channels.

    Both are (c d,), or empty where the edge's compressor needs none. `kept` holds the vectors (c d,) that the learning
    method keeps for this edge; a missing one is zero. `gaps` has, on an edge without replicas, the square of the
    distance between the two models in each fragment when it was last exchanged, and its number of values; it does not
    survive a restart.
    """

    record: EdgeRecord
    own: Vector
    peer: Vector
    kept: dict[str, Vector] = field(default_factory=dict)
    gaps: dict[int, tuple[float, int]] = field(default_factory=dict, compare=False)

    def keep(self, names: Iterable[str], channels: Vector) -> None:
        """Begin to keep vectors of these names, which are zero, where there are none yet."""
        for name in names:
            if name not in self.kept:
                self.kept[name] = zeros(channels)

    @property
    def has_replicas(self) -> bool:
        return self.own.size > 0

    def begin_anew(self, record: EdgeRecord) -> None:
        """Zero both replicas and drop the kept vectors. The other end does the same when it adopts the incarnation."""
        self.record = record
        self.own[:] = 0.0
        self.peer[:] = 0.0
        self.kept = {}
        self.gaps = {}

    def digest(self, *, initiator: bool) -> bytes:
        """Return BLAKE2b-128 of both replicas, the initiator's first; between transactions it is equal at both ends."""
        first, second = (self.own, self.peer) if initiator else (self.peer, self.own)
        digest = hashlib.blake2b(digest_size=DIGEST_BYTES, person=b"p2pfl-replica")
        digest.update(as_bytes(first))
        digest.update(as_bytes(second))
        return digest.digest()


@dataclass(slots=True)
class NodeState:
    """A node's state.

    Neighbors exchange `channels` (c d,): the model x (d,), then the other channels of the learning method. `samples` is
    n; the core counts `version`, `rounds`, `alone` and `best`.

    `terms` are the method's numbers since the last local round, and `kept` its vectors (d,) for this node, which are
    replaced but never written to. The same holds for the arrays in `local`, which the learner kept outside the model in
    the last round that counted.

    `ended` is the bound of training ("40 rounds", "60.0 s") when the federation ended for this node; None if it has not
    ended.

    `lifetime` is the node's own (`core.members`); `lifetimes` are those known of others, by member index.

    `ledger` is the spent part of the privacy budget; None if there is no budget, or if its spending is unknown.
    `unpaid` counts the rounds trained without a ledger: no budget covers a model that has them.

    `unmixed` (c d,) are the channels as they were before a robust rule mixed them; neighbors see these until the next
    round is committed. It does not survive a crash: afterwards neighbors see the mixed model once.
    """

    channels: Vector
    samples: int
    size: int = 0
    """The length d of the model; 0 if there is only one channel."""
    edges: dict[int, EdgeState] = field(default_factory=dict)
    version: int = 0
    rounds: int = 0
    alone: int = 0
    best: Best | None = None
    terms: tuple[float, ...] = ()
    elapsed_s: float = 0.0
    ended: str | None = None
    lifetime: Lifetime = FIRST_LIFETIME
    lifetimes: dict[int, Lifetime] = field(default_factory=dict)
    local: dict[str, NDArray[np.generic]] = field(default_factory=dict)
    kept: dict[str, Vector] = field(default_factory=dict)
    ledger: Ledger | None = None
    unpaid: int = 0
    unmixed: Vector | None = field(default=None, compare=False)
    scratch: Scratch = field(default_factory=Scratch, repr=False, compare=False)

    @classmethod
    def new(
        cls,
        model: Vector,
        samples: int,
        peers: tuple[int, ...],
        local: dict[str, NDArray[np.generic]] | None = None,
        method: Method | None = None,
    ) -> NodeState:
        """Return the state before the first round, from `model` (d,); `method` is `plain` by default."""
        method = method or Method()
        more = np.zeros((len(method.channels) - 1) * model.size, model.dtype)
        channels = np.concatenate([model, more])
        state = cls(channels, samples, model.size, terms=method.no_terms, local=local or {})
        for peer in peers:
            state._add_edge(peer, EdgeRecord())
        return state

    @property
    def model(self) -> Vector:
        """The model x (d,): the first channel, in the same memory."""
        return self.channels[: self.size] if self.size else self.channels

    def begin_lifetime(self, name: int) -> None:
        """Restart all edges, which the neighbors no longer remember. `name` is a random number below 2**53."""
        self.lifetime = Lifetime(self.lifetime.generation + bool(self.lifetime.name), name)
        for edge in self.edges.values():
            edge.begin_anew(edge.record.without_replicas())

    def note_lifetime(self, member: int | None, lifetime: Lifetime) -> None:
        """Store the lifetime of a member, or forget the member if it has no name; None stands for this node itself."""
        if member is None:
            self.lifetime = lifetime
        elif lifetime.name:
            self.lifetimes[member] = lifetime
        else:
            self.lifetimes.pop(member, None)

    def change_edges(self, added: Iterable[int], dropped: Iterable[int]) -> None:
        """Change edges while the node runs: both ends know that a new edge is empty, and a removed one is forgotten."""
        for peer in dropped:
            self.edges.pop(peer, None)
        for peer in added:
            self._add_edge(peer, EdgeRecord())
        self.edges = {peer: self.edges[peer] for peer in sorted(self.edges)}

    def fit_edges(self, peers: Iterable[int]) -> None:
        """Match the edges to the graph at startup: it may have changed while the node was off."""
        neighbors = sorted(peers)
        for peer in neighbors:
            if peer not in self.edges:
                self._add_edge(peer, EdgeRecord(has_replicas=False))
        self.edges = {peer: self.edges[peer] for peer in neighbors}

    def fit_replicas(self, needs: Callable[[int], bool]) -> None:
        """Drop the replicas of edges that need none, and create those that edges need by now.

        An edge that has exchanged something without them restarts: its replicas would be wrong.
        """
        for peer, edge in self.edges.items():
            if not needs(peer):
                edge.own = edge.peer = self.channels[:0].copy()
            elif not edge.has_replicas:
                edge.own, edge.peer, edge.gaps = zeros(self.channels), zeros(self.channels), {}
                if not edge.record.is_blank:
                    edge.record = edge.record.without_replicas()

    def _add_edge(self, peer: int, record: EdgeRecord) -> None:
        self.edges[peer] = EdgeState(record, zeros(self.channels), zeros(self.channels))

    @property
    def shown(self) -> Vector:
        """The vector (c d,) that neighbors may see. In the conservative profile it is always the channels."""
        return self.channels if self.unmixed is None else self.unmixed


def zeros(model: Vector) -> Vector:
    """Return a zero vector as long as the model; its memory is allocated only on the first write."""
    return np.zeros(model.shape, model.dtype)


def as_bytes(array: NDArray[np.generic]) -> memoryview:
    """Return the array's own memory in row order if it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


@dataclass(frozen=True, slots=True)
class Codecs:
    """A node's compressors: `default` for every neighbor not in `by_peer`."""

    default: Compressor
    by_peer: Mapping[int, Compressor] = field(default_factory=dict)

    def of(self, peer: int) -> Compressor:
        return self.by_peer.get(peer, self.default)

    def fragments_of(self, peer: int) -> Fragments | None:
        """Return the compressor of an edge without replicas; None if the edge has replicas."""
        codec = self.of(peer)
        return codec if isinstance(codec, Fragments) else None

    def need_replicas(self, peer: int) -> bool:
        return self.fragments_of(peer) is None

    def bodies(self, state: NodeState, peer: int, incoming: Payload, outgoing: Payload | None = None) -> Bodies:
        """Return the payloads of an exchange, to be decoded: the neighbor's and, if given, the node's own.

        Raises PeerFault.
        """
        size, fragments, scratch = state.channels.size, self.fragments_of(peer), state.scratch
        scratch.fit(state.channels.dtype)
        if fragments is None:
            bodies = Bodies(scratch, (slice(0, size),), scratch.shown("peer", self.of(peer), incoming, size))
        else:
            fragment = fragments.read_fragment(incoming)
            slices = slices_of(state, fragments, fragment)
            bodies = Bodies(scratch, slices, fragments.fragment_reader(incoming, _total(slices)), fragment=fragment)
        if outgoing is not None:
            self.take_own(bodies, peer, outgoing)
        return bodies

    def take_own(self, bodies: Bodies, peer: int, outgoing: Payload) -> None:
        """Add this node's own payload to those of an exchange."""
        fragments, size = self.fragments_of(peer), _total(bodies.slices)
        if fragments is None:
            bodies.own = bodies.scratch.shown("own", self.of(peer), outgoing, size)
        else:
            bodies.own = fragments.fragment_reader(outgoing, size)

    @property
    def specs(self) -> dict[int, str]:
        """Specs of the neighbors that have their own compressor."""
        return {peer: codec.spec for peer, codec in self.by_peer.items()}

    def largest_bytes(self, size: int) -> int:
        """Return the size of the largest payload for a vector of `size` values, over all edges."""
        return max(codec.size_bytes(size) for codec in (self.default, *self.by_peer.values()))


def slices_of(state: NodeState, fragments: Fragments, fragment: int) -> list[slice]:
    """Return the places of a fragment in the channels."""
    return fragments.slices(fragment, state.channels.size, state.channels.size // max(1, state.model.size))


def _total(slices: Sequence[slice]) -> int:
    return sum(part.stop - part.start for part in slices)


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
            replica_square += square_of(peer)
            if factor == 0.0 and not bare:
                continue
            if bare and part.start < state.model.size:
                gap_square += square_of(np.subtract(peer, own, out=spare[: own.size]))
            move = bodies.move(peer, own, rate)
            after = np.divide(move, samples, out=spare[: move.size])
            model_square += square_of(np.add(model[part], after, out=after))
    bodies.gap = gap_square
    return float(np.sqrt(replica_square)), float(np.sqrt(model_square))


def settle_vectors(  # noqa: PLR0917 - the exchange, then the method and the payloads
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
    """Check that the vectors the method will keep for the edge after `settle_vectors` can be computed and are finite.

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


def square_of(tile: Vector) -> float:
    """Return |tile|^2, in the tile's own dtype unless that overflows."""
    square = float(np.dot(tile, tile))
    if np.isfinite(square):
        return square
    wide: NDArray[np.float64] = tile.astype(np.float64)
    return float(np.dot(wide, wide))
