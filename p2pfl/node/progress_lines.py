"""Lines of progress of a node, for a launcher or a program."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

from p2pfl.core.facts import Phase
from p2pfl.engine.arithmetic import neighbor_distance
from p2pfl.engine.engine import Engine
from p2pfl.learn.doubts import own_classes
from p2pfl.node.engine_thread import EngineThread, Look
from p2pfl.node.status import Status
from p2pfl.reporting.status import ClosedRound, NodeLine

log = logging.getLogger("p2pfl")
notice = logging.getLogger("p2pfl.notice")

LEAST_LINE_S = 0.1
LOOKING_SHARE = 0.01
"""The share of one processor for measuring the distance to neighbors: that of a large model is not measured every
second.
"""


class ProgressLines:
    """Calls `on_line` at most ten times a second, and measures the distance to the neighbors now and then.

    `was_stopped` says whether the node was asked to end. `sketched`: each line has a sketch of the model.
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
        """The classes in this node's data, which a launcher on this machine compares; None once they were sent."""
        self.last_line_at = self.look_again_at = float("-inf")

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
        """Send a line for a closing round: these are few, and show a launcher how fast the nodes come together."""
        if self.sketched:
            # It may come when the node has gone on, but never after its last line.
            line = self.line()
            line.phase, line.sketch, line.closed = Phase.CLOSING.value, seen.sketch, seen
            self.on_line(line)

    def look(self) -> None:
        """Measure the distance to the neighbors.

        A float is written in one step: no lock is needed between the threads.
        """
        if time.monotonic() >= self.look_again_at:
            self.thread.jobs.put(Look(partial(self._see, self.status.heard_neighbors)))

    def _see(self, neighbors: list[int], engine: Engine) -> None:
        began = time.thread_time()
        self.status.neighbor_distance = neighbor_distance(engine.state, neighbors)
        self.look_again_at = time.monotonic() + (time.thread_time() - began) / LOOKING_SHARE

    def say_who_is_missing(self, start_wait_s: float) -> None:
        """Log which neighbors the node waits for at its start, at most `start_wait_s` once one is connected."""
        core = self.status.core
        missing = [self.status.name_of(peer) for peer, edge in core.edges.items() if not edge.is_open]
        if not missing or core.phase is not Phase.WAITING:
            return
        if len(missing) == len(core.edges):
            log.warning("no neighbor is connected yet (%s): training starts once one is", ", ".join(missing))
        else:
            text = "no session yet with %s; starts without them after at most %g s"
            log.warning(text, ", ".join(missing), start_wait_s)
