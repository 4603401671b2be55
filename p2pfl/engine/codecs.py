"""Which compressor each edge of a node uses, how far a mixing step goes with it, and the chance of each encoding."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

from p2pfl.compress import Compressor, make_compressor
from p2pfl.config.model import FederationConfig

_PLACE = struct.Struct("<QQQQ")


@dataclass(frozen=True, slots=True)
class Codecs:
    """`default` for every neighbor that is not in `by_peer`."""

    default: Compressor
    by_peer: Mapping[int, Compressor] = field(default_factory=dict)

    def of(self, peer: int) -> Compressor:
        return self.by_peer.get(peer, self.default)

    def largest_bytes(self, size: int) -> int:
        """No payload of a vector of `size` values is longer, on any edge."""
        return max(codec.size_bytes(size) for codec in (self.default, *self.by_peer.values()))


def codecs_of(federation: FederationConfig, index: int) -> Codecs:
    """What member `index` uses with each of its neighbors.

    Raises:
        UserError: there is no such compressor, or error feedback would not converge with it.
    """
    own = {i + j - index: spec for (i, j), spec in federation.edge_compressors.items() if index in (i, j)}
    made = {peer: make_compressor(spec) for peer, spec in own.items()}
    return Codecs(make_compressor(federation.gossip.compressor), made)


def gammas_of(federation: FederationConfig, index: int, size: int) -> dict[int, float]:
    """The step of one mixing of member `index` with each of its neighbors, for models of `size` values."""
    codecs, gamma = codecs_of(federation, index), federation.gossip.gamma
    return {peer: gamma * codecs.of(peer).gamma(size) for peer in federation.neighbors(index)}


def chance_of(sender: int, receiver: int, incarnation: int, seq: int) -> int:
    """64 bits for the payload that `sender` encodes in this transaction: the same in a node and in a simulation."""
    place = _PLACE.pack(sender, receiver, incarnation, seq)
    return int.from_bytes(blake2b(place, digest_size=8, person=b"p2pfl-chance").digest(), "little")
