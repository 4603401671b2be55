"""The messages between the cores of two neighbors, and the protocol constants that every layer shares.

They are frozen values without behavior. `body` is opaque to the core: compressed vector bytes in a node, a stand-in in
a simulator. `p2pfl.wire` turns messages into bytes; `edge` acts on them, and `exchange` on the ones about transactions.
"""

from __future__ import annotations

import struct
from typing import Any

from msgspec import Struct
from xxhash import xxh3_128

DIGEST_BYTES = 16
MOST_TERMS = 16
"""The maximum number of values that a learning method may put in one message."""
MOST_LIVES_TOLD = 256
"""The maximum number of lives in one message."""

PROTOCOL = "p2pfl/1"
PROTOCOL_VERSION = 10
LEAST_VERSION = max(9, PROTOCOL_VERSION - 1)
"""The oldest protocol version that a node speaks. From version 9 on, a node also speaks the version before its own, so
that a federation can be upgraded node by node.
"""
CHUNK_BYTES = 256 * 1024


class Hello(Struct, frozen=True, kw_only=True, gc=False):
    """The first message of a session, in both directions: where this end of the edge stands.

    `seq` counts completed transactions (at the responder, applied ones); `pending` is the sequence number of a request
    that is frozen and unanswered, or None; `request_digest` identifies the pending or last request, empty if there was
    none. `chain` is a digest of every payload that entered the replicas; `chain_before` omits the last transaction.
    `closing`, `level`, `trained`, `bound`, `begun` and `through` are as in Ready. `generation` and `life` name the
    sender's life (`lives`), and `process`, a random number, its process.
    """

    incarnation: int
    seq: int
    pending: int | None
    request_digest: bytes
    has_replicas: bool
    chain: bytes
    chain_before: bytes
    version: int
    closing: int | None
    level: int | None
    done: bool
    have_yours: bool
    generation: int = 0
    life: int = 0
    process: int = 0
    trained: int = 0
    bound: int = 0
    begun: bytes = b""
    through: bytes = b""


class Request(Struct, frozen=True, kw_only=True, gc=False):
    """A request opens a transaction.

    `weight` is a_i = n_i/(deg_i+1), `staleness` is s_i, `pace_s` is in seconds per local step, and `terms` are the
    sender's numbers for the learning method (`p2pfl.methods`), as many as that method uses. `echo` is the version
    of the receiver's model that the sender's replica holds. `audit` is the digest of both replicas before this
    transaction, or empty. `digest` is never sent: both ends compute it (`request_digest`).
    """

    incarnation: int
    seq: int
    version: int
    echo: int | None
    weight: float
    staleness: float
    pace_s: float
    terms: tuple[float, ...] = ()
    audit: bytes
    body: Any
    digest: bytes = b""


class Reply(Struct, frozen=True, kw_only=True, gc=False):
    """A reply answers the request whose digest it names.

    `factor` is the agreed k of D = k (h_i - h_j); `terms` are the agreed numbers of the learning method, the same at
    both ends. `weight` is the sender's a_j = n_j/(deg_j+1).
    """

    incarnation: int
    seq: int
    request_digest: bytes
    version: int
    factor: float
    pace_s: float
    terms: tuple[float, ...] = ()
    weight: float = 0.0
    body: Any


class Ready(Struct, frozen=True, kw_only=True, gc=False):
    """The sender has a new `version`; from a responder this also asks for an exchange.

    `closing` counts the sender's mixing rounds since it stopped training, None before. `level` is, before the first
    round, the number of hops around the sender within which all nodes are connected, None from then on. `trained`
    counts its own rounds, or the seconds it has trained if training is bounded by time; `bound` is the number of rounds
    it has to do in all, or 0 if bounded by time.

    `begun` and `through` are sets of members as bitmaps, the lowest bit of the first byte for member 0: members that
    have begun to train, and members that have done all their own training. Both are empty if the sender believes that
    the neighbor knows them; a node that receives sets answers with a Ready. `known` is a digest of the sender's two
    sets.
    """

    version: int
    closing: int | None = None
    level: int | None = None
    trained: int = 0
    bound: int = 0
    known: int = 0
    begun: bytes = b""
    through: bytes = b""


class Resync(Struct, frozen=True, kw_only=True, gc=False):
    """This end has adopted `incarnation`, with replicas and sequence at zero."""

    incarnation: int


class Ask(Struct, frozen=True, kw_only=True, gc=False):
    """The responder refused the request named here and asks the initiator to resync."""

    incarnation: int
    seq: int
    request_digest: bytes


class Busy(Struct, frozen=True, kw_only=True, gc=False):
    """There were too many exchanges in too short a time: the initiator sends the same request again after
    `retry_after_s`.
    """

    incarnation: int
    seq: int
    retry_after_s: float


class Done(Struct, frozen=True, kw_only=True, gc=False):
    """The sender has finished its own rounds and only answers from now on."""

    version: int


class LivesTold(Struct, frozen=True, kw_only=True, gc=False):
    """The lives that the sender knows: each member's index, and the generation and name of its life."""

    lives: tuple[tuple[int, int, int], ...]


class Resign(Struct, frozen=True, kw_only=True, gc=False):
    """Another running process is using the receiver's key.

    `process` says which receiver is meant; the sender first heard from the other process `other_ms` milliseconds ago. A
    receiver that has run for less time is the later of the two, and stops; this can never hold for both.
    """

    process: int
    other_ms: int


Transaction = Request | Reply | Resync | Ask | Busy
Message = Hello | Transaction | Ready | Done | LivesTold | Resign

_REQUEST_HEAD = struct.Struct("<QQQqdddBB")
_TERMS = [struct.Struct(f"<{count}d") for count in range(MOST_TERMS + 1)]
_SEED = 1
"""A seed different from that of `records`."""


def request_digest(request: Request) -> bytes:
    """Return a 16-byte digest of every field that is sent, the body included.

    XXH3 withstands chance, not intent. That is enough: the session authenticates the sender, the receiver computes the
    digest itself, and a neighbor that makes two requests with one digest gets the answer to the first, which it could
    ask for anyway. On a large body BLAKE2b costs 25 times as much.
    """
    digest = digest_before_body(request)
    digest.update(request.body)
    return digest.digest()


def digest_before_body(request: Request) -> xxh3_128:
    """Return the digest that has taken every field that is sent, but not yet the body."""
    echo = -1 if request.echo is None else request.echo
    head = _REQUEST_HEAD.pack(
        request.incarnation,
        request.seq,
        request.version,
        echo,
        request.weight,
        request.staleness,
        request.pace_s,
        len(request.terms),
        len(request.audit),
    )
    return xxh3_128(head + _TERMS[len(request.terms)].pack(*request.terms) + request.audit, seed=_SEED)
