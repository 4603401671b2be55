"""Which federations a relay serves, and whether a member that registers belongs to one of them.

The relay reads three keys of a federation file (name, seed, admin) and nothing else of it; if members.toml lies beside
it, also which members were removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from p2pfl.config.charter import realm_named
from p2pfl.config.load import HEAD_DEFAULTS, federation_file
from p2pfl.config.members_file import FILE_NAME as MEMBERS_FILE
from p2pfl.config.model import FEDERATION, MEMBER
from p2pfl.config.tables import Mistakes, read_document, read_table
from p2pfl.errors import PeerFault, UserError
from p2pfl.features.relay.relay_frames import VERSION, Refusal, Registration
from p2pfl.features.relay.sheets import MOST_REMOVED, SheetHead
from p2pfl.features.relay.tickets import (
    Ticket,
    TicketError,
    holds_key,
    holds_token,
    read_token,
    token_id,
)

FOREVER = 2**62
MOST_KNOWN = 16 * MOST_REMOVED
"""The most removed members of one federation that a relay remembers; the latest that it has learned stay."""


class RefusedError(Exception):
    """The relay does not register a member; `reason` is told to it."""

    def __init__(self, reason: Refusal) -> None:
        super().__init__(reason.name)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedFederation:
    """One federation that a relay serves, by its admin keys or by a token."""

    name: str
    """The name in logs and metrics."""
    realm: bytes = b""
    admin: tuple[bytes, ...] = ()
    removed: frozenset[bytes] = frozenset()
    """The keys of members of whose removal the relay's owner knows."""
    token: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    federation: ListedFederation
    until: int
    """When the right expires, in seconds since 1970."""
    dialed: str
    """The name by which the member dialed the relay; empty if the relay knows its own names, which are all the same."""


class Admissions:
    """The list of federations. `names` are the relay's own, as members dial it; if empty, any will do.

    Without names of its own, the relay cannot know whether a member has dialed it or another relay that passes on what
    the member signs: so members that dialed different names do not meet.
    """

    def __init__(self, listed: Sequence[ListedFederation], names: Sequence[str] = ()) -> None:
        self._by_realm = {one.realm: one for one in listed if one.admin}
        self._by_token = {token_id(one.token): one for one in listed if one.token}
        self._names = frozenset(names)
        self._shown: dict[str, dict[bytes, None]] = {}
        """The keys of removed members that members of each federation have shown, in the order in which they came."""

    def admit(self, registration: Registration, nonce: bytes, now_s: float) -> Admitted:
        """Return the federation that the member belongs to. Raises RefusedError. Cheap checks come first."""
        if registration.version != VERSION:
            raise RefusedError(Refusal.VERSION)
        if self._names and registration.relay not in self._names:
            raise RefusedError(Refusal.ANOTHER_NAME)
        if registration.token_id:
            return self._by_its_token(registration, nonce)
        return self._by_its_ticket(registration, nonce, now_s)

    def learn(self, federation: ListedFederation, raw: bytes) -> frozenset[bytes]:
        """Take the head of a sheet from a member; return the keys of removed members that are news.

        A removal is for good, so it does not matter which of two sheets is newer: the later one may be of another admin
        who did not know of it. A signer that the relay's file does not list is no fault: that file may be older than
        the nodes'. Raises PeerFault: it is forged.
        """
        known = self._shown.get(federation.name, {})
        try:
            head = SheetHead.unpack(raw)
            news = dict.fromkeys(key for key in head.removed if key not in known)
            if head.signer not in federation.admin or not news:
                return frozenset()
            head.require(realm=federation.realm, admin=federation.admin)
        except TicketError as error:
            raise PeerFault(f"removed members that no admin names: {error}") from None
        self._shown[federation.name] = dict.fromkeys([*known, *news][-MOST_KNOWN:])
        return frozenset(news)

    def is_removed(self, federation: ListedFederation, key: bytes) -> bool:
        """Return True if the relay's owner, or an admin by a member, has said that this member was removed."""
        return key in federation.removed or key in self._shown.get(federation.name, {})

    def _by_its_token(self, registration: Registration, nonce: bytes) -> Admitted:
        found = self._by_token.get(registration.token_id)
        if found is None:
            raise RefusedError(Refusal.UNLISTED)
        if not holds_token(registration, nonce, found.token) or not holds_key(registration, nonce):
            raise RefusedError(Refusal.FORGED)
        return Admitted(federation=found, until=FOREVER, dialed=self._dialed(registration))

    def _by_its_ticket(self, registration: Registration, nonce: bytes, now_s: float) -> Admitted:
        if not registration.ticket:
            raise RefusedError(Refusal.NO_TICKET)
        try:
            ticket = Ticket.unpack(registration.ticket)
        except TicketError:
            raise RefusedError(Refusal.FORGED) from None
        found = self._by_realm.get(ticket.realm)
        if found is None or ticket.signer not in found.admin:
            raise RefusedError(Refusal.UNLISTED)
        if ticket.key != registration.key:
            raise RefusedError(Refusal.FORGED)
        if self.is_removed(found, ticket.key):
            raise RefusedError(Refusal.REMOVED)
        if now_s > ticket.until:
            raise RefusedError(Refusal.EXPIRED)
        if not ticket.is_genuine() or not holds_key(registration, nonce):
            raise RefusedError(Refusal.FORGED)
        return Admitted(federation=found, until=ticket.until, dialed=self._dialed(registration))

    def _dialed(self, registration: Registration) -> str:
        return "" if self._names else registration.relay


def read_listed(federations: Sequence[Path], tokens: Sequence[Path]) -> list[ListedFederation]:
    """Read what `p2pfl relay` is given. Raises UserError: a file is wrong, or two are for the same federation."""
    listed = [_from_file(federation_file(path)) for path in federations]
    listed += [ListedFederation(name=path.stem, token=read_token(path)) for path in tokens]
    for index, one in enumerate(listed):
        if any(one.name == other.name or (one.realm and one.realm == other.realm) for other in listed[:index]):
            text, allowed = "two of these are the same federation", "each once; token files with different names"
            raise UserError(text, key="--federation, --token", value=one.name, allowed=allowed)
    return listed


def _from_file(path: Path) -> ListedFederation:
    document, mistakes = read_document(path), Mistakes(path)
    head = HEAD_DEFAULTS | read_table(document.get("federation", {}), "federation.", FEDERATION, mistakes)
    if not head["name"]:
        mistakes.add("is missing", "federation.name", None, FEDERATION["name"].allowed)
    if not head.get("admin"):
        allowed = "admin = [...], whose keys sign tickets; or a token for the relay: `p2pfl relay --make-token FILE`"
        mistakes.add("names no admin key, so nobody can sign tickets", "federation.admin", None, allowed)
    for mistake in mistakes.found:
        raise mistake
    name = str(head["name"])
    return ListedFederation(
        name=name,
        realm=realm_named(name, head["seed"]),
        admin=head["admin"],
        removed=_removed(path.parent / MEMBERS_FILE),
    )


def _removed(path: Path) -> frozenset[bytes]:
    """Return the keys of removed members in the relay owner's copy of members.toml; none if there is no such file."""
    rows = read_document(path).get("member", []) if path.exists() else []
    retired = [row for row in rows if isinstance(row, dict) and row.get("retired") is True]
    return frozenset(MEMBER["key"].read(row.get("key")) for row in retired)
