"""Every error of the package, in one tree.

P2PFLError
├── UserError      the user's mistake: exit code 2, one clear line, never a traceback
├── PeerFault      a peer broke the protocol: caught at the edge, lowers that peer's standing, never stops the node
├── StorageError   the disk refused (full, read-only, corrupt beyond both generations)
└── LearningError  the user's task raised or returned something unusable while the node was running

Our own bugs raise ordinary exceptions (ValueError, AssertionError, ...) and are not part of the tree.
The text of an exception is for our own log; it is never sent to a peer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

EXTRAS: Mapping[str, str] = {
    "torch": "torch",
    "matplotlib": "plot",
    "pandas": "pandas",
    "scipy": "topology",
    "dask": "dask",
    "distributed": "dask",
    "zeroconf": "lan",
    "onnx": "onnx",
}
"""Packages that not everybody needs, each with the extra that installs it."""


@contextmanager
def naming_extras() -> Iterator[None]:
    """Say what to install in place of Python's words. Raises ModuleNotFoundError."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name not in EXTRAS:
            raise
        raise ModuleNotFoundError(needs(error.name), name=error.name) from None


def needs(package: str) -> str:
    return f"this needs {package}: pip install '.[{EXTRAS[package]}]' in a checkout"


class P2PFLError(Exception):
    """The root of the tree."""


class UserError(P2PFLError):
    """Bad input. The error says where it is, what it was and what is allowed.

    `file` and `key` locate it (`federation.toml`, `gossip.rule`), `value` is what was found, `allowed` describes valid
    input. Each is None if it does not apply.
    """

    def __init__(
        self,
        message: str,
        *,
        file: object = None,
        key: str | None = None,
        value: object = None,
        allowed: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.file = None if file is None else str(file)
        self.key = key
        self.value = value
        self.allowed = allowed

    def __str__(self) -> str:
        place = ": ".join(part for part in (self.file, self.key) if part)
        text = f"{place}: {self.message}" if place else self.message
        if self.value is not None:
            text += f" (found {self.value!r})"
        if self.allowed:
            text += f"; allowed: {self.allowed}"
        return text


class PeerFault(P2PFLError):  # noqa: N818 - a fault of the peer, not an error of ours
    """A peer sent what the protocol does not allow. The text is for our log only."""


class StorageError(P2PFLError):
    """Durable state could not be written or read."""


class LearningError(P2PFLError):
    """The task failed while training or evaluating."""
