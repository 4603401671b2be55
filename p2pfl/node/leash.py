"""Stop a node's process by a signal or, if it was launched, by the end of its stdin.

Stdin ends when the launcher closes it or dies.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@asynccontextmanager
async def on_a_leash(stop: Callable[[], None], *, launched: bool) -> AsyncIterator[None]:
    """Call `stop` on SIGINT, SIGTERM and, if `launched`, at the end of stdin, which is left open."""
    loop = asyncio.get_running_loop()
    leash = None
    if launched:
        pipe = os.fdopen(os.dup(sys.stdin.fileno()), "rb", buffering=0)
        leash, _ = await loop.connect_read_pipe(lambda: _Leash(stop), pipe)
    for number in SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
        if leash is not None:
            leash.close()


class _Leash(asyncio.Protocol):
    def __init__(self, let_go: Callable[[], None]) -> None:
        self.let_go = let_go

    def eof_received(self) -> None:
        self.let_go()
