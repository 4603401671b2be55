"""Only one launcher runs a federation at a time: a second one would write over the report and the logs of the first.

A lock on the federation's file is held by the launcher; that its nodes run, launched or by hand, shows the lock in each
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
    """Return True if a running process holds it; the lock of a state folder is held by its node.

    It takes the lock for a moment, which a node that starts just then would take for another one: for a launcher, which
    is about to start it. Who only looks, again and again, asks `whereabouts.find`, which may err and disturbs nobody.
    """
    try:
        with _locked(file) as alone:
            return not alone
    except OSError:  # there is none yet, or it is for others to read
        return False


@contextmanager
def _locked(file: Path) -> Iterator[bool]:
    """Return True if we have the lock. Where the file system knows no locks, nobody has it, and so we do."""
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
