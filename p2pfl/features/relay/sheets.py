"""A sheet: the tickets of all members and the keys of removed ones, signed together by an admin.

Nodes pass it on as they pass on the charter, so that tickets are renewed and removals reach relays without copying. A
relay is shown its head alone, which names removed members' keys, and neither other members nor addresses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Self

import msgspec
from msgspec import Meta, Struct
from nacl.exceptions import CryptoError
from nacl.signing import VerifyKey

from p2pfl.crypto.identity import Identity
from p2pfl.features.relay.tickets import KEY_BYTES, SIGNATURE_BYTES, Ticket, TicketError
from p2pfl.foreign import UNREADABLE

MAGIC = b"p2pfl-relay-sheet-1:"
"""What a sheet begins with where charters travel, too."""
SIGNED = b"p2pfl-relay-sheet-1\n"
"""The prefix of what is signed, so that no signature made for another purpose removes a member."""
MOST_BYTES = 1 << 20
MOST_REMOVED = 1500
"""The most removed members that a head names: those with the highest indices."""
ROW_BYTES = KEY_BYTES + SIGNATURE_BYTES
SECONDS = 2**40
"""An exclusive upper bound on times, in seconds since 1970."""

_Key = Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
_Time = Annotated[int, Meta(ge=0, lt=SECONDS)]


class _SheetStatement(Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """The order of the fields is the format."""

    realm: _Key
    issued: _Time
    until: _Time
    rows: _Key
    removed: Annotated[tuple[_Key, ...], Meta(max_length=MOST_REMOVED)]


@dataclass(frozen=True, slots=True)
class SheetHead:
    """The signed part of a sheet. `rows` is the digest of the tickets."""

    realm: bytes
    issued: int
    """When it was signed, in seconds since 1970; of two sheets the one with the higher number is newer."""
    until: int
    """When its tickets expire, in seconds since 1970."""
    rows: bytes
    removed: tuple[bytes, ...]
    signer: bytes
    signature: bytes = field(repr=False)

    @classmethod
    def unpack(cls, raw: bytes) -> Self:
        """Read a head; nothing is verified. Raises TicketError: these bytes are none."""
        try:
            told = msgspec.msgpack.decode(raw[KEY_BYTES + SIGNATURE_BYTES :], type=_SheetStatement)
        except UNREADABLE as error:
            raise TicketError(f"not the head of a sheet: {error}") from None
        signer, signature = raw[:KEY_BYTES], raw[KEY_BYTES : KEY_BYTES + SIGNATURE_BYTES]
        return cls(told.realm, told.issued, told.until, told.rows, told.removed, signer, signature)

    def statement(self) -> bytes:
        return msgspec.msgpack.encode(_SheetStatement(self.realm, self.issued, self.until, self.rows, self.removed))

    def packed(self) -> bytes:
        return self.signer + self.signature + self.statement()

    def require(self, *, realm: bytes, admin: Sequence[bytes]) -> None:
        """Raises TicketError: it is for another federation, or no admin has signed it."""
        if self.realm != realm:
            raise TicketError("a sheet of another federation")
        if self.signer not in admin:
            raise TicketError("a sheet signed by a key that is not one of federation.admin")
        try:
            VerifyKey(self.signer).verify(SIGNED + self.statement(), self.signature)
        except (CryptoError, ValueError):
            raise TicketError("a sheet that was changed after it was signed") from None


@dataclass(frozen=True, slots=True)
class Sheet:
    """Head and tickets, which have its realm, signer and expiry."""

    head: SheetHead
    rows: bytes = field(repr=False)
    """For each ticket the member's key (32 bytes) and the signature (64 bytes)."""

    @classmethod
    def sign(
        cls, admin: Identity, *, realm: bytes, keys: Iterable[bytes], removed: Sequence[bytes], issued: int, until: int
    ) -> Self:
        tickets = [Ticket.sign(admin, realm=realm, key=key, until=until) for key in keys]
        rows = _rows_of(tickets)
        lost = tuple(removed)[-MOST_REMOVED:]
        unsigned = SheetHead(realm, issued, until, _digest(rows), lost, admin.public, b"")
        signature = admin.sign(SIGNED + unsigned.statement())
        return cls(SheetHead(realm, issued, until, _digest(rows), lost, admin.public, signature), rows)

    @classmethod
    def unpack(cls, raw: bytes, *, realm: bytes, admin: Sequence[bytes]) -> Self:
        """Read and verify a sheet. Raises TicketError: it is none of this federation."""
        if not raw.startswith(MAGIC) or len(raw) > MOST_BYTES:
            raise TicketError("not a sheet of tickets")
        try:
            head, rows = msgspec.msgpack.decode(raw[len(MAGIC) :], type=tuple[bytes, bytes])
        except UNREADABLE as error:
            raise TicketError(f"not a sheet of tickets: {error}") from None
        found = cls(SheetHead.unpack(head), rows)
        found.require(realm=realm, admin=admin)
        return found

    @classmethod
    def of(cls, head: SheetHead, tickets: Sequence[Ticket]) -> Self:
        """Put a sheet together again that was written line by line; `require` says if it is the same."""
        return cls(head, _rows_of(tickets))

    def require(self, *, realm: bytes, admin: Sequence[bytes]) -> None:
        """Raises TicketError: it is for another federation, or no admin has signed it."""
        if _digest(self.rows) != self.head.rows or len(self.rows) % ROW_BYTES:
            raise TicketError("a sheet with other tickets than were signed")
        self.head.require(realm=realm, admin=admin)

    def packed(self) -> bytes:
        return MAGIC + msgspec.msgpack.encode((self.head.packed(), self.rows))

    def ticket_of(self, key: bytes) -> Ticket | None:
        """Return the ticket of the member with that key; it is not verified."""
        for start in range(0, len(self.rows), ROW_BYTES):
            if self.rows[start : start + KEY_BYTES] == key:
                signature = self.rows[start + KEY_BYTES : start + ROW_BYTES]
                head = self.head
                return Ticket(realm=head.realm, key=key, until=head.until, signer=head.signer, signature=signature)
        return None


def _rows_of(tickets: Iterable[Ticket]) -> bytes:
    return b"".join(ticket.key + ticket.signature for ticket in tickets)


def _digest(rows: bytes) -> bytes:
    return hashlib.blake2b(rows, digest_size=KEY_BYTES, person=b"p2pfl-relay-row").digest()
