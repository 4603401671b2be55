"""Two files next to a node's key: the second record of its privacy spending, and a person's permission for a budget.

The record is durable before the log has a round: no truncated log, or old copy of the state, restores spent rounds. The
node removes a permission after use. It is outside the state, so that a wiped node does not restart a spent budget.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from p2pfl.config.sections import PRIVACY
from p2pfl.config.tables import Mistakes, choice, matching, parse_document, read_table, require
from p2pfl.errors import StorageError, UserError
from p2pfl.foreign import UNREADABLE, refuse_special
from p2pfl.learn.privacy.accounting import Ledger, Promise
from p2pfl.storage.disk import is_full, lock_file, replace_file, storage_errors
from p2pfl.system import BINARY, NO_FOLLOW, sync_folder

SUFFIX = ".budget"
WORD_BYTES = 16
MOST_BYTES = 1024
ALLOWED = "what `p2pfl privacy begin` writes; remove the file"
BEGINS = "begins"
_TEXT = "# Permission for this node to reveal this much about its data. The node removes this file at its next start.\n"
_KEYS = {
    "word": matching(re.compile(f"[0-9a-f]{{{2 * WORD_BYTES}}}"), f"{2 * WORD_BYTES} hexadecimal digits"),
    "budget": choice(BEGINS),
    "after": matching(re.compile("[0-9a-z]{0,64}"), "the previous word, or nothing"),
    "planned": matching(re.compile("[ -~]{0,200}"), "rounds, steps and batches in words"),
    **{name: PRIVACY[name] for name in Promise._fields},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """A permission to begin a budget. `name` is random: no two are the same.

    `after` is the permission of the ledger at that time, empty if there was none. It reveals an old copy of a
    permission, which belongs to an earlier ledger. None if the node exists for one run only.
    """

    name: str
    promise: Promise
    after: str | None = None
    planned: str = ""
    """The settings that determine epsilon for a fixed noise: epsilon is unknown until a node has read its rows."""


def beside(key_file: Path, suffix: str) -> Path:
    """Return the path of a file that belongs to a key. Two keys in the same folder never share a file."""
    return key_file.with_name(key_file.name.removesuffix(".key") + suffix)


def permission_file(key_file: Path) -> Path:
    """Return the path of the permission for the node with this key."""
    return beside(key_file, SUFFIX)


def give_permission(key_file: Path, promise: Promise, *, after: str | None = None, planned: str = "") -> None:
    """Permit, once and durably, what the file promises now. `after` is the permission of the current ledger.

    It belongs to the key's owner, so that root may give it for another user's node. Raises StorageError: writing fails.
    """
    path = permission_file(key_file)
    content = {"word": secrets.token_hex(WORD_BYTES), "budget": BEGINS, "after": after} | promise._asdict()
    content |= {"planned": planned} if promise.epsilon is None else {}
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in content.items() if value is not None]
    replace_file(path, ["".join([_TEXT, *lines]).encode()])
    if sys.platform != "win32" and os.geteuid() == 0 and key_file.exists():
        owner = key_file.stat()
        with storage_errors(path):
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def read_permission(key_file: Path) -> Permission | None:
    """Return the pending permission, or None if there is none. Raises UserError: the file is not a permission."""
    path = permission_file(key_file)
    refuse_special(path)
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | BINARY | NO_FOLLOW), "rb") as file:
            document = parse_document(file.read(MOST_BYTES).decode(), path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", file=path, key="word", allowed=ALLOWED) from None
    except (UnicodeDecodeError, UserError):
        document = {}
    return _permission_of(document, path)


def _permission_of(document: dict[str, Any], path: Path) -> Permission:
    mistakes = Mistakes(path)
    table = read_table(document, "", _KEYS, mistakes)
    if "word" not in table:
        raise UserError("has no word", file=path, key="word", allowed=ALLOWED)
    require(document, "", ("budget", "unit", "delta"), _KEYS, mistakes)
    for mistake in mistakes.errors:
        raise mistake
    promise = Promise(table["unit"], table.get("epsilon"), table["delta"], table.get("noise"))
    return Permission(name=table["word"], promise=promise, after=table.get("after"), planned=table.get("planned", ""))


def discard_permission(key_file: Path) -> None:
    """Remove the permission durably. Raises UserError: it cannot be removed."""
    path = permission_file(key_file)
    try:
        with storage_errors(path):
            path.unlink(missing_ok=True)
            sync_folder(path.parent)
    except StorageError as error:
        text = f"the node cannot remove it, so it would count again: {error}"
        raise UserError(text, file=path, key="word", allowed="a folder that the node may write to") from None


log = logging.getLogger("p2pfl")

LEDGER_SUFFIX = ".ledger"
ABOUT = (
    "The node records here how much of its privacy budget it has spent. An old copy of this file would spend it again."
)
MOST_LEDGER_BYTES = 1 << 24


def ledger_path(key_file: Path) -> Path:
    return beside(key_file, LEDGER_SUFFIX)


class _Content(msgspec.Struct, kw_only=True):
    about: str = ABOUT
    federation: str
    node: str
    ledger: dict[str, Any]
    check: str


class LedgerFile:
    """The ledger file of one node.

    `kept` is the ledger in the file, or None if there is no usable one.
    """

    def __init__(self, key_file: Path, federation: str, node: str) -> None:
        self.key_file, self.path = key_file, ledger_path(key_file)
        self.federation, self.node = federation, node
        self.kept: Ledger | None = None
        self._refused: Ledger | None = None
        """The ledger that could not be written, or None."""
        self._lock: int | None = None

    def hold(self) -> None:
        """Keep other processes on this machine from spending with this key until `release`, whatever their folder.

        A key that is not in a file exists for one run only. Raises UserError: another process has the key.
        """
        if self.key_file.exists():
            self._lock = lock_file(self.key_file)

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def read(self) -> Ledger | None:
        """Read the ledger. Raises UserError: the file cannot be read, or belongs to another federation."""
        refuse_special(self.path)
        try:
            with os.fdopen(os.open(self.path, os.O_RDONLY | BINARY | NO_FOLLOW), "rb") as file:
                raw = file.read(MOST_LEDGER_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            text, allowed = f"cannot be read: {error.strerror}", "a file that the node's user may read"
            raise UserError(text, file=self.path, key="ledger", allowed=allowed) from None
        try:
            content = msgspec.json.decode(raw, type=_Content)
            ledger = Ledger.of(content.ledger)
            is_whole = content.check == _check(content.federation, content.node, content.ledger)
        except UNREADABLE:
            is_whole = False
        if not is_whole:
            log.warning("%s is damaged, and counts as lost", self.path)
            return None
        if content.federation != self.federation:
            text = "records the spending of another federation"
            allowed = f"{self.federation}, or a key of its own for this node; removing the file loses its record"
            raise UserError(text, file=self.path, key="federation", value=content.federation, allowed=allowed)
        if content.node != self.node:
            text = "records the spending of another node"
            allowed = f"the file of {self.node}; removing this one loses its record"
            raise UserError(text, file=self.path, key="node", value=content.node, allowed=allowed)
        self.kept = ledger
        return ledger

    def void(self) -> None:
        """Mark the ledger as incomplete, because the following rounds are not private.

        Raises the same errors as `read` and `begin`.
        """
        ledger = self.read()
        if ledger is not None and ledger.is_whole:
            self.begin(ledger.as_incomplete())

    def begin(self, ledger: Ledger) -> None:
        """Write the ledger at a start, and check that the file can be written.

        Raises StorageError: the disk is full; UserError: writing fails for another reason.
        """
        try:
            self.write(ledger)
        except StorageError as error:
            if is_full(error):
                raise
            text = f"the node cannot record there what it spends of its privacy budget: {error}"
            allowed = "a folder that the node may write to, for node.key_file"
            raise UserError(text, file=self.path.parent, key="node.key_file", allowed=allowed) from None

    def write(self, ledger: Ledger) -> None:
        """Write a ledger; it is durable when this returns. Raises StorageError: writing fails."""
        plain = ledger.plain()
        check = _check(self.federation, self.node, plain)
        content = _Content(federation=self.federation, node=self.node, ledger=plain, check=check)
        self._refused = ledger
        replace_file(self.path, [msgspec.json.format(msgspec.json.encode(content), indent=1), b"\n"])
        self.kept, self._refused = ledger, None

    def cover(self, ledger: Ledger) -> None:
        """Write a ledger, unless the file already has as much. Raises StorageError."""
        if self.kept is None or self.kept.word != ledger.word or not self.kept.covers(ledger):
            self.write(ledger)

    def retry(self) -> None:
        """Write the ledger that could not be written before. Raises StorageError: writing fails again."""
        if self._refused is not None:
            self.write(self._refused)


def _check(federation: str, node: str, ledger: dict[str, Any]) -> str:
    content = msgspec.json.encode([federation, node, ledger])
    return hashlib.blake2b(content, digest_size=16, person=b"p2pfl-ledger").hexdigest()
