"""The record of an edge: its position in the sequence of transactions, which must survive a crash.

The core decides by one record per edge; the engine keeps a twin beside the replicas and makes it durable. Both change
only through the transitions below, so that a restart continues exactly where the disk stands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xxhash import xxh3_128

from p2pfl.core.messages import DIGEST_BYTES, Hello, Reply, Request

NO_CHAIN = bytes(DIGEST_BYTES)
_CHAIN_SEED = 2


@dataclass(slots=True, kw_only=True)
class EdgeRecord:
    """The record of an edge.

    `heard` is the peer's version in this end's replica of it; `known` is this end's version in the peer's replica (at
    the initiator only).
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
        """True if nothing has been sent over the edge since it began (anew), and nothing is about to be."""
        return self.has_replicas and not self.seq and self.pending is None and self.reply is None

    def freeze(self, request: Request) -> None:
        self.pending = request
        self.request_digest = request.digest

    def settle_request(self, request: Request, reply: Reply, chain: bytes) -> None:
        """Note that the responder has applied `request`; it remembers `reply`."""
        self.seq = request.seq
        self.request_digest = request.digest
        self.reply = reply
        self.heard = request.version
        self._advance(reply, chain)

    def settle_reply(self, reply: Reply, chain: bytes) -> None:
        """Note that the initiator has applied the answer to its pending request."""
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
        """Return a greeting with this record, and with `fields` for all else that it says."""
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
    """Return the digest of every payload in the replicas, this transaction included: 16 bytes of XXH3, as for a
    request.
    """
    digest = xxh3_128(chain, seed=_CHAIN_SEED)
    digest.update(request.digest)
    digest.update(reply.body)
    return digest.digest()


def disagreement(mine: Hello, theirs: Hello, *, initiates: bool) -> str:
    """Return the reason why the edge must begin anew, from both greetings; empty: they agree.

    `initiates`: this end is the initiator.
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
