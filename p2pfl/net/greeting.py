"""From a bare line to an authenticated connection: the handshake, then one sealed greeting each way.

Three messages authenticate the two ends; the greetings prove that both hold the keys and exchange the random name of
each running process (`boot`). The answering node refuses a peer that is not a neighbor in a message that only that peer
can read. Then the end with the lower index alone decides, in another notice, whether this connection becomes the single
session between the two (`session_table`). It numbers its decisions, and the other end follows the highest number from
one boot. So both always agree, whichever end dialed and in whatever order the notices arrive.

Control connections only bring the charter or ask for it, and then end. A peer that proves possession of a key may bring
one charter, and need not be listed. That is how a newcomer reaches a neighbor that does not know about it yet, and how
`p2pfl member` brings changes. An admin signs each charter, so it does not matter who carries it. A charter is given
only to a listed key or an admin's.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NoReturn, Protocol

from p2pfl.config.charter import VERSIONS
from p2pfl.core.limits import TokenBucket
from p2pfl.crypto import FederationMismatch, HandshakeFault, UnlistedKey
from p2pfl.crypto.identity import Identity
from p2pfl.crypto.session import FederationBinding, Initiator, Responder, Session
from p2pfl.errors import PeerFault
from p2pfl.limits import MOST_CHARTER_BYTES, MOST_OPENINGS
from p2pfl.net.acceptor import control_bucket
from p2pfl.net.limits import latest
from p2pfl.net.transport import ConnectionStage, Counters, GoneError, LeftBehindFault, Line, NoEdgeFault, SealedFault

BOOT_BYTES = 16
LAYOUT = struct.Struct(f"<B{BOOT_BYTES}sQ")


class Word(IntEnum):
    GREETING = 1
    OPEN = 2
    DUPLICATE = 3
    """Another connection is the session."""
    NO_EDGE = 4
    """The sender's topology has no edge between the two."""
    STRANGER = 5
    """The sender does not list the other end."""
    CHARTER = 6
    """A charter of `number` bytes follows."""
    ASK = 7
    """The sender asks for a charter newer than its own, which is version `number`."""
    HELD = 8
    """The sender has this charter or a newer one: version `number`."""


@dataclass(frozen=True, slots=True)
class Notice:
    word: Word
    boot: bytes
    number: int = 0
    """The decider's session number in OPEN, the version of the sender's charter in GREETING and NO_EDGE."""

    def pack(self) -> bytes:
        return LAYOUT.pack(self.word, self.boot, self.number)


def unpack_notice(data: bytes) -> Notice:
    if len(data) != LAYOUT.size:
        raise SealedFault(f"a notice of {len(data)} bytes")
    word, boot, number = LAYOUT.unpack(data)
    try:
        return Notice(Word(word), boot, number)
    except ValueError:
        raise SealedFault(f"unknown notice {word}") from None


async def hear(line: Line, session: Session) -> Notice:
    data, final = session.open(await line.receive())
    if final:
        raise SealedFault("goodbye in place of a notice")
    return unpack_notice(bytes(data))


PIECE_BYTES = 64 * 1024
NOBODY = bytes(BOOT_BYTES)


class Charters(Protocol):
    """The node's charter, as control connections see it."""

    @property
    def version(self) -> int:
        """The charter's version; 0 if there is none yet."""
        ...

    @property
    def packed(self) -> bytes: ...

    def bring(self, raw: bytes) -> None:
        """Accept a charter if it is newer. Raises PeerFault if it is not valid."""
        ...

    def left_behind(self, version: int, peer: int | None) -> None:
        """Record that a node has a newer charter that does not list this node and is not shown to it."""
        ...

    def may_ask(self, public: bytes) -> bool:
        """Return True if this key may see the charter although it is not on the allow-list."""
        ...


async def receive(
    line: Line,
    session: Session,
    charters: Charters,
    refusal: PeerFault | None,
    *,
    listed: bool,
    first: Notice | None = None,
) -> NoReturn:
    """Let a control connection bring a charter or ask for one; always ends in GoneError or a PeerFault.

    `refusal` is raised if it does neither. `first` is the notice that it has already sent.
    """
    otherwise = refusal or PeerFault("neither a greeting nor a word about the charter")
    try:
        notice = first or await hear(line, session)
    except GoneError:
        raise otherwise from None
    if notice.word is Word.CHARTER:
        charters.bring(await receive_charter(line, session, notice))
        await say(line, session, Word.HELD, charters.version)
        raise GoneError("it came to hand over a charter")
    if notice.word is not Word.ASK or not (listed or charters.may_ask(session.peer_public)):
        raise otherwise
    if charters.version > notice.number:
        await hand_over(line, session, charters.packed)
        await hear(line, session)
    else:
        await say(line, session, Word.HELD, charters.version)
    raise GoneError("it came to ask for the charter")


