"""Where a running node can be reached, beside its state: its ports may be any that were free.

The file is there from the node's start to its end. After a crash it stays; the lock on the state folder tells.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from p2pfl.runtime.claim import is_locked
from p2pfl.storage.disk import replace_file

FILE = "address.json"
ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "[::]": "[::1]"}  # noqa: S104 - compared with


class Whereabouts(msgspec.Struct, frozen=True, kw_only=True):
    """`listen` is what others dial, host:port; `status` the address of the status page, as seen from this machine."""

    pid: int
    listen: str
    status: str | None

    @property
    def near(self) -> str:
        """`listen`, as seen from this machine."""
        host, _, port = self.listen.rpartition(":")
        return f"{ANY_HOST.get(host, host)}:{port}"

    @classmethod
    def of(cls, *, listen: str, port: int, status_listen: str | None, status_port: int) -> Whereabouts:
        """Of this process: hosts as in the node's file, ports as they were bound."""
        status = None
        if status_listen is not None:
            host = status_listen.rpartition(":")[0]
            status = f"{ANY_HOST.get(host, host)}:{status_port}"
        return cls(pid=os.getpid(), listen=f"{listen.rpartition(':')[0]}:{port}", status=status)

    def write(self, state_dir: Path) -> None:
        """Raises StorageError: the disk refuses it."""
        replace_file(state_dir / FILE, [msgspec.json.encode(self)])


def forget(state_dir: Path) -> None:
    with suppress(OSError):
        (state_dir / FILE).unlink(missing_ok=True)


def find(state_dir: Path) -> Whereabouts | None:
    """None: no node runs there, or it is not for us to read."""
    if not is_locked(state_dir / "lock"):
        return None
    try:
        return msgspec.json.decode((state_dir / FILE).read_bytes(), type=Whereabouts)
    except (OSError, msgspec.DecodeError):
        return None
