"""Nodes with `schema = "agreed"` in `[task]` agree on a schema for their tables before there is a model.

Each node signs a statement about its table: the names of its columns and categories, while its figures leave it only in
a secure sum over all nodes. Statements spread from neighbor to neighbor until every node has all of them. Then all sum
their figures (`features.sums`), and each computes the same schema and stores it with its state. Who missed the sum gets
it from its neighbors. A node continues when all its neighbors have stored a schema too. Of two nodes, each would learn
the other's figures from the sum: if the owners of both tables allow it, their statements have the figures.

`Agreement` decides what to accept; `SchemaTalk` exchanges messages in sessions. These have their own binding, so that
they cannot be confused with training sessions.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta, Struct
from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey

from p2pfl.config.charter import HASH_BYTES, federation_id
from p2pfl.config.model import FederationConfig, NodeConfig
from p2pfl.crypto import FederationMismatch
from p2pfl.crypto.identity import Identity
from p2pfl.errors import PeerFault, UserError
from p2pfl.features.lan.discovery import discovery_of
from p2pfl.features.relay.transport import through_relays
from p2pfl.features.sums.arithmetic import SpoiledSum, numbers_of
from p2pfl.features.sums.messages import Refused, SumDone, SumSettings
from p2pfl.features.sums.sessions import (
    MOST_BODY_BYTES,
    KeptSums,
    names_of,
    next_life,
    refuse_few,
    settings_of,
    sum_talk,
)
from p2pfl.features.sums.talk import CHANNEL as SUMS
from p2pfl.features.sums.talk import HELD_UP, SumTalk
from p2pfl.foreign import UNREADABLE
from p2pfl.learn.table.merging import WITHIN, FigureLayout, Merged, merge, schema_text
from p2pfl.learn.table.proposal import Proposal, TableNames, names_in, own_proposal, pack, text_of, unpack, unpack_names
from p2pfl.learn.table.schema import OPENLY, agreed_file, declared_by
from p2pfl.limits import CHANNEL_AT_ONCE, CHANNEL_PER_S, MOST_PROPOSAL_BYTES
from p2pfl.net.extensions import ExtensionChannel, HandledChannel
from p2pfl.net.links import Links
from p2pfl.net.transport import DIFFERS
from p2pfl.net.websocket import transport_of
from p2pfl.node.current_federation import links_of_phase
from p2pfl.node.shutdown import shutdown_on_request
from p2pfl.storage.disk import replace_file
from p2pfl.system import make_folder

log = logging.getLogger("p2pfl")
notice = logging.getLogger("p2pfl.notice")

SIGNATURE_BYTES = 64
DOMAINS = {True: b"p2pfl proposal of a schema\0", False: b"p2pfl names for a schema\0"}
"""The prefix of the signed bytes, by whether they show figures, so that no other signature can be used in their place.
"""
FILE_NAME = "proposal"
TEXT_NAME = "proposal.json"
FIGURES_NAME = "figures"
"""The node's own figures, which never leave it; kept so that they are the same at each start."""
COLLUDERS = 1
LEAST = 3


class Agreement:
    """All members' statements that a node has, by member, and the sums over all. `own` is this node's index, `raw` its
    statement in the form in which it is sent.
    """

    def __init__(self, federation: FederationConfig, own: int, raw: bytes, statistics: Proposal) -> None:
        self.federation = federation
        self.own = own
        self.statistics = statistics
        self.is_open = is_open(federation)
        self.expected = frozenset(member.index for member in federation.present)
        self.sums_item = len(federation.members)
        """The number under which the sums are passed on, as proposals are under their member's."""
        self.raw_items: dict[int, bytes] = {own: raw}
        self._statements: dict[int, Proposal | TableNames] = {own: verify(federation, own, raw)}
        self._layout: FigureLayout | None = None

    @property
    def lacking(self) -> frozenset[int]:
        """The members whose statements are not here."""
        return self.expected - self.raw_items.keys()

    @property
    def items(self) -> frozenset[int]:
        """All that nodes pass on."""
        return self.expected if self.is_open else self.expected | {self.sums_item}

    @property
    def is_complete(self) -> bool:
        return self.items == self.raw_items.keys()

    def offer(self, member: int, raw: bytes) -> None:
        """Accept a missing statement. Raises PeerFault: it was not made by its member."""
        if member not in self.lacking:
            return
        statement = verify(self.federation, member, raw)
        self._statements[member], self.raw_items[member] = statement, raw

    def bitmap(self) -> bytes:
        """Return one bit per item, set if it is here."""
        bits = bytearray((max(self.items) >> 3) + 1)
        for item in self.raw_items:
            bits[item >> 3] |= 1 << (item & 7)
        return bytes(bits)

    @property
    def layout(self) -> FigureLayout:
        """The layout of the sums, once all statements are here."""
        if self._layout is None:
            names = [each for each in self._statements.values() if isinstance(each, TableNames)]
            self._layout = FigureLayout(names, declared_by(self.federation.task))
        return self._layout

    def check_sums(self, raw: bytes) -> None:
        """Raises PeerFault: no tables with these names have such sums."""
        try:
            self.layout.proposals(np.frombuffer(raw, "<i8"))
        except (ValueError, OverflowError) as error:
            raise PeerFault(f"sums of tables that there cannot be: {error}") from None

    def merge_all(self) -> Merged:
        """Merge the statements, with the sums. Raises UserError: they cannot be merged into a schema."""
        try:
            if self.is_open:
                shown = [each for each in self._statements.values() if isinstance(each, Proposal)]
                return merge(shown, declared_by(self.federation.task))
            return self.layout.merge(np.frombuffer(self.raw_items[self.sums_item], "<i8"))
        except (ValueError, OverflowError) as error:
            text = f"the figures of all nodes make no sense, so at least one of them has lied: {error}"
            raise UserError(text, file=self.federation.path, key="task.schema") from None


