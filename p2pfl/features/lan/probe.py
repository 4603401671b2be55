"""Find out which node answers at an address, by exchanging only the first two messages of a handshake.

The dialer's key is generated for the occasion, because only the third message would reveal it. So anyone who has the
federation file can probe, even while a node with the same files runs, without disturbing that node's sessions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Self

import aiohttp

from p2pfl.crypto import FederationMismatch, HandshakeFault
from p2pfl.crypto.identity import Identity
from p2pfl.crypto.session import FederationBinding, Initiator
from p2pfl.errors import PeerFault
from p2pfl.net.address import Address
from p2pfl.net.dial_paths import DialError, Outlet, UnreachedError
from p2pfl.net.transport import GoneError, Line
from p2pfl.net.websocket import dial_websocket, open_browserless

CONNECT_S = 4.0
ANSWER_S = 4.0
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
    round_trip_s: float | None = None
    """How long the first answer of the handshake took."""
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
        self._http: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        self._http = open_browserless(self.outlet)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def ask(self, toward: Address, index: int) -> Answer:
        """Find out whether member `index` answers there, and if not, which one does."""
        answer = await self._try(toward, index)
        if answer.kind is not AnswerKind.OTHER_NODE:
            return answer
        for other in [other for other in range(len(self._keys)) if other != index][:MOST_TRIES]:
            if (await self._try(toward, other)).kind is AnswerKind.MEMBER:
                return Answer(kind=AnswerKind.OTHER_MEMBER, detail=str(other))
        return answer

    async def _try(self, toward: Address, index: int) -> Answer:
        try:
            async with asyncio.timeout(CONNECT_S):
                line = await dial_websocket(self._http, toward)
        except TimeoutError:
            return Answer(kind=AnswerKind.SILENT, detail=f"nothing in {CONNECT_S:g} s")
        except UnreachedError as error:
            return of_unreached(error)
        except GoneError as error:
            return Answer(kind=AnswerKind.NO_NODE, detail=str(error))
        try:
            return await self._shake(line, index)
        finally:
            await line.close(1.0)

    async def _shake(self, line: Line, index: int) -> Answer:
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
            return Answer(kind=AnswerKind.MEMBER, differences=differences, round_trip_s=round_trip_s)
        except (TimeoutError, GoneError, HandshakeFault) as error:
            return Answer(kind=AnswerKind.OTHER_NODE, detail=str(error))
        except PeerFault as fault:
            return Answer(kind=AnswerKind.NO_NODE, detail=str(fault))
        return Answer(kind=AnswerKind.MEMBER, round_trip_s=round_trip_s)


def of_unreached(error: UnreachedError) -> Answer:
    kind = KINDS.get(error.hurdle, AnswerKind.SILENT)
    detail = "" if kind is AnswerKind.REFUSED else error.text
    return Answer(kind=kind, detail=detail, remedy=error.remedy)
