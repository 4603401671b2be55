"""Make the next charter and hand it out: the work of an admin key's owner, on their own machine.

The graph of a charter is resolved and checked here, once; nodes accept it unchanged. A few nodes are enough to hand it
to, because they pass it on. A removed member also receives it, if it can be reached, and stops. Nodes that find each
other on a LAN need no address in any file: `nearby` has their addresses.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hmac import compare_digest
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import msgspec

from p2pfl.config.charter import Charter, CharterError, amended, checked, federation_id, signed
from p2pfl.config.graph import read_graph
from p2pfl.config.members import (
    MOST_SECONDS,
    TOKEN_BYTES,
    Invite,
    JoinRequest,
    in_words,
    invite_of,
    members_file,
    members_text,
)
from p2pfl.config.model import FederationConfig, Member
from p2pfl.config.tables import Mistakes
from p2pfl.crypto.identity import Identity, fingerprint, public_text
from p2pfl.errors import UserError
from p2pfl.features.lan.discovery import Places
from p2pfl.features.relay.transport import answer_of_admin, dialing_through
from p2pfl.foreign import UNREADABLE
from p2pfl.net.websocket import OneShotClient, UnreachableError
from p2pfl.reporting.figures import Bearing, bearings
from p2pfl.storage.disk import replace_file

ADMIN_FILE = "admin.key"
INVITES_FILE = "invites.json"
READABLE = 0o644
DAY_S = 86_400
VALID_DAYS = 3
"""The validity of an invite in days."""
AT_ONCE = 8
ENOUGH = 3
"""The number of answers after which no other nodes are dialed."""
MOST_TRIES = 24
NOWHERE: Places = MappingProxyType({})
Result = TypeVar("Result")


def require_admin(federation: FederationConfig) -> None:
    """Check that the federation has an admin key. Raises UserError: its members are fixed by its file."""
    if not federation.admin:
        text = "names no admin key, so its members are fixed by the file, the same on every node"
        allowed = 'admin = ["<public key>"], from `p2pfl key admin.key`'
        raise UserError(text, file=federation.path, key="federation.admin", allowed=allowed)


def load_admin(federation: FederationConfig, path: Path | None) -> Identity:
    """Load the signing key, by default `admin.key` next to the federation file.

    Raises UserError: there is none, or it is not one of the keys that the file names.
    """
    require_admin(federation)
    file = path or federation.path.parent / ADMIN_FILE
    identity = Identity.load(file)
    if identity.public not in federation.admin:
        known = ", ".join(public_text(key) for key in federation.admin)
        shown = public_text(identity.public)
        raise UserError("not an admin key of this federation", file=file, key="public key", value=shown, allowed=known)
    return identity


def publish(federation: FederationConfig, charter: Charter, admin: Identity) -> Charter:
    """Sign a charter, and write `members.toml` atomically. Raises UserError: the charter is too large."""
    made = signed(charter, admin.public, admin.sign)
    keep(federation, made)
    return made


def keep(federation: FederationConfig, charter: Charter) -> Path:
    """Write a signed charter to `members.toml` atomically; return its path."""
    path = members_file(federation)
    replace_file(path, [members_text(charter, federation.name).encode()])
    path.chmod(READABLE)  # readable, unlike other files written in this way: nodes run as another user
    return path


def charter_of(federation: FederationConfig) -> Charter:
    """Return the charter that a federation follows. Raises UserError: there is none yet."""
    if not federation.charter:
        allowed = "a first change, which makes one: `p2pfl member add`, `remove`, `replace` or `set`"
        raise UserError(
            "there is no such file, so nothing to hand over", file=members_file(federation), allowed=allowed
        )
    return checked(federation.charter, federation)


def require_bearable(federation: FederationConfig, charter: Charter) -> None:
    """Check that every member has enough neighbors for the robust rule. Raises UserError: some would have too few."""
    after = amended(federation, charter)
    weak = {member.name: bearing for member, bearing in _bearings(after) if bearing.liars and not bearing.mixes}
    if not weak:
        return
    name, worst = min(weak.items(), key=lambda item: item[1].neighbors)
    more = f" (and {len(weak) - 1} more)" if len(weak) > 1 else ""
    text = f"{worst.rule} needs {worst.needed} neighbors at every node, and {name}{more} would have {worst.neighbors}"
    allowed = _bearable(after, worst.needed)
    raise UserError(text, file=federation.path, key="gossip.rule", value=charter.topology, allowed=allowed)


def _bearings(federation: FederationConfig) -> Iterator[tuple[Member, Bearing]]:
    borne = bearings(federation)
    return ((member, borne[member.index]) for member in federation.present)


def _bearable(federation: FederationConfig, needed: int) -> str:
    """Suggest a graph that is dense enough for these members: the sparsest of a few that were tried."""
    count = len(federation.present)
    if count <= needed:
        return f"{needed + 1} members or more, or a rule with a smaller b"
    specs = [f"keyed-rings:r={rings}" for rings in range((needed + 1) // 2, needed + 3)]
    specs += [f"random-regular:degree={needed}", f"random-regular:degree={needed + 1}", "complete"]
    for spec in specs:
        mistakes = Mistakes(federation.path)
        edges, _, _ = read_graph(spec, federation.members, federation.seed, mistakes)
        denser = replace(federation, edges=edges, schedule=(), topology=spec)
        if not mistakes.errors and all(bearing.mixes for _, bearing in _bearings(denser)):
            return f"at least {needed} neighbors each, as --topology {spec} gives (`p2pfl member set`)"
    return f"a graph in which every node has {needed} neighbors or more"


class IssuedInvite(msgspec.Struct):
    """One printed invite; `token` is in hexadecimal."""

    name: str
    token: str
    until: int
    """The time at which it expires, in seconds since 1970."""
    used: bool = False
    key: str = ""
    """The fingerprint of the key that it admitted; also empty if an earlier version recorded the admission."""

    def has(self, token: bytes) -> bool:
        return compare_digest(self.token.encode(), token.hex().encode())


def issue(federation: FederationConfig, name: str, *, now: float, replacing: bool = False) -> Invite:
    """Make and record an invite, valid for some days from `now`. Raises UserError: this name cannot be invited."""
    until = min(int(now) + VALID_DAYS * DAY_S, MOST_SECONDS)
    invite = invite_of(federation, name, os.urandom(TOKEN_BYTES), until=until, replacing=replacing)
    _remember(federation, [*_read_invites(federation), IssuedInvite(name, invite.token.hex(), until=until)])
    return invite


def require_invited(federation: FederationConfig, request: JoinRequest, *, now: float) -> None:
    """Check a request. Raises UserError: it is for another federation, or does not answer one of our invites that is
    valid at `now`.
    """
    if request.federation != federation_id(federation):
        text = "for another federation, or for another federation.toml than the one here"
        allowed = "a request that was made with this very file: `p2pfl invite` and `join` again"
        raise UserError(text, file=federation.path, key="REQUEST", value=request.name, allowed=allowed)
    issued = next((invite for invite in _read_invites(federation) if invite.has(request.token)), None)
    allowed = f"the answer to a new invite: `p2pfl invite {federation.path.parent.name} {request.name}`"
    if issued is None or issued.name != request.name:
        raise UserError(
            "does not answer an invite from this machine", key="REQUEST", value=request.name, allowed=allowed
        )
    if issued.used:
        raise _used_up(federation, issued, request)
    if now > issued.until:
        text = f"its invite ended at {in_words(issued.until)}"
        raise UserError(text, key="REQUEST", value=request.name, allowed=allowed)


def _used_up(federation: FederationConfig, issued: IssuedInvite, request: JoinRequest) -> UserError:
    """Say which key the invite was used for, and what the owner can do, because the line may be in the wrong hands."""
    name, folder = issued.name, federation.path.parent.name
    shown = {fingerprint(member.key): member.name for member in federation.present}
    key = issued.key or next((shown_key for shown_key, whose in shown.items() if whose == name), "")
    text = "its invite has already been used" + (f", for the key {key}" if key else "")
    allowed = f"the answer to a new invite: `p2pfl invite {folder} {name}`"
    if key == fingerprint(request.key):
        text += ", that of this very request"
        allowed = f"nothing to do: {name} is a member" if key in shown else allowed
    elif key in shown:
        allowed = f"if that is not the machine you mean, `p2pfl member remove {folder} {shown[key]}`; then {allowed}"
    return UserError(text, key="REQUEST", value=request.name, allowed=allowed)


def use_up(federation: FederationConfig, request: JoinRequest) -> None:
    """Mark the invite that this request answers as used."""
    issued = _read_invites(federation)
    for invite in issued:
        if invite.has(request.token):
            invite.used, invite.key = True, fingerprint(request.key)
    _remember(federation, issued)


def _read_invites(federation: FederationConfig) -> list[IssuedInvite]:
    path = federation.path.parent / INVITES_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[IssuedInvite])
    except FileNotFoundError:
        return []
    except (OSError, *UNREADABLE) as error:
        allowed = "what `p2pfl invite` wrote; remove it to start over; its invites are then void"
        raise UserError(f"cannot be read: {error}", file=path, allowed=allowed) from None


def _remember(federation: FederationConfig, issued: list[IssuedInvite]) -> None:
    path = federation.path.parent / INVITES_FILE
    replace_file(path, [msgspec.json.format(msgspec.json.encode(issued), indent=1)])


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
    async with dialing_through(answer_of_admin(federation, admin)) as through:
        client = OneShotClient.of(federation, admin, through)

        async def ask(address: str, key: bytes) -> bytes | None:
            return await client.ask(address, key, version)

        known = [(member, _places(member, nearby, federation.relays)) for member in federation.present]
        answers, _ = await _reach(known, ask, enough=ENOUGH)
    newest = federation
    for raw in answers.values():
        if raw is not None:
            try:
                charter = checked(raw, federation)
            except CharterError:
                continue
            if newest.edition is None or charter.edition > newest.edition:
                newest = amended(newest, charter)
    return newest, len(answers)


async def hand(
    before: FederationConfig, charter: Charter | None, admin: Identity, nearby: Places = NOWHERE, tickets: bytes = b""
) -> Delivery:
    """Send the charter to a few members, and to those that it removes; to those that stay also the `tickets`.

    If `before` is already the federation as of this charter, removed members are not notified again. Without a charter
    the tickets are sent alone.
    """
    handed, after = Delivery(), before.present if charter is None else charter.present
    stays, known = {member.key for member in after}, {member.key for member in before.present}
    removed = [member for member in before.present if member.key not in stays]
    staying = [member for member in after if member.key in known]
    async with dialing_through(answer_of_admin(before, admin)) as through:
        client = OneShotClient.of(before, admin, through)

        async def bring(address: str, key: bytes) -> int:
            if charter is None:
                return await client.bring(address, key, tickets)
            held = await client.bring(address, key, charter.packed())
            if tickets and key in stays:
                with suppress(UnreachableError):  # a node of the version before knows no tickets
                    await client.bring(address, key, tickets)
            return held

        for members, enough in ((staying, ENOUGH), (removed, len(removed))):
            there = [(member, _places(member, nearby, before.relays)) for member in members]
            answers, failures = await _reach(there, bring, enough=enough)
            handed.received_by += sorted(answers)
            handed.failed |= failures
            if charter is not None:
                handed.newer |= {name: version for name, version in answers.items() if version > charter.version}
    return handed


async def _reach(
    known: Sequence[tuple[Member, list[str]]], act: Callable[[str, bytes], Awaitable[Result]], *, enough: int
) -> tuple[dict[str, Result], dict[str, str]]:
    """Dial members at their places until there are `enough` answers; return answers and failures by name."""
    answers: dict[str, Result] = {}
    failures: dict[str, str] = {}
    there = [(member, places) for member, places in known if places][:MOST_TRIES]

    async def reach(member: Member, places: Sequence[str]) -> None:
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
            await asyncio.gather(*(reach(member, places) for member, places in there[start : start + AT_ONCE]))
    return answers, failures


def _places(member: Member, nearby: Places, relays: Sequence[str]) -> list[str]:
    """Return the addresses announced just now, followed by the listed one and the relays."""
    listed = [] if member.address is None else [member.address]
    return list(dict.fromkeys([*nearby.get(member.key, ()), *listed, *relays]))
