"""The charter of a running node: the newest one that it knows, on disk and in memory, and how neighbors get it.

`CharterKeeper` decides which charter to accept: only a newer one signed by an admin, whatever its source. It is stored
with the node's state before others see it, so that an older one is refused even after a restart.

A node announces its charter at the start of each session, and again to all neighbors when it has accepted a newer one
(`CharterTalk`). So the charter spreads along the edges, as each neighbor requests what it lacks. The tickets that open
relays spread in the same way, on a channel of their own. What strangers may do is in `p2pfl.net.greeting`. A node
without a session asks other members (`ask_when_alone`): all its neighbors may have been replaced while it was off.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from p2pfl.config.charter import Charter, CharterError, amended, checked, edition_of, extends, require_signed
from p2pfl.config.model import Edition, FederationConfig, Member
from p2pfl.core.limits import TokenBucket
from p2pfl.crypto.identity import Identity
from p2pfl.errors import PeerFault, StorageError, UserError
from p2pfl.features.relay.tickets import CREDENTIALS_MAGIC, CredentialsKeeper
from p2pfl.limits import (
    BODIES_AT_ONCE,
    BODIES_PER_S,
    CHANNEL_AT_ONCE,
    CHANNEL_PER_S,
    CHARTER_PATIENCE_S,
    MOST_CHARTER_ASKS,
    MOST_CHARTER_BYTES,
    MOST_CHARTER_PART_BYTES,
)
from p2pfl.net.address import Relayed
from p2pfl.net.dial_paths import Outlet, outlet_of
from p2pfl.net.extensions import ExtensionChannel, HandledChannel
from p2pfl.net.transport import Line
from p2pfl.net.websocket import DialThrough, OneShotClient, UnreachableError
from p2pfl.node.assembly import Setup
from p2pfl.node.current_federation import without_members
from p2pfl.node.feature import Attached, Feature, NodeView, Say
from p2pfl.node.folders import CHARTER_FILE, NONE
from p2pfl.reporting.alarms import AlarmText
from p2pfl.storage.disk import replace_file

notice = logging.getLogger("p2pfl.notice")

CONFLICT = "charter-conflict"
WAITS = "charter-waits"
"""The kinds of alarms. Conflict: a version was signed twice. Waits: the newest cannot take effect yet."""
OnCharter = Callable[[FederationConfig], object]
OnAlarm = Callable[[str, int | None, str], object]
ALONE_S = 30.0
"""The time to wait for neighbors before asking others."""
PAUSE_S = 10.0
"""The pause before asking the next member."""
Counter = Annotated[int, Meta(ge=0, lt=2**53)]


class CharterKeeper:
    """Stores the newest charter.

    `federation` is what the node runs with; `file` is where the charter is stored. `on_charter` is called when a newer
    charter has been accepted, with the federation to follow from now on. This is the amended one or, if the running
    node cannot follow the whole charter, the previous one without the removed members. It may raise UserError if the
    node cannot follow that either. `on_alarm` is called with a kind, the peer from which the charter came, and a text.
    `on_tickets` is called with tickets that a one-shot client brings.
    """

    def __init__(
        self,
        federation: FederationConfig,
        file: Path,
        *,
        on_charter: OnCharter,
        on_alarm: OnAlarm,
        on_tickets: Callable[[bytes], object] = lambda raw: None,  # noqa: ARG005 - where there are no relays
    ) -> None:
        self.federation = federation
        self._file = file
        self._on_charter, self._on_tickets = on_charter, on_tickets
        self.alarm = on_alarm
        self.on_taken: Callable[[], object] = lambda: None
        """Called when a newer charter has been accepted and is on disk, before it takes effect."""
        self._running = federation
        self._conflicts: set[bytes] = set()
        self._left_at: dict[int | None, int] = {}
        """The newest version that, according to each member, does not list this node."""
        self._unsaved = bool(federation.charter)

    @property
    def edition(self) -> Edition:
        return self.federation.edition or NONE

    @property
    def packed(self) -> bytes:
        """Return the charter in the form in which it is sent, empty if there is none yet."""
        return self.federation.charter

    @property
    def version(self) -> int:
        return self.edition.version

    def bring(self, raw: bytes) -> None:
        """Accept a charter or tickets from a one-shot client, member or not. Raises PeerFault: it is neither."""
        is_credentials = raw.startswith(CREDENTIALS_MAGIC)
        try:
            (self._on_tickets if is_credentials else self.offer)(raw)
        except CharterError as error:
            what = "tickets" if is_credentials else "a charter"
            raise PeerFault(f"{what} that cannot be accepted: {error}") from None

    def left_behind(self, version: int, peer: int | None) -> None:
        """Raise an alarm, once for each version, if a member says that it has a newer charter that does not list this
        node.

        A member that lies about its version must not hide another's report. Of the members that report the same
        version, the first, fourth, sixteenth and so on raise the alarm.
        """
        if version > max(self._left_at.get(peer, 0), self.version):
            self._left_at[peer] = version
            alike = list(self._left_at.values()).count(version)
            if alike.bit_count() != 1 or alike.bit_length() % 2 == 0:
                return
            many = f" ({alike} members say so)" if alike > 1 else ""
            text = f"it says that version {version} of the members does not list this node{many}; here is version"
            why = "It was removed, or its own key is not the one in the list, or that member lies"
            self.alarm("charter-older", peer, f"{text} {self.version}. {why}")

    def may_ask(self, public: bytes) -> bool:
        """Return True for an admin, and for members of the newest charter even if it has not taken effect yet."""
        return public in self.federation.admin or public in self.keys

    def report_missing(self, peer: int, version: int, why: str) -> None:
        """Raise an alarm: a neighbor does not send the charter that it claims to have."""
        text = f"a neighbor says that it has version {version} of the members, {why}; here is version {self.version}"
        self.alarm("charter-older", peer, text)

    def wants(self, theirs: Edition) -> bool:
        """Return True if a charter is worth asking for.

        This includes a different charter with our version, even if ours takes precedence, because then an admin key has
        signed twice.
        """
        own = self.edition
        return theirs > own or (theirs.version == own.version and theirs.digest not in {own.digest, *self._conflicts})

    def save(self) -> None:
        """Make the newest charter durable, if it is not yet.

        If writing fails, raise an alarm; the next call tries again.
        """
        if not self._unsaved:
            return
        try:
            replace_file(self._file, [self.packed])
        except StorageError as error:
            self.alarm("storage", None, f"the charter is not on disk: {error}")
        else:
            self._unsaved = False

    def offer(self, raw: bytes, peer: int | None = None) -> None:
        """Accept a charter if it is newer and signed by an admin. Raises CharterError: it cannot be accepted."""
        require_signed(raw, self.federation.admin)  # before parsing it, which may take a tenth of a second
        offered, known = edition_of(raw), self.edition
        if offered == known or offered.version < known.version or offered.digest in self._conflicts:
            return
        charter = checked(raw, self.federation)
        if offered.version == known.version:
            self._conflicts |= {offered.digest, known.digest}
            text = f"version {known.version} of the members was signed twice: all nodes keep the same one of the two"
            self.alarm(CONFLICT, peer, f"{text}; sign another version with the members that you intend")
        if offered > known:
            self._take(charter)

    def _take(self, charter: Charter) -> None:
        self.federation = amended(self.federation, charter)
        self._unsaved = True
        self.save()
        notice.info("version %d of the members: %d of them", charter.version, len(charter.present))
        self.on_taken()
        if (obstacle := self._follow(self.federation)) is not None:
            gone = {member.key for member in charter.members if member.retired}
            self._follow(without_members(self._running, gone))
            own = (self._running.edition or NONE).version
            until = f"Until then it follows version {own}, without the members that are no longer listed"
            text = f"version {charter.version} takes effect when this node is started again: {obstacle}. {until}"
            self.alarm(WAITS, None, text)

    def _follow(self, federation: FederationConfig) -> str | None:
        """Make a federation the current one. Return None, or why that is impossible while the node runs."""
        if not extends(federation.members, self._running.members):
            return "it gives an index to another member than this node has run with"
        try:
            self._on_charter(federation)
        except UserError as error:
            return str(error)
        self._running = federation
        return None

    @property
    def keys(self) -> frozenset[bytes]:
        """Return the keys of all members in the newest charter, even if it has to wait for a restart."""
        return frozenset(member.key for member in self.federation.present)


class CharterMessage(Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A message about the charter."""


