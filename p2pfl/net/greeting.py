"""From a bare channel to an authenticated connection: the handshake, then one sealed greeting each way.

Three messages authenticate the two ends; the greetings prove that both hold the keys and exchange the random name of
each running process (`boot`). The node that answers refuses one that is no neighbor in words that only that node can
read. Then the end with the lower index, and it alone, decides by a further notice whether this connection becomes the
one session of its two ends (`table`), and numbers its decisions: the other end follows the highest number of one boot.
So both always agree, whoever dialed and in whatever order the words arrive.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from p2pfl.crypto import FederationMismatch
from p2pfl.crypto.handshake import FederationBinding, Initiator, Responder
from p2pfl.crypto.identity import Identity
from p2pfl.crypto.session import Session
from p2pfl.errors import PeerFault
from p2pfl.net.channel import Channel, Counters
from p2pfl.net.doorway import Stage

BOOT_BYTES = 16
LAYOUT = struct.Struct(f"<B{BOOT_BYTES}sQ")


class SealedFault(PeerFault):
    """Of the peer itself: what it has sealed, or that it has signed, is the reason."""


class Word(IntEnum):
    GREETING = 1
    OPEN = 2
    DUPLICATE = 3
    """Another connection is the session."""
    NO_EDGE = 4
    """The sender's topology has no edge between the two."""


@dataclass(frozen=True, slots=True)
class Notice:
    word: Word
    boot: bytes
    number: int = 0
    """The decider's session number, with OPEN."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """An authenticated connection with a neighbor. `ticket` grows in the order of arrival at this node."""

    peer: int
    dialer: int
    boot: bytes
    ticket: int
    channel: Channel
    session: Session

    async def say(self, notice: Notice) -> None:
        await self.channel.send(self.session.seal(notice.pack()))

    async def hear(self) -> Notice:
        return await hear(self.channel, self.session)


async def hear(channel: Channel, session: Session) -> Notice:
    data, final = session.open(await channel.receive())
    if final:
        raise SealedFault("goodbye in place of a notice")
    return unpack_notice(bytes(data))


@dataclass(kw_only=True, eq=False, repr=False)
class Greeter:
    """This node's part at either end; the caller sets the deadline."""

    identity: Identity
    own_index: int
    members: Mapping[bytes, int]
    neighbors: frozenset[int]
    binding: FederationBinding
    counters: Counters

    def __post_init__(self) -> None:
        self.boot = os.urandom(BOOT_BYTES)
        self._keys = {index: key for key, index in self.members.items()}
        self._tickets = itertools.count(1)

    async def dial(self, channel: Channel, peer: int) -> Connection:
        """As the one who connected to `peer`. PeerFault where either end refuses the other."""
        channel.book(peer, self.counters.peers[peer])
        initiator = Initiator(self.identity, self._keys[peer], self.binding)
        await channel.send(initiator.first())
        try:
            third = initiator.second(await channel.receive())
        except FederationMismatch as fault:
            await channel.send(fault.farewell)
            raise
        await channel.send(third)
        session = Session(initiator.keys)
        await channel.send(session.seal(Notice(Word.GREETING, self.boot).pack()))
        return self._candidate(channel, session, self.own_index, await hear(channel, session))

    async def answer(self, channel: Channel, advance: Callable[[Stage], None]) -> Connection:
        """As the one who was connected to. `channel.peer` is set as soon as it is proven, whatever follows.

        `advance` is told of each stage before the work of the next begins, and may raise PeerFault.
        """
        responder = Responder(self.identity, frozenset(self.members), self.binding)
        responder.check_opening(first := await channel.receive())
        advance(Stage.ADDRESSED)
        await channel.send(responder.first(first))
        third = await channel.receive()
        try:
            session = Session(responder.third(third))
        except FederationMismatch as fault:
            self._recognize(channel, fault.peer_public)
            raise
        self._recognize(channel, session.peer_public)
        advance(Stage.PROVEN)
        greeting = await hear(channel, session)
        if channel.peer not in self.neighbors:
            await channel.send(session.seal(Notice(Word.NO_EDGE, self.boot).pack()))
            raise SealedFault("listed, but not a neighbor in this topology")
        await channel.send(session.seal(Notice(Word.GREETING, self.boot).pack()))
        return self._candidate(channel, session, channel.peer, greeting)

    def _recognize(self, channel: Channel, public: bytes) -> None:
        peer = self.members[public]
        channel.book(peer, self.counters.peers[peer])

    def _candidate(self, channel: Channel, session: Session, dialer: int, greeting: Notice) -> Connection:
        if greeting.word is Word.NO_EDGE:
            raise SealedFault("to that node we are not a neighbor in this topology")
        if greeting.word is not Word.GREETING or channel.peer is None:
            raise SealedFault(f"{greeting.word.name} in place of a greeting")
        return Connection(
            peer=channel.peer,
            dialer=dialer,
            boot=greeting.boot,
            ticket=next(self._tickets),
            channel=channel,
            session=session,
        )