def is_open(federation: FederationConfig) -> bool:
    """Return True if the nodes show each other their figures in place of a sum."""
    return len(federation.present) == 2


def preview(federation: FederationConfig, proposals: Sequence[Proposal]) -> Merged:
    """Return what nodes with these statistics would agree on. Raises UserError: they make no schema."""
    declared = declared_by(federation.task)
    if is_open(federation) or len(proposals) < len(federation.present):
        return merge(proposals, declared)
    layout = FigureLayout(map(names_in, proposals), declared)
    return layout.merge(sum((layout.figures(proposal) for proposal in proposals), np.zeros(layout.size, np.int64)))


def refuse_to_agree(federation: FederationConfig, here: Iterable[NodeConfig]) -> None:
    """Raises UserError: the members are too few to agree on a schema by secure sums, and of two, one of the nodes
    `here` does not allow the other to see its figures.
    """
    name, by_hand = federation.task.options.get("schema"), "the name of a schema file"
    if name == OPENLY:
        text = f"{OPENLY} is gone: nodes agree by sums, in which nobody sees another's figures"
        raise UserError(text, file=federation.path, key="task.schema", value=name, allowed=f'"agreed", or {by_hand}')
    if is_open(federation):
        for node in here:
            if node.data.get("show_figures") is not True:
                text = "of two nodes that agree on a schema, each sees the other's counts, sums and sums of squares"
                allowed = f"true, in [data] of both, if they may; or {by_hand} in task.schema"
                raise UserError(text, file=node.path, key="data.show_figures", allowed=allowed)
        return
    try:
        refuse_few(federation, least=max(LEAST, len(federation.present)), colluders=COLLUDERS)
    except UserError as error:
        text = f"the nodes agree by sums, in which nobody sees another's figures, and cannot: {error.message}"
        raise UserError(text, file=federation.path, key="task.schema", value=name, allowed=by_hand) from None


def sign_proposal(federation: FederationConfig, packed: bytes, identity: Identity) -> bytes:
    """Return a statement with its signature, in the form in which it is sent."""
    return packed + identity.sign(DOMAINS[is_open(federation)] + federation_id(federation) + packed)


def verify(federation: FederationConfig, member: int, raw: bytes) -> Proposal | TableNames:
    """Verify and return a statement. Raises PeerFault: that member has not signed it, or it is not that member's."""
    packed, signature = raw[:-SIGNATURE_BYTES], raw[-SIGNATURE_BYTES:]
    by = federation.members[member]
    try:
        VerifyKey(by.key).verify(DOMAINS[is_open(federation)] + federation_id(federation) + packed, signature)
        statement = unpack(packed) if is_open(federation) else unpack_names(packed)
    except (BadSignatureError, ValueError) as error:
        raise PeerFault(f"a proposal that {by.name} did not sign: {error}") from None
    if (statement.node, statement.federation) != (by.name, federation.name):
        raise PeerFault(f"a proposal of {statement.node[:40]!r} that {by.name} has signed")
    return statement


