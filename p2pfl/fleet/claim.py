"""Ensure that only one launcher runs a federation at a time, because a second one would overwrite the report and the
logs.

The launcher holds a lock on the federation file. Running nodes, launched or started by hand, are detected by the lock
in their state folders. Both locks end with their process.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from p2pfl.config.model import FederationConfig, NodeConfig
from p2pfl.errors import UserError

TAKEN = (errno.EWOULDBLOCK, errno.EACCES)


@contextmanager
def claimed(federation: FederationConfig, nodes: Iterable[NodeConfig]) -> Iterator[None]:
    """Hold the claim for as long as the block lasts. Raises UserError: it is already launched, or one of its nodes
    runs.
    """
    running = [node.name for node in nodes if is_locked(node.state_dir / "lock")]
    with _locked(federation.path) as alone:
        if running or not alone:
            who = f"of its nodes, {', '.join(running)} run" if running else "somebody launches it"
            raise UserError(
                f"runs already: {who}; nothing was started or written",
                file=federation.path,
                allowed="one launch at a time: stop the other first (Ctrl-C there)",
            )
        yield


def is_locked(file: Path) -> bool:
    """Return True if a running process holds the lock of `file`; the lock of a state folder is held by its node.

    The test briefly takes the lock, and a node that starts at that moment would mistake it for another node's. So only
    a launcher that is about to start the node should use it. Code that only polls should use `whereabouts.find`, which
    may err but disturbs nobody.
    """
    try:
        with _locked(file) as alone:
            return not alone
    except OSError:  # the file does not exist yet, or we may not read it
        return False


@contextmanager
def _locked(file: Path) -> Iterator[bool]:
    """Yield True if we have the lock. On a file system without locks nobody can hold it, so yield True too."""
    held = os.open(file, os.O_RDONLY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            yield error.errno not in TAKEN
        else:
            yield True
    finally:
        os.close(held)
