"""One node's sums over its sessions: carries out what the protocol decides, keeps its time, and the flow of messages.

    talk = SumTalk(sums, links.extensions.say, keep=kept.add)
    outcome = await talk.sum(label, values, terms)      SumDone or Refused
    await talk.farewell(outcome.members)                before the sessions are closed

It is the handler of the channel `sums/1`, on the event loop; where a neighbor has `sums/2`, too, posts go on that, in
short, and comparisons on `sums/3`. A sender may be `WINDOW` units ahead of what the receiver has taken; a piece of what
is too large for one message counts as several units, and what is more waits here, where the same statement never waits
twice. Without that, neighbors that are slow to hear each other would send all they have again and again. Small messages
go between the pieces. The receiver makes room only for a large message of the size of its own sum; the pieces of any
other one are taken and dropped: a message lost, which the protocol bears.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Annotated, TypeAlias, assert_never

import msgspec
from msgspec import Meta

from p2pfl.core.limits import EngineTime
from p2pfl.errors import PeerFault
from p2pfl.features.sums.arithmetic import WORD_BYTES, Words
from p2pfl.features.sums.messages import (
    MOST_MEMBERS,
    BranchPart,
    Count,
    Effect,
    Have,
    HeldUp,
    Keep,
    Message,
    Poll,
    Post,
    Refused,
    SendToNeighbor,
    Shorthand,
    SumDone,
    SumMessage,
    ThinPost,
    Total,
    Want,
    WideHave,
    Working,
)
from p2pfl.features.sums.protocol import Sums
from p2pfl.foreign import UNREADABLE
from p2pfl.limits import CHANNEL_AT_ONCE, CHANNEL_PER_S, MOST_QUEUED, MOST_SIDE_BYTES, MOST_SMALL_BYTES
from p2pfl.net.extensions import ExtensionChannel

PIECE_BYTES = 48 * 1024
WINDOW, PIECE_UNITS = 64, 8
"""The units on their way to one neighbor, and those of a piece; any other message is one."""
HEAD_BYTES = MOST_MEMBERS // 8 + 64
"""The most that a large message has beside its vector."""
MOST_LARGE_BYTES = 2**23 + HEAD_BYTES

Large: TypeAlias = BranchPart | Total


class Piece(SumMessage, frozen=True, kw_only=True, tag=30):
    """A piece of a large message of `size` bytes: those from `offset` on."""

    size: Annotated[int, Meta(ge=1, le=MOST_LARGE_BYTES)]
    offset: Count
    part: Annotated[bytes, Meta(min_length=1, max_length=PIECE_BYTES)]


class Credit(SumMessage, frozen=True, kw_only=True, tag=31):
    """The sender has taken so many units since the session began."""

    taken: Count


class Farewell(SumMessage, frozen=True, kw_only=True, tag=32):
    """The sender has all that it came for: its neighbors may leave."""


_channel = partial(
    ExtensionChannel,
    "sums",
    most_bytes=MOST_SIDE_BYTES,
    per_s=CHANNEL_PER_S["sums"],
    at_once=CHANNEL_AT_ONCE["sums"],
    most_waiting=2 * WINDOW,
)
CHANNEL = _channel(Post, Have, Poll, Working, BranchPart, Total, Want, Piece, Credit, Farewell)
THIN, WIDE = _channel(ThinPost, version=2), _channel(WideHave, version=3)
BESIDE = {ThinPost: THIN, WideHave: WIDE}
"""The channels of what neighbors of earlier versions do not take."""
Carried: TypeAlias = Message | Piece | Credit | Farewell | ThinPost
SendMessage = Callable[[int, ExtensionChannel, Carried], bool]
_encode = msgspec.msgpack.Encoder().encode
_decode_large: Callable[[bytearray], Large] = msgspec.msgpack.Decoder(BranchPart | Total).decode


class Outgoing:
    """All that goes to one neighbor. `say` returns False once the session is over."""

    def __init__(self, say: Callable[[Carried], bool]) -> None:
        self.say = say
        self.short: Shorthand | None = None
        """Set once the neighbor takes posts in short."""
        self._small: dict[Message, int] = {}
        """The small messages that wait, in order, with their bytes."""
        self._small_bytes = 0
        self._large: deque[Large] = deque()
        self._body, self._offset = b"", 0
        self._flight: deque[tuple[int, Message | None]] = deque()
        """The count of units at the end of each message on its way; a piece is None."""
        self._sent = self._taken = 0

    def put(self, message: Message) -> None:
        """Queue a message, unless it waits already or is on its way. What finds no room is dropped."""
        if isinstance(message, Post) and not message.signature and self.short is None:
            return  # an earlier version would take it for a fault
        if isinstance(message, Large) and len(message.vector) > PIECE_BYTES:
            if message not in self._large:
                self._large.append(message)
            if len(self._large) > MOST_QUEUED:
                del self._large[1 if self._body else 0]
        elif message not in self._small and not any(message == other for _, other in self._flight):
            size = len(_encode(message))
            if self._small_bytes + size <= MOST_SMALL_BYTES:
                self._small[message] = size
                self._small_bytes += size
        self.push()

    def credit(self, credit: Credit) -> None:
        """Raises PeerFault: more units than were sent, or fewer than before."""
        if not self._taken <= credit.taken <= self._sent:
            raise PeerFault(f"credit for {credit.taken} units; {self._sent} were sent")
        self._taken = credit.taken
        while self._flight and self._flight[0][0] <= self._taken:
            self._flight.popleft()
        self.push()

    def push(self) -> None:
        """Send what may be on its way, the small messages first."""
        while self._small and self._has_room(1):
            message = next(iter(self._small))
            if not self._say_small(message):
                return
            self._small_bytes -= self._small.pop(message)
            self._count(1, message)
        while self._large and self._has_room(PIECE_UNITS):
            self._body = self._body or _encode(self._large[0])
            part = self._body[self._offset : self._offset + PIECE_BYTES]
            if not self.say(Piece(size=len(self._body), offset=self._offset, part=part)):
                return
            self._count(PIECE_UNITS, None)
            self._offset += len(part)
            if self._offset == len(self._body):
                self._large.popleft()
                self._body, self._offset = b"", 0

    def _say_small(self, message: Message) -> bool:
        if self.short is None or not isinstance(message, Post) or (thin := self.short.thin(message)) is None:
            return self.say(message)
        if is_sent := self.say(thin):
            self.short.whole(thin)
        return is_sent

    def _has_room(self, units: int) -> bool:
        return self._sent + units - self._taken <= WINDOW

    def _count(self, units: int, message: Message | None) -> None:
        self._sent += units
        self._flight.append((self._sent, message))


class Incoming:
    """All that comes from one neighbor, and the large message in it."""

    def __init__(self) -> None:
        self.short = Shorthand()
        self._size = self._came = self._taken = self._credited = 0
        self._is_due = False
        self._body: bytearray | None = None

    def take(self, piece: Piece, entries: int | None) -> Large | None:
        """Return a message at its last piece; `entries` are the own sum's. Raises PeerFault: no order or no message."""
        if (piece.offset, piece.size) != (self._came, self._size if self._came else piece.size):
            raise PeerFault("a piece without those before it")
        if piece.offset + len(piece.part) > piece.size:
            raise PeerFault("a piece beyond its message's end")
        if not self._came:
            fits = entries is not None and 0 <= piece.size - entries * WORD_BYTES <= HEAD_BYTES
            self._size, self._body = piece.size, bytearray() if fits else None
        self._came += len(piece.part)
        if self._body is not None:
            self._body += piece.part
        if self._came != self._size:
            return None
        body, self._body, self._came = self._body, None, 0
        try:
            return None if body is None else _decode_large(body)
        except UNREADABLE as error:
            raise PeerFault(f"pieces that make no message: {error}") from error

    def count(self, message: Message | Piece) -> bool:
        """Count a message; True, once, if it is time to give credit. Raises PeerFault: there was no credit for it."""
        self._taken += PIECE_UNITS if isinstance(message, Piece) else 1
        if self._taken - self._credited > WINDOW:
            raise PeerFault("a message of the sums for which there was no credit")
        was_due, self._is_due = self._is_due, self._taken - self._credited >= WINDOW // 4
        return self._is_due and not was_due

    def credit(self) -> Credit:
        self._credited, self._is_due = self._taken, False
        return Credit(taken=self._taken)


