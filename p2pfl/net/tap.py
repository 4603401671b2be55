"""Counts a connection's bytes below WebSocket, where one sees what never becomes a message.

aiohttp takes any number of empty fragments and tells nobody of them, and each costs more than the bytes it takes.
"""

from __future__ import annotations

import asyncio

HEADER_BYTES = 14
"""of a WebSocket frame, at most."""
IDLE_BYTES = 2**21
"""that may have come and be in no message yet. Of an honest end that is what aiohttp holds back, 768 KiB, and one
message under way, 256 KiB."""


class Tap(asyncio.Protocol):
    """Stands before a protocol whose connection is made already, or is about to be."""

    def __init__(self, inner: asyncio.Protocol | None = None, transport: asyncio.Transport | None = None) -> None:
        self._inner, self._transport = inner, transport
        self._idle_bytes = 0
        self.overran = False
        """whether too much has come that is in no message: the connection is broken off then."""

    def account(self, size: int) -> None:
        """A message of so many bytes has come, which an honest end sends as one frame."""
        self._idle_bytes = max(0, self._idle_bytes - size - HEADER_BYTES)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._inner is not None:
            self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._idle_bytes += len(data)
        self.overran |= self._idle_bytes > IDLE_BYTES
        if self.overran:
            self.abort()
        elif self._inner is not None:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._inner is None else self._inner.eof_received()

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()
