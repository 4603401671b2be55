"""Ask the other members for a newer charter while the node has no sessions.

All its neighbors may have been replaced while it was off, and the new ones may not know its address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from p2pfl.config.charter import CharterError
from p2pfl.config.model import Member
from p2pfl.crypto.identity import Identity
from p2pfl.features.members.keeper import CharterKeeper
from p2pfl.net.errands import DialThrough, Errand, UnreachableError
from p2pfl.net.ways import Outlet

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
            errand = Errand.of(keeper.federation, identity, through, outlet=outlet, relays=relays)
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


async def _ask(errand: Errand, keeper: CharterKeeper, member: Member, places: Sequence[str]) -> None:
    for place in places:
        with suppress(UnreachableError, CharterError):
            raw = await errand.ask(place, member.key, keeper.version)
            if raw is not None:
                keeper.offer(raw)
            return