SumEnding = SumDone | Refused
STAY_S, GONE_S = 30.0, 5.0
"""The longest stay for neighbors that still lack their sum: while there is a session, and without one."""
LAST_S = 0.5
"""The time for the last messages to arrive; it does no harm if they do not."""
MOST_WAIT_S = 5.0
"""The longest time for which a neighbor that has used up its share of this node's time gets no credit."""
HELD_UP = "sum-held-up"
"""The kind of alarm about a member that holds sums up."""


class SumTalk:
    """`keep` writes down durably what was signed, `alarm` is told who holds sums up, `meter` counts seconds of work."""

    def __init__(
        self,
        sums: Sums,
        say: SendMessage,
        *,
        keep: Callable[[bytes, frozenset[int]], object],
        alarm: Callable[[str, int | None, str], object] = lambda *_: None,
        meter: Callable[[], float] = time.thread_time,
    ) -> None:
        self._say, self._keep, self._alarm, self._meter = say, keep, alarm, meter
        self._sums, self.came, self.wide = sums, sums.records.latest.keys(), sums.wide
        """`came` are the members whose keys are here, this one among them; `wide` as of `StatementLog`."""
        self._work = EngineTime()
        """The time that each neighbor's messages have cost. Who has used up its share waits for credit."""
        self._ends: dict[int, tuple[Outgoing, Incoming]] = {}
        """Both directions of each session."""
        self._entries: int | None = None
        """The entries of the latest sum that was asked for here."""
        self._outcome: asyncio.Future[SumEnding] | None = None
        self._failure: Exception | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_leaving = False
        self.was_signed = False
        """Set when a list of members with the vector of the present sum was signed here; who asks for it unsets it."""
        self._seen: set[int] = set()
        """The neighbors that have had a session with this node."""
        self._gone: set[int] = set()
        """The neighbors that have said farewell."""
        self._moved = asyncio.Event()
        """Set when a session begins or ends, and by a farewell."""

    @property
    def is_member(self) -> bool:
        """True if this node takes part in sums; after its start it waits for the next set-up."""
        return self._sums.setup is not None

    async def sum(
        self,
        label: str,
        values: Words,
        terms: bytes,
        *,
        data: bytes | None = None,
        only: frozenset[int] = frozenset(),
    ) -> SumEnding:
        """Sum (d,) uint64 as in `Sums.ask`. Raises ValueError: a sum goes on; StorageError: votes could not be kept."""
        if self._failure is not None:
            raise self._failure
        loop = asyncio.get_running_loop()
        effects = self._sums.ask(label, values, terms, loop.time(), data=data, only=only)
        self._entries = values.size
        outcome: asyncio.Future[SumEnding] = loop.create_future()
        self._outcome = outcome
        self._guarded(lambda: self._carry_out(effects))
        return await outcome

    async def farewell(self, members: Collection[int]) -> None:
        """Stay until neighbors of these members have all they need, at most half a minute. No sum is asked for then."""
        self._is_leaving = True
        for outgoing, _ in self._ends.values():
            outgoing.say(Farewell())
        began = self._now()
        while waiting := self._seen.intersection(members) - self._gone:
            end = began + (GONE_S if self._ends.keys().isdisjoint(waiting) else STAY_S)
            if self._now() >= end:
                break
            self._moved.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(end - self._now()):
                    await self._moved.wait()
        await asyncio.sleep(LAST_S)

    def close(self) -> None:
        """Stop the clock."""
        if self._timer is not None:
            self._timer.cancel()

    def opened(self, peer: int) -> None:
        outgoing = Outgoing(lambda message: self._say(peer, BESIDE.get(type(message), CHANNEL), message))
        self._ends[peer] = outgoing, Incoming()
        self._seen.add(peer)
        self._work.begin(peer)
        self._moved.set()
        if self._is_leaving:
            outgoing.say(Farewell())
        self._guarded(lambda: self._carry_out(self._sums.opened(peer, self._now())))

    def thin_opened(self, peer: int) -> None:
        self._ends[peer][0].short = Shorthand()

    def closed(self, peer: int) -> None:
        if self._ends.pop(peer, None) is not None:
            self._work.pause(peer)
            self._moved.set()
            self._guarded(lambda: self._carry_out(self._sums.closed(peer, self._now())))

    def hear(self, peer: int, message: Carried) -> None:
        """Raises PeerFault."""
        self._guarded(lambda: self._hear(peer, message))

    def _hear(self, peer: int, message: Carried) -> None:
        outgoing, incoming = self._ends[peer]
        if isinstance(message, ThinPost):
            message = incoming.short.whole(message)
        if isinstance(message, Credit):
            outgoing.credit(message)
            return
        if isinstance(message, Farewell):
            self._gone.add(peer)
            self._moved.set()
            return
        is_due, began = incoming.count(message), self._meter()
        whole = incoming.take(message, self._entries) if isinstance(message, Piece) else message
        if whole is not None:
            self._take(peer, whole)
        self._work.spend(peer, self._meter() - began, self._now())
        if is_due:
            if self._work.wait_s(peer, self._now()) > 0.0:
                self._alarm(HELD_UP, peer, "its messages take more of this node's time than its share")
            self._give_credit(peer, incoming)

    def _give_credit(self, peer: int, incoming: Incoming) -> None:
        """Let a neighbor send more, as soon as it has not used up its share of this node's time."""
        wait_s = min(self._work.wait_s(peer, self._now()), MOST_WAIT_S)
        outgoing, present = self._ends.get(peer, (None, None))
        if outgoing is None or present is not incoming or self._failure is not None:
            return
        if wait_s > 0.0:
            asyncio.get_running_loop().call_later(wait_s, self._give_credit, peer, incoming)
        else:
            outgoing.say(incoming.credit())

    def _take(self, peer: int, message: Message) -> None:
        self._carry_out(self._sums.hear(peer, message, self._now()))

    def _wake(self) -> None:
        self._guarded(lambda: self._carry_out(self._sums.wake(self._now())))

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendToNeighbor(peer=peer):
                    if peer in self._ends:
                        self._ends[peer][0].put(effect.message)
                case Keep():
                    self._keep(effect.data, effect.members)
                    self.was_signed = True
                case HeldUp():
                    self._alarm(HELD_UP, effect.member, effect.why)
                case SumDone() | Refused():
                    self._end(effect)
                case _:
                    assert_never(effect)
        self.close()
        if self._sums.deadline is not None:
            self._timer = asyncio.get_running_loop().call_at(self._sums.deadline, self._wake)

    def _end(self, outcome: SumEnding) -> None:
        waiting, self._outcome = self._outcome, None
        if waiting is not None and not waiting.done():
            waiting.set_result(outcome)

    def _guarded(self, act: Callable[[], None]) -> None:
        """A failure of ours ends the sum, and this node's part in all sums: it is raised where the sum is awaited."""
        if self._failure is not None:
            return
        try:
            act()
        except PeerFault:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            self._failure = error
            self.close()
            if self._outcome is not None and not self._outcome.done():
                self._outcome.set_exception(error)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


class Beside:
    """The handler of the channels `sums/2` and `sums/3`, which open after `sums/1`."""

    def __init__(self, talk: SumTalk, opened: Callable[[int], None]) -> None:
        self._talk, self.opened = talk, opened

    def closed(self, peer: int) -> None:
        """All these channels end with the session."""

    def hear(self, peer: int, message: ThinPost | WideHave) -> None:
        """Raises PeerFault."""
        self._talk.hear(peer, message)
