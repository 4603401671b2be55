"""Proofs that open a relay to a member: a ticket signed by an admin key, or a token that members and relay share.

*Credentials* (a `sheet` on disk and on the wire) are the tickets of all members and the keys of removed ones, signed
together. Nodes pass them on like the charter, so that tickets are renewed and removals reach relays without copying. A
relay is shown the head alone, which names removed members' keys, and neither other members nor addresses. A ticket is
no secret: it serves only who holds the member's key. A token is a secret, in a file that only its owner can read.

`tickets.toml` beside the federation file has the credentials that an admin made here, and may be copied to every
machine; those that a node has received are in its state folder.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec
from msgspec import Meta
from nacl.exceptions import CryptoError
from nacl.signing import VerifyKey

from p2pfl.config.charter import CharterError, realm_of
from p2pfl.config.load import load_config
from p2pfl.config.model import Edition, FederationConfig, NodeConfig
from p2pfl.config.tables import Mistakes, from_text, read_document, read_table, text, texts, to_text
from p2pfl.console import seconds_now
from p2pfl.crypto.identity import Identity, read_private
from p2pfl.errors import StorageError, UserError
from p2pfl.features.relay.frames import VERSION, Challenge, Registration
from p2pfl.foreign import UNREADABLE
from p2pfl.limits import MOST_CREDENTIALS_BYTES, MOST_REMOVED
from p2pfl.node.folders import NONE
from p2pfl.storage.disk import replace_file
from p2pfl.system import BINARY

FILE_NAME = "tickets.toml"
KEPT_NAME = "tickets"
PREFIX, HEAD_PREFIX = "p2pfl-ticket-1:", "p2pfl-sheet-1:"
TOKEN_PREFIX = "p2pfl-relay-token-1:"  # noqa: S105 - the beginning of the file, not a secret
KEY_BYTES, SIGNATURE_BYTES, TOKEN_BYTES, TOKEN_ID_BYTES = 32, 64, 32, 8
ROW_BYTES = KEY_BYTES + SIGNATURE_BYTES
SIGNED, CREDENTIALS_SIGNED, PROVEN = b"p2pfl-relay-ticket-1\n", b"p2pfl-relay-sheet-1\n", b"p2pfl-relay-member-1\n"
"""Prefixes of what is signed, so that no signature made for another purpose opens a relay or removes a member."""
CREDENTIALS_MAGIC = b"p2pfl-relay-sheet-1:"
"""The beginning of credentials, which travel where charters do."""
USUAL_S = 365 * 86_400
"""The time for which a ticket holds."""
MADE_BY = "what `p2pfl member hand` has written"
ALLOWED_TOKEN = "a file that `p2pfl relay --make-token` has made"  # noqa: S105 - a sentence

log = logging.getLogger("p2pfl")
notice = logging.getLogger("p2pfl.notice")

OnAlarm = Callable[[str, int | None, str], object]

_Key = Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
_Time = Annotated[int, Meta(ge=0, lt=2**40)]
_Removed = Annotated[tuple[_Key, ...], Meta(max_length=MOST_REMOVED)]


class TicketError(ValueError):
    """Raised for bytes that are no ticket or no credentials."""


def _is_signed(signer: bytes, text: bytes, signature: bytes) -> bool:
    try:
        VerifyKey(signer).verify(text, signature)
    except (CryptoError, ValueError):
        return False
    return True


def _decoded(raw: bytes, kind: Any, what: str) -> Any:
    try:
        return msgspec.msgpack.decode(raw, type=kind)
    except UNREADABLE as error:
        raise TicketError(f"not {what}: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """The right of one member of one federation to use relays that list it."""

    realm: bytes
    """The federation: the 32 bytes of `realm_of`."""
    key: bytes
    """The member's public key."""
    until: int
    """The time at which it expires, in seconds since 1970."""
    signer: bytes
    """The public key of the admin who signed it."""
    signature: bytes = field(default=b"", repr=False)

    @classmethod
    def sign(cls, admin: Identity, *, realm: bytes, key: bytes, until: int) -> Self:
        unsigned = cls(realm=realm, key=key, until=until, signer=admin.public)
        return replace(unsigned, signature=admin.sign(SIGNED + unsigned.statement()))

    @classmethod
    def unpack(cls, raw: bytes) -> Self:
        """Read a ticket; nothing is verified. Raises TicketError: these bytes are none."""
        rights = tuple[_Key, _Key, Annotated[int, Meta(ge=0)]]
        realm, key, until = _decoded(raw[ROW_BYTES:], rights, "a ticket")
        return cls(realm=realm, key=key, until=until, signer=raw[:KEY_BYTES], signature=raw[KEY_BYTES:ROW_BYTES])

    def statement(self) -> bytes:
        return msgspec.msgpack.encode((self.realm, self.key, self.until))

    def packed(self) -> bytes:
        return self.signer + self.signature + self.statement()

    def row(self) -> bytes:
        return self.key + self.signature

    def is_genuine(self) -> bool:
        """Return True if the signer has signed it; whether that key is an admin's is another question."""
        return _is_signed(self.signer, SIGNED + self.statement(), self.signature)


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialsHead:
    """The signed part of credentials. `rows` is the digest of the tickets."""

    realm: bytes
    issued: int
    """The time of the signature, in seconds since 1970; of two heads the one with the higher number is newer."""
    until: int
    """The time at which the tickets expire, in seconds since 1970."""
    rows: bytes
    removed: tuple[bytes, ...]
    signer: bytes
    signature: bytes = field(default=b"", repr=False)

    @classmethod
    def unpack(cls, raw: bytes) -> Self:
        """Read a head; nothing is verified. Raises TicketError: these bytes are none."""
        values = _decoded(raw[ROW_BYTES:], tuple[_Key, _Time, _Time, _Key, _Removed], "the head of a sheet")
        fields = dict(zip(("realm", "issued", "until", "rows", "removed"), values, strict=True))
        return cls(**fields, signer=raw[:KEY_BYTES], signature=raw[KEY_BYTES:ROW_BYTES])

    def statement(self) -> bytes:
        return msgspec.msgpack.encode((self.realm, self.issued, self.until, self.rows, self.removed))

    def packed(self) -> bytes:
        return self.signer + self.signature + self.statement()

    def require(self, *, realm: bytes, admin: Sequence[bytes]) -> None:
        """Raises TicketError: it is for another federation, or no admin has signed it."""
        if self.realm != realm:
            raise TicketError("a sheet of another federation")
        if self.signer not in admin:
            raise TicketError("a sheet signed by a key that is not one of federation.admin")
        if not _is_signed(self.signer, CREDENTIALS_SIGNED + self.statement(), self.signature):
            raise TicketError("a sheet that was changed after it was signed")