async def settle(line: Line, session: Session, charters: Charters, answer: Notice) -> None:
    """Bring the older of two charters up to date after a dialed node has refused a session.

    Raises GoneError if that is done, so dial again in a moment; PeerFault if the other end has a newer one that does
    not list this node. Returns if charters are not the reason.
    """
    own = charters.version
    if own > answer.number:
        held = await bring(line, session, charters.packed)
        if held > own:
            charters.left_behind(held, line.peer)
            text = f"it has version {held} of the members, which does not list this node; here is {own}"
            raise LeftBehindFault(text)
        raise GoneError(f"it did not follow version {own} of the members yet, and has received it now")
    if answer.word is Word.NO_EDGE and answer.number > own:
        _, raw = await ask(line, session, own)
        if raw is not None:
            charters.bring(raw)
            raise GoneError(f"it had a newer version of the members, and handed over version {charters.version}")


async def bring(line: Line, session: Session, raw: bytes) -> int:
    """Hand over a charter; return the version that the other end then has."""
    await hand_over(line, session, raw)
    held = await hear(line, session)
    if held.word is not Word.HELD:
        raise PeerFault(f"{held.word.name} in answer to a charter")
    return _checked_version(held)


async def ask(line: Line, session: Session, version: int) -> tuple[int, bytes | None]:
    """Return the version that the other end has, and its charter if that is newer than `version`."""
    await say(line, session, Word.ASK, version)
    answer = await hear(line, session)
    if answer.word is Word.HELD:
        return _checked_version(answer), None
    if answer.word is not Word.CHARTER:
        raise PeerFault(f"{answer.word.name} in answer to a request for the charter")
    raw = await receive_charter(line, session, answer)
    await say(line, session, Word.HELD, version)
    return version, raw


async def hand_over(line: Line, session: Session, raw: bytes) -> None:
    await say(line, session, Word.CHARTER, len(raw))
    for start in range(0, len(raw), PIECE_BYTES):
        await line.send(session.seal(raw[start : start + PIECE_BYTES]))


async def receive_charter(line: Line, session: Session, announced: Notice) -> bytes:
    """Receive a charter of the announced size; the caller sets the deadline.

    Raises PeerFault if it is too long, or wrongly split.
    """
    if not 0 < announced.number <= MOST_CHARTER_BYTES:
        raise PeerFault(f"a charter of {announced.number} bytes: at most {MOST_CHARTER_BYTES}")
    raw = bytearray()
    while len(raw) < announced.number:
        piece, final = session.open(await line.receive())
        if final or len(piece) != min(PIECE_BYTES, announced.number - len(raw)):
            raise PeerFault("a charter split differently from how honest nodes split it")
        raw += piece
    return bytes(raw)


async def say(line: Line, session: Session, word: Word, number: int) -> None:
    await line.send(session.seal(Notice(word, NOBODY, number).pack()))


def _checked_version(notice: Notice) -> int:
    if notice.number >= VERSIONS:
        raise PeerFault(f"it claims version {notice.number} of the members, which is impossible")
    return notice.number


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """An authenticated connection with a neighbor. `ticket` increases in the order of arrival at this node."""

    peer: int
    dialer: int
    boot: bytes
    ticket: int
    line: Line
    session: Session

    async def say(self, notice: Notice) -> None:
        await self.line.send(self.session.seal(notice.pack()))

    async def hear(self) -> Notice:
        return await hear(self.line, self.session)


