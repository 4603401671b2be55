"""Tickets on disk: `tickets.toml` beside the federation file, for all members, and the sheet that a node has received.

The first is made by an admin and may be copied to every machine; the second is kept in the node's state folder.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

from p2pfl.config.charter import realm_of
from p2pfl.config.model import FederationConfig
from p2pfl.config.tables import Mistakes, read_document, read_table, text, texts
from p2pfl.crypto.identity import Identity
from p2pfl.errors import UserError
from p2pfl.features.relay.sheets import MOST_BYTES, Sheet, SheetHead
from p2pfl.features.relay.tickets import PREFIX, Ticket, TicketError, from_text, ticket_of, to_text
from p2pfl.storage.disk import replace_file

FILE_NAME = "tickets.toml"
KEPT_NAME = "tickets"
HEAD_PREFIX = "p2pfl-sheet-1:"
USUAL_DAYS = 365
DAY_S = 86_400

log = logging.getLogger("p2pfl")
T = TypeVar("T")


def tickets_file(federation: FederationConfig) -> Path:
    return federation.path.parent / FILE_NAME


def write_tickets(federation: FederationConfig, admin: Identity, *, now_s: float, days: int = USUAL_DAYS) -> Sheet:
    """Sign a ticket for each member, write `tickets.toml` atomically, and return its sheet.

    It is newer than the one that is there, even if the clock was set back.
    """
    before, issued = sheet_here(federation), int(now_s)
    sheet = Sheet.sign(
        admin,
        realm=realm_of(federation),
        keys=[member.key for member in federation.present],
        removed=[member.key for member in federation.members if member.retired],
        issued=issued if before is None else max(issued, before.head.issued + 1),
        until=issued + days * DAY_S,
    )
    lines = [
        "# Tickets that open relays to members until they expire: `p2pfl member ticket` makes new ones. Not secret:",
        "# each serves its member's key alone. Copy this file to every machine, beside federation.toml; nodes that run",
        "# pass later ones on.",
        f'sheet = "{HEAD_PREFIX}{to_text(sheet.head.packed())}"',
        "tickets = [",
    ]
    for member in federation.present:
        ticket = sheet.ticket_of(member.key)
        if ticket is not None:
            lines.append(f'  "{PREFIX}{to_text(ticket.packed())}", # {member.name}')
    path = tickets_file(federation)
    replace_file(path, ["\n".join([*lines, "]", ""]).encode()])
    path.chmod(0o644)  # readable, unlike other files written in this way: nodes run as another user
    return sheet


def read_tickets(path: Path) -> list[Ticket]:
    """Return the tickets in a file; none if there is no file. Raises UserError: a line in it is not a ticket."""
    return _read_file(path)[0]


def _read_file(path: Path) -> tuple[list[Ticket], SheetHead | None]:
    if not path.exists():
        return [], None
    mistakes = Mistakes(path)
    found: list[Ticket] = []
    table = read_table(read_document(path), "", {"tickets": texts(), "sheet": text()}, mistakes)
    for line in table.get("tickets", ()):
        try:
            found.append(Ticket.unpack(from_text(line.removeprefix(PREFIX))))
        except ValueError:
            mistakes.add("not a ticket", "tickets", line[:60], "what `p2pfl member ticket` has written")
    head = None
    if "sheet" in table:
        try:
            head = SheetHead.unpack(from_text(table["sheet"].removeprefix(HEAD_PREFIX)))
        except ValueError:
            mistakes.add("not a sheet", "sheet", table["sheet"][:60], "what `p2pfl member ticket` has written")
    for mistake in mistakes.found:
        raise mistake
    return found, head


def sheet_here(federation: FederationConfig) -> Sheet | None:
    """Return the sheet in `tickets.toml`; None if there is none, or not the one that was signed.

    Raises UserError: a line in the file is not what it should be.
    """
    tickets, head = _read_file(tickets_file(federation))
    if head is None:
        return None
    sheet = Sheet.of(head, tickets)
    try:
        sheet.require(realm=realm_of(federation), admin=federation.admin)
    except TicketError:
        return None
    return sheet


def kept_sheet(federation: FederationConfig, folder: Path) -> Sheet | None:
    """Return the sheet that a node has received; None, with a log line if it is damaged: neighbors have it."""
    file = folder / KEPT_NAME
    try:
        with file.open("rb") as content:
            raw = content.read(MOST_BYTES + 1)
        return Sheet.unpack(raw, realm=realm_of(federation), admin=federation.admin)
    except FileNotFoundError:
        return None
    except (OSError, TicketError) as error:
        log.warning("%s: the kept tickets cannot be used: %s", file, error)
        return None


class TicketShelf:
    """The tickets and sheets on one machine, for one node: read anew when a file has changed."""

    def __init__(self, federation: FederationConfig, state_dir: Path) -> None:
        self._realm, self._admin = realm_of(federation), federation.admin
        file = tickets_file(federation)
        self._listed = _Watched(file, lambda: read_tickets(file))
        self._here = _Watched(file, lambda: sheet_here(federation))
        self._kept = _Watched(state_dir / KEPT_NAME, lambda: kept_sheet(federation, state_dir))

    def sheet(self) -> Sheet | None:
        """Return the newest sheet; a damaged `tickets.toml` has none, which `ticket` says."""
        found = [self._kept.current()]
        with suppress(UserError):
            found.append(self._here.current())
        sheets = [sheet for sheet in found if sheet is not None]
        return max(sheets, key=lambda sheet: (sheet.head.issued, sheet.head.rows), default=None)

    def ticket(self, key: bytes) -> Ticket | None:
        """Return the genuine ticket of that member that holds longest; those of a replaced admin key come last.

        Raises UserError: `tickets.toml` is damaged.
        """
        kept = self._kept.current()
        received = None if kept is None else kept.ticket_of(key)
        tickets = [*self._listed.current(), *([] if received is None else [received])]
        genuine = [one for one in tickets if one.key == key and one.is_genuine()]
        listed = [one for one in genuine if one.signer in self._admin]
        return ticket_of(listed, realm=self._realm, key=key) or ticket_of(genuine, realm=self._realm, key=key)

    def head(self) -> bytes:
        """Return the head of the newest sheet, packed; empty if there is none."""
        sheet = self.sheet()
        return b"" if sheet is None else sheet.head.packed()


class _Watched(Generic[T]):
    """The content of a file, read anew when the file has changed."""

    def __init__(self, path: Path, read: Callable[[], T]) -> None:
        self._path, self._read = path, read
        self._state: tuple[int, int, int] | None = None
        self._content: T

    def current(self) -> T:
        try:
            found = self._path.stat()
            state = found.st_mtime_ns, found.st_size, found.st_ino
        except OSError:
            state = 0, 0, 0
        if state != self._state:
            self._content = self._read()
            self._state = state
        return self._content