@dataclass(frozen=True, slots=True)
class Credentials:
    """Head and tickets, which have its realm, signer and expiry."""

    head: CredentialsHead
    rows: bytes = field(repr=False)
    """The member's key (32 bytes) and the signature (64 bytes) of each ticket, one after the other."""

    @classmethod
    def sign(
        cls, admin: Identity, *, realm: bytes, keys: Iterable[bytes], removed: Sequence[bytes], issued: int, until: int
    ) -> Self:
        rows = b"".join(Ticket.sign(admin, realm=realm, key=key, until=until).row() for key in keys)
        unsigned = CredentialsHead(
            realm=realm,
            issued=issued,
            until=until,
            rows=_digest(rows),
            removed=tuple(removed)[-MOST_REMOVED:],
            signer=admin.public,
        )
        return cls(replace(unsigned, signature=admin.sign(CREDENTIALS_SIGNED + unsigned.statement())), rows)

    @classmethod
    def unpack(cls, raw: bytes, *, realm: bytes, admin: Sequence[bytes]) -> Self:
        """Read and verify credentials. Raises TicketError: they are none of this federation."""
        if not raw.startswith(CREDENTIALS_MAGIC) or len(raw) > MOST_CREDENTIALS_BYTES:
            raise TicketError("not a sheet of tickets")
        head, rows = _decoded(raw[len(CREDENTIALS_MAGIC) :], tuple[bytes, bytes], "a sheet of tickets")
        credentials = cls(CredentialsHead.unpack(head), rows)
        credentials.require(realm=realm, admin=admin)
        return credentials

    def require(self, *, realm: bytes, admin: Sequence[bytes]) -> None:
        """Raises TicketError: it is for another federation, or no admin has signed it."""
        if _digest(self.rows) != self.head.rows or len(self.rows) % ROW_BYTES:
            raise TicketError("a sheet with other tickets than were signed")
        self.head.require(realm=realm, admin=admin)

    def packed(self) -> bytes:
        return CREDENTIALS_MAGIC + msgspec.msgpack.encode((self.head.packed(), self.rows))

    def ticket_of(self, key: bytes) -> Ticket | None:
        """Return the ticket of the member with that key; it is not verified."""
        for start in range(0, len(self.rows), ROW_BYTES):
            if self.rows[start : start + KEY_BYTES] == key:
                signature = self.rows[start + KEY_BYTES : start + ROW_BYTES]
                head = self.head
                return Ticket(realm=head.realm, key=key, until=head.until, signer=head.signer, signature=signature)
        return None


