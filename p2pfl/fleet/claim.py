"""Ensures that only one launcher runs a federation at a time: a second one would overwrite the report and the logs.

The launcher holds a lock on the federation's file. Running nodes, launched or started by hand, show by the lock in each
state folder. Both end with their process.
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
    """Hold the claim for as long as the block lasts. Raises UserError: it is launched already, or one of the nodes
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

    The test takes the lock for a moment, which a node that starts just then would mistake for another node's: it is for
    a launcher, which is about to start the node. Code that only looks, again and again, uses `whereabouts.find`, which
    may err and disturbs nobody.
    """
    try:
        with _locked(file) as alone:
            return not alone
    except OSError:  # the file does not exist yet, or others may not read it
        return False


@contextmanager
def _locked(file: Path) -> Iterator[bool]:
    """Yield True if we have the lock. On a file system without locks nobody has it, so we count as having it."""
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