def signed_statement(federation: FederationConfig, node: NodeConfig, identity: Identity) -> tuple[bytes, Proposal]:
    """Return this node's statement and its statistics. They are stored with the state, with a readable text, so that
    they are the same at each start.

    Raises UserError: its table cannot be read; StorageError: writing fails.
    """
    file, figures = node.state_dir / FILE_NAME, node.state_dir / FIGURES_NAME
    try:
        raw = file.read_bytes()
        verify(federation, federation.member(node.name).index, raw)
        statistics = msgspec.json.decode(figures.read_bytes(), type=Proposal)
    except (OSError, PeerFault, *UNREADABLE):
        statistics = own_proposal(federation, node)
        statement = statistics if is_open(federation) else names_in(statistics)
        raw = sign_proposal(federation, pack(statement), identity)
        make_folder(node.state_dir)
        replace_file(figures, [pack(statistics)])
        replace_file(node.state_dir / TEXT_NAME, [text_of(statement).encode()])
        replace_file(file, [raw])
    text = "this node sends these names, and figures only in sums over all nodes: %s"
    if is_open(federation):
        text = "this node sends these statistics, and nothing else of its table: %s"
    notice.info(text, node.state_dir / TEXT_NAME)
    return raw, statistics


def keep(federation: FederationConfig, node: NodeConfig, merged: Merged) -> bytes:
    """Store the schema with the node's state; return its digest."""
    origin = f"Agreed on by {len(federation.present)} nodes of {federation.name}."
    replace_file(agreed_file(node.state_dir), [schema_text(merged, origin=origin).encode()])
    for warning in merged.warnings:
        notice.warning("schema: %s", warning)
    notice.info("the nodes have agreed on a schema: %s", agreed_file(node.state_dir))
    return merged.schema.digest()


# -- the exchange of statements ----------------------------------------------------------------------------------------

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


