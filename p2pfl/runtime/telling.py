"""How a node is doing, for whoever watches: lines of progress for a launcher, and the page for people."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import msgspec

from p2pfl.config.model import NodeConfig
from p2pfl.core.facts import Phase
from p2pfl.engine.engine import Engine
from p2pfl.learn.doubts import own_classes
from p2pfl.net.http import StatusPage
from p2pfl.net.links import Links
from p2pfl.net.side import Feeding
from p2pfl.net.spread import CHANNEL as VITALS
from p2pfl.net.spread import VitalsTold
from p2pfl.reporting.status import ClosedRound, NodeLine
from p2pfl.runtime import whereabouts
from p2pfl.runtime.display import Display
from p2pfl.runtime.driver import Driver
from p2pfl.runtime.engine_thread import EngineThread, Look, needs_of
from p2pfl.runtime.hearing import Hearing
from p2pfl.runtime.overview import software
from p2pfl.runtime.parts import Setup
from p2pfl.runtime.status import Status
from p2pfl.runtime.watch import Lookout
from p2pfl.runtime.witness import Witness
from p2pfl.storage.disk import free_bytes

log = logging.getLogger("p2pfl")
notice = logging.getLogger("p2pfl.notice")

LEAST_LINE_S = 0.1
LOOKING_SHARE = 0.01
"""The share of one processor for measuring the distance to neighbors: of a large model not every second."""


class Teller:
    """Calls `on_line`, at most ten times a second while rounds go on, and measures the distance to the neighbors now
    and then. `was_stopped` says whether the node was asked to end. `sketched`: each line has a sketch of the model.
    """

    def __init__(
        self,
        on_line: Callable[[NodeLine], None],
        status: Status,
        thread: EngineThread,
        was_stopped: Callable[[], bool],
        *,
        sketched: bool,
    ) -> None:
        self.on_line = on_line
        self.status = status
        self.thread = thread
        self.was_stopped = was_stopped
        self.sketched = sketched
        shop = status.workshop
        self.untold = own_classes(shop.learner) if sketched and "local" not in shop.withheld else None
        """The classes in this node's data, for a launcher on this machine, which compares them."""
        self.last_line_at = self.look_again_at = float("-inf")

    def line(self) -> NodeLine:
        line = self.status.line()
        if self.was_stopped() and line.phase == Phase.FINISHED.value:
            line.phase = "stopped"
        if self.sketched:
            line.sketch = self.status.workshop.sketched
            line.classes, self.untold = self.untold, None
        return line

    def tell(self) -> None:
        self.on_line(self.line())

    def measured(self) -> None:
        """The node has tested its model."""
        now = time.monotonic()
        if now - self.last_line_at >= LEAST_LINE_S:
            self.last_line_at = now
            self.look()
            self.tell()

    def closed(self, seen: ClosedRound) -> None:
        """Closing rounds are few and show a launcher how fast the nodes come together: each has a line of its own."""
        if self.sketched:
            # It may come when the node has gone on, but never after its last line.
            line = self.line()
            line.phase, line.sketch, line.closed = Phase.CLOSING.value, seen.sketch, seen
            self.on_line(line)

    def look(self) -> None:
        """A float is written in one step: no lock is needed between the threads."""
        if time.monotonic() >= self.look_again_at:
            self.thread.jobs.put(Look(partial(self._see, self.status.heard)))

    def _see(self, heard: list[int], engine: Engine) -> None:
        began = time.thread_time()
        self.status.neighbor_distance = engine.neighbor_distance(heard)
        self.look_again_at = time.monotonic() + (time.thread_time() - began) / LOOKING_SHARE

    def say_who_is_missing(self, start_wait_s: float) -> None:
        """In the log, if the node waits for neighbors at its start, at most `start_wait_s` once one is there."""
        core = self.status.core
        missing = [self.status.name_of(peer) for peer, edge in core.edges.items() if not edge.is_open]
        if not missing or core.rounds.phase is not Phase.WAITING:
            return
        if len(missing) == len(core.edges):
            log.warning("no neighbor is there yet (%s): nothing is trained until one is", ", ".join(missing))
        else:
            text = "no session yet with %s; starts without them after at most %g s"
            log.warning(text, ", ".join(missing), start_wait_s)


def make_display(
    setup: Callable[[], Setup], driver: Driver, thread: EngineThread, links: Links, teller: Teller
) -> Display:
    """What this node shows of itself and of the others. `setup` is asked anew: its federation may change."""
    own, engine = setup(), thread.engine
    needs = needs_of(engine.state, own.durability, engine.codecs, engine.method)
    watch = Lookout(
        core=driver.core,
        feed=driver.feed,
        raise_alarm=driver.alarm,
        room_bytes=partial(free_bytes, own.node.state_dir),
        snapshot_bytes=needs.snapshot_bytes,
        software=software(),
        began_at=time.monotonic(),
        measures=lambda: driver.workshop.measures,
        losses=driver.workshop.losses,
    )
    hearing = Hearing(links.came)

    def send(peer: int, message: VitalsTold, *, urgent: bool = False) -> bool:
        return links.sides.say(peer, VITALS, message, if_free=not urgent)

    driver.presence.silent_s = hearing.silent_s
    display = Display(
        federation=lambda: setup().federation,
        own=own.member.index,
        identity=own.identity,
        status=teller.status,
        line=teller.line,
        watch=watch,
        hearing=hearing,
        send=send,
        witness=None if driver.budget is None else Witness(driver.budget, thread),
    )
    links.sides.add(Feeding(channel=VITALS, handler=display))
    return display


def page_address(node: NodeConfig, page: StatusPage | None) -> str | None:
    """Where this machine finds the page, as host:port."""
    if page is None or node.status_listen is None:
        return None
    return whereabouts.address_at(node.status_listen, page.port)


async def open_page(
    node: NodeConfig, status: Status, display: Display, until_over: AsyncExitStack
) -> StatusPage | None:
    """None where the node has none. The link for others than this machine has a token, which the log tells."""
    if node.status_listen is None:
        return None

    def full() -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(status.full())
        return found | {"software": software(), "standing_alarms": display.feed.kinds}

    token = whereabouts.page_token(node.state_dir)
    page = StatusPage(node.status_listen, full, site=display.overview, names=node.status_names, token=token)
    await until_over.enter_async_context(page)
    address = page_address(node, page)
    log.info("page: http://%s/", address)
    log.info("status: http://%s/status", address)
    for host in page.others_hosts():
        notice.info("page for others: http://%s:%d/#%s", host, page.port, token)
    return page
