"""Find out which node answers at an address, by exchanging only the first two messages of a handshake.

The dialer's key is generated for the occasion, because only the third message would reveal it. So anyone who has the
federation file can probe, even while a node with the same files runs, without disturbing that node's sessions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Self

import aiohttp

from p2pfl.crypto import FederationMismatch, HandshakeFault
from p2pfl.crypto.handshake import FederationBinding, Initiator
from p2pfl.crypto.identity import Identity
from p2pfl.errors import PeerFault
from p2pfl.net.address import Address
from p2pfl.net.hurdles import Hurdle, UnreachedError
from p2pfl.net.line import GoneError, Line
from p2pfl.net.measuring import measure
from p2pfl.net.ways import Outlet, Passage
from p2pfl.net.websocket import dial_websocket, open_browserless

CONNECT_S = 4.0
ANSWER_S = 4.0
TURN_S = 4.0
"""How long a way waits to be measured: a node keeps a connection that is no session for 10 s."""
MOST_TRIES = 64
"""The most members that are tried, with one handshake each, to find out which one answers instead of the expected
one.
"""


class AnswerKind(Enum):
    """The kinds of answer from an address."""

    MEMBER = "answers"
    OTHER_MEMBER = "another member answers"
    OTHER_NODE = "a node that is not a member, or has another version of the protocol"
    NO_NODE = "something other than p2pfl answers"
    REFUSED = "nothing listens on that port"
    SILENT = "no answer"
    PROXY = "a proxy does not let it through"
    CERTIFICATE = "its certificate is not accepted"
    CLOSED = "the relay does not let this machine in"
    AWAY = "it is not at that relay"


KINDS = {
    Hurdle.REFUSED: AnswerKind.REFUSED,
    Hurdle.PROXY: AnswerKind.PROXY,
    Hurdle.CERTIFICATE: AnswerKind.CERTIFICATE,
    Hurdle.NOT_A_NODE: AnswerKind.NO_NODE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    kind: AnswerKind
    detail: str = ""
    """The reason why there is no answer, as the system reports it; or the index of the other member."""
    differences: tuple[str, ...] = ()
    """The keys in which its federation file differs."""
    clock_off_s: float | None = None
    """The remote clock minus ours, accurate to a second."""
    round_trip_s: float | None = None
    """How long the first answer of the handshake took."""
    throughput: float | None = None
    """The bytes per second that reach the node on this way."""
    remedy: str = ""
    """What to do if nothing was reached, as far as that is known."""


class Prober:
    """An async context that probes addresses. `keys` are the members' keys, by index."""

    def __init__(
        self,
        keys: Sequence[bytes],
        binding: FederationBinding,
        *,
        ignored: frozenset[str],
        outlet: Outlet | None = None,
    ) -> None:
        self._keys, self._binding, self._ignored = keys, binding, ignored
        self.outlet = outlet or Outlet()
        self._measuring = asyncio.Lock()
        self._http: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        self._http = open_browserless(self.outlet)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def ask(self, toward: Address | Passage, index: int) -> Answer:
        """Find out whether member `index` answers there, and if not, which one does."""
        answer = await self._try(toward, index)
        if answer.kind is not AnswerKind.OTHER_NODE:
            return answer
        for other in [other for other in range(len(self._keys)) if other != index][:MOST_TRIES]:
            if (await self._try(toward, other)).kind is AnswerKind.MEMBER:
                return Answer(kind=AnswerKind.OTHER_MEMBER, detail=str(other), clock_off_s=answer.clock_off_s)
        return answer

    async def _try(self, toward: Address | Passage, index: int) -> Answer:
        try:
            async with asyncio.timeout(CONNECT_S):
                line = await dial_websocket(self._http, toward)
        except TimeoutError:
            return Answer(kind=AnswerKind.SILENT, detail=f"nothing in {CONNECT_S:g} s")
        except UnreachedError as error:
            return of_unreached(error)
        except GoneError as error:
            return Answer(kind=AnswerKind.NO_NODE, detail=str(error))
        return await self.greet(line, index, _clock_off_s(line.date))

    async def greet(self, line: Line, index: int, off_s: float | None = None) -> Answer:
        """Find out whether member `index` answers at the other end of a line, and how fast that is; close the line."""
        try:
            answer = await self._shake(line, index, off_s)
            if answer.kind is AnswerKind.MEMBER:
                answer = replace(answer, throughput=await self._measure(line))
            return answer
        finally:
            await line.close(1.0)

    async def _measure(self, line: Line) -> float | None:
        """Measure a way while no other one is measured; None if the turn comes too late for the other end."""
        try:
            async with asyncio.timeout(TURN_S):
                await self._measuring.acquire()
        except TimeoutError:
            return None
        try:
            return await measure(line)
        finally:
            self._measuring.release()

    async def _shake(self, line: Line, index: int, off_s: float | None) -> Answer:
        initiator = Initiator(Identity.generate(), self._keys[index], self._binding)
        try:
            async with asyncio.timeout(ANSWER_S):
                began = time.monotonic()
                await line.send(initiator.first())
                reply = await line.receive()
                round_trip_s = time.monotonic() - began
            initiator.second(reply)
        except FederationMismatch as mismatch:
            differences = tuple(name for name in mismatch.sections if name not in self._ignored)
            return Answer(kind=AnswerKind.MEMBER, differences=differences, clock_off_s=off_s, round_trip_s=round_trip_s)
        except (TimeoutError, GoneError, HandshakeFault) as error:
            return Answer(kind=AnswerKind.OTHER_NODE, detail=str(error), clock_off_s=off_s)
        except PeerFault as fault:
            return Answer(kind=AnswerKind.NO_NODE, detail=str(fault), clock_off_s=off_s)
        return Answer(kind=AnswerKind.MEMBER, clock_off_s=off_s, round_trip_s=round_trip_s)


def _clock_off_s(date: str) -> float | None:
    """Return how far the remote clock is off, from the header of its answer."""
    with suppress(TypeError, ValueError):
        return parsedate_to_datetime(date).timestamp() + 0.5 - time.time()
    return None


def of_unreached(error: UnreachedError) -> Answer:
    kind = KINDS.get(error.hurdle, AnswerKind.SILENT)
    detail = "" if kind is AnswerKind.REFUSED else error.text
    return Answer(kind=kind, detail=detail, remedy=error.remedy)