class SchemaMessage(Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A message about the schema."""


class ProposalsHeld(SchemaMessage, frozen=True, kw_only=True, tag=1):
    """The proposals that the sender has, one bit per member and one for the sums over all, and the digest of its
    schema, empty while it has none.
    """

    held: Annotated[bytes, Meta(max_length=1 << 11)]
    agreed: Annotated[bytes, Meta(max_length=32)]


class ProposalPart(SchemaMessage, frozen=True, kw_only=True, tag=2):
    """A piece of the proposal that `member` signed, which has `size` bytes; the piece starts at `offset`. Of the number
    after the last member's it is a piece of the sums.
    """

    member: Counter
    size: Counter
    offset: Counter
    part: Annotated[bytes, Meta(min_length=1, max_length=MOST_PART_BYTES)]


CHANNEL = ExtensionChannel(
    "schema",
    ProposalsHeld,
    ProposalPart,
    most_bytes=MOST_PART_BYTES + 64,
    per_s=CHANNEL_PER_S["schema"],
    at_once=CHANNEL_AT_ONCE["schema"],
)
Send = Callable[[int, ExtensionChannel, SchemaMessage], object]


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
    is_unlike: bool = False
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
        self._send, self._conclude = send, conclude

    @property
    def is_through(self) -> bool:
        return bool(self.digest) and all(neighbor.is_through for neighbor in self.neighbors.values())

    def missing_text(self) -> str:
        """Return a description of what is still missing."""
        if lacking := self.agreement.lacking:
            return f"the proposals of {names_of(self.agreement.federation, lacking)}"
        if not self.digest:
            return "the sum of all nodes' figures"
        late = [peer for peer, neighbor in self.neighbors.items() if not neighbor.is_through]
        return f"{names_of(self.agreement.federation, late)} to have them all"

    def opened(self, peer: int) -> None:
        neighbor = self.neighbors[peer] = Neighbor(is_there=True, is_through=self.neighbors[peer].is_through)
        self._tell(peer, neighbor)

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

    def hear(self, peer: int, message: SchemaMessage) -> None:
        """Handle a message. Raises PeerFault: an honest node would not send it."""
        neighbor = self.neighbors[peer]
        try:
            if isinstance(message, ProposalsHeld):
                self._hear_held(peer, neighbor, message)
            elif isinstance(message, ProposalPart):
                self._collect(neighbor, message)
            self._consider_sums()
        except UserError as error:
            self.failure = error
            self.changed.set()

    def _hear_held(self, peer: int, neighbor: Neighbor, message: ProposalsHeld) -> None:
        bits = int.from_bytes(message.held, "little")
        neighbor.holds = frozenset(member for member in self.agreement.items if bits >> member & 1)
        if message.agreed:
            neighbor.is_through = True
        if message.agreed and self.digest and message.agreed != self.digest and not neighbor.is_unlike:
            neighbor.is_unlike = True
            text = (
                "%s has agreed on another schema: remove state/schema.toml and state/proposal on one of the two nodes"
            )
            log.warning(text, self.agreement.federation.members[peer].name)
        if neighbor.sent in neighbor.holds:
            neighbor.sent = None
        self._send_next(peer, neighbor)
        self.changed.set()

    def _collect(self, neighbor: Neighbor, piece: ProposalPart) -> None:
        """Collect the pieces of proposals, which arrive in order, one proposal after another. Raises PeerFault."""
        if piece.member not in self.agreement.items or piece.size > MOST_PROPOSAL_BYTES + SIGNATURE_BYTES:
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
        there = [neighbor for neighbor in self.neighbors.values() if neighbor.is_there]
        passed = {neighbor.sums for neighbor in there if neighbor.sums is not None}
        if len(passed) != 1 or not (self._is_refused or all(neighbor.sums is not None for neighbor in there)):
            return
        (sums,) = passed
        try:
            self.agreement.check_sums(sums)
            self.take_sums(sums)
        except PeerFault as fault:
            log.warning("neighbors pass on %s", fault)
            for neighbor in there:
                neighbor.sums = None
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
        for peer, neighbor in self.neighbors.items():
            self._tell(peer, neighbor)
            self._send_next(peer, neighbor)

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
    refuse_to_agree(federation, [node])
    member = federation.member(node.name)
    agreement = Agreement(federation, member.index, *signed_statement(federation, node, identity))
    stop = asyncio.Event()
    async with shutdown_on_request(stop.set, launched=launched), AsyncExitStack() as doors:
        settings = None
        if not agreement.is_open:
            settings = settings_of(
                federation,
                member.index,
                life=next_life(node.state_dir),
                least=len(federation.present),  # all members are in it
                colluders=COLLUDERS,
                sums=SUMS_OF_A_SETUP,
            )
        links = _links(federation, node, identity, settings, lambda: talk)
        talk = SchemaTalk(
            agreement,
            federation.neighbors(member.index),
            links.extensions.say,
            lambda: keep(federation, node, agreement.merge_all()),
        )
        links.extensions.add(HandledChannel(channel=CHANNEL, handler=talk, guards=True))
        sums = None
        if settings is not None:
            kept = KeptSums(node.state_dir, settings.members)
            sums = sum_talk(settings, identity, kept, links.extensions.say, first_wait_s=FIRST_WAIT_S, alarm=talk.alarm)
            links.extensions.add(HandledChannel(channel=SUMS, handler=sums))
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


# -- the secure sum of figures: all members must be in it; else it is refused, and asked for again ---------------------

LABEL = "schema"
AGAIN_S = 1.0
SUMS_OF_A_SETUP = 4
FIGURES = "figures"


@asynccontextmanager
async def summing(talk: SchemaTalk, sums: SumTalk) -> AsyncIterator[None]:
    """Sum in the background, and give `talk` the sums; a failure is given to it too."""

    async def work() -> None:
        try:
            await _sum(talk, sums)
        except Exception as error:  # noqa: BLE001 - raised by whoever waits for the agreement
            talk.failure = error
            talk.changed.set()

    task = asyncio.create_task(work())
    try:
        yield
    finally:
        task.cancel()
        sums.close()


async def _sum(talk: SchemaTalk, sums: SumTalk) -> None:
    await talk.named.wait()
    agreement, layout = talk.agreement, talk.agreement.layout
    figures = layout.figures(agreement.statistics)
    if not layout.size:
        talk.take_sums(b"")
        return
    numbers = numbers_of({FIGURES: figures}, *WITHIN, len(agreement.federation.members))
    vector = numbers.encode({FIGURES: figures})
    terms = numbers.terms(f"{LABEL} {layout.digest}")
    while not talk.digest:
        outcome = await sums.sum(LABEL, vector, terms)
        if isinstance(outcome, SumDone):
            try:
                total = numbers.decode(outcome.total, len(outcome.members))[FIGURES]
            except SpoiledSum as error:
                notice.warning("agreeing on a schema: %s", error)
            else:
                talk.take_sums(total.astype("<i8").tobytes())
                return
        else:
            _say(agreement.federation, outcome)
            talk.refused()
        await asyncio.sleep(AGAIN_S)


def _say(federation: FederationConfig, refused: Refused) -> None:
    if refused.differ:
        text = "agreeing on a schema: %s has since signed other names: restart all nodes"
        notice.warning(text, names_of(federation, refused.differ))
    else:
        notice.info("agreeing on a schema: no sum yet, trying again: %s", refused.reason)
