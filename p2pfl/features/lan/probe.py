"""Find out which node answers at an address: send the first two messages of a handshake, then nothing.

The dialer's key is made for the occasion, because only the third message would show it. So anyone who has the
federation file can ask, even while a node with the same files runs, and no session of that node is touched.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Any, Self

import aiohttp

from p2pfl.crypto import FederationMismatch, HandshakeFault
from p2pfl.crypto.handshake import FederationBinding, Initiator
from p2pfl.crypto.identity import Identity
from p2pfl.errors import PeerFault
from p2pfl.net.address import Address
from p2pfl.net.line import GoneError, Line
from p2pfl.net.websocket import MESSAGE_BYTES, PATH, TappedSocket, WebSocketLine, open_browserless

CONNECT_S = 4.0
ANSWER_S = 4.0
MOST_TRIES = 64
"""The members that are tried, one handshake each, to find out which one answers in place of the expected one."""


class AnswerKind(Enum):
    """The kinds of answer from an address."""

    MEMBER = "answers"
    OTHER_MEMBER = "another member answers"
    OTHER_NODE = "a node that is not a member, or has another version of the protocol"
    NO_NODE = "something other than p2pfl answers"
    REFUSED = "nothing listens on that port"
    SILENT = "no answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    kind: AnswerKind
    detail: str = ""
    """Why there is no answer, in the system's words; or the index of the other member."""
    differences: tuple[str, ...] = ()
    """The keys in which its federation file differs."""
    clock_off_s: float | None = None
    """The other end's clock minus ours, to a second."""


class DatedSocket(TappedSocket):
    """Measures how far the other end's clock is off, by the header of its answer."""

    def __init__(self, reader: Any, writer: Any, protocol: Any, response: Any, *rest: Any, **more: Any) -> None:
        super().__init__(reader, writer, protocol, response, *rest, **more)
        self.off_s: float | None = None
        with suppress(TypeError, ValueError):
            told = parsedate_to_datetime(response.headers.get("Date", ""))
            self.off_s = told.timestamp() + 0.5 - time.time()


class Prober:
    """An async context that probes addresses. `keys` are those of the members, by index."""

    def __init__(self, keys: Sequence[bytes], binding: FederationBinding, *, ignored: frozenset[str]) -> None:
        self._keys, self._binding, self._ignored = keys, binding, ignored
        self._http: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        self._http = open_browserless(DatedSocket)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def ask(self, address: Address, index: int) -> Answer:
        """Find out if member `index` answers there, and which one does if not."""
        answer = await self._try(address, index)
        if answer.kind is not AnswerKind.OTHER_NODE:
            return answer
        for other in [other for other in range(len(self._keys)) if other != index][:MOST_TRIES]:
            if (await self._try(address, other)).kind is AnswerKind.MEMBER:
                return Answer(kind=AnswerKind.OTHER_MEMBER, detail=str(other), clock_off_s=answer.clock_off_s)
        return answer

    async def _try(self, address: Address, index: int) -> Answer:
        try:
            async with asyncio.timeout(CONNECT_S):
                web_socket = await self._http.ws_connect(
                    f"ws://{address}{PATH}", autoping=False, max_msg_size=MESSAGE_BYTES
                )
        except TimeoutError:
            return Answer(kind=AnswerKind.SILENT, detail=f"nothing in {CONNECT_S:g} s")
        except aiohttp.ClientConnectorError as error:
            return _unreachable(error)
        except (GoneError, aiohttp.ClientError, OSError, ValueError) as error:
            return Answer(kind=AnswerKind.NO_NODE, detail=str(error) or type(error).__name__)
        assert isinstance(web_socket, DatedSocket)  # noqa: S101
        line = WebSocketLine(web_socket, web_socket.tap)
        try:
            return await self._shake(line, index, web_socket.off_s)
        finally:
            await line.close(1.0)

    async def _shake(self, line: Line, index: int, off_s: float | None) -> Answer:
        initiator = Initiator(Identity.generate(), self._keys[index], self._binding)
        try:
            async with asyncio.timeout(ANSWER_S):
                await line.send(initiator.first())
                reply = await line.receive()
            initiator.second(reply)
        except FederationMismatch as mismatch:
            differences = tuple(name for name in mismatch.sections if name not in self._ignored)
            return Answer(kind=AnswerKind.MEMBER, differences=differences, clock_off_s=off_s)
        except (TimeoutError, GoneError, HandshakeFault) as error:
            return Answer(kind=AnswerKind.OTHER_NODE, detail=str(error), clock_off_s=off_s)
        except PeerFault as fault:
            return Answer(kind=AnswerKind.NO_NODE, detail=str(fault), clock_off_s=off_s)
        return Answer(kind=AnswerKind.MEMBER, clock_off_s=off_s)


def _unreachable(error: aiohttp.ClientConnectorError) -> Answer:
    reason = error.os_error
    if isinstance(reason, ConnectionRefusedError) or reason.errno == errno.ECONNREFUSED:
        return Answer(kind=AnswerKind.REFUSED)
    if isinstance(reason, socket.gaierror):
        return Answer(kind=AnswerKind.SILENT, detail="the name is unknown")
    return Answer(kind=AnswerKind.SILENT, detail=reason.strerror or str(reason))
