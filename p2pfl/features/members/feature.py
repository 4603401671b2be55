"""The charter of one node: it is stored, sent to neighbors, received from visitors, and requested when no neighbor is
connected.

Then all its neighbors may have been replaced while it was off, and the new ones may not know its address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from p2pfl.config.charter import CharterError
from p2pfl.config.model import FederationConfig, Member
from p2pfl.crypto.identity import Identity
from p2pfl.features.members.charters import CHANNEL, TICKETS, CharterKeeper, CharterTalk
from p2pfl.features.relay.tickets import Sheets
from p2pfl.net.address import Relayed
from p2pfl.net.dial_paths import Outlet, outlet_of
from p2pfl.net.extensions import HandledChannel
from p2pfl.net.transport import Line
from p2pfl.net.websocket import DialThrough, OneShotClient, UnreachableError
from p2pfl.node.assembly import Setup
from p2pfl.node.feature import Attached, Feature, NodeView
from p2pfl.node.folders import CHARTER_FILE
from p2pfl.reporting.alarms import AlarmText

ALARMS: Mapping[str, AlarmText] = {
    "charter-older": AlarmText(
        means="A neighbor says that it has a newer charter, but does not send it, or sends an invalid one.",
        does="Keeps its own charter, and asks again in a new session.",
        advice="Compare with `p2pfl member list`. Any further `p2pfl member` command brings the newest charter to all.",
    ),
    "charter-conflict": AlarmText(
        means="One version of the charter was signed twice, with different contents.",
        does="Uses the one with the larger digest, as all other nodes do.",
        advice="Run `p2pfl member list`, and repeat the change that is missing.",
    ),
    "charter-waits": AlarmText(
        means="The newest charter does not fit this node while it runs; the text says why.",
        does="Cuts off nodes that it does not list. Otherwise follows the previous charter until restarted.",
        advice="Restart the node. A later charter that fits takes effect by itself.",
        ended_by="charter-in-force",
    ),
}


ALONE_S = 30.0
"""The time to wait for neighbors before asking others."""
PAUSE_S = 10.0
"""The pause before asking the next member."""


async def ask_when_alone(
    keeper: CharterKeeper,
    identity: Identity,
    is_alone: Callable[[], bool],
    *,
    alone_s: float = ALONE_S,
    outlet: Outlet | None = None,
    relays: Sequence[str] = (),
    through: DialThrough | None = None,
) -> None:
    """Ask the other members while no session is open; never return. `is_alone` returns True while none is open.

    They are asked at their addresses, and at the `relays`, which `through` dials.
    """
    pause_s, quiet_s, turn = min(PAUSE_S, alone_s), 0.0, 0
    while True:
        await asyncio.sleep(pause_s)
        quiet_s = quiet_s + pause_s if is_alone() else 0.0
        others = _others(keeper, identity, relays)
        if quiet_s >= alone_s and others:
            errand = OneShotClient.of(keeper.federation, identity, through, outlet=outlet, relays=relays)
            await _ask(errand, keeper, *others[turn % len(others)])
            turn += 1


def _others(keeper: CharterKeeper, identity: Identity, relays: Sequence[str]) -> list[tuple[Member, list[str]]]:
    """Return the members to ask, and where. Neighbors are left out: they are dialed all the time, and hand over a newer
    charter then.
    """
    federation = keeper.federation
    own = next((member.index for member in federation.present if member.key == identity.public), None)
    near = set() if own is None else {own, *federation.neighbors(own)}
    places = {
        member: [*([] if member.address is None else [member.address]), *relays]
        for member in federation.present
        if member.index not in near
    }
    return [(member, where) for member, where in places.items() if where]


async def _ask(errand: OneShotClient, keeper: CharterKeeper, member: Member, places: Sequence[str]) -> None:
    for place in places:
        with suppress(UnreachableError, CharterError):
            raw = await errand.ask(place, member.key, keeper.version)
            if raw is not None:
                keeper.offer(raw)
            return


class MembersFeature(Feature):
    name = "members"
    alarms = ALARMS

    def guards(self, setup: Setup) -> bool:  # noqa: ARG002 - whatever the files say
        return True

    def attach(self, node: NodeView) -> Attached | None:
        return Members(node) if node.setup().federation.admin else None


class Members(Attached):
    def __init__(self, node: NodeView) -> None:
        setup = node.setup()
        self._node = node
        file = setup.node.state_dir / CHARTER_FILE
        tickets = Sheets(setup.federation, setup.node.state_dir, node.alarm)
        self.door = self.keeper = CharterKeeper(
            setup.federation, file, on_charter=self._follow, on_alarm=node.alarm, on_tickets=tickets.offer
        )
        self.talk = CharterTalk(self.keeper, node.say, node.clock)
        self._ticket_talk = CharterTalk(tickets, node.say, node.clock, TICKETS)

    def channels(self) -> tuple[HandledChannel, ...]:
        return (
            HandledChannel(channel=CHANNEL, handler=self.talk, guards=True),
            HandledChannel(channel=TICKETS, handler=self._ticket_talk),
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
