"""Find out which node answers at an address, by exchanging only the first two messages of a handshake.

The dialer's key is generated for the occasion, because only the third message would reveal it. So anyone who has the
federation file can probe, even while a node with the same files runs, without disturbing that node's sessions. Through
a relay it probes on a seat of its own, so that the node that runs keeps its own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from enum import Enum
from functools import partial
from typing import Self

import aiohttp

from p2pfl.config.model import FederationConfig, Member, NodeConfig
from p2pfl.crypto import FederationMismatch, HandshakeFault
from p2pfl.crypto.identity import Identity
from p2pfl.crypto.session import FederationBinding, Initiator
from p2pfl.errors import PeerFault, UserError
from p2pfl.features.relay.link import UNTRIED, LinkParts, RelayLink
from p2pfl.features.relay.link import Answer as AnswerChallenge
from p2pfl.features.relay.tickets import Credentials
from p2pfl.features.relay.transport import answer_of_admin, at_relay
from p2pfl.net.address import Address, parse_address
from p2pfl.net.dial_paths import DialError, Outlet, Passage, UnreachedError
from p2pfl.net.greeting import measure
from p2pfl.net.limits import Limits
from p2pfl.net.transport import GoneError, Line
from p2pfl.net.websocket import dial_websocket, open_browserless

CONNECT_S = 4.0
ANSWER_S = 4.0
TURN_S = 4.0
"""How long a way waits to be measured: a node keeps a connection that is no session for 10 s."""
MOST_TRIES = 64
"""The most members that are tried, with one handshake each, to find out which one answers instead of the expected
one.
"""
SETTLED_S = 12.0
"""How long a relay may take to let this machine in, or to refuse it."""
LINE_S = 4.0
"""How long it may take until a member has taken a line."""
LOOK_S = 0.02
ADMIN_FILE = "admin.key"
SEE = "docs/how-to/relay.md, 'When it does not work'"


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
    DialError.REFUSED: AnswerKind.REFUSED,
    DialError.PROXY: AnswerKind.PROXY,
    DialError.CERTIFICATE: AnswerKind.CERTIFICATE,
    DialError.NOT_A_NODE: AnswerKind.NO_NODE,
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


@dataclass(frozen=True, slots=True)
class RelayTried:
    """What one way to a relay has led to. `link` is None if this machine was not let in; `answer` says why."""

    url: str
    way: str
    answer: Answer
    link: RelayLink | None = None


class RelayVisits:
    """An async context in which this machine is registered at all relays that let it in."""

    def __init__(self, federation: FederationConfig, node: NodeConfig | None, prober: Prober) -> None:
        self.tried: list[RelayTried] = []
        """Each way to each relay up to the first that leads there."""
        self._federation, self._node, self._prober = federation, node, prober
        self._tasks: list[asyncio.Task[None]] = []
        self._http: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        urls = self._federation.relays if self._node is None else self._node.relays
        self._http = open_browserless(self._prober.outlet)
        try:
            answer = _answer_from_here(self._federation, self._node) if urls else None
        except UserError as error:
            closed = Answer(kind=AnswerKind.CLOSED, detail=error.message, remedy=error.allowed or "")
            self.tried = [RelayTried(url.partition("#")[0], "relay", closed) for url in urls]
        else:
            if answer is not None:
                tried = await asyncio.gather(*(self._try(url, answer) for url in urls))
                self.tried = [one for each in tried for one in each]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._http.close()

    async def ask(self, tried: RelayTried, member: Member) -> Answer:
        """Find out whether a member answers through that relay, and how fast."""
        if tried.link is None:
            return tried.answer
        try:
            async with asyncio.timeout(LINE_S):
                line = await tried.link.dial(member.key)
        except TimeoutError:
            return Answer(kind=AnswerKind.SILENT, detail="it does not take a line", remedy=f"look at {member.name}")
        except GoneError as error:
            remedy = f"start {member.name}; its log (`p2pfl run -v`) says at which relays it is registered"
            return Answer(kind=AnswerKind.AWAY, detail=str(error), remedy=remedy)
        return await self._prober.greet(line, member.index)

    async def _try(self, url: str, answer: AnswerChallenge) -> list[RelayTried]:
        tried: list[RelayTried] = []
        for passage in self._prober.outlet.of(parse_address(url, "network.relays")):
            tried.append(await self._enter(url, passage, answer))
            if tried[-1].link is not None:
                break
        return tried

    async def _enter(self, url: str, passage: Passage, answer: AnswerChallenge) -> RelayTried:
        obstacles: list[UnreachedError] = []
        dial = partial(self._dial, passage, obstacles)
        link = RelayLink(url, LinkParts(dial=dial, answer=answer, limits=Limits(), log=logging.getLogger("p2pfl.net")))
        self._tasks.append(asyncio.get_running_loop().create_task(link.keep(_nobody)))
        way = "relay" if passage.proxy is None else f"relay by {passage}"
        try:
            async with asyncio.timeout(SETTLED_S):
                while link.why == UNTRIED:  # noqa: ASYNC110 - what a link has come to is no event
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            silent = Answer(kind=AnswerKind.SILENT, detail="no answer in time", remedy="is it a relay, and running?")
            return RelayTried(link.url, way, silent)
        if link.is_registered:
            return RelayTried(link.url, way, Answer(kind=AnswerKind.MEMBER), link)
        if obstacles:
            return RelayTried(link.url, way, of_unreached(obstacles[0]))
        return RelayTried(link.url, way, Answer(kind=AnswerKind.CLOSED, detail=link.why, remedy=SEE))

    async def _dial(self, passage: Passage, obstacles: list[UnreachedError], _url: str) -> Line:
        try:
            return await dial_websocket(self._http, passage)
        except UnreachedError as error:
            obstacles.append(at_relay(error, passage.address))
            raise obstacles[-1] from None


def _answer_from_here(federation: FederationConfig, node: NodeConfig | None) -> AnswerChallenge:
    """Return what answers a relay's challenge: the key of the node that is here, or the admin's.

    Raises UserError: neither is here, or it cannot be read.
    """
    if node is not None:
        credentials = Credentials(federation, node, Identity.load(node.key_file))
        credentials.require()
        return partial(credentials.answer, visiting=True)
    file = federation.path.parent / ADMIN_FILE
    if not file.exists():
        allowed = "`p2pfl doctor` with --node where a node is, or where the admin key is"
        raise UserError("neither the key of one node nor an admin key is here", allowed=allowed)
    return answer_of_admin(federation, Identity.load(file), visiting=True)


def _nobody(*_: object) -> None:
    """Take no line: the doctor only dials."""
