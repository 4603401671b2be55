"""The side channel for the charter: it announces which one this end has, and sends a newer one in pieces on request.

A node announces its charter at the start of each session, and again to all neighbors when it has accepted a newer one.
So the charter spreads along the edges, as each neighbor requests what it lacks. The tickets that open relays spread in
the same way, on a channel of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Protocol

from msgspec import Meta, Struct

from p2pfl.config.charter import MOST_BYTES, CharterError
from p2pfl.config.model import Edition
from p2pfl.core.limits import TokenBucket
from p2pfl.errors import PeerFault
from p2pfl.net.side import SideChannel
from p2pfl.node.feature import Say
from p2pfl.node.kept_charter import NONE

PATIENCE_S = 30.0
"""The seconds to wait for the next piece of a requested charter before asking again."""
MOST_ASKS = 3
"""The most requests for one charter in one session."""
BODIES_PER_S, BODIES_AT_ONCE = 0.1, 8.0
"""The rate limits on charters requested from a neighbor and sent to it: an honest one needs each only once."""
MOST_PART_BYTES = 48 * 1024
"""The largest size of a charter's piece in one message."""

Counter = Annotated[int, Meta(ge=0, lt=2**53)]


class CharterSaid(Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A message about the charter."""


class CharterTold(CharterSaid, frozen=True, kw_only=True, tag=1):
    """The version and 32-byte digest of the sender's charter, or version 0 and no digest if it has none.

    A receiver with an older one requests it.
    """

    version: Counter
    fingerprint: Annotated[bytes, Meta(max_length=32)]


class CharterAsked(CharterSaid, frozen=True, kw_only=True, tag=2):
    """A request: the sender has the charter with this `version`, and asks for the one that the receiver has
    announced.
    """

    version: Counter


class CharterPart(CharterSaid, frozen=True, kw_only=True, tag=3):
    """A piece of the requested charter, which has `size` bytes; the piece starts at `offset`. Pieces arrive in
    order.
    """

    size: Counter
    offset: Counter
    part: Annotated[bytes, Meta(min_length=1, max_length=MOST_PART_BYTES)]


def _channel(name: str) -> SideChannel:
    kinds, most = (CharterTold, CharterAsked, CharterPart), MOST_PART_BYTES + 64
    return SideChannel(name, *kinds, most_bytes=most, per_s=5.0, at_once=400.0)


CHANNEL, TICKETS = _channel("charter"), _channel("tickets")
"""The side channels for the charter and for the tickets. The largest of either has 22 pieces."""


class Keeper(Protocol):
    """Keeps the newest charter, or what spreads like one."""

    on_taken: Callable[[], object]

    @property
    def edition(self) -> Edition: ...
    @property
    def packed(self) -> bytes: ...
    @property
    def version(self) -> int: ...
    def wants(self, theirs: Edition) -> bool: ...
    def save(self) -> None: ...
    def offer(self, raw: bytes, peer: int | None = None) -> object: ...
    def report_missing(self, peer: int, version: int, why: str) -> None: ...


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

    def __init__(self, keeper: Keeper, say: Say, clock: Callable[[], float], channel: SideChannel = CHANNEL) -> None:
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
        """Repeat requests for a charter that does not arrive, and report it if it never does. Call this once in a
        while.
        """
        self.keeper.save()
        for peer, talk in sorted(self._with.items()):
            if talk.pieces is not None and now - talk.heard_at >= PATIENCE_S:
                talk.pieces = None
                if talk.asks >= MOST_ASKS:
                    self._give_up(peer, talk, "but does not send it")
            self._ask_if_wanted(peer, talk, now)

    def hear(self, peer: int, message: CharterSaid) -> None:
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
            self._say(peer, self.channel, CharterAsked(version=self.keeper.version))

    def _answer(self, peer: int, talk: Conversation, now: float) -> None:
        raw = self.keeper.packed
        if not raw or talk.allowance.answers.take(now) > 0.0:
            return
        for offset in range(0, len(raw), MOST_PART_BYTES):
            part = raw[offset : offset + MOST_PART_BYTES]
            self._say(peer, self.channel, CharterPart(size=len(raw), offset=offset, part=part))

    def _collect(self, peer: int, talk: Conversation, piece: CharterPart, now: float) -> None:
        coming = talk.pieces
        if coming is None and not talk.asks:
            raise PeerFault("a piece of a charter that was not asked for")
        if coming is None or piece.offset != len(coming):
            return  # part of a reply that came too late
        if not len(coming) < len(coming) + len(piece.part) <= piece.size <= MOST_BYTES:
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
        if talk.asks >= MOST_ASKS and self.keeper.wants(talk.theirs):
            self._give_up(peer, talk, "but sends a different one")
        self._ask_if_wanted(peer, talk, now)

    def _give_up(self, peer: int, talk: Conversation, why: str) -> None:
        talk.given_up = True
        self.keeper.report_missing(peer, talk.theirs.version, why)
