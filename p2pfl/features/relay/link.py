"""A member's connection to one relay: it registers, keeps the connection, and carries many lines over it.

A relay may send anything. What it can cost a node is bounded: its lines, control connections, and frames of no line.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from logging import DEBUG, INFO, Logger
from time import monotonic
from typing import Any, TypeVar

from p2pfl.config.members import in_words
from p2pfl.console import seconds_now
from p2pfl.core.limits import TokenBucket
from p2pfl.crypto.identity import public_text
from p2pfl.errors import PeerFault, UserError
from p2pfl.features.relay.frames import (
    BEAT_S,
    PASSED_ON,
    VERSION,
    WINDOW_BYTES,
    Challenge,
    Closing,
    Frame,
    FrameKind,
    Refusal,
    Registration,
    closing_in,
    name_dialed,
    number_in,
    pack,
    pack_number,
    pack_struct,
    refusal_in,
    struct_in,
    unpack,
)
from p2pfl.features.relay.tickets import Ticket
from p2pfl.limits import (
    CHUNK_BYTES,
    MOST_CHUNKS,
    MOST_DOUBTED_KEYS,
    MOST_RELAY_LINES,
    RELAY_CONTROL_BURST,
    RELAY_CONTROL_PER_S,
    RELAY_SILENCE_S,
    STRAY_BURST,
    STRAYS_PER_S,
    Limits,
)
from p2pfl.net.acceptor import control_bucket
from p2pfl.net.address import parse_address
from p2pfl.net.limits import latest
from p2pfl.net.links import Backoff
from p2pfl.net.transport import ConnectionStage, GoneError, Line, Meet

REFUSED_S = 30.0
"""The wait after a relay has refused this node: only a person changes that."""
RENEW = "`p2pfl member hand` makes new ones"
SAYS_NOTHING = "the connection is accepted there, and then nothing is said: is it a relay?"
UNTRIED, STOPPED = "no answer yet", "the node stopped"
UNANSWERED_SHARE = 0.9
"""A relay that has not answered a dial for this share of the time allowed swallows dials: another one may not."""
FIRST_S = 1.0
"""The longest wait of a dial for the first answer of a relay: another one may be faster."""
OnDoubt = Callable[["RelayLink", bytes, str], None]
"""Called with a relay, the key of a member, and what was wrong with a line to it."""
DialUrl = Callable[[str], Awaitable[Line]]
Answer = Callable[[str, Challenge], Registration]
"""Answers the challenge of the relay of that name. Raises UserError if this node has neither ticket nor token."""
CREDIT_BYTES = CHUNK_BYTES
"""Credit is given back once so many bytes have been read."""
DOUBTS_LAST_S = 300.0


T = TypeVar("T")


class RelayLimits:
    """The limits on one relay; times are those of the loop."""

    def __init__(self, limits: Limits) -> None:
        self.opens = TokenBucket(limits.handshakes_per_s, tokens=limits.handshake_burst, burst=limits.handshake_burst)
        """The lines that others open: no more than all members together would open."""
        self._strays = TokenBucket(STRAYS_PER_S, tokens=STRAY_BURST, burst=STRAY_BURST)
        self._controls = TokenBucket(RELAY_CONTROL_PER_S, tokens=RELAY_CONTROL_BURST, burst=RELAY_CONTROL_BURST)
        self._controls_of: dict[bytes, TokenBucket] = {}
        self.doubts: dict[bytes, deque[float]] = {}
        """The times at which lines to each member were lately spoiled or cut."""

    def doubt(self, key: bytes) -> None:
        """Count one more line that was spoiled or cut."""
        latest(self.doubts, key, lambda: deque(maxlen=64), MOST_DOUBTED_KEYS).append(monotonic())

    def count_control(self, key: bytes, now: float) -> None:
        """Raises PeerFault if the charter cannot have so much news."""
        if (
            latest(self._controls_of, key, control_bucket, MOST_DOUBTED_KEYS).take(now) > 0.0
            or self._controls.take(now) > 0.0
        ):
            raise PeerFault("more visits through one relay than the charter can have news for")

    def count_stray(self, now: float) -> None:
        """Count a frame that serves nothing. Raises PeerFault if there are more than an honest relay sends."""
        if self._strays.take(now) > 0.0:
            raise PeerFault("more frames for lines that do not exist than an honest relay sends")


class RelayLine(Line):
    """One line to the member with the public key `key`, if the relay does not lie: the handshake shows that."""

    def __init__(self, link: RelayLink, number: int, key: bytes) -> None:
        super().__init__()
        self.number, self.key = number, key
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once the other end has taken the line, or it has ended."""
        self._link = link
        self._coming: deque[bytes] = deque()
        self._came = self._held = self._read = 0
        self._allowed = WINDOW_BYTES
        self.end: str | None = None
        """Why the line has ended; None while it has not."""
        self._turned = asyncio.Event()

    @property
    def relay(self) -> str | None:
        return self._link.url

    @property
    def peer_address(self) -> str:
        return f"relay {self._link.url}"

    @property
    def bytes_came(self) -> int:
        return self._came

    def doubt(self, reason: str) -> None:
        self._link.doubt(self.key, reason)

    def take_data(self, data: bytes) -> None:
        """Take a chunk from the relay. Raises PeerFault if it is more than this end has given credit for."""
        self._came += len(data)
        self._held += len(data)
        if self._held > WINDOW_BYTES or len(self._coming) >= MOST_CHUNKS:
            raise PeerFault("more than there was credit for")
        self._coming.append(data)
        self._turned.set()

    def take_credit(self, size: int) -> None:
        if not 0 < size <= WINDOW_BYTES - self._allowed:
            raise PeerFault("no credit, or more than there were bytes")
        self._allowed += size
        self._turned.set()

    def finish(self, reason: str) -> None:
        """End the line; what has arrived can still be received."""
        if self.end is None:
            self.end = reason
            self._turned.set()
            if not self.accepted.done():
                self.accepted.set_result(None)

    async def _push(self, data: bytes) -> None:
        while self._allowed < len(data) and self.end is None:
            await self._turn()
        if self.end is not None:
            raise GoneError(self.end)
        self._allowed -= len(data)
        await self._link.say(pack(FrameKind.DATA, self.number, data))

    async def _pull(self) -> bytes:
        while not self._coming and self.end is None:
            await self._turn()
        if not self._coming:
            raise GoneError(self.end or "closed")
        data = self._coming.popleft()
        self._read += len(data)
        if self.end is None and (self._read >= CREDIT_BYTES):
            given, self._read = self._read, 0
            self._held -= given
            await self._link.say(pack_number(FrameKind.CREDIT, self.number, given))
        return data

    async def close(self, within_s: float) -> None:
        if self.end is None:
            self.finish("closed")
            with suppress(GoneError, TimeoutError):
                async with asyncio.timeout(within_s):
                    await self._link.say(pack_number(FrameKind.CLOSE, self.number, Closing.DONE))
        self._coming.clear()
        self._link.forget(self)

    async def _turn(self) -> None:
        self._turned.clear()
        await self._turned.wait()