class CharterTold(CharterMessage, frozen=True, kw_only=True, tag=1):
    """The version and 32-byte digest of the sender's charter, or version 0 and no digest if it has none.

    A receiver with an older one requests it.
    """

    version: Counter
    fingerprint: Annotated[bytes, Meta(max_length=32)]


class CharterAsked(CharterMessage, frozen=True, kw_only=True, tag=2):
    """A request: the sender has the charter with this `version`, and asks for the one that was announced."""

    version: Counter


class CharterPart(CharterMessage, frozen=True, kw_only=True, tag=3):
    """A piece of the charter asked for, which has `size` bytes; it starts at `offset`. Pieces come in order."""

    size: Counter
    offset: Counter
    part: Annotated[bytes, Meta(min_length=1, max_length=MOST_CHARTER_PART_BYTES)]


def _channel(name: str) -> ExtensionChannel:
    kinds, most = (CharterTold, CharterAsked, CharterPart), MOST_CHARTER_PART_BYTES + 64
    return ExtensionChannel(
        name, *kinds, most_bytes=most, per_s=CHANNEL_PER_S["charter"], at_once=CHANNEL_AT_ONCE["charter"]
    )


CHANNEL, TICKETS = _channel("charter"), _channel("tickets")
"""The extension channels for the charter and for the tickets. The largest of either has 22 pieces."""


