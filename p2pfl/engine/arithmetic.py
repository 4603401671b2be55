"""What an exchange and a round do to vectors: the codec of each edge, the elementwise arithmetic, the robust rule.

An honest node shows its neighbors its model unchanged. To show another vector (noise for privacy, masks, a liar in a
test), give the engine another function; no other part of a node is aware of it.

The arithmetic has two steps: compute a change, then apply it. The first measures the result, so that a change that
fails a check leaves no trace. The second cannot fail. Both process the vectors in tiles that fit in the cache. The
operations on a tile are the same as on the whole vector, in the same order, so the bits do not depend on the tiling.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from p2pfl.aggregate import Neighborhood, Rule, liars_of
from p2pfl.compress import Compressor, Fragments, Payload, make_compressor, require_replicas
from p2pfl.config.model import FederationConfig
from p2pfl.core.events import Mix
from p2pfl.engine.state import TILE, Bodies, EdgeState, NodeState, tiles, works_in_tiles, zeros
from p2pfl.errors import PeerFault
from p2pfl.learn.interface import Vector
from p2pfl.methods import MODEL, Method, New, Round, overrides

_PLACE = struct.Struct("<QQQQ")


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


def codecs_of(federation: FederationConfig, index: int) -> Codecs:
    """Return the codecs that member `index` uses with its neighbors.

    Raises UserError if a compressor does not exist, if error feedback would not converge with it, or if it leaves no
    replicas for a robust rule.
    """
    own = {i + j - index: spec for (i, j), spec in federation.edge_compressors.items() if index in (i, j)}
    made = {peer: make_compressor(spec) for peer, spec in own.items()}
    codecs = Codecs(make_compressor(federation.gossip.compressor), made)
    if liars_of(federation.gossip.rule):
        for codec in (codecs.default, *made.values()):
            require_replicas(codec, federation.gossip.rule)
    return codecs


def fragments_of(codecs: Codecs, peers: Iterable[int]) -> dict[int, int]:
    """Return the neighbors whose edges have no replicas, and how many fragments each takes."""
    found = ((peer, codecs.fragments_of(peer)) for peer in peers)
    return {peer: fragments.count for peer, fragments in found if fragments is not None}


def gammas_of(federation: FederationConfig, index: int, size: int) -> dict[int, float]:
    """Return the mixing step between member `index` and each of its neighbors, for models of `size` values."""
    codecs, gamma = codecs_of(federation, index), federation.gossip.gamma
    return {peer: gamma * codecs.of(peer).gamma(size) for peer in federation.neighbors(index)}


def chance_of(sender: int, receiver: int, incarnation: int, seq: int) -> int:
    """Return a 64-bit random seed for the sender's payload in this transaction, the same in nodes and simulations."""
    place = _PLACE.pack(sender, receiver, incarnation, seq)
    return int.from_bytes(blake2b(place, digest_size=8, person=b"p2pfl-chance").digest(), "little")


