"""Work with a time limit: it runs in a process of its own, which tells each group of figures as soon as it knows it.

A process, not a thread: some steps inside scipy hold the interpreter for minutes, and only a process can be stopped.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

Facts = dict[str, Any]
Work = Callable[..., Facts]
"""Returns all figures; its argument `note` is a function that receives some of them on the way."""


def facts_within(work: Work, limit_s: float, asked: Mapping[str, Any]) -> tuple[Facts, bool]:
    """Return what `work` finds about `asked` in `limit_s` seconds, and whether that is all of it.

    Raises what `work` raises.
    """
    deadline = time.monotonic() + limit_s
    context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_tell, args=(work, asked, theirs), daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # numpy's idle threads are no danger to a fork
        process.start()
    theirs.close()
    facts: Facts = {}
    try:
        while ours.poll(max(0.0, deadline - time.monotonic())):
            message = ours.recv()
            if isinstance(message, BaseException):
                raise message
            done, more = message
            if done:
                return more, True
            facts.update(more)
    finally:
        process.kill()
        process.join()
    return facts, False


def _tell(work: Work, asked: Mapping[str, Any], connection: Connection) -> None:
    try:
        connection.send((True, work(**asked, note=lambda more: connection.send((False, dict(more))))))
    except Exception as error:  # noqa: BLE001 - the other process raises it
        connection.send(error)
    except KeyboardInterrupt:
        pass  # the other process heard it, too
