"""Hand a charter from an admin's machine to running nodes, or ask them for a newer one.

A few nodes are enough, because they pass it on. A removed member also receives it, if it can be reached, and stops.
Nodes that find each other on a LAN need no address in any file: `nearby` has their addresses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

from p2pfl.config.charter import Charter, CharterError, amended, checked
from p2pfl.config.model import FederationConfig, Member
from p2pfl.crypto.identity import Identity
from p2pfl.features.members.nearby import Places
from p2pfl.features.relay.credentials import relays_of_admin
from p2pfl.net.errands import Errand, UnreachableError

AT_ONCE = 8
ENOUGH = 3
"""The number of answers after which no other nodes are dialed."""
MOST_TRIES = 24
NOWHERE: Places = MappingProxyType({})

Result = TypeVar("Result")


@dataclass(slots=True)
class Delivery:
    """The names of the members that now have the charter, and why others do not."""

    received_by: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    newer: dict[str, int] = field(default_factory=dict)
    """The higher versions that members claim to have already, without proof."""


async def newest_from(
    federation: FederationConfig, admin: Identity, nearby: Places = NOWHERE
) -> tuple[FederationConfig, int]:
    """Return the federation as of the newest charter among the first nodes to answer, and the number of answers."""
    version = 0 if federation.edition is None else federation.edition.version
    async with relays_of_admin(federation, admin) as through:
        errand = Errand.of(federation, admin, through)

        async def ask(address: str, key: bytes) -> bytes | None:
            return await errand.ask(address, key, version)

        known = [(member, _places(member, nearby, federation.relays)) for member in federation.present]
        answers, _ = await _visit(known, ask, enough=ENOUGH)
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


async def hand(
    before: FederationConfig, charter: Charter, admin: Identity, nearby: Places = NOWHERE, sheet: bytes = b""
) -> Delivery:
    """Send the charter to a few members, and to those that it removes; to those that stay also a `sheet` of tickets.

    If `before` is already the federation as of this charter, removed members are not notified again.
    """
    raw, handed = charter.packed(), Delivery()
    stays = {member.key for member in charter.present}
    removed = [member for member in before.present if member.key not in stays]
    known = {member.key for member in before.present}
    staying = [member for member in charter.present if member.key in known]
    async with relays_of_admin(before, admin) as through:
        errand = Errand.of(before, admin, through)

        async def bring(address: str, key: bytes) -> int:
            held = await errand.bring(address, key, raw)
            if sheet and key in stays:
                with suppress(UnreachableError):  # a node of the version before knows no tickets
                    await errand.bring(address, key, sheet)
            return held

        for members, enough in ((staying, ENOUGH), (removed, len(removed))):
            there = [(member, _places(member, nearby, before.relays)) for member in members]
            answers, failures = await _visit(there, bring, enough=enough)
            handed.received_by += sorted(answers)
            handed.failed |= failures
            handed.newer |= {name: version for name, version in answers.items() if version > charter.version}
    return handed


async def hand_tickets(federation: FederationConfig, sheet: bytes, admin: Identity, nearby: Places) -> Delivery:
    """Send a sheet of tickets to a few members, which pass it on."""
    async with relays_of_admin(federation, admin) as through:
        errand = Errand.of(federation, admin, through)
        there = [(member, _places(member, nearby, federation.relays)) for member in federation.present]
        answers, failures = await _visit(there, lambda address, key: errand.bring(address, key, sheet), enough=ENOUGH)
    return Delivery(sorted(answers), failures)


async def _visit(
    known: Sequence[tuple[Member, list[str]]], act: Callable[[str, bytes], Awaitable[Result]], *, enough: int
) -> tuple[dict[str, Result], dict[str, str]]:
    """Visit members at their places until there are `enough` answers; return answers and failures by name."""
    answers: dict[str, Result] = {}
    failures: dict[str, str] = {}
    there = [(member, places) for member, places in known if places][:MOST_TRIES]

    async def visit(member: Member, places: Sequence[str]) -> None:
        reasons: list[str] = []
        for place in places:
            try:
                answers[member.name] = await act(place, member.key)
            except UnreachableError as error:
                heard = "" if "://" in place else "heard on the LAN: "
                reasons.append(str(error) if place == member.address else f"{error} ({heard}{place.partition('#')[0]})")
            else:
                return
        failures[member.name] = "; ".join(reasons)

    for start in range(0, len(there), AT_ONCE):
        if len(answers) < enough:
            await asyncio.gather(*(visit(member, places) for member, places in there[start : start + AT_ONCE]))
    return answers, failures


def _places(member: Member, nearby: Places, relays: Sequence[str]) -> list[str]:
    """Return the addresses announced just now, followed by the listed one and the relays."""
    listed = [] if member.address is None else [member.address]
    return list(dict.fromkeys([*nearby.get(member.key, ()), *listed, *relays]))
