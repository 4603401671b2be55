"""Dial a node only for its charter, to bring a newer one or to ask for one, without running a node.

`p2pfl member` on a laptop does this, as do a newcomer that no neighbor lists yet and a node that has lost all of its
neighbors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from aiohttp import ClientSession

from p2pfl.config.charter import HASH_BYTES, federation_id, keys
from p2pfl.config.model import FederationConfig
from p2pfl.crypto.handshake import FederationBinding, Initiator
from p2pfl.crypto.identity import Identity
from p2pfl.crypto.session import Session
from p2pfl.errors import P2PFLError, PeerFault
from p2pfl.net.address import parse_address
from p2pfl.net.limits import Limits
from p2pfl.net.line import GoneError, Line
from p2pfl.net.visits import ask, bring
from p2pfl.net.ways import Outlet
from p2pfl.net.websocket import dial_websocket, open_browserless, reason_of

PATIENCE = Limits(connect_s=3.0)
LEARNED = ("schema", "model")
"""Sections of a node's binding that a visitor cannot know."""
Result = TypeVar("Result")
DialThrough = Callable[[str, bytes], Awaitable[Line]]
"""Dials the member with a public key through the relay at a URL. Raises GoneError."""


class UnreachableError(P2PFLError):
    """The node does not answer, or does not answer as a node of this federation; the text says why."""


def visitors_binding(federation: FederationConfig) -> FederationBinding:
    """Return the binding of a visitor, which knows the federation but has not loaded its task."""
    sections = (*keys(federation), *((name, bytes(HASH_BYTES)) for name in LEARNED))
    return FederationBinding(federation_id=federation_id(federation), sections=sections)


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """An errand for one federation. `binding` need not include the model's shape, which only a node knows."""

    identity: Identity
    binding: FederationBinding
    limits: Limits = PATIENCE
    outlet: Outlet = field(default_factory=Outlet)
    through: DialThrough | None = None
    """Dials a member through a relay; None if there is no way through any."""
    relays: frozenset[str] = frozenset()
    """The URLs that stand for a relay at which the member is to be met, and not for the member."""

    @classmethod
    def of(
        cls,
        federation: FederationConfig,
        identity: Identity,
        through: DialThrough | None = None,
        *,
        outlet: Outlet | None = None,
        relays: Iterable[str] | None = None,
    ) -> Errand:
        return cls(
            identity=identity,
            binding=visitors_binding(federation),
            outlet=outlet or Outlet(),
            through=through,
            relays=frozenset(federation.relays if relays is None else relays),
        )

    async def bring(self, address: str, key: bytes, raw: bytes) -> int:
        """Hand over a charter; return the version that the node with that public key then has. It is at `address`, or
        to be met at the relay with that URL.

        Raises UnreachableError.
        """
        return await self._go(address, key, lambda line, session: bring(line, session, raw))

    async def ask(self, address: str, key: bytes, version: int) -> bytes | None:
        """Return the node's charter if it is newer than `version`.

        Raises UnreachableError, also if the node does not show us its charter.
        """

        async def act(line: Line, session: Session) -> bytes | None:
            try:
                _, raw = await ask(line, session, version)
            except GoneError:  # the node has proven its identity by this point
                raise GoneError("it answers, and does not list this key") from None
            return raw

        return await self._go(address, key, act)

    async def _go(self, address: str, key: bytes, act: Callable[[Line, Session], Awaitable[Result]]) -> Result:
        try:
            async with (
                asyncio.timeout(self.limits.connect_s + self.limits.handshake_s),
                open_browserless(self.outlet) as http,
            ):
                async with asyncio.timeout(self.limits.connect_s):
                    line = await self._dial(http, address, key)
                try:
                    return await act(line, await self._shake_hands(line, key))
                finally:
                    await line.close(self.limits.close_s)
        except (GoneError, TimeoutError, OSError, PeerFault) as error:
            raise UnreachableError(reason_of(error)) from None

    async def _dial(self, http: ClientSession, address: str, key: bytes) -> Line:
        if address not in self.relays:
            return await dial_websocket(http, parse_address(address, "address"))
        if self.through is None:
            raise GoneError("there is no way through relays from here")
        return await self.through(address, key)

    async def _shake_hands(self, line: Line, key: bytes) -> Session:
        initiator = Initiator(self.identity, key, self.binding, visiting=True)
        await line.send(initiator.first())
        await line.send(initiator.second(await line.receive()))
        return Session(initiator.keys)
