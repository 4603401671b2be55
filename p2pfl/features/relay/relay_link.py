"""A member's connection to one relay: it registers, keeps the connection, and carries many lines over it."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from logging import DEBUG, INFO, Logger
from typing import Any

from p2pfl.config.invites import in_words
from p2pfl.console.wall_clock import seconds_now
from p2pfl.crypto.identity import public_text
from p2pfl.errors import PeerFault, UserError
from p2pfl.features.relay.relay_frames import (
    BEAT_S,
    CLOSINGS,
    MOST_LINES,
    PASSED_ON,
    REFUSALS,
    SILENCE_S,
    VERSION,
    Challenge,
    Closing,
    Frame,
    FrameKind,
    Refusal,
    Registration,
    closing_in,
    number_in,
    pack,
    pack_number,
    pack_struct,
    refusal_in,
    struct_in,
    unpack,
)
from p2pfl.features.relay.relay_limits import Pulse, RelayLimits
from p2pfl.features.relay.relay_line import RelayLine, RelayVisit
from p2pfl.features.relay.relay_names import name_dialed
from p2pfl.features.relay.tickets import Ticket
from p2pfl.net.address import parse_address
from p2pfl.net.dialing import Backoff
from p2pfl.net.limits import Limits
from p2pfl.net.line import GoneError, Line
from p2pfl.net.transport import Meet

REFUSED_S = 30.0
"""The wait after a relay has refused this node: only a person changes that."""
RENEW = "`p2pfl member ticket` makes new ones"
SAYS_NOTHING = "the connection is accepted there, and then nothing is said: is it a relay?"
UNTRIED, STOPPED = "no answer yet", "the node stopped"
UNANSWERED_SHARE = 0.9
"""A relay that has not answered a dial for this share of the time allowed swallows dials: another one may not."""
FIRST_S = 1.0
"""How long a dial waits for the first answer of a relay: another one may be faster."""
OnDoubt = Callable[["RelayLink", bytes, str], None]
"""Called with a relay, the key of a member, and what was wrong with a line to it."""
DialUrl = Callable[[str], Awaitable[Line]]
Answer = Callable[[str, Challenge], Registration]
"""Answers the challenge of the relay of that name. Raises UserError if this node has neither ticket nor token."""


class RefusedByRelayError(GoneError):
    """The relay has told this node that it will not serve it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkParts:
    """What the links to all relays of one node have in common."""

    dial: DialUrl
    answer: Answer
    limits: Limits
    log: Logger
    removals: Callable[[], bytes] = bytes
    """Returns the head of the newest sheet of tickets, which names removed members; empty if there is none."""
    rng: random.Random = field(default_factory=random.Random)


class _Presence:
    """Whether there is a connection to a relay that lasts: a relay may cut each one at once."""

    def __init__(self, settled_s: float) -> None:
        self._settled_s = settled_s
        self._came_at: float | None = None
        self._lost_at = time.monotonic()
        self.lost = UNTRIED
        """Why the last connection was lost."""

    def come(self) -> None:
        self._came_at = time.monotonic()

    def go(self, why: str) -> None:
        if self.lasts():
            self._lost_at = time.monotonic()
        self._came_at, self.lost = None, why

    def away_s(self) -> float:
        """Return for how long there has been no connection that lasts; 0 while there is one."""
        return 0.0 if self.lasts() else time.monotonic() - self._lost_at

    def lasts(self) -> bool:
        return self._came_at is not None and time.monotonic() - self._came_at >= self._settled_s


