"""From a bare line to an authenticated connection: the handshake, then one sealed greeting each way.

Three messages authenticate the two ends; the greetings prove that both hold the keys and exchange the random name of
each running process (`boot`). The answering node refuses a peer that is not a neighbor in a message that only that peer
can read. Then the end with the lower index alone decides, in another notice, whether this connection becomes the single
session between the two (`session_table`). It numbers its decisions, and the other end follows the highest number from
one boot. So both always agree, whichever end dialed and in whatever order the notices arrive.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from p2pfl.core.limits import TokenBucket
from p2pfl.crypto import FederationMismatch, HandshakeFault, UnlistedKey
from p2pfl.crypto.handshake import FederationBinding, Initiator, Responder
from p2pfl.crypto.identity import Identity
from p2pfl.crypto.session import Session
from p2pfl.errors import PeerFault
from p2pfl.net.doorway import ConnectionStage, visit_bucket
from p2pfl.net.line import Counters, GoneError, Line
from p2pfl.net.measuring import answer_measures
from p2pfl.net.notices import BOOT_BYTES, NoEdgeFault, Notice, SealedFault, Word, hear
from p2pfl.net.visits import Charters, receive, settle


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
    """This node's part in a greeting, at either end; the caller sets the deadline. `members` are those currently
    listed.
    """

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
        self._visits: dict[int, TokenBucket] = {}
        """A limit on visits for each member: strangers at a member's address cannot use it up."""

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
        advance(ConnectionStage.ADDRESSED)
        await line.send(responder.first(first))
        third = await answer_measures(line)
        try:
            session = Session(responder.third(third))
        except FederationMismatch as fault:
            self._recognize(line, fault.peer_public)
            raise
        if session.peer_public in self.members:
            self._recognize(line, session.peer_public)
        advance(ConnectionStage.PROVEN if responder.refusal is None else ConnectionStage.VISITING)
        if self.charters is None:
            greeting = await hear(line, session)
        else:
            greeting = await self._greeting_or_visit(line, session, self.charters, responder.refusal)
        if line.peer not in self.neighbors:
            await line.send(session.seal(self._notice(Word.NO_EDGE).pack()))
            no_edge = SealedFault("listed, but not a neighbor in this topology")
            if self.charters is not None and self._may_visit(line):
                await receive(line, session, self.charters, no_edge, listed=True)
            raise no_edge
        await line.send(session.seal(self._notice(Word.GREETING).pack()))
        return self._candidate(line, session, line.peer, greeting)

    async def _greeting_or_visit(
        self, line: Line, session: Session, charters: Charters, refusal: HandshakeFault | None
    ) -> Notice:
        """Return the greeting of a peer that may have a session. Any other peer, or one that asks for none, may
        visit.
        """
        listed = session.peer_public in self.members
        try:
            first = await hear(line, session)
        except GoneError:
            if refusal is not None:
                raise refusal from None
            raise
        if first.word is not Word.GREETING:
            if refusal is None and not self._may_visit(line):
                raise SealedFault("more visits of one member than the charter can have news for")
            await receive(line, session, charters, refusal, listed=listed, first=first)
        if refusal is None:
            return first
        if isinstance(refusal, UnlistedKey):
            await line.send(session.seal(Notice(Word.STRANGER, self.boot).pack()))
            await receive(line, session, charters, refusal, listed=False)
        raise refusal

    def _may_visit(self, line: Line) -> bool:
        """Count a visit by this member; return True if it visits rarely enough."""
        if line.peer is None:
            return False
        bucket = self._visits.setdefault(line.peer, visit_bucket())
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
