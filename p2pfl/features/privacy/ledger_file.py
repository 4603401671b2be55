"""The second record of a node's spending of its privacy budget: a file beside its key, ahead of the log.

It is durable before the log takes a round, so that a log which is cut, or a state folder that is an old copy, does not
bring rounds back. It counts some more rounds than are paid for, so that not each of many small rounds replaces the
file. A crash wastes those; a node that ends takes them back.
"""

from __future__ import annotations

import hashlib
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from p2pfl.config.tables import refuse_special
from p2pfl.engine.ledger import Ledger
from p2pfl.errors import StorageError, UserError
from p2pfl.features.privacy.permission import beside
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

    `kept` is the ledger in the file; None: there is none that can be used. Files of earlier versions name no node.
    """

    def __init__(self, key_file: Path, federation: str, node: str) -> None:
        self.key_file, self.path = key_file, ledger_path(key_file)
        self.federation, self.node = federation, node
        self.kept: Ledger | None = None
        self._refused: Ledger | None = None
        """The ledger that could not be written; None: there is none."""
        self._lock: int | None = None

    def hold(self) -> None:
        """Keep other processes of this machine from spending with this key until `release`, whatever state folder they
        have.

        Two processes would not know each other's spending. A key that is in no file is made for one run. Raises
        UserError: another process has the key.
        """
        if self.key_file.exists():
            self._lock = lock_file(self.key_file)

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def read(self) -> Ledger | None:
        """Read the ledger. Raises UserError: the file cannot be read, or is another federation's."""
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
        except (msgspec.MsgspecError, UnicodeDecodeError):
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
        """Mark the ledger as incomplete, because rounds follow that are not private.

        Raises as `read` and `begin` do.
        """
        ledger = self.read()
        if ledger is not None and ledger.is_whole:
            self.begin(ledger.as_incomplete())

    def begin(self, ledger: Ledger) -> None:
        """Write the ledger of a start, and check that the file can be written.

        Raises StorageError: the disk is full; UserError: it refuses for another reason.
        """
        try:
            self.write(ledger)
        except StorageError as error:
            if is_full(error):
                raise
            text = f"the node cannot record there what it spends of its privacy budget: {error}"
            allowed = "a folder that the node may write to, beside node.key_file"
            raise UserError(text, file=self.path.parent, key="node.key_file", allowed=allowed) from None

    def write(self, ledger: Ledger) -> None:
        """Write a ledger; it is durable when this returns. Raises StorageError: the disk refuses."""
        plain = ledger.plain()
        check = _check(self.federation, self.node, plain)
        content = _Content(federation=self.federation, node=self.node, ledger=plain, check=check)
        self._refused = ledger
        replace_file(self.path, [msgspec.json.format(msgspec.json.encode(content), indent=1), b"\n"])
        self.kept, self._refused = ledger, None

    def cover(self, least: Ledger, most: Ledger) -> None:
        """Record at least what `least` has spent; if the file has less, write `most`. Raises StorageError."""
        if self.kept is None or self.kept.word != least.word or not self.kept.covers(least):
            self.write(most)

    def retry(self) -> None:
        """Write the ledger that the disk has refused. Raises StorageError: it still does."""
        if self._refused is not None:
            self.write(self._refused)

    def settle(self, ledger: Ledger | None) -> None:
        """Take back what was reserved, once `ledger` is durable in the state.

        If the disk refuses, the reserve is lost.
        """
        if ledger is not None and ledger != self.kept:
            with suppress(StorageError):
                self.write(ledger)


def _check(federation: str, node: str, ledger: dict[str, Any]) -> str:
    content = [federation, *([node] if node else []), ledger]
    digest = hashlib.blake2b(msgspec.json.encode(content), digest_size=16, person=b"p2pfl-ledger")
    return digest.hexdigest()