def _digest(rows: bytes) -> bytes:
    return hashlib.blake2b(rows, digest_size=KEY_BYTES, person=b"p2pfl-relay-row").digest()


# -- on disk ----------------------------------------------------------------------------------------------------------


def tickets_file(federation: FederationConfig) -> Path:
    return federation.path.parent / FILE_NAME


def write_tickets(federation: FederationConfig, admin: Identity, *, now_s: float) -> Credentials:
    """Sign a ticket for each member, write `tickets.toml` atomically, and return the credentials.

    They are newer than those that are there, even if the clock was set back.
    """
    before, issued = credentials_here(federation), int(now_s)
    credentials = Credentials.sign(
        admin,
        realm=realm_of(federation),
        keys=[member.key for member in federation.present],
        removed=[member.key for member in federation.members if member.retired],
        issued=issued if before is None else max(issued, before.head.issued + 1),
        until=issued + USUAL_S,
    )
    tickets = [(credentials.ticket_of(member.key), member.name) for member in federation.present]
    lines = [
        "# Tickets that open relays to members until they expire: `p2pfl member hand` makes new ones. Not secret:",
        "# each serves its member's key alone. Copy this file to every machine, beside federation.toml; nodes that run",
        "# pass later ones on.",
        f'sheet = "{HEAD_PREFIX}{to_text(credentials.head.packed())}"',
        "tickets = [",
        *(f'  "{PREFIX}{to_text(ticket.packed())}", # {name}' for ticket, name in tickets if ticket is not None),
        "]",
        "",
    ]
    path = tickets_file(federation)
    replace_file(path, ["\n".join(lines).encode()])
    path.chmod(0o644)  # readable, unlike other files written in this way: nodes run as another user
    return credentials


def credentials_here(federation: FederationConfig) -> Credentials | None:
    """Return the credentials in `tickets.toml`; None if there are none, or none that an admin of now has signed.

    Raises UserError: a line in the file is not what it should be.
    """
    path, rows = tickets_file(federation), b""
    mistakes = Mistakes(path)
    document = read_document(path) if path.exists() else {}
    table = read_table(document, "", {"tickets": texts(), "sheet": text()}, mistakes)
    key, line = "tickets", ""
    try:
        for line in table.get("tickets", ()):
            rows += Ticket.unpack(from_text(line.removeprefix(PREFIX))).row()
        key, line = "sheet", table.get("sheet", "")
        head = CredentialsHead.unpack(from_text(line.removeprefix(HEAD_PREFIX))) if line else None
    except ValueError:
        mistakes.add(f"not a {key.removesuffix('s')}", key, line[:60], MADE_BY)
    for mistake in mistakes.errors:
        raise mistake
    with suppress(TicketError):
        if head is not None:
            credentials = Credentials(head, rows)
            credentials.require(realm=realm_of(federation), admin=federation.admin)
            return credentials
    return None


