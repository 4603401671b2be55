"""Nodes with `schema = "agreed"` in `[task]` agree on a schema for their tables before there is a model.

Each node signs a statement about its table (`agreement`). Statements spread from neighbor to neighbor until every node
has all of them. Then all nodes sum their figures (`features.sums`), unless they have shown them, and each computes the
same schema and stores it with its state. Who missed the sum gets it from its neighbors. A node continues when all its
neighbors have stored a schema too. `Agreement` decides what to accept; `SchemaTalk` exchanges messages in sessions.
These have their own binding, so that they cannot be confused with training sessions.
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

from p2pfl.config.charter import HASH_BYTES
from p2pfl.config.model import FederationConfig, NodeConfig
from p2pfl.crypto import FederationMismatch
from p2pfl.crypto.identity import Identity
from p2pfl.errors import PeerFault, UserError
from p2pfl.features.lan.discovery import discovery_of
from p2pfl.features.relay.transport import through_relays
from p2pfl.features.sums.messages import SumSettings
from p2pfl.features.sums.sessions import MOST_BODY_BYTES, sums_over
from p2pfl.features.sums.talk import HELD_UP
from p2pfl.features.tables.agreement import SIGNATURE_BYTES, Agreement, keep, refuse_few_members, signed_statement
from p2pfl.features.tables.summing_figures import sum_settings, summing
from p2pfl.learn.table.proposal import MOST_BYTES
from p2pfl.net.links import Links
from p2pfl.net.side import Feeding, SideChannel
from p2pfl.net.transport import DIFFERS
from p2pfl.net.websocket import transport_of
from p2pfl.node.current_federation import links_of_phase
from p2pfl.node.shutdown import on_a_leash

log = logging.getLogger("p2pfl")
notice = logging.getLogger("p2pfl.notice")

SAY_AGAIN_S = 30.0
FAREWELL_S = 1.0
"""The time to wait for the last message to arrive; it does no harm if it does not."""
LEARNING = str(FederationMismatch(b"", ("schema", "model")))
"""The error in a session with a neighbor that has agreed and already trains."""
FIRST_WAIT_S = 20.0
"""All members must be in the sum, so a node that is slow is rather waited for. When one dies in the middle, the others
wait that long before they begin again.
"""
MOST_PART_BYTES = 48 * 1024
"""The largest size of a proposal's piece in one message."""

Counter = Annotated[int, Meta(ge=0, lt=2**53)]


