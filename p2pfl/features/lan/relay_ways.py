"""The ways through relays, as the doctor tries them: on a seat of its own, so that the node that runs keeps its own."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import Self

import aiohttp

from p2pfl.config.model import FederationConfig, Member, NodeConfig
from p2pfl.crypto.identity import Identity
from p2pfl.errors import UserError
from p2pfl.features.lan.probe import Answer, AnswerKind, Prober, of_unreached
from p2pfl.features.relay.credentials import Credentials, answer_of_admin
from p2pfl.features.relay.relay_hurdles import at_relay
from p2pfl.features.relay.relay_link import UNTRIED, LinkParts, RelayLink
from p2pfl.features.relay.relay_link import Answer as AnswerChallenge
from p2pfl.net.address import parse_address
from p2pfl.net.hurdles import UnreachedError
from p2pfl.net.limits import Limits
from p2pfl.net.line import GoneError, Line
from p2pfl.net.ways import Passage
from p2pfl.net.websocket import dial_websocket, open_browserless

SETTLED_S = 12.0
"""How long a relay may take to let this machine in, or to refuse it."""
LINE_S = 4.0
"""How long it may take until a member has taken a line."""
LOOK_S = 0.02
ADMIN_FILE = "admin.key"


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
                found = await asyncio.gather(*(self._try(url, answer) for url in urls))
                self.tried = [one for each in found for one in each]
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
        found: list[RelayTried] = []
        for passage in self._prober.outlet.of(parse_address(url, "network.relays")):
            found.append(await self._enter(url, passage, answer))
            if found[-1].link is not None:
                break
        return found

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


SEE = "docs/how-to/relay.md, 'When it does not work'"


def _answer_from_here(federation: FederationConfig, node: NodeConfig | None) -> AnswerChallenge:
    """Return what answers a relay's challenge: the key of the node that is here, or the admin's.

    Raises UserError: neither is here, or it cannot be read.
    """
    if node is not None:
        found = Credentials(federation, node, Identity.load(node.key_file))
        found.require()
        return found.visit
    file = federation.path.parent / ADMIN_FILE
    if not file.exists():
        allowed = "`p2pfl doctor` with --node where a node is, or where the admin key is"
        raise UserError("neither the key of one node nor an admin key is here", allowed=allowed)
    return answer_of_admin(federation, Identity.load(file), visiting=True)


def _nobody(*_: object) -> None:
    """Take no line: the doctor only dials."""
