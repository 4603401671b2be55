"""Nodes with `schema = "agreed"` in `[task]` agree on a schema for their tables before there is a model.

Each node signs a proposal (`learn.table.proposal`) with statistics, the only data that leave it. Proposals spread from
neighbor to neighbor until every node has all of them. Then each node computes the same schema from them, and stores it
with its state. It continues when all its neighbors have stored one too. `Agreement` decides which proposals to accept;
`SchemaTalk` exchanges messages in sessions. These have their own binding, so that they cannot be confused with training
sessions.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta, Struct
from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey

from p2pfl.config.federation_id import HASH_BYTES, federation_id
from p2pfl.config.model import FederationConfig, NodeConfig
from p2pfl.crypto import FederationMismatch
from p2pfl.crypto.identity import Identity
from p2pfl.errors import PeerFault, UserError
from p2pfl.features.lan.announcing import discovery_of
from p2pfl.learn.table.agreed import agreed_file, declared_by
from p2pfl.learn.table.merging import Merged, merge
from p2pfl.learn.table.proposal import MOST_BYTES, Proposal, text_of, unpack
from p2pfl.learn.table.proposing import own_proposal
from p2pfl.learn.table.writing import schema_text
from p2pfl.net.links import Links
from p2pfl.net.refusals import DIFFERS
from p2pfl.net.side import Feeding, SideChannel
from p2pfl.node.leash import on_a_leash
from p2pfl.node.phase_links import links_of_phase
from p2pfl.storage.disk import replace_file

log = logging.getLogger("p2pfl")
notice = logging.getLogger("p2pfl.notice")

SIGNATURE_BYTES = 64
DOMAIN = b"p2pfl proposal of a schema\0"
"""The prefix of the signed bytes, so that no other signature can be used in their place."""
FILE_NAME = "proposal"
TEXT_NAME = "proposal.json"
SAY_AGAIN_S = 30.0
FAREWELL_S = 1.0
"""The time to wait for the last message to arrive; it does no harm if it does not."""
LEARNING = str(FederationMismatch(b"", ("schema", "model")))
"""The error in a session with a neighbor that has agreed and already trains."""
MOST_PART_BYTES = 48 * 1024
"""The largest size of a proposal's piece in one message."""

Counter = Annotated[int, Meta(ge=0, lt=2**53)]


