"""The charter of a running node: the newest one that it knows, on disk and in memory, and how neighbors get it.

`CharterKeeper` decides which charter to accept: only a newer one signed by an admin, whatever its source. It is stored
with the node's state before others see it, so that an older one is refused even after a restart. `talk` has the
messages about it in open sessions, `p2pfl.net.visits` what strangers may do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path

from p2pfl.config.charter import (
    Charter,
    CharterError,
    amended,
    checked,
    edition_of,
    extends,
    require_signed,
)
from p2pfl.config.model import Edition, FederationConfig
from p2pfl.errors import PeerFault, StorageError, UserError
from p2pfl.node.amendment import without_members
from p2pfl.node.kept_charter import NONE
from p2pfl.storage.disk import replace_file

log = logging.getLogger("p2pfl")
notice = logging.getLogger("p2pfl.notice")

CONFLICT = "charter-conflict"
WAITS = "charter-waits"
"""The kinds of alarms. Conflict: a version was signed twice. Waits: the newest one cannot take effect in this
process.
"""


class Verdict(Enum):
    """The outcome of offering a charter."""

    TAKEN = auto()
    KNOWN = auto()
    OLDER = auto()


OnCharter = Callable[[FederationConfig], object]
OnAlarm = Callable[[str, int | None, str], object]


class CharterKeeper:
    """Stores the newest charter.

    `federation` is what the node runs with; `file` is where the charter is stored. `on_charter` is called when a newer
    charter has been accepted, with the federation to follow from now on. This is the amended one or, if the running
    node cannot follow the whole charter, the previous one without the removed members. It may raise UserError if the
    node cannot follow that either. `on_alarm` is called with a kind, the peer from which the charter came, and a text.
    """

    def __init__(self, federation: FederationConfig, file: Path, *, on_charter: OnCharter, on_alarm: OnAlarm) -> None:
        self.federation = federation
        self._file = file
        self._on_charter = on_charter
        self.alarm = on_alarm
        self.on_taken: Callable[[], object] = lambda: None
        """Called when a newer charter has been accepted and is on disk, before it takes effect."""
        self._running = federation
        self._conflicts: set[bytes] = set()
        self._left_at: dict[int | None, int] = {}
        """The newest version that, according to each member, does not list this node."""
        self._unsaved = bool(federation.charter)

    @property
    def edition(self) -> Edition:
        return self.federation.edition or NONE

    @property
    def packed(self) -> bytes:
        """Return the charter in the form in which it is sent, empty if there is none yet."""
        return self.federation.charter

    @property
    def version(self) -> int:
        return self.edition.version

    def bring(self, raw: bytes) -> None:
        """Accept a charter from a visitor, which need not be a member. Raises PeerFault: it is not a charter."""
        try:
            self.offer(raw)
        except CharterError as error:
            raise PeerFault(f"a charter that cannot be accepted: {error}") from None

    def left_behind(self, version: int, peer: int | None) -> None:
        """Raise an alarm, once for each version, if a member says that it has a newer charter that does not list this
        node.

        A member that lies about its version must not hide another's report. Of the members that report the same
        version, the first, fourth, sixteenth and so on raise the alarm.
        """
        if version > max(self._left_at.get(peer, 0), self.version):
            self._left_at[peer] = version
            alike = list(self._left_at.values()).count(version)
            if alike.bit_count() != 1 or alike.bit_length() % 2 == 0:
                return
            many = f" ({alike} members say so)" if alike > 1 else ""
            text = f"it says that version {version} of the members does not list this node{many}; here is version"
            why = "It was removed, or its own key is not the one in the list, or that member lies"
            self.alarm("charter-older", peer, f"{text} {self.version}. {why}")

    def may_ask(self, public: bytes) -> bool:
        """Return True for an admin, and for members of the newest charter even if it has not taken effect yet."""
        return public in self.federation.admin or public in self.keys

    def report_missing(self, peer: int, version: int, why: str) -> None:
        """Raise an alarm: a neighbor does not send the charter that it claims to have."""
        text = f"a neighbor says that it has version {version} of the members, {why}; here is version {self.version}"
        self.alarm("charter-older", peer, text)

    def wants(self, theirs: Edition) -> bool:
        """Return True if a charter is worth asking for.

        This includes a different charter with our version, even if ours takes precedence, because then an admin key has
        signed twice.
        """
        own = self.edition
        return theirs > own or (theirs.version == own.version and theirs.digest not in {own.digest, *self._conflicts})

    def save(self) -> None:
        """Make the newest charter durable, if it is not yet.

        If writing fails, raise an alarm; the next call tries again.
        """
        if not self._unsaved:
            return
        try:
            replace_file(self._file, [self.packed])
        except StorageError as error:
            self.alarm("storage", None, f"the charter is not on disk: {error}")
        else:
            self._unsaved = False

    def offer(self, raw: bytes, peer: int | None = None) -> Verdict:
        """Accept a charter if it is newer and signed by an admin. Raises CharterError: it cannot be accepted."""
        require_signed(raw, self.federation.admin)  # before parsing it, which may take a tenth of a second
        offered, known = edition_of(raw), self.edition
        if offered == known:
            return Verdict.KNOWN
        if offered.version < known.version or offered.digest in self._conflicts:
            return Verdict.OLDER
        charter = checked(raw, self.federation)
        if offered.version == known.version:
            self._conflicts |= {offered.digest, known.digest}
            text = f"version {known.version} of the members was signed twice: all nodes keep the same one of the two"
            self.alarm(CONFLICT, peer, f"{text}; sign another version with the members that you intend")
        if offered < known:
            return Verdict.OLDER
        self._take(charter)
        return Verdict.TAKEN

    def _take(self, charter: Charter) -> None:
        self.federation = amended(self.federation, charter)
        self._unsaved = True
        self.save()
        notice.info("version %d of the members: %d of them", charter.version, len(charter.present))
        self.on_taken()
        if (obstacle := self._follow(self.federation)) is not None:
            gone = {member.key for member in charter.members if member.retired}
            self._follow(without_members(self._running, gone))
            own = (self._running.edition or NONE).version
            until = f"Until then it follows version {own}, without the members that are no longer listed"
            text = f"version {charter.version} takes effect when this node is started again: {obstacle}. {until}"
            self.alarm(WAITS, None, text)

    def _follow(self, federation: FederationConfig) -> str | None:
        """Put a federation into force. Return None, or the reason why that is impossible while the node runs."""
        if not extends(federation.members, self._running.members):
            return "it gives an index to another member than this node has run with"
        try:
            self._on_charter(federation)
        except UserError as error:
            return str(error)
        self._running = federation
        return None

    @property
    def keys(self) -> frozenset[bytes]:
        """Return the keys of all members in the newest charter, even if it has to wait for a restart."""
        return frozenset(member.key for member in self.federation.present)