class SchemaSaid(Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A message about the schema."""


class ProposalsHeld(SchemaSaid, frozen=True, kw_only=True, tag=1):
    """The proposals that the sender has, one bit per member and one for the sums over all, and the digest of its
    schema, empty while it has none.
    """

    held: Annotated[bytes, Meta(max_length=1 << 11)]
    agreed: Annotated[bytes, Meta(max_length=32)]


class ProposalPart(SchemaSaid, frozen=True, kw_only=True, tag=2):
    """A piece of the proposal that `member` signed, which has `size` bytes; the piece starts at `offset`. Of the number
    after the last member's it is a piece of the sums.
    """

    member: Counter
    size: Counter
    offset: Counter
    part: Annotated[bytes, Meta(min_length=1, max_length=MOST_PART_BYTES)]


CHANNEL = SideChannel(
    "schema", ProposalsHeld, ProposalPart, most_bytes=MOST_PART_BYTES + 64, per_s=200.0, at_once=4000.0
)
Send = Callable[[int, SideChannel, SchemaSaid], object]


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
    sums: bytes | None = None
    """The sums that it has passed on."""


class SchemaTalk:
    """The exchange of proposals with all neighbors.

    `conclude` is called once all proposals and the sums are here, and returns the schema's digest.
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
        self.named = asyncio.Event()
        """Set when all proposals are here."""
        self._is_refused = False
        """True if this node's own part in the sum has failed."""
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
        if not self.digest:
            return "the sum of all nodes' figures"
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
        self._consider_sums()

    def take_sums(self, sums: bytes) -> None:
        """Take the sums over all nodes. Raises UserError: they make no schema."""
        if not self.digest:
            self.agreement.raw_items[self.agreement.sums_item] = sums
            self._conclude_if_complete()
            self._tell_all()

    def refused(self) -> None:
        """This node has got no sum: a neighbor's will do, if there is one."""
        self._is_refused = True
        self._consider_sums()

    def alarm(self, kind: str, peer: int | None, text: str) -> None:
        """Handle an alarm. A neighbor that already trains has agreed, and has all that it needs."""
        if kind == HELD_UP and peer is not None:
            log.warning("%s: %s", self.agreement.federation.members[peer].name, f"{kind}: {text}")
        if kind != DIFFERS or peer not in self.neighbors:
            return
        if text != LEARNING:
            log.warning("%s: %s", self.agreement.federation.members[peer].name, text)
        elif not self.digest:
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
            self._consider_sums()
        except UserError as error:
            self.failure = error
            self.changed.set()

    def _hear_held(self, peer: int, neighbor: Neighbor, message: ProposalsHeld) -> None:
        bits = int.from_bytes(message.held, "little")
        neighbor.holds = frozenset(member for member in self.agreement.items if bits >> member & 1)
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
        if piece.member not in self.agreement.items or piece.size > MOST_BYTES + SIGNATURE_BYTES:
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
            if piece.member == self.agreement.sums_item:
                neighbor.sums = raw
                return
            before = len(self.agreement.raw_items)
            self.agreement.offer(piece.member, raw)
            if len(self.agreement.raw_items) > before:
                self._conclude_if_complete()
            self._tell_all()

    def _consider_sums(self) -> None:
        """Take the sums that neighbors have passed on, if this node has missed them: its own part has failed, or all
        neighbors that are there have them. Neighbors must have the same.
        """
        if self.agreement.is_open or self.agreement.lacking or self.digest:
            return
        there = [one for one in self.neighbors.values() if one.is_there]
        passed = {one.sums for one in there if one.sums is not None}
        if len(passed) != 1 or not (self._is_refused or all(one.sums is not None for one in there)):
            return
        (sums,) = passed
        try:
            self.agreement.check_sums(sums)
            self.take_sums(sums)
        except PeerFault as fault:
            log.warning("neighbors pass on %s", fault)
            for one in there:
                one.sums = None
        except UserError as error:
            self.failure = error
            self.changed.set()

    def _conclude_if_complete(self) -> None:
        if not self.agreement.lacking:
            self.named.set()
        if self.agreement.is_complete and not self.digest:
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
        missing = sorted(self.agreement.raw_items.keys() - neighbor.holds)
        if not neighbor.is_there or neighbor.sent is not None or not missing:
            return
        neighbor.sent = missing[0]
        raw = self.agreement.raw_items[neighbor.sent]
        for offset in range(0, len(raw), MOST_PART_BYTES):
            part = raw[offset : offset + MOST_PART_BYTES]
            self._send(peer, CHANNEL, ProposalPart(member=neighbor.sent, size=len(raw), offset=offset, part=part))


async def agree(federation: FederationConfig, node: NodeConfig, identity: Identity, *, launched: bool = False) -> bool:
    """Wait until this node and all its neighbors have stored the schema; return False if stopped before that.

    Raises UserError: there is a mistake in its table, the proposals cannot be merged, or the members are too few.
    """
    refuse_few_members(federation)
    member = federation.member(node.name)
    agreement = Agreement(federation, member.index, signed_statement(federation, node, identity))
    stop = asyncio.Event()
    async with on_a_leash(stop.set, launched=launched), AsyncExitStack() as doors:
        settings = None if agreement.is_open else sum_settings(federation, node)
        links = _links(federation, node, identity, settings, lambda: talk)
        talk = SchemaTalk(
            agreement,
            federation.neighbors(member.index),
            links.sides.say,
            lambda: keep(federation, node, agreement.merge_all()),
        )
        links.sides.add(Feeding(channel=CHANNEL, handler=talk, guards=True))
        sums = None
        if settings is not None:
            sums = sums_over(
                links, settings, identity, folder=node.state_dir, first_wait_s=FIRST_WAIT_S, alarm=talk.alarm
            )
        talk.begin()
        await doors.enter_async_context(links)
        if node.discovery:
            await doors.enter_async_context(discovery_of(member, node, lambda: federation, links))
        if sums is not None:
            await doors.enter_async_context(summing(talk, sums))
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


def _links(
    federation: FederationConfig,
    node: NodeConfig,
    identity: Identity,
    settings: SumSettings | None,
    talk: Callable[[], SchemaTalk],
) -> Links:
    phase = b"agreeing" if settings is None else b"agreeing by sums" + settings.domain()
    return links_of_phase(
        federation,
        federation.member(node.name).index,
        identity,
        hashlib.blake2b(phase, digest_size=HASH_BYTES, person=b"p2pfl-schema").digest(),
        listen=node.listen,
        max_body_bytes=MOST_BODY_BYTES,
        on_alarm=lambda kind, peer, text: talk().alarm(kind, peer, text),
        transport=through_relays(federation, node, identity, transport_of(node)),
    )