class RelayLink:
    """The connection to the relay at `listed`. `why` says why there is none; it is empty while there is one."""

    def __init__(self, listed: str, parts: LinkParts) -> None:
        self._listed = listed
        self.url = listed.partition("#")[0]
        """The relay's URL without the pin of its certificate: what stands in the log, and tells relays apart."""
        self.why, self.round_trip_s = UNTRIED, float("inf")
        self.seen = ""
        """This node's address as the relay said last, without a port; it may say anything."""
        self.on_doubt: OnDoubt = lambda link, key, reason: None  # noqa: ARG005 - nobody listens yet
        self._parts = parts
        self._meet: Meet | None = None
        self._line: Line | None = None
        self._lines: dict[int, RelayLine] = {}
        self._numbers = itertools.cycle(range(1, PASSED_ON))
        self._limits = RelayLimits(parts.limits)
        self._changed = asyncio.Event()
        self._presence = _Presence(parts.limits.settled_s)

    @property
    def is_registered(self) -> bool:
        return not self.why

    @property
    def lost(self) -> str:
        """Why the last connection was lost."""
        return self._presence.lost

    def away_s(self) -> float:
        """Return for how long there has been no connection that lasts; 0 while there is one."""
        return self._presence.away_s()

    @property
    def name(self) -> str:
        """The name under which this node dials the relay."""
        return name_dialed(parse_address(self.url, "relays"))

    @property
    def members(self) -> set[bytes]:
        """The keys of the members to whom a line is open through this relay."""
        return {line.key for line in self._lines.values() if line.end is None and line.accepted.done()}

    @property
    def own_address(self) -> str | None:
        return None if self._line is None else self._line.own_address

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
                if self._presence.lasts():
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
        if len(self._lines) >= MOST_LINES:
            raise GoneError("this node has too many lines there")
        number = next(number for number in self._numbers if number not in self._lines)
        line = self._lines[number] = RelayLine(self, number, key)
        began = time.monotonic()
        try:
            await self.say(pack(FrameKind.OPEN, number, key))
            await line.accepted
        except BaseException:
            if time.monotonic() - began >= UNANSWERED_SHARE * self._parts.limits.connect_s:
                self._limits.doubts.mark(key)
            await line.close(self._parts.limits.close_s)
            raise
        if line.end is not None:
            self.forget(line)
            raise GoneError(line.end)
        return line

    def doubts(self, key: bytes) -> int:
        """Return how often lines to that member were spoiled or cut here lately."""
        return self._limits.doubts.count(key)

    def doubt(self, key: bytes, reason: str) -> None:
        self._limits.doubts.mark(key)
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
            self._presence.come()
            self._changed.set()
            self._parts.log.info("registered at relay %s", self.url)
            pulse = Pulse()
            await _until_one_fails(self._ping(pulse, shows=challenge.takes_removals), self._read(line, pulse))
        finally:
            await line.close(self._parts.limits.close_s)

    async def _register(self, line: Line) -> Challenge:
        challenge = struct_in(unpack(await line.receive()), FrameKind.CHALLENGE, Challenge)
        if challenge.version != VERSION:
            raise RefusedByRelayError(REFUSALS[Refusal.VERSION])
        registration = self._parts.answer(self.name, challenge)
        await line.send(pack_struct(FrameKind.REGISTER, registration))
        answer = unpack(await line.receive())
        if answer.kind is FrameKind.REFUSED:
            raise RefusedByRelayError(_in_words(refusal_in(answer), challenge, registration))
        if answer.kind is not FrameKind.WELCOME:
            raise PeerFault(f"{answer.kind.name} in place of a welcome")
        self.seen = challenge.seen
        return challenge

    async def _ping(self, pulse: Pulse, *, shows: bool) -> None:
        """Ping, and show the newest removals to a relay that takes them."""
        shown = b""
        while True:
            if shows and (removals := self._parts.removals()) not in (b"", shown):
                shown = removals
                await self.say(pack(FrameKind.REMOVED, 0, removals))
            await self.say(pack_number(FrameKind.PING, 0, pulse.beat(time.monotonic())))
            await asyncio.sleep(BEAT_S)

    async def _read(self, line: Line, pulse: Pulse) -> None:
        while True:
            async with asyncio.timeout(SILENCE_S):
                frame = unpack(await line.receive())
            if frame.kind is FrameKind.OPEN:
                await self._open(frame)
            elif frame.kind is FrameKind.REFUSED and refusal_in(frame) is Refusal.EXPIRED:
                raise GoneError("the ticket expired")  # perhaps there is a new one
            elif frame.kind is FrameKind.REFUSED:
                raise RefusedByRelayError(REFUSALS.get(refusal_in(frame) or Refusal.FULL, "it gave no reason"))
            elif (own := self._lines.get(frame.line)) is not None:
                self._take(own, frame)
            elif frame.kind is FrameKind.PONG and (took_s := pulse.answer(number_in(frame), time.monotonic())):
                self.round_trip_s = min(60.0, took_s)
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
                    self._limits.doubts.mark(line.key)
                line.finish(CLOSINGS[closing_in(frame)])
                self.forget(line)
            case _:
                raise PeerFault(f"{frame.kind.name} from a relay")

    async def _open(self, frame: Frame) -> None:
        """Take a line that another member opens, if there is room."""
        number, key, limits = frame.line, frame.payload, self._parts.limits
        now = asyncio.get_running_loop().time()
        if number < PASSED_ON or number in self._lines or len(key) != 32:
            raise PeerFault(f"a line with the number {number}, or without a key")
        if self._meet is None or len(self._lines) >= MOST_LINES or not self._limits.may_open(now):
            self._limits.count_stray(now)
            await self.say(pack_number(FrameKind.CLOSE, number, Closing.NOT_WANTED))
            return
        line = self._lines[number] = RelayLine(self, number, key)
        line.accepted.set_result(None)
        await self.say(pack(FrameKind.ACCEPT, number))
        visit = RelayVisit(line.peer_address, now + limits.handshake_s, lambda at: self._limits.count_visit(key, at))
        if self._meet(line, visit) is None:
            await line.close(limits.close_s)

    def _lose(self, why: str) -> None:
        if self.is_registered:
            self._parts.log.log(DEBUG if why == STOPPED else INFO, "relay %s is lost: %s", self.url, why)
        self._line, self.round_trip_s = None, float("inf")
        self.why = why or "no reason"
        self._presence.go(self.why)
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
    return REFUSALS[reason]
