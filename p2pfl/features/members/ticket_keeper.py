"""The tickets of a running node: the newest sheet that it knows, on disk and in memory, which neighbors get as they get
the charter.

Only an admin's signature makes a sheet, so it does not matter who brings it. The relays' part of the node reads the
file at its next registration.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from p2pfl.config.charter import CharterError, realm_of
from p2pfl.config.model import Edition
from p2pfl.errors import StorageError
from p2pfl.features.relay.sheets import Sheet
from p2pfl.features.relay.ticket_files import KEPT_NAME, TicketShelf
from p2pfl.features.relay.tickets import TicketError
from p2pfl.node.assembly import Setup
from p2pfl.node.kept_charter import NONE
from p2pfl.storage.disk import replace_file

log = logging.getLogger("p2pfl")
notice = logging.getLogger("p2pfl.notice")

OnAlarm = Callable[[str, int | None, str], object]


class TicketKeeper:
    """Stores the newest sheet, and tells which one it is in the words of a charter: `issued` is its version."""

    def __init__(self, setup: Setup, *, on_alarm: OnAlarm) -> None:
        self._realm, self._admin = realm_of(setup.federation), setup.federation.admin
        self._file = setup.node.state_dir / KEPT_NAME
        self._alarm = on_alarm
        self.on_taken: Callable[[], object] = lambda: None
        """Called when a newer sheet has been accepted and is on disk."""
        self.edition, self.packed = NONE, b""
        self._unsaved = False
        known = TicketShelf(setup.federation, setup.node.state_dir).sheet()
        if known is not None:
            self.edition, self.packed = _edition(known), known.packed()

    @property
    def version(self) -> int:
        return self.edition.version

    def wants(self, theirs: Edition) -> bool:
        """Return True if a sheet is worth asking for."""
        return theirs > self.edition

    def offer(self, raw: bytes, peer: int | None = None) -> None:  # noqa: ARG002 - whoever brings it
        """Accept a sheet if it is newer and signed by an admin. Raises CharterError: it cannot be accepted."""
        try:
            sheet = Sheet.unpack(raw, realm=self._realm, admin=self._admin)
        except TicketError as error:
            raise CharterError(str(error)) from None
        if _edition(sheet) <= self.edition:
            return
        self.edition, self.packed, self._unsaved = _edition(sheet), raw, True
        self.save()
        notice.info("new tickets for relays")
        self.on_taken()

    def save(self) -> None:
        """Make the newest sheet durable, if it is not yet; the next call tries again."""
        if self._unsaved:
            try:
                replace_file(self._file, [self.packed])
            except StorageError as error:
                self._alarm("storage", None, f"the tickets are not on disk: {error}")
            else:
                self._unsaved = False

    def report_missing(self, peer: int, version: int, why: str) -> None:
        """Record that a neighbor does not send the sheet that it claims to have."""
        log.info("neighbor %d says that it has newer tickets (%d), %s", peer, version, why)


def _edition(sheet: Sheet) -> Edition:
    return Edition(sheet.head.issued, sheet.head.rows)
