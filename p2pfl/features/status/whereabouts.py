"""A file beside a running node's state with its addresses: whoever knows its folder need not know its ports.

The file is removed at a clean end. After a crash it stays, and is known by its process, which is gone; where that
number has been given to another process, whoever is asked there answers for another node, or not at all.
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
from p2pfl.storage.disk import replace_file

log = logging.getLogger("p2pfl")

FILE_NAME = "address.json"
TOKEN_NAME = "page-token"  # noqa: S105 - the name of a file
TOKEN_BYTES = 18
MOST_BYTES = 4096
LOCAL = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - nothing is bound here


class Whereabouts(msgspec.Struct, kw_only=True, frozen=True):
    """Addresses as host:port with the port that is really bound."""

    federation: str
    node: str
    pid: int
    listen: str
    status: str | None
    """The address of `GET /status`; null for no page."""

    @property
    def is_running(self) -> bool:
        """True if its process exists, as far as this user can know."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except (PermissionError, OverflowError):
            return True
        return True


def address_at(listen: str, port: int) -> str:
    """`listen` with the port that was bound, and a host that can be dialed from this machine."""
    host = listen.rpartition(":")[0]
    return f"{LOCAL.get(host, host)}:{port}"


def write(folder: Path, there: Whereabouts) -> None:
    """Raises StorageError: the disk does not take it."""
    replace_file(folder / FILE_NAME, [msgspec.json.encode(there)])


@contextmanager
def noted(node: NodeConfig, federation: str, port: int, status: str | None) -> Iterator[None]:
    """The file is there for as long as the block runs; without it, if the disk refuses."""
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
    """Read the file in a folder; None: there is none, or it cannot be read."""
    try:
        with (folder / FILE_NAME).open("rb") as file:
            return msgspec.json.decode(file.read(MOST_BYTES), type=Whereabouts)
    except (OSError, msgspec.MsgspecError):
        return None


def find(folder: Path) -> Whereabouts | None:
    """Find the node that runs in a folder; None: none runs there, or we may not read it."""
    there = read(folder)
    return there if there is not None and there.is_running else None


def page_token(folder: Path) -> str:
    """The token for the page: made at the first start, then kept. One that cannot be kept holds for this start."""
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