@dataclass(slots=True)
class Allowance:
    """The limits on one neighbor's requests, over all its sessions."""

    asks: TokenBucket = field(default_factory=lambda: _bucket(BODIES_PER_S, BODIES_AT_ONCE))
    answers: TokenBucket = field(default_factory=lambda: _bucket(BODIES_PER_S, BODIES_AT_ONCE))


def _bucket(rate_per_s: float, burst: float) -> TokenBucket:
    return TokenBucket(rate_per_s, tokens=burst, burst=burst)


@dataclass(slots=True, kw_only=True)
class Conversation:
    """The conversation with one neighbor over one session."""

    allowance: Allowance
    theirs: Edition = NONE
    """The charter that the neighbor claims to have."""
    pieces: bytearray | None = None
    """The pieces received of the requested charter; None if none was requested."""
    heard_at: float = 0.0
    """The time of the request, or of the latest piece."""
    asks: int = 0
    """The number of requests for the neighbor's charter."""
    given_up: bool = False


class CharterTalk:
    """Exchanges charters with all neighbors, on the event loop. Times are monotonic seconds from `clock`."""

    def __init__(
        self,
        keeper: CharterKeeper | CredentialsKeeper,
        say: Say,
        clock: Callable[[], float],
        channel: ExtensionChannel = CHANNEL,
    ) -> None:
        self.keeper, self.channel = keeper, channel
        keeper.on_taken = self._spread
        self._say, self._clock = say, clock
        self._with: dict[int, Conversation] = {}
        self._allowances: defaultdict[int, Allowance] = defaultdict(Allowance)

    def opened(self, peer: int) -> None:
        self._with[peer] = Conversation(allowance=self._allowances[peer])
        self._tell(peer)

    def closed(self, peer: int) -> None:
        self._with.pop(peer, None)

    def is_alone(self) -> bool:
        """Return True if no session is open."""
        return not self._with

    def _spread(self) -> None:
        """Announce a newer charter to all neighbors, including those that it removes."""
        for peer in sorted(self._with):
            self._tell(peer)

    def look(self, now: float) -> None:
        """Repeat requests for a charter that does not arrive, and report it if it never does. Call now and then."""
        self.keeper.save()
        for peer, talk in sorted(self._with.items()):
            if talk.pieces is not None and now - talk.heard_at >= CHARTER_PATIENCE_S:
                talk.pieces = None
                if talk.asks >= MOST_CHARTER_ASKS:
                    self._give_up(peer, talk, "but does not send it")
            self._ask_if_wanted(peer, talk, now)

    def hear(self, peer: int, message: CharterMessage) -> None:
        """Handle a message. Raises PeerFault: an honest node would not send it."""
        talk, now = self._with[peer], self._clock()
        match message:
            case CharterTold(version=version, fingerprint=digest):
                talk.theirs, talk.asks, talk.given_up = Edition(version, digest), 0, False
                self._ask_if_wanted(peer, talk, now)
            case CharterAsked():
                self._answer(peer, talk, now)
            case CharterPart():
                self._collect(peer, talk, message, now)

    def _tell(self, peer: int) -> None:
        version, digest = self.keeper.edition
        self._say(peer, self.channel, CharterTold(version=version, fingerprint=digest))

    def _ask_if_wanted(self, peer: int, talk: Conversation, now: float) -> None:
        idle = talk.pieces is None and not talk.given_up
        if idle and self.keeper.wants(talk.theirs) and talk.allowance.asks.take(now) == 0.0:
            talk.pieces, talk.heard_at, talk.asks = bytearray(), now, talk.asks + 1
            self._say(peer, self.channel, CharterAsked(version=self.keeper.edition.version))

    def _answer(self, peer: int, talk: Conversation, now: float) -> None:
        raw = self.keeper.packed
        if not raw or talk.allowance.answers.take(now) > 0.0:
            return
        for offset in range(0, len(raw), MOST_CHARTER_PART_BYTES):
            part = raw[offset : offset + MOST_CHARTER_PART_BYTES]
            self._say(peer, self.channel, CharterPart(size=len(raw), offset=offset, part=part))

    def _collect(self, peer: int, talk: Conversation, piece: CharterPart, now: float) -> None:
        coming = talk.pieces
        if coming is None and not talk.asks:
            raise PeerFault("a piece of a charter that was not asked for")
        if coming is None or piece.offset != len(coming):
            return  # part of a reply that came too late
        if not len(coming) < len(coming) + len(piece.part) <= piece.size <= MOST_CHARTER_BYTES:
            raise PeerFault("a piece of a charter beyond its end")
        coming += piece.part
        talk.heard_at = now
        if len(coming) == piece.size:
            talk.pieces = None
            self._offer(peer, talk, bytes(coming), now)

    def _offer(self, peer: int, talk: Conversation, raw: bytes, now: float) -> None:
        try:
            self.keeper.offer(raw, peer)
        except CharterError as error:
            self._give_up(peer, talk, f"but sends an invalid one: {error}")
            return
        if talk.asks >= MOST_CHARTER_ASKS and self.keeper.wants(talk.theirs):
            self._give_up(peer, talk, "but sends a different one")
        self._ask_if_wanted(peer, talk, now)

    def _give_up(self, peer: int, talk: Conversation, why: str) -> None:
        talk.given_up = True
        self.keeper.report_missing(peer, talk.theirs.version, why)