class CredentialsKeeper:
    """The credentials on one machine, for one node: read anew when a file has changed.

    To its neighbors a node says which ones it has in the words of a charter: `issued` is its version.
    """

    def __init__(self, federation: FederationConfig, state_dir: Path, on_alarm: OnAlarm | None = None) -> None:
        self._federation, self._files = federation, (tickets_file(federation), state_dir / KEPT_NAME)
        self._alarm = on_alarm
        self.on_taken: Callable[[], object] = lambda: None
        """Called when newer credentials have been accepted and are on disk."""
        self._state: object = None
        self._damage: UserError | None = None
        self._newest: Credentials | None = None
        self._unsaved = b""

    def credentials(self) -> Credentials | None:
        """Return the newest credentials; a damaged `tickets.toml` has none, which `ticket` says."""
        state = [_state_of(file) for file in self._files]
        if state != self._state:
            self._state, self._damage, here = state, None, None
            try:
                here = credentials_here(self._federation)
            except UserError as error:
                self._damage = error
            self._newest = max((self._newest, here, self._kept()), key=_edition)
        return self._newest

    def _kept(self) -> Credentials | None:
        """Return the received credentials; None, with a log line if they are damaged: neighbors have them."""
        try:
            with self._files[1].open("rb") as content:
                return self._opened(content.read(MOST_CREDENTIALS_BYTES + 1))
        except FileNotFoundError:
            return None
        except (OSError, TicketError) as error:
            log.warning("%s: the kept tickets cannot be used: %s", self._files[1], error)
            return None

    def _opened(self, raw: bytes) -> Credentials:
        return Credentials.unpack(raw, realm=realm_of(self._federation), admin=self._federation.admin)

    def head(self) -> bytes:
        """Return the head of the newest credentials, packed; empty if there are none."""
        credentials = self.credentials()
        return b"" if credentials is None else credentials.head.packed()

    def ticket(self, key: bytes) -> Ticket | None:
        """Return the genuine ticket of that member. Raises UserError: `tickets.toml` is damaged."""
        credentials = self.credentials()
        if self._damage is not None:
            raise self._damage
        ticket = None if credentials is None else credentials.ticket_of(key)
        return ticket if ticket is not None and ticket.is_genuine() else None

    @property
    def edition(self) -> Edition:
        return _edition(self.credentials())

    @property
    def packed(self) -> bytes:
        credentials = self.credentials()
        return b"" if credentials is None else credentials.packed()

    def wants(self, theirs: Edition) -> bool:
        """Return True if a neighbor's credentials are worth asking for."""
        return theirs > self.edition

    def offer(self, raw: bytes, peer: int | None = None) -> None:  # noqa: ARG002 - whoever brings it
        """Accept newer credentials, signed by an admin. Raises CharterError: they cannot be accepted."""
        try:
            credentials = self._opened(raw)
        except TicketError as error:
            raise CharterError(str(error)) from None
        if _edition(credentials) > self.edition:
            self._newest, self._unsaved = credentials, raw
            self.save()
            notice.info("new tickets for relays")
            self.on_taken()

    def save(self) -> None:
        """Make the newest credentials durable, if they are not yet; the next call tries again."""
        if self._unsaved:
            try:
                replace_file(self._files[1], [self._unsaved])
            except StorageError as error:
                if self._alarm is not None:
                    self._alarm("storage", None, f"the tickets are not on disk: {error}")
            else:
                self._unsaved = b""

    def report_missing(self, peer: int, version: int, why: str) -> None:
        """Record that a neighbor does not send the credentials that it claims to have."""
        log.info("neighbor %d says that it has newer tickets (%d), %s", peer, version, why)


def _edition(credentials: Credentials | None) -> Edition:
    return NONE if credentials is None else Edition(credentials.head.issued, credentials.head.rows)


def _state_of(path: Path) -> tuple[int, int, int] | None:
    with suppress(OSError):
        stat = path.stat()
        return stat.st_mtime_ns, stat.st_size, stat.st_ino
    return None


