"""The codecs: which vector a node shows its neighbor on each edge, and by which compressor, step and random seed.

An honest node shows its model as it is. To show another vector (noise for privacy, masks, a liar in a test), give the
engine another function; no other part of a node knows of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from p2pfl.compress import Compressor, Payload, make_compressor
from p2pfl.config.model import FederationConfig
from p2pfl.learn.interface import Vector

_PLACE = struct.Struct("<QQQQ")


@dataclass(frozen=True, slots=True)
class Codecs:
    """The compressors of a node: `default` for every neighbor that is not in `by_peer`."""

    default: Compressor
    by_peer: Mapping[int, Compressor] = field(default_factory=dict)

    def of(self, peer: int) -> Compressor:
        return self.by_peer.get(peer, self.default)

    @property
    def specs(self) -> dict[int, str]:
        """The specs of the neighbors with a compressor of their own."""
        return {peer: codec.spec for peer, codec in self.by_peer.items()}

    def largest_bytes(self, size: int) -> int:
        """Return the largest payload of a vector of `size` values, on any edge."""
        return max(codec.size_bytes(size) for codec in (self.default, *self.by_peer.values()))


def codecs_of(federation: FederationConfig, index: int) -> Codecs:
    """Return the codecs that member `index` uses with its neighbors.

    Raises UserError: there is no such compressor, or error feedback would not converge with it.
    """
    own = {i + j - index: spec for (i, j), spec in federation.edge_compressors.items() if index in (i, j)}
    made = {peer: make_compressor(spec) for peer, spec in own.items()}
    return Codecs(make_compressor(federation.gossip.compressor), made)


def gammas_of(federation: FederationConfig, index: int, size: int) -> dict[int, float]:
    """Return the step of one mixing of member `index` with each of its neighbors, for models of `size` values."""
    codecs, gamma = codecs_of(federation, index), federation.gossip.gamma
    return {peer: gamma * codecs.of(peer).gamma(size) for peer in federation.neighbors(index)}


def chance_of(sender: int, receiver: int, incarnation: int, seq: int) -> int:
    """Return a 64-bit random seed for the payload of `sender` in this transaction, equal in nodes and simulations."""
    place = _PLACE.pack(sender, receiver, incarnation, seq)
    return int.from_bytes(blake2b(place, digest_size=8, person=b"p2pfl-chance").digest(), "little")


class Occasion(NamedTuple):
    """The transaction for which a vector is shown: the sequence number `seq` in an edge's incarnation."""

    incarnation: int
    seq: int


@dataclass(frozen=True, slots=True)
class Forgery:
    """Bytes in place of a vector that no encoder has made: a neighbor must refuse them."""

    body: Payload


Show = Callable[[Vector, int, Occasion], Vector | Forgery]
"""(channels (c d,), peer, occasion) -> the vector that this neighbor sees: (c d,), finite, not written to later."""
Claim = Callable[[float], float]
"""The weight a_i of this node -> the weight that its messages carry."""


def as_it_is(channels: Vector, peer: int, occasion: Occasion) -> Vector:
    """Show the channels as they are."""
    del peer, occasion
    return channels


def as_weighed(weight: float) -> float:
    """Send the weight as it is."""
    return weight