ALARMS: Mapping[str, AlarmText] = {
    "charter-older": AlarmText(
        means="A neighbor says that it has a newer charter, but does not send it, or sends an invalid one.",
        does="Keeps its own charter, and asks again in a new session.",
        advice="Compare with `p2pfl member list`. Any further `p2pfl member` command brings the newest charter to all.",
    ),
    "charter-conflict": AlarmText(
        means="One version of the charter was signed twice, with different contents.",
        does="Uses the one with the larger digest, as all other nodes do.",
        advice="Run `p2pfl member list`, and repeat the change that is missing.",
    ),
    "charter-waits": AlarmText(
        means="The newest charter does not fit this node while it runs; the text says why.",
        does="Cuts off nodes that it does not list. Otherwise follows the previous charter until restarted.",
        advice="Restart the node. A later charter that fits takes effect by itself.",
        ended_by="charter-in-force",
    ),
}


async def ask_when_alone(
    keeper: CharterKeeper,
    identity: Identity,
    is_alone: Callable[[], bool],
    *,
    alone_s: float = ALONE_S,
    outlet: Outlet | None = None,
    relays: Sequence[str] = (),
    through: DialThrough | None = None,
) -> None:
    """Ask the other members while no session is open; never return. `is_alone` returns True while none is open.

    They are asked at their addresses, and at the `relays`, which `through` dials.
    """
    pause_s, quiet_s, turn = min(PAUSE_S, alone_s), 0.0, 0
    while True:
        await asyncio.sleep(pause_s)
        quiet_s = quiet_s + pause_s if is_alone() else 0.0
        others = _others(keeper, identity, relays)
        if quiet_s >= alone_s and others:
            client = OneShotClient.of(keeper.federation, identity, through)
            client = replace(client, outlet=outlet or client.outlet, relays=frozenset(relays))
            await _ask(client, keeper, *others[turn % len(others)])
            turn += 1


