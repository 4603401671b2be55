"""Codecs: which vector a node shows its neighbor on each edge, and with which compressor, step and random seed.

An honest node shows its model unchanged. To show another vector (noise for privacy, masks, a liar in a test), give the
engine another function; no other part of a node is aware of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from p2pfl.aggregate import liars_of
from p2pfl.compress import Compressor, Fragments, Payload, make_compressor
from p2pfl.compress.catalog import require_replicas
from p2pfl.config.model import FederationConfig
from p2pfl.engine.state import Bodies, NodeState
from p2pfl.learn.interface import Vector

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
    """Return a 64-bit random seed for the payload from `sender` in this transaction, the same in nodes and
    simulations.
    """
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
