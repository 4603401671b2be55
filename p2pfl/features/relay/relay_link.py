"""A member's connection to one relay: it registers, keeps the connection, and carries many lines over it."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from logging import DEBUG, INFO, Logger

from p2pfl.config.invites import in_words
from p2pfl.core.limits import TokenBucket
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
from p2pfl.features.relay.relay_line import RelayLine, RelayVisit
from p2pfl.net.dialing import Backoff
from p2pfl.net.limits import Limits
from p2pfl.net.line import GoneError, Line
from p2pfl.net.transport import Meet

REFUSED_S = 30.0
"""The wait after a relay has refused this node: only a person changes that."""
UNTRIED, STOPPED = "no answer yet", "the node stopped"
FIRST_S = 1.0
"""How long a dial waits for the first answer of a relay: another one may be faster."""
DOUBTS_LAST_S = 300.0
MOST_DOUBTS = 1024
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
    rng: random.Random = field(default_factory=random.Random)


class RelayLink:
    """The connection to the relay at `url`. `why` says why there is none; it is empty while there is one."""

    def __init__(self, url: str, parts: LinkParts) -> None:
        self.url, self.why, self.round_trip_s = url, UNTRIED, float("inf")
        self.since = time.monotonic()
        """When the connection was made or lost, by the monotonic clock."""
        self.on_doubt: OnDoubt = lambda link, key, reason: None  # noqa: ARG005 - nobody listens yet
        self._parts = parts
        self._meet: Meet | None = None
        self._line: Line | None = None
        self._lines: dict[int, RelayLine] = {}
        self._numbers = itertools.cycle(range(1, PASSED_ON))
        self._handshakes = TokenBucket(parts.limits.handshakes_per_s, burst=parts.limits.handshake_burst)
        self._doubts: dict[bytes, deque[float]] = {}
        self._changed = asyncio.Event()

    @property
    def is_registered(self) -> bool:
        return not self.why

    def away_s(self) -> float:
        """Return for how long there has been no connection."""
        return time.monotonic() - self.since

    @property
    def name(self) -> str:
        """The relay's name: its URL without the scheme."""
        return self.url.partition("://")[2]

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
                    await self._connect(backoff)
                except (RefusedByRelayError, UserError) as refused:
                    self._lose(str(refused))
                    wait_s = REFUSED_S
                except (GoneError, TimeoutError, PeerFault) as error:
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
        try:
            await self.say(pack(FrameKind.OPEN, number, key))
            await line.accepted
        except BaseException:
            await line.close(self._parts.limits.close_s)
            raise
        if line.end is not None:
            self.forget(line)
            raise GoneError(line.end)
        return line

    def doubts(self, key: bytes) -> int:
        """Return how often lines to that member were spoiled or cut here lately."""
        found, before = self._doubts.get(key, deque()), time.monotonic() - DOUBTS_LAST_S
        while found and found[0] < before:
            found.popleft()
        return len(found)

    def _mark(self, key: bytes) -> None:
        """Count a line to that member that was spoiled or cut here: other relays come first for a while."""
        if len(self._doubts) < MOST_DOUBTS or key in self._doubts:
            self._doubts.setdefault(key, deque(maxlen=64)).append(time.monotonic())

    def doubt(self, key: bytes, reason: str) -> None:
        self._mark(key)
        self._parts.log.debug("relay %s: a line to %s: %s", self.url, public_text(key)[:8], reason)
        self.on_doubt(self, key, reason)

    async def say(self, frame: bytes) -> None:
        if self._line is None:
            raise GoneError(self.why)
        await self._line.send(frame)

    def forget(self, line: RelayLine) -> None:
        if self._lines.get(line.number) is line:
            del self._lines[line.number]

    async def _connect(self, backoff: Backoff) -> None:
        """Register, and serve the connection until it is lost; always ends in an error."""
        async with asyncio.timeout(self._parts.limits.connect_s):
            line = await self._parts.dial(self.url)
        try:
            async with asyncio.timeout(self._parts.limits.handshake_s):
                await self._register(line)
            self._line, self.why, self.since = line, "", time.monotonic()
            self._changed.set()
            backoff.reset()
            self._parts.log.info("registered at relay %s", self.url)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._ping())
                tasks.create_task(self._read(line))
        except BaseExceptionGroup as group:
            raise _first(group) from None
        finally:
            await line.close(self._parts.limits.close_s)

    async def _register(self, line: Line) -> None:
        challenge = struct_in(unpack(await line.receive()), FrameKind.CHALLENGE, Challenge)
        if challenge.version != VERSION:
            raise RefusedByRelayError(REFUSALS[Refusal.VERSION])
        await line.send(pack_struct(FrameKind.REGISTER, self._parts.answer(self.name, challenge)))
        answer = unpack(await line.receive())
        if answer.kind is FrameKind.REFUSED:
            raise RefusedByRelayError(_in_words(refusal_in(answer), challenge))
        if answer.kind is not FrameKind.WELCOME:
            raise PeerFault(f"{answer.kind.name} in place of a welcome")

    async def _ping(self) -> None:
        while True:
            await self.say(pack_number(FrameKind.PING, 0, time.monotonic_ns()))
            await asyncio.sleep(BEAT_S)

    async def _read(self, line: Line) -> None:
        while True:
            async with asyncio.timeout(SILENCE_S):
                frame = unpack(await line.receive())
            if frame.kind is FrameKind.OPEN:
                await self._open(frame)
            elif frame.kind is FrameKind.PONG:
                self.round_trip_s = min(60.0, max(0.0, (time.monotonic_ns() - number_in(frame)) / 1e9))
            elif frame.kind is FrameKind.REFUSED:
                raise RefusedByRelayError(REFUSALS.get(refusal_in(frame) or Refusal.FULL, "it gave no reason"))
            elif (own := self._lines.get(frame.line)) is not None:
                self._take(own, frame)

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
                if line.end is None and line.accepted.done():
                    self._mark(line.key)
                line.finish(CLOSINGS[closing_in(frame)])
                self.forget(line)
            case _:
                raise PeerFault(f"{frame.kind.name} from a relay")

    async def _open(self, frame: Frame) -> None:
        """Take a line that another member opens, if there is room."""
        number, key, limits = frame.line, frame.payload, self._parts.limits
        if number < PASSED_ON or number in self._lines or len(key) != 32:
            raise PeerFault(f"a line with the number {number}, or without a key")
        if self._meet is None or len(self._lines) >= MOST_LINES:
            await self.say(pack_number(FrameKind.CLOSE, number, Closing.NOT_WANTED))
            return
        line = self._lines[number] = RelayLine(self, number, key)
        line.accepted.set_result(None)
        await self.say(pack(FrameKind.ACCEPT, number))
        ends_at = asyncio.get_running_loop().time() + limits.handshake_s
        if self._meet(line, RelayVisit(line.peer_address, ends_at, self._handshakes)) is None:
            await line.close(limits.close_s)

    def _lose(self, why: str) -> None:
        if self.is_registered:
            self.since = time.monotonic()
            self._parts.log.log(DEBUG if why == STOPPED else INFO, "relay %s is lost: %s", self.url, why)
        self._line, self.why, self.round_trip_s = None, why or "no reason", float("inf")
        self._changed.set()
        for line in list(self._lines.values()):
            line.finish(f"the relay {self.url} is gone: {why}")
        self._lines.clear()


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the cause that says most: a refusal, or else the first one."""
    found = [_first(error) if isinstance(error, BaseExceptionGroup) else error for error in group.exceptions]
    return next((error for error in found if isinstance(error, RefusedByRelayError)), found[0])


def _in_words(reason: Refusal | None, challenge: Challenge) -> str:
    if reason is None:
        return "it refuses this node for a reason that this version does not know"
    if reason is Refusal.EXPIRED:
        return f"{REFUSALS[reason]}; or the relay's clock is wrong, which says {in_words(challenge.clock_s)}"
    return REFUSALS[reason]