def slices_of(state: NodeState, fragments: Fragments, fragment: int) -> list[slice]:
    """Return the places of a fragment in the channels."""
    return fragments.slices(fragment, state.channels.size, state.channels.size // max(1, state.model.size))


def _total(slices: Sequence[slice]) -> int:
    return sum(part.stop - part.start for part in slices)


class Occasion(NamedTuple):
    """The transaction for which a vector is shown: sequence number `seq` within an incarnation of the edge."""

    incarnation: int
    seq: int


@dataclass(frozen=True, slots=True)
class Forgery:
    """Bytes that no encoder has made, sent in place of a vector; a neighbor must refuse them."""

    body: Payload


Show = Callable[[Vector, int, Occasion], Vector | Forgery]
"""(channels (c d,), peer, occasion) -> the vector (c d,) that this neighbor sees; it must be finite and not change
later.
"""
Claim = Callable[[float], float]
"""The weight a_i of this node -> the weight that its messages carry."""


def as_it_is(channels: Vector, peer: int, occasion: Occasion) -> Vector:
    """Show the channels unchanged."""
    del peer, occasion
    return channels


def as_weighed(weight: float) -> float:
    """Send the weight unchanged."""
    return weight


PAYLOADS = 2
"""Payloads on each edge: the one that is kept until it is answered, and one that comes or goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """The bytes of an engine's vectors, by what they are for; `round` has those of a round but not the learner's."""

    model: int
    replicas: int
    flows: int
    scratch: int
    messages: int
    round: int

    @property
    def total(self) -> int:
        return self.model + self.replicas + self.flows + self.scratch + self.messages + self.round


def memory_plan(state: NodeState, codecs: Codecs, method: Method) -> MemoryPlan:
    """Return the plan for a state whose edges have the replicas that they need."""
    model, channels, peers = state.model.nbytes, state.channels.nbytes, tuple(state.edges)
    size, item = state.channels.size, state.channels.itemsize
    whole = any(codecs.need_replicas(peer) and not works_in_tiles(codecs.of(peer), size) for peer in peers)
    whole_item = 2 * 4 + (0 if item == 4 else item)  # two decoded payloads, and what is encoded if it is no float32
    more = len(method.channels) > 1
    replicas = sum(edge.own.nbytes + edge.peer.nbytes for edge in state.edges.values())
    of_edges = channels * len(method.kept_edges) * len(peers)
    return MemoryPlan(
        model=channels,
        replicas=replicas,
        flows=of_edges + model * len(method.kept),
        scratch=whole * size * whole_item,
        messages=PAYLOADS * sum(codecs.of(peer).size_bytes(size) for peer in peers),
        round=model * (1 + len(method.given) * overrides(method, "gradient") + len(method.kept))
        + (2 * channels - model) * more,
    )


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


MOST = 255


class FragmentMean:
    """The mean of what neighbors have shown of each value of the channels (c d,), each message with equal weight."""

    def __init__(self, channels: Vector) -> None:
        self.mean = zeros(channels)
        self.counts = np.zeros(channels.size, np.uint8)

    def take(self, bodies: Bodies) -> None:
        """Take in what the neighbor has shown in an exchange."""
        for part, here in bodies.tiles():
            counts, mean = self.counts[part], self.mean[part]
            counts += counts < MOST
            step = bodies.shown_by_peer(here) - mean
            step /= counts.astype(mean.dtype)
            mean += step

    def result(self, other: Vector) -> Vector:
        """Return the mean (c d,), with the value in `other` (c d,) where nobody has shown one."""
        return np.where(self.counts > 0, self.mean, other)


def gathered(gathering: FragmentMean | None, state: NodeState, bodies: Bodies) -> FragmentMean:
    """Return the gathering, a new one if there is none, with the fragment of an exchange."""
    gathering = gathering or FragmentMean(state.channels)
    gathering.take(bodies)
    return gathering


log = logging.getLogger("p2pfl")

NEWEST = 0.1
"""The weight of the latest round in `RuleMixer.kept`."""


class RuleMixer:
    """Applies the rule and checks its result: a failing rule, or a norm above `longest`, yields no model."""

    def __init__(self, rule: Rule, longest: float) -> None:
        self.rule, self.longest = rule, longest
        self.kept: dict[int, float] = {}
        """The share of each neighbor's pull that the rule recently let through.

        The mapping is only ever replaced, because other threads read it.
        """
        self._last_warning = ""

    def mix(self, own: Vector, replicas: Sequence[Vector], op: Mix) -> Vector | None:
        """Return the mixed model (c d,) in its own memory, or None. `replicas` (c d,) are in order of `op.peers`."""
        own, *others = map(_read_only, (own, *replicas))
        weights = np.array(op.weights)
        around = Neighborhood(own=own, others=others, weights=weights, peers=op.peers)
        try:
            mixture = self.rule.mix(around)
            model = np.ascontiguousarray(mixture.model, dtype=own.dtype)
        except Exception as error:  # noqa: BLE001 - a neighbor must not stop the node, whatever the rule raises
            self._say(f"the rule raised {type(error).__name__}: {error}")
            return None
        if model.shape != own.shape or not norm(model) <= self.longest:
            return None
        if any(np.may_share_memory(model, given) for given in (own, *others)):
            model = model.copy()
        if mixture.kept is not None:
            known, kept = self.kept, zip(op.peers, mixture.kept.tolist(), strict=True)
            self.kept = known | {peer: (1 - NEWEST) * known.get(peer, part) + NEWEST * part for peer, part in kept}
        return model

    def forget(self, peers: Collection[int]) -> None:
        """Forget peers that are no longer neighbors."""
        self.kept = {peer: share for peer, share in self.kept.items() if peer not in peers}

    def _say(self, text: str) -> None:
        """Log once: a failing rule fails in every round, mostly for the same reason."""
        if text != self._last_warning:
            self._last_warning = text
            log.warning("%s", text)


def _read_only(vector: Vector) -> Vector:
    """Return a read-only view of the same memory: the rule must not change replicas, which the neighbors also hold."""
    view = vector.view()
    view.flags.writeable = False
    return view
