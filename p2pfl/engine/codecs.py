"""Codecs: which vector a node shows its neighbor on each edge, and with which compressor, step and random seed.

An honest node shows its model unchanged. To show another vector (noise for privacy, masks, a liar in a test), give the
engine another function; no other part of a node is aware of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from p2pfl.aggregate import liars_of
from p2pfl.compress import Compressor, Fragments, Payload, make_compressor
from p2pfl.compress.catalog import require_replicas
from p2pfl.config.model import FederationConfig
from p2pfl.engine.state import FragmentScratch, NodeState, Scratch
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

    def decode(self, state: NodeState, peer: int, incoming: Payload, outgoing: Payload | None = None) -> Scratch:
        """Decode a neighbor's payload and, if given, the node's own of the same exchange into the scratch memory that
        suits the edge. Raises PeerFault.
        """
        size, fragments = state.channels.size, self.fragments_of(peer)
        if fragments is None:
            state.scratch.fit(state.channels)
            self.of(peer).decode(incoming, size, state.scratch.decoded_peer)
            if outgoing is not None:
                self.of(peer).decode(outgoing, size, state.scratch.decoded_own)
            return state.scratch
        scratch = fragment_of(state, fragments, fragments.read_fragment(incoming))
        fragments.decode_fragment(incoming, scratch.own.size, scratch.decoded_peer)
        if outgoing is not None:
            fragments.decode_fragment(outgoing, scratch.own.size, scratch.decoded_own)
        return scratch

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


def fragment_of(state: NodeState, fragments: Fragments, fragment: int) -> FragmentScratch:
    """Return the scratch memory of an exchange of this fragment."""
    size, channels = state.channels.size, state.channels.size // max(1, state.model.size)
    slices = fragments.slices(fragment, size, channels)
    state.fragment.take(state.channels, fragment, slices, fragments.longest(size, channels))
    return state.fragment


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
