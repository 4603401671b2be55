"""A file with a running node's addresses, next to its state, so that a reader of the folder need not know its ports.

The file is removed when the node ends cleanly. After a crash it stays, but its process no longer exists. If another
process has the same number, whatever answers at the address belongs to another node, or nothing answers.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from p2pfl.config.model import NodeConfig
from p2pfl.errors import StorageError
from p2pfl.foreign import UNREADABLE
from p2pfl.storage.disk import replace_file

log = logging.getLogger("p2pfl")

FILE_NAME = "address.json"
TOKEN_NAME = "page-token"  # noqa: S105 - the name of a file
TOKEN_BYTES = 18
MOST_BYTES = 4096
LOCAL = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - nothing is bound here


class Whereabouts(msgspec.Struct, kw_only=True, frozen=True):
    """Addresses as host:port, with the ports that are actually bound."""

    federation: str
    node: str
    pid: int
    listen: str
    status: str | None
    """The address of `GET /status`; null if there is no page."""

    @property
    def is_running(self) -> bool:
        """Return True if its process exists, as far as this user can tell."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except (PermissionError, OverflowError):
            return True
        return True


def address_at(listen: str, port: int) -> str:
    """Return `listen` with the bound port, and with a host that can be dialed from this machine."""
    host = listen.rpartition(":")[0]
    return f"{LOCAL.get(host, host)}:{port}"


def write(folder: Path, whereabouts: Whereabouts) -> None:
    """Write the file. Raises StorageError: it cannot be written."""
    replace_file(folder / FILE_NAME, [msgspec.json.encode(whereabouts)])


@contextmanager
def keep_file(node: NodeConfig, federation: str, port: int, status: str | None) -> Iterator[None]:
    """Keep the file in place while the block runs. If it cannot be written, run without it."""
    listen = address_at(node.listen, port)
    there = Whereabouts(federation=federation, node=node.name, pid=os.getpid(), listen=listen, status=status)
    try:
        write(node.state_dir, there)
    except StorageError as error:
        log.warning("%s", error)
    try:
        yield
    finally:
        remove(node.state_dir)


def remove(folder: Path) -> None:
    with suppress(OSError):
        (folder / FILE_NAME).unlink()


def read(folder: Path) -> Whereabouts | None:
    """Read the file in a folder; return None if there is none, or if it cannot be read."""
    try:
        with (folder / FILE_NAME).open("rb") as file:
            return msgspec.json.decode(file.read(MOST_BYTES), type=Whereabouts)
    except (OSError, *UNREADABLE):
        return None


def find(folder: Path) -> Whereabouts | None:
    """Find the node that runs in a folder; return None if none runs there, or if we may not read it."""
    there = read(folder)
    return there if there is not None and there.is_running else None


def page_token(folder: Path) -> str:
    """Return the token for the page, which is created at the first start and then stored.

    If it cannot be stored, it is valid until the node ends.
    """
    token = read_token(folder)
    if token is None:
        token = secrets.token_urlsafe(TOKEN_BYTES)
        with suppress(StorageError):
            replace_file(folder / TOKEN_NAME, [token.encode()])
    return token


def read_token(folder: Path) -> str | None:
    try:
        text = (folder / TOKEN_NAME).read_text(encoding="ascii").strip()
    except (OSError, UnicodeError):
        return None
    return text if 16 <= len(text) <= 128 else None