def _others(keeper: CharterKeeper, identity: Identity, relays: Sequence[str]) -> list[tuple[Member, list[str]]]:
    """Return the members to ask, and where. Neighbors are left out: they are dialed all the time, and hand over a newer
    charter then.
    """
    federation = keeper.federation
    own = next((member.index for member in federation.present if member.key == identity.public), None)
    near = set() if own is None else {own, *federation.neighbors(own)}
    places = {
        member: [*([] if member.address is None else [member.address]), *relays]
        for member in federation.present
        if member.index not in near
    }
    return [(member, where) for member, where in places.items() if where]


async def _ask(client: OneShotClient, keeper: CharterKeeper, member: Member, places: Sequence[str]) -> None:
    for place in places:
        with suppress(UnreachableError, CharterError):
            raw = await client.ask(place, member.key, keeper.version)
            if raw is not None:
                keeper.offer(raw)
            return


class MembersFeature(Feature):
    name = "members"
    alarms = ALARMS

    def guards(self, setup: Setup) -> bool:  # noqa: ARG002 - whatever the files say
        return True

    def attach(self, node: NodeView) -> Attached | None:
        return Members(node) if node.setup().federation.admin else None


class Members(Attached):
    def __init__(self, node: NodeView) -> None:
        setup = node.setup()
        self._node = node
        file = setup.node.state_dir / CHARTER_FILE
        tickets = CredentialsKeeper(setup.federation, setup.node.state_dir, node.alarm)
        self.door = self.keeper = CharterKeeper(
            setup.federation, file, on_charter=self._follow, on_alarm=node.alarm, on_tickets=tickets.offer
        )
        self.talk = CharterTalk(self.keeper, node.say, node.clock)
        self._ticket_talk = CharterTalk(tickets, node.say, node.clock, TICKETS)

    def channels(self) -> tuple[HandledChannel, ...]:
        return (
            HandledChannel(channel=CHANNEL, handler=self.talk, guards=True),
            HandledChannel(channel=TICKETS, handler=self._ticket_talk),
        )

    def trusts(self, members: Mapping[bytes, int]) -> Mapping[bytes, int]:
        """Return the members listed in the newest charter. Even if it must wait for a restart, others are cut off at
        once.
        """
        keys = self.keeper.keys
        return {key: index for key, index in members.items() if key in keys}

    def status(self) -> Mapping[str, Any]:
        return {"members_version": self.keeper.version}

    def begin(self) -> None:
        self.keeper.save()

    def look(self) -> None:
        self.talk.look(self._node.clock())
        self._ticket_talk.look(self._node.clock())

    async def run(self) -> None:
        setup = self._node.setup()
        transport = self._node.network.transport

        async def through(relay: str, key: bytes) -> Line:
            return await transport.dial(Relayed(relay, key))

        await ask_when_alone(
            self.keeper,
            setup.identity,
            self.talk.is_alone,
            outlet=outlet_of(setup.node),
            relays=[url.partition("#")[0] for url in setup.node.relays],
            through=through,
        )

    def _follow(self, federation: FederationConfig) -> None:
        """Follow a newer charter, which is already on disk and sent to the neighbors. Raises UserError like `amend`."""
        try:
            self._node.amend(federation)
            if federation is self.keeper.federation:
                self._node.feed.settle("charter-in-force", None)
        finally:
            self._node.trust_anew()
