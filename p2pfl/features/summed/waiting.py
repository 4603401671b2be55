"""How a node whose rounds are sums waits: for news of the others, or a little while after a refused sum."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Container, Iterable

from p2pfl.core.facts import Phase
from p2pfl.features.summed.common_state import CommonState
from p2pfl.features.summed.summed_rounds import SummedRounds
from p2pfl.node.feature import NodeView

notice = logging.getLogger("p2pfl.notice")

REST_S, MOST_REST_S = 0.5, 30.0
"""The rest after a refused sum: at first, and at most."""
TELL_S = 15.0
"""How long a wait lasts before it is told, and told again."""


class RoundWaiting:
    """`whom` is what the node waits for, in words; empty: for nothing. `tried_s` is how long the latest refused sum was
    tried: a rest is no longer, or nodes that try at different times would not meet.
    """

    def __init__(self, node: NodeView, course: SummedRounds, state: CommonState) -> None:
        self._node, self._course, self._state = node, course, state
        self._rest_s = REST_S
        self.whom, self.tried_s = "", 0.0

    def names(self, members: Iterable[int], without: Container[int] = ()) -> str:
        there = {member.index: member.name for member in self._node.setup().federation.present}
        return ", ".join(there[member] for member in members if member in there and member not in without)

    @property
    def has_rested_long(self) -> bool:
        return self._rest_s > REST_S

    async def rest(self) -> None:
        """Wait a little, longer each time; not once the others are ahead."""
        rest_s, self._rest_s = self._rest_s, min(2 * self._rest_s, MOST_REST_S)
        await self.until(self._state.is_behind, lambda: "others", max(REST_S, min(rest_s, self.tried_s)))

    def rested(self) -> None:
        """The next rest is a short one again."""
        self._rest_s = REST_S

    async def until(self, holds: Callable[[], bool], for_whom: Callable[[], str], limit_s: float | None = None) -> bool:
        """Wait for news until something holds; tell now and then for whom. False: it did not within `limit_s`."""
        began = told = time.monotonic()
        while not holds():
            now = time.monotonic()
            left = TELL_S if limit_s is None else began + limit_s - now
            if left <= 0:
                return False
            if limit_s is None:
                self._course.stage, self.whom = Phase.WAITING, for_whom()
                if now >= told + TELL_S:
                    told = now
                    notice.info("waiting for %s", self.whom)
            self._state.talk.news.clear()
            try:
                await asyncio.wait_for(self._state.talk.news.wait(), min(left, 1.0))
            except TimeoutError:
                continue
        self.whom = ""
        return True
