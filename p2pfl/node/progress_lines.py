"""Progress lines from a node, for a launcher or a program."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from functools import partial

from p2pfl.config.model import FederationConfig
from p2pfl.core.edge import Edge
from p2pfl.core.facts import Phase
from p2pfl.core.joining import is_behind
from p2pfl.engine.arithmetic import neighbor_distance
from p2pfl.engine.engine import Engine
from p2pfl.learn.doubts import own_classes
from p2pfl.node.engine_thread import EngineThread, Look
from p2pfl.node.status import Status
from p2pfl.reporting.status import ClosedRound, NodeLine

log = logging.getLogger("p2pfl")
notice = logging.getLogger("p2pfl.notice")

NONE_YET = "no neighbor is connected yet ({names}): training starts once one is"
SOME_MISSING = "no session yet with {names}; starts without them after at most {wait_s:g} s"
FARTHER_MISSING = (
    "all neighbors are connected, but a member farther away is not, one or more of these: {names}; "
    "starts without it after at most {wait_s:g} s"
)

LEAST_LINE_S = 0.1
LOOKING_SHARE = 0.01
"""The fraction of one processor for measuring the distance to neighbors; for a large model this is not done every
second.
"""


class ProgressLines:
    """Calls `on_line` at most ten times a second, and measures the distance to the neighbors now and then.

    `was_stopped` says whether the node was asked to end. If `sketched`, each line has a sketch of the model.
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
        self.unsent_classes = own_classes(shop.learner) if sketched and "local" not in shop.figures.withheld else None
        """Classes in this node's data, which a launcher on this machine compares; None once they have been sent."""
        self.last_line_at = self.look_again_at = float("-inf")
        self._told_text = ""
        """The latest line about whom the node waits for, without the names."""

    def line(self) -> NodeLine:
        line = self.status.line()
        if self.was_stopped() and line.phase == Phase.FINISHED.value:
            line.phase = "stopped"
        if self.sketched:
            line.sketch = self.status.workshop.figures.sketched
            line.classes, self.unsent_classes = self.unsent_classes, None
        return line

    def tell(self) -> None:
        self.on_line(self.line())

    def measured(self) -> None:
        """Send a line after a test of the model."""
        now = time.monotonic()
        if now - self.last_line_at >= LEAST_LINE_S:
            self.last_line_at = now
            self.look()
            self.tell()

    def closed(self, seen: ClosedRound) -> None:
        """Send a line for a closing round; there are few, and they show a launcher how fast the nodes converge."""
        if self.sketched:
            # It may be called after the node has moved on, but never after its last line.
            line = self.line()
            line.phase, line.sketch, line.closed = Phase.CLOSING.value, seen.sketch, seen
            self.on_line(line)

    def look(self) -> None:
        """Measure the distance to the neighbors.

        A float is written in one step, so the threads need no lock.
        """
        if time.monotonic() >= self.look_again_at:
            self.thread.jobs.put(Look(partial(self._see, self.status.heard_neighbors)))

    def _see(self, neighbors: list[int], engine: Engine) -> None:
        began = time.thread_time()
        self.status.neighbor_distance = neighbor_distance(engine.state, neighbors)
        self.look_again_at = time.monotonic() + (time.thread_time() - began) / LOOKING_SHARE

    def say_who_is_missing(self, federation: FederationConfig, own: int) -> None:
        """Log whom the node `own` is waiting for at startup: neighbors, or members that those wait for.

        Each kind of line is logged once, so this may be called every second.
        """
        core = self.status.core
        if core.phase is not Phase.WAITING:
            return
        behind = [edge for edge in core.edges.values() if is_behind(edge, core.facts.level or 0)]
        missing = {edge.peer for edge in behind if not edge.is_open}
        if not behind:
            return
        text = NONE_YET if len(missing) == len(core.edges) else SOME_MISSING if missing else FARTHER_MISSING
        if text != self._told_text:
            self._told_text = text
            awaited = missing or _awaited_by(behind, federation, own)
            names = ", ".join(map(self.status.name_of, sorted(awaited)))
            log.warning("%s", text.format(names=names, wait_s=federation.gossip.start_wait_s))


def _awaited_by(neighbors: Iterable[Edge], federation: FederationConfig, own: int) -> set[int]:
    """Return the members for which these connected neighbors of `own` may be waiting.

    At level h, all members within h - 1 hops have all their neighbors: the missing one is h + 1 hops away.
    """
    pairs = (*federation.edges, *((b, a) for a, b in federation.edges))
    found: set[int] = set()
    for edge in neighbors:
        around = reached = {edge.peer}
        for _ in range(int(edge.progress.level) + 1):
            around = {b for a, b in pairs if a in around} - reached
            reached = reached | around
        found |= around - {own}
    return found - {b for a, b in pairs if a == own} or found
