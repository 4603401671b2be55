"""The second record of a node's privacy spending: a file next to its key, which is ahead of the log.

It is durable before the log records a round, so that a truncated log, or an old copy of the state folder, does not
restore spent rounds. It reserves a few more rounds than are paid for, so that the file need not be replaced for each of
many small rounds. A crash loses the reserve; a node that ends returns it.
"""

from __future__ import annotations

import hashlib
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from p2pfl.errors import StorageError, UserError
from p2pfl.features.privacy.permission import beside
from p2pfl.foreign import UNREADABLE, refuse_special
from p2pfl.learn.privacy.ledger import Ledger
from p2pfl.storage.disk import is_full, lock_file, replace_file

log = logging.getLogger("p2pfl")

SUFFIX = ".ledger"
ABOUT = (
    "The node records here how much of its privacy budget it has spent. An old copy of this file would spend it again."
)
MOST_BYTES = 1 << 24


def ledger_path(key_file: Path) -> Path:
    return beside(key_file, SUFFIX)


class _Content(msgspec.Struct, kw_only=True):
    about: str = ABOUT
    federation: str
    node: str = ""
    ledger: dict[str, Any]
    check: str


class LedgerFile:
    """The ledger file of one node.

    `kept` is the ledger in the file, or None if there is no usable one. Files of earlier versions name no node.
    """

    def __init__(self, key_file: Path, federation: str, node: str) -> None:
        self.key_file, self.path = key_file, ledger_path(key_file)
        self.federation, self.node = federation, node
        self.kept: Ledger | None = None
        self._refused: Ledger | None = None
        """The ledger that could not be written, or None."""
        self._lock: int | None = None

    def hold(self) -> None:
        """Keep other processes on this machine from spending with this key until `release`, whatever their state
        folder.

        Two processes would not know each other's spending. A key that is not in a file exists for one run only. Raises
        UserError: another process has the key.
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
            with os.fdopen(os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
                raw = file.read(MOST_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            text, allowed = f"cannot be read: {error.strerror}", "a file that the node's user may read"
            raise UserError(text, file=self.path, key="ledger", allowed=allowed) from None
        try:
            found = msgspec.json.decode(raw, type=_Content)
        except UNREADABLE:
            found = None
        if found is None or found.check != _check(found.federation, found.node, found.ledger):
            log.warning("%s is damaged, and counts as lost", self.path)
            return None
        if found.federation != self.federation:
            text = "records the spending of another federation"
            allowed = f"{self.federation}, or a key of its own for this node; removing the file loses its record"
            raise UserError(text, file=self.path, key="federation", value=found.federation, allowed=allowed)
        if found.node not in ("", self.node):
            allowed = f"the file of {self.node}; removing this one loses its record"
            raise UserError(
                "records the spending of another node", file=self.path, key="node", value=found.node, allowed=allowed
            )
        self.kept = Ledger.of(found.ledger)
        return self.kept

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

    def cover(self, least: Ledger, most: Ledger) -> None:
        """Make sure that at least the spending in `least` is recorded: if the file has less, write `most`. Raises
        StorageError.
        """
        if self.kept is None or self.kept.word != least.word or not self.kept.covers(least):
            self.write(most)

    def retry(self) -> None:
        """Write the ledger that could not be written before. Raises StorageError: writing fails again."""
        if self._refused is not None:
            self.write(self._refused)

    def settle(self, ledger: Ledger | None) -> None:
        """Return the reserve, once `ledger` is durable in the state.

        If writing fails, the reserve is lost.
        """
        if ledger is not None and ledger != self.kept:
            with suppress(StorageError):
                self.write(ledger)


def _check(federation: str, node: str, ledger: dict[str, Any]) -> str:
    content = [federation, *([node] if node else []), ledger]
    digest = hashlib.blake2b(msgspec.json.encode(content), digest_size=16, person=b"p2pfl-ledger")
    return digest.hexdigest()