@dataclass(kw_only=True, eq=False, repr=False)
class Greeter:
    """This node's part in a greeting, at either end; the caller sets the deadline. `members`: those now listed."""

    identity: Identity
    own_index: int
    members: Mapping[bytes, int]
    neighbors: frozenset[int]
    binding: FederationBinding
    counters: Counters
    charters: Charters | None = None
    """The node's charters; None if the federation has no admin key."""

    def __post_init__(self) -> None:
        self.boot = os.urandom(BOOT_BYTES)
        self._tickets = itertools.count(1)
        self._openings: dict[bytes, bool] = {}
        self._control: dict[int, TokenBucket] = {}
        """A limit on control connections for each member: strangers at a member's address cannot use it up."""

    def key_of(self, peer: int) -> bytes | None:
        """Return a member's public key; None if it is no longer listed."""
        return next((key for key, index in self.members.items() if index == peer), None)

    async def dial(self, line: Line, peer: int) -> Connection:
        """Greet as the end that dialed `peer`. Raises PeerFault if either end refuses the other."""
        line.book(peer, self.counters.peers[peer])
        key = self.key_of(peer)
        if key is None:
            raise PeerFault("no longer a member")
        initiator = Initiator(self.identity, key, self.binding)
        await line.send(initiator.first())
        try:
            third = initiator.second(await line.receive())
        except FederationMismatch as fault:
            await line.send(fault.farewell)
            raise
        await line.send(third)
        session = Session(initiator.keys)
        await line.send(session.seal(self._notice(Word.GREETING).pack()))
        answer = await hear(line, session)
        if self.charters is not None and answer.word in (Word.NO_EDGE, Word.STRANGER):
            await settle(line, session, self.charters, answer)
        return self._candidate(line, session, self.own_index, answer)

    async def answer(self, line: Line, advance: Callable[[ConnectionStage], None]) -> Connection:
        """Greet as the end that was dialed. `line.peer` is set as soon as the peer has proven its identity, whatever
        follows.

        `advance` is called with each stage before the work of the next begins, and may raise PeerFault.
        """
        receives = self.charters is not None
        responder = Responder(self.identity, self.members.__contains__, self.binding, receives=receives)
        responder.check_opening(first := await line.receive())
        if first in self._openings:
            raise HandshakeFault("an opening that has been answered: somebody repeats what another has sent")
        latest(self._openings, first, bool, MOST_OPENINGS)
        advance(ConnectionStage.ADDRESSED)
        await line.send(responder.first(first))
        third = await line.receive()
        try:
            session = Session(responder.third(third))
        except FederationMismatch as fault:
            self._recognize(line, fault.peer_public)
            raise
        if session.peer_public in self.members:
            self._recognize(line, session.peer_public)
        advance(ConnectionStage.PROVEN if responder.refusal is None else ConnectionStage.CONTROL)
        if self.charters is None:
            greeting = await hear(line, session)
        else:
            greeting = await self._greeting_or_charter(line, session, self.charters, responder.refusal)
        if line.peer not in self.neighbors:
            await line.send(session.seal(self._notice(Word.NO_EDGE).pack()))
            no_edge = SealedFault("listed, but not a neighbor in this topology")
            if self.charters is not None and self._takes_control(line):
                await receive(line, session, self.charters, no_edge, listed=True)
            raise no_edge
        await line.send(session.seal(self._notice(Word.GREETING).pack()))
        return self._candidate(line, session, line.peer, greeting)

    async def _greeting_or_charter(
        self, line: Line, session: Session, charters: Charters, refusal: HandshakeFault | None
    ) -> Notice:
        """Return the greeting of a peer that may have a session; else, or at its wish, exchange the charter."""
        listed = session.peer_public in self.members
        try:
            first = await hear(line, session)
        except GoneError:
            if refusal is not None:
                raise refusal from None
            raise
        if first.word is not Word.GREETING:
            if refusal is None and not self._takes_control(line):
                raise SealedFault("more visits of one member than the charter can have news for")
            await receive(line, session, charters, refusal, listed=listed, first=first)
        if refusal is None:
            return first
        if isinstance(refusal, UnlistedKey):
            await line.send(session.seal(Notice(Word.STRANGER, self.boot).pack()))
            await receive(line, session, charters, refusal, listed=False)
        raise refusal

    def _takes_control(self, line: Line) -> bool:
        """Count a control connection of this member; return True if they are rare enough."""
        if line.peer is None:
            return False
        bucket = self._control.setdefault(line.peer, control_bucket())
        return bucket.take(asyncio.get_running_loop().time()) == 0.0

    def _notice(self, word: Word) -> Notice:
        return Notice(word, self.boot, 0 if self.charters is None else self.charters.version)

    def _recognize(self, line: Line, public: bytes) -> None:
        peer = self.members.get(public)
        if peer is None:
            raise PeerFault("removed during the handshake")
        line.book(peer, self.counters.peers[peer])

    def _candidate(self, line: Line, session: Session, dialer: int, greeting: Notice) -> Connection:
        if greeting.word is Word.STRANGER:
            raise SealedFault("that node does not list this one")
        if greeting.word is Word.NO_EDGE:
            raise NoEdgeFault("that node does not take this one for a neighbor in this topology")
        if greeting.word is not Word.GREETING or line.peer is None:
            raise SealedFault(f"{greeting.word.name} in place of a greeting")
        return Connection(
            peer=line.peer,
            dialer=dialer,
            boot=greeting.boot,
            ticket=next(self._tickets),
            line=line,
            session=session,
        )