class RelayArrival:
    """A connection that has come through a relay. Only members that the relay has let in come, so it needs few limits.

    `count_control` is called, with the time, for a control connection, which needs no session.
    """

    def __init__(self, address: str, ends_at: float, count_control: Callable[[float], None]) -> None:
        self.address, self.ends_at = address, ends_at
        self._count_control = count_control

    def advance(self, stage: ConnectionStage) -> None:
        if stage is ConnectionStage.CONTROL:
            self._count_control(asyncio.get_running_loop().time())

    def admit(self) -> None:
        """Do nothing: the line may stay."""

    def work(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Coroutine[Any, Any, T]:
        return work()


class RefusedByRelayError(GoneError):
    """The relay has told this node that it will not serve it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkParts:
    """The parts that the links to all relays of one node have in common."""

    dial: DialUrl
    answer: Answer
    limits: Limits
    log: Logger
    removals: Callable[[], bytes] = bytes
    """Returns the head of the newest credentials, which names removed members; empty if there is none."""
    rng: random.Random = field(default_factory=random.Random)


class RelayLink:
    """The connection to the relay at `listed`. `why` says why there is none; it is empty while there is one."""

    def __init__(self, listed: str, parts: LinkParts) -> None:
        self._listed = listed
        self.url = listed.partition("#")[0]
        """The relay's URL without the pin of its certificate: what stands in the log, and tells relays apart."""
        self.why, self.round_trip_s = UNTRIED, float("inf")
        self.on_doubt: OnDoubt = lambda link, key, reason: None  # noqa: ARG005 - nobody listens yet
        self._parts = parts
        self._meet: Meet | None = None
        self._line: Line | None = None
        self._lines: dict[int, RelayLine] = {}
        self._numbers = itertools.cycle(range(1, PASSED_ON))
        self._limits = RelayLimits(parts.limits)
        self._changed = asyncio.Event()
        self.lost = UNTRIED
        """Why the last connection was lost."""
        self._came_at: float | None = None
        self._lost_at = monotonic()
        self._ping: int | None = None
        """The number of the ping that has no answer yet, which was sent at `_ping_at`."""
        self._ping_at = 0.0

    @property
    def is_registered(self) -> bool:
        return not self.why

    def lasts(self) -> bool:
        """Return True if there is a connection that lasts: a relay may cut each one at once."""
        return self._came_at is not None and monotonic() - self._came_at >= self._parts.limits.settled_s

    def away_s(self) -> float:
        """Return for how long there has been no connection that lasts; 0 while there is one."""
        return 0.0 if self.lasts() else monotonic() - self._lost_at

    @property
    def name(self) -> str:
        """The name under which this node dials the relay."""
        return name_dialed(parse_address(self.url, "relays"))

    @property
    def members(self) -> set[bytes]:
        """The keys of the members to whom a line is open through this relay."""
        return {line.key for line in self._lines.values() if line.end is None and line.accepted.done()}

    async def keep(self, meet: Meet) -> None:
        """Keep the connection; never returns."""
        self._meet = meet
        backoff = Backoff(self._parts.limits, self._parts.rng)
        try:
            while True:
                wait_s = 0.0
                try:
                    await self._connect()
                except (RefusedByRelayError, UserError) as refused:
                    error: Exception = refused
                    wait_s = REFUSED_S
                except (GoneError, TimeoutError, PeerFault) as other:
                    error = other
                if self.lasts():
                    backoff.reset()
                self._lose("no answer in time" if isinstance(error, TimeoutError) else str(error))
                await asyncio.sleep(max(wait_s, backoff.next_s()))
        finally:
            self._lose(STOPPED)

    async def dial(self, key: bytes) -> RelayLine:
        """Open a line to the member with that key; the caller sets the deadline. Raises GoneError."""
        if self.why == UNTRIED:
            with suppress(TimeoutError):
                async with asyncio.timeout(FIRST_S):
                    await self._changed.wait()
        if not self.is_registered:
            raise GoneError(self.why)
        if len(self._lines) >= MOST_RELAY_LINES:
            raise GoneError("this node has too many lines there")
        number = next(number for number in self._numbers if number not in self._lines)
        line = self._lines[number] = RelayLine(self, number, key)
        began = monotonic()
        try:
            await self.say(pack(FrameKind.OPEN, number, key))
            await line.accepted
        except BaseException:
            if monotonic() - began >= UNANSWERED_SHARE * self._parts.limits.connect_s:
                self._limits.doubt(key)
            await line.close(self._parts.limits.close_s)
            raise
        if line.end is not None:
            self.forget(line)
            raise GoneError(line.end)
        return line

    def doubts(self, key: bytes) -> int:
        """Return how often lines to that member were spoiled or cut here lately."""
        return sum(at >= monotonic() - DOUBTS_LAST_S for at in self._limits.doubts.get(key, ()))

    def doubt(self, key: bytes, reason: str) -> None:
        self._limits.doubt(key)
        self._parts.log.debug("relay %s: a line to %s: %s", self.url, public_text(key)[:8], reason)
        self.on_doubt(self, key, reason)

    async def say(self, frame: bytes) -> None:
        """Send a frame. Raises TimeoutError if the relay does not read."""
        if self._line is None:
            raise GoneError(self.why)
        async with asyncio.timeout(self._parts.limits.drain_s):
            await self._line.send(frame)

    def forget(self, line: RelayLine) -> None:
        if self._lines.get(line.number) is line:
            del self._lines[line.number]

    async def _connect(self) -> None:
        """Register, and serve the connection until it is lost; always ends in an error."""
        async with asyncio.timeout(self._parts.limits.connect_s):
            line = await self._parts.dial(self._listed)
        try:
            try:
                async with asyncio.timeout(self._parts.limits.handshake_s):
                    challenge = await self._register(line)
            except TimeoutError:
                raise GoneError(SAYS_NOTHING) from None
            self._line, self.why = line, ""
            self._came_at = monotonic()
            self._changed.set()
            self._parts.log.info("registered at relay %s", self.url)
            self._ping = None
            await _until_one_fails(self._beat(shows=challenge.takes_removals), self._read(line))
        finally:
            await line.close(self._parts.limits.close_s)

    async def _register(self, line: Line) -> Challenge:
        challenge = struct_in(unpack(await line.receive()), FrameKind.CHALLENGE, Challenge)
        if challenge.version != VERSION:
            raise RefusedByRelayError(Refusal.VERSION.text)
        registration = self._parts.answer(self.name, challenge)
        await line.send(pack_struct(FrameKind.REGISTER, registration))
        answer = unpack(await line.receive())
        if answer.kind is FrameKind.REFUSED:
            raise RefusedByRelayError(_in_words(refusal_in(answer), challenge, registration))
        if answer.kind is not FrameKind.WELCOME:
            raise PeerFault(f"{answer.kind.name} in place of a welcome")
        return challenge

    async def _beat(self, *, shows: bool) -> None:
        """Ping, and show the newest removals to a relay that takes them. Nobody can answer a random number in advance.
        Raises TimeoutError if a ping has had no answer for long.
        """
        shown = b""
        while True:
            if shows and (removals := self._parts.removals()) not in (b"", shown):
                shown = removals
                await self.say(pack(FrameKind.REMOVED, 0, removals))
            if self._ping is None:
                self._ping, self._ping_at = int.from_bytes(os.urandom(8)), monotonic()
            elif monotonic() - self._ping_at > RELAY_SILENCE_S:
                raise TimeoutError
            await self.say(pack_number(FrameKind.PING, 0, self._ping))
            await asyncio.sleep(BEAT_S)

    async def _read(self, line: Line) -> None:
        while True:
            async with asyncio.timeout(RELAY_SILENCE_S):
                frame = unpack(await line.receive())
            if frame.kind is FrameKind.OPEN:
                await self._open(frame)
            elif frame.kind is FrameKind.REFUSED and refusal_in(frame) is Refusal.EXPIRED:
                raise GoneError("the ticket expired")  # perhaps there is a new one
            elif frame.kind is FrameKind.REFUSED:
                raise RefusedByRelayError((refusal_in(frame) or Refusal.FULL).text)
            elif (own := self._lines.get(frame.line)) is not None:
                self._take(own, frame)
            elif frame.kind is FrameKind.PONG and number_in(frame) == self._ping:
                self._ping, self.round_trip_s = None, min(60.0, monotonic() - self._ping_at)
            else:
                self._limits.count_stray(asyncio.get_running_loop().time())

    def _take(self, line: RelayLine, frame: Frame) -> None:
        match frame.kind:
            case FrameKind.DATA:
                line.take_data(frame.payload)
            case FrameKind.CREDIT:
                line.take_credit(number_in(frame))
            case FrameKind.ACCEPT:
                if not line.accepted.done():
                    line.accepted.set_result(None)
            case FrameKind.CLOSE:
                if line.end is None and line.accepted.done() and line.bytes_came:
                    self._limits.doubt(line.key)
                line.finish(closing_in(frame).text)
                self.forget(line)
            case _:
                raise PeerFault(f"{frame.kind.name} from a relay")

    async def _open(self, frame: Frame) -> None:
        """Take a line that another member opens, if there is room."""
        number, key, limits = frame.line, frame.payload, self._parts.limits
        now = asyncio.get_running_loop().time()
        if number < PASSED_ON or number in self._lines or len(key) != 32:
            raise PeerFault(f"a line with the number {number}, or without a key")
        if self._meet is None or len(self._lines) >= MOST_RELAY_LINES or self._limits.opens.take(now) > 0.0:
            self._limits.count_stray(now)
            await self.say(pack_number(FrameKind.CLOSE, number, Closing.NOT_WANTED))
            return
        line = self._lines[number] = RelayLine(self, number, key)
        line.accepted.set_result(None)
        await self.say(pack(FrameKind.ACCEPT, number))
        ends_at, count = now + limits.handshake_s, lambda at: self._limits.count_control(key, at)
        if self._meet(line, RelayArrival(line.peer_address, ends_at, count)) is None:
            await line.close(limits.close_s)

    def _lose(self, why: str) -> None:
        if self.is_registered:
            self._parts.log.log(DEBUG if why == STOPPED else INFO, "relay %s is lost: %s", self.url, why)
        self._line, self.round_trip_s = None, float("inf")
        self.why = why or "no reason"
        if self.lasts():
            self._lost_at = monotonic()
        self._came_at, self.lost = None, self.why
        self._changed.set()
        for line in list(self._lines.values()):
            line.finish(f"the relay {self.url} is gone: {why}")
        self._lines.clear()


async def _until_one_fails(*works: Coroutine[Any, Any, None]) -> None:
    """Do all of the work until some of it fails, and raise what says most: a refusal, or else the first failure.

    A task group that fails while it is cancelled would swallow the cancellation.
    """
    tasks = [asyncio.get_running_loop().create_task(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    failures = [end for end in ends if isinstance(end, Exception)]
    raise next((end for end in failures if isinstance(end, RefusedByRelayError)), failures[0])


def _in_words(reason: Refusal | None, challenge: Challenge, registration: Registration) -> str:
    if reason is None:
        return "it refuses this node for a reason that this version does not know"
    if reason is Refusal.EXPIRED and registration.ticket:
        until, here = in_words(Ticket.unpack(registration.ticket).until), in_words(seconds_now())
        clocks = f"by the relay's clock it is {in_words(challenge.clock_s)}, by this machine's {here}"
        return f"the ticket expired at {until}, and {clocks}: {RENEW}; or set the clock that is wrong"
    return reason.text
