"""Stop a node's process on a signal or, if it was launched, at the end of its stdin.

Stdin ends when the launcher closes it or dies. Each line on it names a member that has ended for good.
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
async def on_a_leash(
    stop: Callable[[], None], *, launched: bool, on_ended: Callable[[str], None] = lambda _: None
) -> AsyncIterator[None]:
    """Call `stop` on SIGINT, SIGTERM and, if `launched`, at the end of stdin, which is left open; call `on_ended` with
    the name of each member that has ended for good.
    """
    loop = asyncio.get_running_loop()
    leash = None
    if launched:
        pipe = os.fdopen(os.dup(sys.stdin.fileno()), "rb", buffering=0)
        leash, _ = await loop.connect_read_pipe(lambda: _Leash(stop, on_ended), pipe)
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
    def __init__(self, let_go: Callable[[], None], on_ended: Callable[[str], None]) -> None:
        self.let_go, self.on_ended = let_go, on_ended
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self.on_ended(line.decode())

    def eof_received(self) -> None:
        self.let_go()
