"""The messages between the cores of two neighbors, and the protocol constants that every layer shares.

They are frozen values without behavior. `body` is opaque to the core: compressed vector bytes in a node, a stand-in in
a simulator. `p2pfl.wire` turns messages into bytes; `edge` acts on them, and `exchange` on those of transactions.

The record of an edge is its position in the sequence of transactions, which must survive a crash. The core decides
from one record per edge; the engine keeps a twin beside the replicas and makes it durable. Both change only through
the transitions below, so that a restart resumes exactly where the disk stands.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from msgspec import Struct
from xxhash import xxh3_128

from p2pfl.limits import MOST_TERMS

DIGEST_BYTES = 16

PROTOCOL = "p2pfl/1"
PROTOCOL_VERSION = 10
LEAST_VERSION = max(9, PROTOCOL_VERSION - 1)
"""The oldest protocol version that a node speaks, as of 9 the one before its own: upgrades go node by node."""


class Hello(Struct, frozen=True, kw_only=True, gc=False):
    """The first message of a session, in both directions: where this end of the edge stands.

    `seq` counts completed transactions (at the responder, applied ones); `pending` is the sequence number of a request
    that is frozen and unanswered, or None; `request_digest` identifies the pending or last request, empty if there was
    none. `chain` is a digest of every payload that entered the replicas; `chain_before` omits the last transaction.
    `closing`, `level`, `trained`, `bound`, `begun` and `through` are as in Ready. `generation` and `life` name the
    sender's lifetime (`members.Lifetimes`), and `process`, a random number, its process.
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
    the neighbor knows them; a node that receives sets answers with a Ready. `known` is a digest of the sender's sets.
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
    """Too many exchanges in too short a time: the initiator sends the same request again after `retry_after_s`."""

    incarnation: int
    seq: int
    retry_after_s: float


class Done(Struct, frozen=True, kw_only=True, gc=False):
    """The sender has finished its own rounds and only answers from now on."""

    version: int


class LivesTold(Struct, frozen=True, kw_only=True, gc=False):
    """The lifetimes that the sender knows: each member's index, and the generation and name of its lifetime."""

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
    digest = xxh3_128(head + _TERMS[len(request.terms)].pack(*request.terms) + request.audit, seed=_SEED)
    digest.update(request.body)
    return digest.digest()


NO_CHAIN = bytes(DIGEST_BYTES)
_CHAIN_SEED = 2


@dataclass(slots=True, kw_only=True)
class EdgeRecord:
    """The record of an edge.

    `heard` is the version of the peer's model in this end's replica; `known` is the version of this end's model in the
    peer's replica (at the initiator only).
    """

    incarnation: int = 0
    seq: int = 0
    pending: Request | None = None
    request_digest: bytes = b""
    reply: Reply | None = None
    has_replicas: bool = True
    chain: bytes = NO_CHAIN
    chain_before: bytes = NO_CHAIN
    heard: int | None = None
    known: int | None = None
    last_factor_zero: bool = False
    resyncs: int = 0

    @property
    def is_blank(self) -> bool:
        """True if nothing has been sent over the edge since it last began, and nothing is about to be."""
        return self.has_replicas and not self.seq and self.pending is None and self.reply is None

    def freeze(self, request: Request) -> None:
        self.pending = request
        self.request_digest = request.digest

    def settle_request(self, request: Request, reply: Reply, chain: bytes) -> None:
        """Record that the responder has applied `request`; it remembers `reply`."""
        self.seq = request.seq
        self.request_digest = request.digest
        self.reply = reply
        self.heard = request.version
        self._advance(reply, chain)

    def settle_reply(self, reply: Reply, chain: bytes) -> None:
        """Record that the initiator has applied the answer to its pending request."""
        if self.pending is None:
            raise ValueError("a reply was applied without a pending request")
        self.seq = self.pending.seq
        self.known = self.pending.version
        self.heard = reply.version
        self.pending = None
        self._advance(reply, chain)

    def reset(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.seq = 0
        self.pending = None
        self.request_digest = b""
        self.reply = None
        self.has_replicas = True
        self.chain = self.chain_before = NO_CHAIN
        self.heard = self.known = None
        self.last_factor_zero = False
        self.resyncs += 1

    def without_replicas(self) -> EdgeRecord:
        """Return the record that remains if the replicas are lost: the next greeting begins a new incarnation."""
        return EdgeRecord(incarnation=self.incarnation, has_replicas=False, resyncs=self.resyncs)

    def _advance(self, reply: Reply, chain: bytes) -> None:
        self.last_factor_zero = reply.factor == 0.0
        self.chain_before, self.chain = self.chain, chain

    def hello(self, **fields: Any) -> Hello:
        """Return a greeting with this record; `fields` supply the rest of it."""
        return Hello(
            incarnation=self.incarnation,
            seq=self.seq,
            pending=None if self.pending is None else self.pending.seq,
            request_digest=self.request_digest,
            has_replicas=self.has_replicas,
            chain=self.chain,
            chain_before=self.chain_before,
            **fields,
        )


def next_chain(chain: bytes, request: Request, reply: Reply) -> bytes:
    """Return the digest of every payload in the replicas, this transaction included: 16 bytes of XXH3."""
    digest = xxh3_128(chain, seed=_CHAIN_SEED)
    digest.update(request.digest)
    digest.update(reply.body)
    return digest.digest()


def disagreement(mine: Hello, theirs: Hello, *, initiates: bool) -> str:
    """Return the reason why two greetings require a new incarnation of the edge; empty if they agree.

    `initiates` says that this end is the initiator.
    """
    if are_consistent(mine, theirs) if initiates else are_consistent(theirs, mine):
        return ""
    if mine.has_replicas and theirs.has_replicas:
        behind = (mine.incarnation, mine.seq + 1) < (theirs.incarnation, theirs.seq)
        return "greetings disagree" + ": it remembers more than this end, whose state may be an old copy" * behind
    return f"{'it' if mine.has_replicas else 'this end'} was started without replicas"


def are_consistent(initiator: Hello, responder: Hello) -> bool:
    """Return True if both ends hold the same replicas, judged from the two greetings as sent.

    Equal chains mean equal replicas: both are the same function of the same payloads, added in the same order.
    """
    if initiator.incarnation != responder.incarnation:
        return False
    if not (initiator.has_replicas and responder.has_replicas):
        return False
    if initiator.pending is None or initiator.pending == responder.seq + 1:
        return initiator.seq == responder.seq and initiator.chain == responder.chain
    return (
        initiator.pending == responder.seq
        and initiator.request_digest == responder.request_digest
        and initiator.chain == responder.chain_before
    )
