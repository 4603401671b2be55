"""Hand a charter from a laptop to running nodes, or ask them for a newer one.

A few nodes are enough, because they pass it on. A removed member also gets it, if it can be reached, and stops. Nodes
that find each other on a LAN need no address in any file: `nearby` has their addresses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

from p2pfl.config.charter import Charter, CharterError, amended, checked
from p2pfl.config.model import FederationConfig, Member
from p2pfl.crypto.identity import Identity
from p2pfl.features.members.nearby import Places
from p2pfl.net.errands import Errand, UnreachableError

AT_ONCE = 8
ENOUGH = 3
"""The number of answers after which no other nodes are dialed."""
MOST_TRIES = 24
NOWHERE: Places = MappingProxyType({})

Result = TypeVar("Result")


@dataclass(slots=True)
class Delivery:
    """The names of the members that have the charter now, and why others do not."""

    received_by: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    newer: dict[str, int] = field(default_factory=dict)
    """The higher versions that members say they have already. Nothing proves this."""


async def newest_from(
    federation: FederationConfig, admin: Identity, nearby: Places = NOWHERE
) -> tuple[FederationConfig, int]:
    """Return the federation by the newest charter of the first nodes to answer, and the number of answers."""
    errand, version = Errand.of(federation, admin), 0 if federation.edition is None else federation.edition.version

    async def ask(address: str, key: bytes) -> bytes | None:
        return await errand.ask(address, key, version)

    answers, _ = await _visit(federation.present, ask, nearby, enough=ENOUGH)
    found = federation
    for raw in answers.values():
        if raw is not None:
            try:
                charter = checked(raw, federation)
            except CharterError:
                continue
            if found.edition is None or charter.edition > found.edition:
                found = amended(found, charter)
    return found, len(answers)


async def hand(before: FederationConfig, charter: Charter, admin: Identity, nearby: Places = NOWHERE) -> Delivery:
    """Bring the charter to a few members, and to those that it removes.

    `before` may be the federation by this very charter: then removed members are not told again.
    """
    errand, raw, handed = Errand.of(before, admin), charter.packed(), Delivery()

    async def bring(address: str, key: bytes) -> int:
        return await errand.bring(address, key, raw)

    stays = {member.key for member in charter.present}
    removed = [member for member in before.present if member.key not in stays]
    known = {member.key for member in before.present}
    staying = [member for member in charter.present if member.key in known]
    for members, enough in ((staying, ENOUGH), (removed, len(removed))):
        answers, failures = await _visit(members, bring, nearby, enough=enough)
        handed.received_by += sorted(answers)
        handed.failed |= failures
        handed.newer |= {name: version for name, version in answers.items() if version > charter.version}
    return handed


async def _visit(
    members: Sequence[Member], act: Callable[[str, bytes], Awaitable[Result]], nearby: Places, *, enough: int
) -> tuple[dict[str, Result], dict[str, str]]:
    """Return answers and failures by name, of as many members as it takes for `enough` answers."""
    answers: dict[str, Result] = {}
    failures: dict[str, str] = {}
    known = [(member, _places(member, nearby)) for member in members]
    there = [(member, places) for member, places in known if places][:MOST_TRIES]

    async def visit(member: Member, places: Sequence[str]) -> None:
        reasons: list[str] = []
        for place in places:
            try:
                answers[member.name] = await act(place, member.key)
            except UnreachableError as error:
                reasons.append(str(error) if place == member.address else f"{error} (heard on the LAN: {place})")
            else:
                return
        failures[member.name] = "; ".join(reasons)

    for start in range(0, len(there), AT_ONCE):
        if len(answers) < enough:
            await asyncio.gather(*(visit(member, places) for member, places in there[start : start + AT_ONCE]))
    return answers, failures


def _places(member: Member, nearby: Places) -> list[str]:
    """Return the addresses heard just now, then the listed one."""
    listed = [] if member.address is None else [member.address]
    return list(dict.fromkeys([*nearby.get(member.key, ()), *listed]))