def make_token(path: Path) -> None:
    """Write a new token, for its owner alone. Raises UserError: there is such a file, or it cannot be made."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, 0o600)
    except OSError as error:
        text = f"cannot be created: {error.strerror}"
        raise UserError(text, file=path, allowed="a new file in a folder that exists") from None
    with os.fdopen(descriptor, "w", encoding="ascii", newline="\n") as file:
        file.write(f"{TOKEN_PREFIX}{to_text(os.urandom(TOKEN_BYTES))}\n")


def make_openers(folder: Path, token_file: str, admin_file: str | None) -> None:
    """Write tickets into a new federation's folder, signed by its admin key; without one a token, and its place in each
    node's file.
    """
    federation = load_config(folder)
    if admin_file is not None:
        write_tickets(federation, Identity.load(folder / admin_file), now_s=seconds_now())
        return
    make_token(folder / token_file)
    for member in federation.members:
        with (folder / member.name / "node.toml").open("a", encoding="utf-8") as file:
            file.write(f'\n[network]\nrelay_token = "../{token_file}"\n')


def read_token(path: Path) -> bytes:
    """Return the 32 bytes of a token. Raises UserError: it is none, or others may read it."""
    line = read_private(path, "token").strip()
    token = b""
    with suppress(ValueError):
        token = from_text(line.removeprefix(TOKEN_PREFIX))
    if not line.startswith(TOKEN_PREFIX) or len(token) != TOKEN_BYTES:
        raise UserError("not a token", file=path, allowed=ALLOWED_TOKEN)
    return token


# -- registration -----------------------------------------------------------------------------------------------------


class RelayAccess:
    """The right of one node to use relays. New tickets need no restart: the newest is used at the next registration."""

    def __init__(self, federation: FederationConfig, node: NodeConfig, identity: Identity) -> None:
        self._federation, self._node, self._identity = federation, node, identity
        self.keeper = CredentialsKeeper(federation, node.state_dir)

    def answer(self, relay: str, challenge: Challenge) -> Registration:
        """Answer the challenge of a relay. Raises UserError: this node has neither token nor ticket."""
        ticket, token = self.require()
        return register(self._identity, challenge, relay=relay, ticket=ticket, token=token)

    def require(self) -> tuple[bytes, bytes]:
        """Return ticket and token, one of them empty. Raises UserError: this node has neither."""
        if self._node.relay_token is not None:
            return b"", read_token(self._node.relay_token)
        ticket = self.keeper.ticket(self._identity.public)
        if ticket is not None:
            return ticket.packed(), b""
        if not self._federation.admin:
            text = "this node has nothing that opens a relay, and without admin keys there are no tickets"
            allowed = 'a file made by `p2pfl relay --make-token`, the same on all nodes: relay_token = "relay.token"'
            raise UserError(text, file=self._node.path, key="network.relay_token", allowed=allowed)
        text = f"no ticket for {self._node.name}: relays do not let it in"
        allowed = "`p2pfl member hand` where the admin key is, and this file beside federation.toml everywhere"
        raise UserError(text, file=tickets_file(self._federation), key="tickets", allowed=allowed)


def register(
    identity: Identity, challenge: Challenge, *, relay: str, ticket: bytes = b"", token: bytes = b""
) -> Registration:
    """Answer a relay's challenge."""
    named = token_id(token) if token else b""
    unsigned = Registration(
        version=VERSION, relay=relay, key=identity.public, signature=b"", ticket=ticket, token_id=named
    )
    proven = _proven_by(unsigned, challenge.nonce)
    proof = _token_proof(token, proven) if token else b""
    return msgspec.structs.replace(unsigned, signature=identity.sign(proven), token_proof=proof)


def token_id(token: bytes) -> bytes:
    """Return the public name of a token, which says nothing of it."""
    return hashlib.blake2b(token, digest_size=TOKEN_ID_BYTES, person=b"p2pfl-relay-tok").digest()


def holds_key(registration: Registration, nonce: bytes) -> bool:
    """Return True if the member has signed this relay's nonce with its key."""
    return _is_signed(registration.key, _proven_by(registration, nonce), registration.signature)


def holds_token(registration: Registration, nonce: bytes, token: bytes) -> bool:
    """Return True if the member knows the token."""
    return hmac.compare_digest(registration.token_proof, _token_proof(token, _proven_by(registration, nonce)))


def _proven_by(said: Registration, nonce: bytes) -> bytes:
    """Return the bytes that are signed."""
    content = msgspec.msgpack.encode((said.relay, nonce, said.key, said.ticket, said.token_id))
    return PROVEN + hashlib.blake2b(content, digest_size=32, person=b"p2pfl-relay-reg").digest()


def _token_proof(token: bytes, proven: bytes) -> bytes:
    return hashlib.blake2b(proven, key=token, digest_size=32, person=b"p2pfl-relay-mac").digest()
