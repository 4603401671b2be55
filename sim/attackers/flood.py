"""Messages and exchanges as fast as the lines take them, past the bounds that an honest node keeps at its own end."""

from __future__ import annotations

import asyncio

from p2pfl.core.edge import Edge
from p2pfl.core.messages import Message, Ready
from p2pfl.net.link import Outbox
from p2pfl.net.links import Links
from p2pfl.runtime.driver import Driver

PAUSE_S = 0.001
WAITING = 64
"""Messages kept in a session's queue: never empty, with room for what the node itself sends."""


class Flood:
    """`run` never returns. It says Ready over and over, each time with a newer version, repeats the request that is
    out, and begins the next exchange as soon as one is through, whether or not there is anything new to tell.
    """

    def __init__(self, driver: Driver, links: Links) -> None:
        self.driver, self.links = driver, links
        self.said = 0

    async def run(self) -> None:
        while True:
            for edge in self.driver.core.edges.values():
                number = edge.line.greeting.number
                if not edge.is_open or number is None:
                    continue
                link = self.links._table.find(edge.peer, number)
                if link is not None:
                    self._fill(link._outbox, edge)
                    self._begin(edge)
            await asyncio.sleep(PAUSE_S)

    def _fill(self, outbox: Outbox, edge: Edge) -> None:
        missing = WAITING - len(outbox)
        if missing <= 0 or outbox._closed:
            return
        pending = edge.exchange.record.pending
        outbox._waiting.extend([self._ready(edge) for _ in range(missing)])
        if pending is not None:
            outbox._waiting.append(pending)
        outbox.idle.clear()
        outbox._filled.set()

    def _ready(self, edge: Edge) -> Message:
        self.said += 1
        facts = edge.facts
        return Ready(version=facts.version + self.said, closing=facts.closing, level=facts.level)

    def _begin(self, edge: Edge) -> None:
        """As if the own version had never been exchanged."""
        service = edge.service
        exchanged, service.exchanged = service.exchanged, None
        self.driver._run(edge.exchange.begin_if_wanted(self.driver.loop.time()))
        service.exchanged = exchanged
