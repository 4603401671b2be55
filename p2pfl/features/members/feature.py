"""The charter of one node: it is stored, sent to neighbors, received from visitors, and requested when no neighbor is
connected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from p2pfl.config.charter import CharterError
from p2pfl.config.model import FederationConfig
from p2pfl.errors import PeerFault
from p2pfl.features.members.alarms import ALARMS
from p2pfl.features.members.alone import ask_when_alone
from p2pfl.features.members.keeper import CharterKeeper
from p2pfl.features.members.talk import CHANNEL, TICKETS, CharterTalk
from p2pfl.features.members.ticket_keeper import TicketKeeper
from p2pfl.features.relay.sheets import MAGIC
from p2pfl.net.address import Relayed
from p2pfl.net.line import Line
from p2pfl.net.side import Feeding
from p2pfl.net.ways import outlet_of
from p2pfl.node.assembly import Setup
from p2pfl.node.feature import Attached, Feature, NodeView
from p2pfl.node.kept_charter import FILE_NAME


class MembersFeature(Feature):
    name = "members"
    alarms = ALARMS

    def guards(self, setup: Setup) -> bool:  # noqa: ARG002 - whatever the files say
        return True

    def attach(self, node: NodeView) -> Attached | None:
        return Members(node) if node.setup().federation.admin else None


class MembersDoor:
    """What visitors may hand over, the charter or tickets, and ask for, the charter alone."""

    def __init__(self, keeper: CharterKeeper, tickets: TicketKeeper) -> None:
        self._keeper, self._tickets = keeper, tickets
        self.left_behind, self.may_ask = keeper.left_behind, keeper.may_ask

    @property
    def version(self) -> int:
        return self._keeper.version

    @property
    def packed(self) -> bytes:
        return self._keeper.packed

    def bring(self, raw: bytes) -> None:
        """Accept a newer charter, or newer tickets. Raises PeerFault: it is neither."""
        if not raw.startswith(MAGIC):
            self._keeper.bring(raw)
            return
        try:
            self._tickets.offer(raw)
        except CharterError as error:
            raise PeerFault(f"tickets that cannot be accepted: {error}") from None


class Members(Attached):
    def __init__(self, node: NodeView) -> None:
        setup = node.setup()
        self._node = node
        file = setup.node.state_dir / FILE_NAME
        self.keeper = CharterKeeper(setup.federation, file, on_charter=self._follow, on_alarm=node.alarm)
        self.talk = CharterTalk(self.keeper, node.say, node.clock)
        self.tickets = TicketKeeper(setup, on_alarm=node.alarm)
        self._ticket_talk = CharterTalk(self.tickets, node.say, node.clock, TICKETS)
        self.door = MembersDoor(self.keeper, self.tickets)

    def feedings(self) -> tuple[Feeding, ...]:
        return (
            Feeding(channel=CHANNEL, handler=self.talk, guards=True),
            Feeding(channel=TICKETS, handler=self._ticket_talk),
        )

    def trusts(self, members: Mapping[bytes, int]) -> Mapping[bytes, int]:
        """Return the members listed in the newest charter. Even if it must wait for a restart, others are cut off at
        once.
        """
        keys = self.keeper.keys
        return {key: index for key, index in members.items() if key in keys}

    def status(self) -> Mapping[str, Any]:
        return {"members_version": self.keeper.version}

    def begin(self) -> None:
        self.keeper.save()

    def look(self) -> None:
        self.talk.look(self._node.clock())
        self._ticket_talk.look(self._node.clock())

    async def run(self) -> None:
        setup = self._node.setup()
        transport = self._node.network.transport

        async def through(relay: str, key: bytes) -> Line:
            return await transport.dial(Relayed(relay, key))

        await ask_when_alone(
            self.keeper,
            setup.identity,
            self.talk.is_alone,
            outlet=outlet_of(setup.node),
            relays=[url.partition("#")[0] for url in setup.node.relays],
            through=through,
        )

    def _follow(self, federation: FederationConfig) -> None:
        """Follow a newer charter, which is already on disk and sent to the neighbors. Raises UserError like `amend`."""
        try:
            self._node.amend(federation)
            if federation is self.keeper.federation:
                self._node.feed.settle("charter-in-force", None)
        finally:
            self._node.trust_anew()