class SchemaSaid(Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A message about the schema."""


class ProposalsHeld(SchemaSaid, frozen=True, kw_only=True, tag=1):
    """The proposals that the sender has, one bit per member, and the digest of its schema, empty while it has none."""

    held: Annotated[bytes, Meta(max_length=1 << 11)]
    agreed: Annotated[bytes, Meta(max_length=32)]


class ProposalPart(SchemaSaid, frozen=True, kw_only=True, tag=2):
    """A piece of the proposal that `member` signed, which has `size` bytes; the piece starts at `offset`."""

    member: Counter
    size: Counter
    offset: Counter
    part: Annotated[bytes, Meta(min_length=1, max_length=MOST_PART_BYTES)]


CHANNEL = SideChannel(
    "schema", ProposalsHeld, ProposalPart, most_bytes=MOST_PART_BYTES + 64, per_s=200.0, at_once=4000.0
)
Send = Callable[[int, SideChannel, SchemaSaid], object]


class Agreement:
    """The proposals that a node has, by member. `own` is this node's index."""

    def __init__(self, federation: FederationConfig, own: int, raw: bytes) -> None:
        self.federation = federation
        self.own = own
        self.expected = frozenset(member.index for member in federation.present)
        self.raw_proposals: dict[int, bytes] = {own: raw}
        self._proposals: dict[int, Proposal] = {own: unpack(raw[:-SIGNATURE_BYTES])}

    @property
    def lacking(self) -> frozenset[int]:
        return self.expected - self.raw_proposals.keys()

    def offer(self, member: int, raw: bytes) -> None:
        """Accept a missing proposal. Raises PeerFault: it was not made by its member."""
        if member not in self.lacking:
            return
        found = verify(self.federation, member, raw)
        self._proposals[member], self.raw_proposals[member] = found, raw

    def bitmap(self) -> bytes:
        """Return one bit per member, set if its proposal is here."""
        bits = bytearray((max(self.expected) >> 3) + 1)
        for member in self.raw_proposals:
            bits[member >> 3] |= 1 << (member & 7)
        return bytes(bits)

    def merge_proposals(self) -> Merged:
        """Merge the proposals. Raises UserError: they cannot be merged into a schema."""
        return merge(self._proposals.values(), declared_by(self.federation.task))


def sign_proposal(federation: FederationConfig, packed: bytes, identity: Identity) -> bytes:
    """Return a proposal with its signature, in the form in which it is sent."""
    return packed + identity.sign(DOMAIN + federation_id(federation) + packed)


def verify(federation: FederationConfig, member: int, raw: bytes) -> Proposal:
    """Verify and return a proposal. Raises PeerFault: that member has not signed it, or it is not that member's
    proposal.
    """
    packed, signature = raw[:-SIGNATURE_BYTES], raw[-SIGNATURE_BYTES:]
    by = federation.members[member]
    try:
        VerifyKey(by.key).verify(DOMAIN + federation_id(federation) + packed, signature)
        found = unpack(packed)
    except (BadSignatureError, ValueError) as error:
        raise PeerFault(f"a proposal that {by.name} did not sign: {error}") from None
    if (found.node, found.federation) != (by.name, federation.name):
        raise PeerFault(f"a proposal of {found.node[:40]!r} that {by.name} has signed")
    return found


@dataclass(slots=True)
class Neighbor:
    """The state of one neighbor, and of its open session if there is one."""

    is_there: bool = False
    holds: frozenset[int] = frozenset()
    sent: int | None = None
    """The proposal that is being sent to it."""
    pieces: bytearray = field(default_factory=bytearray)
    piece_owner: int | None = None
    is_through: bool = False
    """True once it has stored a schema."""


class SchemaTalk:
    """The exchange of proposals with all neighbors.

    `conclude` is called once all proposals have arrived, and returns the schema's digest.
    """

    def __init__(
        self, agreement: Agreement, neighbors: tuple[int, ...], send: Send, conclude: Callable[[], bytes]
    ) -> None:
        self.agreement = agreement
        self.neighbors = {peer: Neighbor() for peer in neighbors}
        self.digest = b""
        self.failure: Exception | None = None
        self.changed = asyncio.Event()
        """Set when there may be news to send."""
        self._unlike: set[int] = set()
        """The neighbors that were reported for having a different schema."""
        self._send, self._conclude = send, conclude

    @property
    def is_through(self) -> bool:
        return bool(self.digest) and all(one.is_through for one in self.neighbors.values())

    def missing_text(self) -> str:
        """Return a description of what is still missing."""
        name_of = {member.index: member.name for member in self.agreement.federation.members}
        if lacking := sorted(self.agreement.lacking):
            names = ", ".join(name_of[index] for index in lacking[:8])
            return f"the proposals of {names}" + (f" and {len(lacking) - 8} more" if len(lacking) > 8 else "")
        late = ", ".join(name_of[peer] for peer, one in self.neighbors.items() if not one.is_through)
        return f"{late} to have them all"

    def begin(self) -> None:
        """Conclude if nothing is missing, because the federation has one member, or because the node had all proposals
        before a restart.
        """
        self._conclude_if_complete()

    def opened(self, peer: int) -> None:
        one = self.neighbors[peer] = Neighbor(is_there=True, is_through=self.neighbors[peer].is_through)
        self._tell(peer, one)

    def closed(self, peer: int) -> None:
        self.neighbors[peer].is_there = False

    def alarm(self, kind: str, peer: int | None, text: str) -> None:
        """Handle an alarm. A neighbor that already trains has agreed, and has all that it needs."""
        if kind != DIFFERS or peer not in self.neighbors:
            return
        if text != LEARNING:
            log.warning("%s: %s", self.agreement.federation.members[peer].name, text)
        elif not self.digest and self.agreement.lacking:
            name = self.agreement.federation.members[peer].name
            advice = "copy state/schema.toml of its folder to that of this node"
            notice.warning("%s has already agreed on a schema with the others: %s", name, advice)
        self.neighbors[peer].is_through |= text == LEARNING
        self.changed.set()

    def hear(self, peer: int, message: SchemaSaid) -> None:
        """Handle a message. Raises PeerFault: an honest node would not send it."""
        one = self.neighbors[peer]
        try:
            if isinstance(message, ProposalsHeld):
                self._hear_held(peer, one, message)
            elif isinstance(message, ProposalPart):
                self._collect(one, message)
        except UserError as error:
            self.failure = error
            self.changed.set()

    def _hear_held(self, peer: int, neighbor: Neighbor, message: ProposalsHeld) -> None:
        bits = int.from_bytes(message.held, "little")
        neighbor.holds = frozenset(member for member in self.agreement.expected if bits >> member & 1)
        if message.agreed:
            neighbor.is_through = True
            self._compare(peer, message.agreed)
        if neighbor.sent in neighbor.holds:
            neighbor.sent = None
        self._send_next(peer, neighbor)
        self.changed.set()

    def _compare(self, peer: int, theirs: bytes) -> None:
        """Report a neighbor with a different schema. Its sessions will be refused in training, but it does not stop
        agreement here.
        """
        if self.digest and theirs != self.digest and peer not in self._unlike:
            self._unlike.add(peer)
            text = (
                "%s has agreed on another schema: remove state/schema.toml and state/proposal on one of the two nodes"
            )
            log.warning(text, self.agreement.federation.members[peer].name)

    def _collect(self, neighbor: Neighbor, piece: ProposalPart) -> None:
        """Collect the pieces of proposals, which arrive in order, one proposal after another. Raises PeerFault."""
        if piece.member not in self.agreement.expected or piece.size > MOST_BYTES + SIGNATURE_BYTES:
            raise PeerFault(f"a proposal of {piece.size} bytes of member {piece.member}")
        if piece.offset == 0:
            neighbor.piece_owner, neighbor.pieces = piece.member, bytearray()
        if piece.member != neighbor.piece_owner or piece.offset != len(neighbor.pieces):
            raise PeerFault("a piece of a proposal without those before it")
        neighbor.pieces += piece.part
        if len(neighbor.pieces) > piece.size:
            raise PeerFault("a piece of a proposal beyond its end")
        if len(neighbor.pieces) == piece.size:
            raw, neighbor.pieces, neighbor.piece_owner = bytes(neighbor.pieces), bytearray(), None
            before = len(self.agreement.raw_proposals)
            self.agreement.offer(piece.member, raw)
            if len(self.agreement.raw_proposals) > before:
                self._conclude_if_complete()
            self._tell_all()

    def _conclude_if_complete(self) -> None:
        if not self.agreement.lacking and not self.digest:
            self.digest = self._conclude()
            self.changed.set()

    def _tell_all(self) -> None:
        for peer, one in self.neighbors.items():
            self._tell(peer, one)
            self._send_next(peer, one)

    def _tell(self, peer: int, neighbor: Neighbor) -> None:
        if neighbor.is_there:
            self._send(peer, CHANNEL, ProposalsHeld(held=self.agreement.bitmap(), agreed=self.digest))

    def _send_next(self, peer: int, neighbor: Neighbor) -> None:
        """Send a neighbor one proposal that it lacks; the next follows when it has received this one."""
        missing = sorted(self.agreement.raw_proposals.keys() - neighbor.holds)
        if not neighbor.is_there or neighbor.sent is not None or not missing:
            return
        neighbor.sent = missing[0]
        raw = self.agreement.raw_proposals[neighbor.sent]
        for offset in range(0, len(raw), MOST_PART_BYTES):
            part = raw[offset : offset + MOST_PART_BYTES]
            self._send(peer, CHANNEL, ProposalPart(member=neighbor.sent, size=len(raw), offset=offset, part=part))


def signed_proposal(federation: FederationConfig, node: NodeConfig, identity: Identity) -> bytes:
    """Return this node's signed proposal. It is stored with the state, with a readable text, so that it is the same at
    each start.

    Raises UserError: its table cannot be read; StorageError: writing fails.
    """
    file, index = node.state_dir / FILE_NAME, federation.member(node.name).index
    try:
        raw = file.read_bytes()
        verify(federation, index, raw)
    except (OSError, PeerFault):
        proposal, packed = own_proposal(federation, node)
        raw = sign_proposal(federation, packed, identity)
        node.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(node.state_dir / TEXT_NAME, [text_of(proposal).encode()])
        replace_file(file, [raw])
    notice.info("this node sends these statistics, and nothing else of its table: %s", node.state_dir / TEXT_NAME)
    return raw


def keep(federation: FederationConfig, node: NodeConfig, merged: Merged) -> bytes:
    """Store the schema with the node's state; return its digest."""
    origin = f"Agreed on by {len(federation.present)} nodes of {federation.name}."
    replace_file(agreed_file(node.state_dir), [schema_text(merged, origin=origin).encode()])
    for warning in merged.warnings:
        notice.warning("schema: %s", warning)
    notice.info("the nodes have agreed on a schema: %s", agreed_file(node.state_dir))
    return merged.schema.digest()


async def agree(federation: FederationConfig, node: NodeConfig, identity: Identity, *, launched: bool = False) -> bool:
    """Wait until this node and all its neighbors have stored the schema; return False if stopped before that.

    Raises UserError: there is a mistake in its table, or the proposals cannot be merged.
    """
    member = federation.member(node.name)
    agreement = Agreement(federation, member.index, signed_proposal(federation, node, identity))
    stop = asyncio.Event()
    async with on_a_leash(stop.set, launched=launched), AsyncExitStack() as doors:
        links = _links(federation, node, identity, lambda: talk)
        talk = SchemaTalk(
            agreement,
            federation.neighbors(member.index),
            links.sides.say,
            lambda: keep(federation, node, agreement.merge_proposals()),
        )
        links.sides.add(Feeding(channel=CHANNEL, handler=talk, guards=True))
        talk.begin()
        await doors.enter_async_context(links)
        if node.discovery:
            await doors.enter_async_context(discovery_of(member, node, lambda: federation, links))
        return await _until_through(talk, stop)


async def _until_through(talk: SchemaTalk, stop: asyncio.Event) -> bool:
    while not talk.is_through:
        talk.changed.clear()
        waits = [asyncio.create_task(event.wait()) for event in (talk.changed, stop)]
        done, others = await asyncio.wait(waits, timeout=SAY_AGAIN_S, return_when=asyncio.FIRST_COMPLETED)
        for task in others:
            task.cancel()
        if talk.failure is not None:
            raise talk.failure
        if stop.is_set():
            return False
        if not done:
            notice.info("agreeing on a schema: waiting for %s", talk.missing_text())
    await asyncio.sleep(FAREWELL_S)
    return True


def _links(federation: FederationConfig, node: NodeConfig, identity: Identity, talk: Callable[[], SchemaTalk]) -> Links:
    return links_of_phase(
        federation,
        federation.member(node.name).index,
        identity,
        hashlib.blake2b(b"agreeing", digest_size=HASH_BYTES, person=b"p2pfl-schema").digest(),
        listen=node.listen,
        max_body_bytes=MOST_PART_BYTES,
        on_alarm=lambda kind, peer, text: talk().alarm(kind, peer, text),
    )
