"""One node's sums over its sessions: carries out what the protocol decides, and keeps its time.

    talk = SumTalk(sums, links.sides.say, keep=kept.add)
    outcome = await talk.sum(label, values, terms)      SumDone or Refused
    await talk.farewell(outcome.members)                before the sessions are closed

It is the handler of the channel `sums/1`, on the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import assert_never

from p2pfl.core.limits import EngineTime
from p2pfl.errors import PeerFault
from p2pfl.features.sums.channel import CHANNEL, Carried, Credit, Farewell, Incoming, Outgoing, Piece, SendMessage
from p2pfl.features.sums.masks import Words
from p2pfl.features.sums.protocol import Sums
from p2pfl.features.sums.sum_effects import Effect, HeldUp, Keep, Refused, SendToNeighbor, SumDone
from p2pfl.features.sums.sum_messages import Message

SumEnding = SumDone | Refused
STAY_S, GONE_S = 30.0, 5.0
"""The longest stay for neighbors that still lack their sum: while there is a session, and without one."""
LAST_S = 0.5
"""The time for the last messages to arrive; it does no harm if they do not."""
MOST_WAIT_S = 5.0
"""The longest time for which a neighbor that has used up its share of this node's time gets no credit."""
HELD_UP = "sum-held-up"
"""The kind of alarm about a member that holds sums up."""


@dataclass(frozen=True, slots=True)
class SessionEnds:
    """Both directions of one session."""

    say: Callable[[Carried], bool]
    outgoing: Outgoing
    incoming: Incoming


class SumTalk:
    """`keep` writes down durably that data with this digest are in a sum of these members. `alarm` is told who holds
    sums up. `meter` counts the seconds of work of this thread.
    """

    def __init__(
        self,
        sums: Sums,
        say: SendMessage,
        *,
        keep: Callable[[bytes, frozenset[int]], object],
        alarm: Callable[[str, int | None, str], object] = lambda *_: None,
        meter: Callable[[], float] = time.thread_time,
    ) -> None:
        self._sums, self._say, self._keep, self._alarm, self._meter = sums, say, keep, alarm, meter
        self._work = EngineTime()
        """What each neighbor's messages have cost. Who has used up its share waits for credit."""
        self._ends: dict[int, SessionEnds] = {}
        self._entries: int | None = None
        """The entries of the latest sum that was asked for here."""
        self._outcome: asyncio.Future[SumEnding] | None = None
        self._failure: Exception | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_leaving = False
        self._seen: set[int] = set()
        """The neighbors that have had a session with this node."""
        self._gone: set[int] = set()
        """The neighbors that have said farewell."""
        self._moved = asyncio.Event()
        """Set when a session begins or ends, and by a farewell."""

    @property
    def came(self) -> frozenset[int]:
        """The members whose keys are here, this one among them."""
        return frozenset(self._sums.records.latest)

    async def sum(
        self,
        label: str,
        values: Words,
        terms: bytes,
        *,
        data: bytes | None = None,
        only: frozenset[int] = frozenset(),
    ) -> SumEnding:
        """Sum a vector with those of the others, (d,) uint64; the arguments as of `Sums.ask`.

        Raises ValueError: a sum is going on; StorageError: what was signed could not be written down.
        """
        if self._failure is not None:
            raise self._failure
        loop = asyncio.get_running_loop()
        effects = self._sums.ask(label, values, terms, loop.time(), data=data, only=only)
        self._entries = values.size
        outcome: asyncio.Future[SumEnding] = loop.create_future()
        self._outcome = outcome
        self._guarded(lambda: self._carry_out(effects))
        return await outcome

    async def farewell(self, members: Collection[int]) -> None:
        """Stay until those of these members that are neighbors have all they need too, at most for half a minute.

        No sum may be asked for after that.
        """
        self._is_leaving = True
        for ends in self._ends.values():
            ends.say(Farewell())
        began = self._now()
        while waiting := self._seen.intersection(members) - self._gone:
            end = began + (GONE_S if self._ends.keys().isdisjoint(waiting) else STAY_S)
            if self._now() >= end:
                break
            self._moved.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(end - self._now()):
                    await self._moved.wait()
        await asyncio.sleep(LAST_S)

    def close(self) -> None:
        """Stop the clock."""
        if self._timer is not None:
            self._timer.cancel()

    def opened(self, peer: int) -> None:
        def say(message: Carried) -> bool:
            return self._say(peer, CHANNEL, message)

        self._ends[peer] = ends = SessionEnds(say, Outgoing(say), Incoming())
        self._seen.add(peer)
        self._work.begin(peer)
        self._moved.set()
        if self._is_leaving:
            ends.say(Farewell())
        self._guarded(lambda: self._carry_out(self._sums.opened(peer, self._now())))

    def closed(self, peer: int) -> None:
        if self._ends.pop(peer, None) is not None:
            self._work.pause(peer)
            self._moved.set()
            self._guarded(lambda: self._carry_out(self._sums.closed(peer, self._now())))

    def hear(self, peer: int, message: Carried) -> None:
        """Raises PeerFault."""
        self._guarded(lambda: self._hear(peer, message))

    def _hear(self, peer: int, message: Carried) -> None:
        ends = self._ends[peer]
        if isinstance(message, Credit):
            ends.outgoing.credit(message)
            return
        if isinstance(message, Farewell):
            self._gone.add(peer)
            self._moved.set()
            return
        is_due, began = ends.incoming.count(message), self._meter()
        whole = ends.incoming.take(message, self._entries) if isinstance(message, Piece) else message
        if whole is not None:
            self._take(peer, whole)
        self._work.spend(peer, self._meter() - began, self._now())
        if is_due:
            if self._work.wait_s(peer, self._now()) > 0.0:
                self._alarm(HELD_UP, peer, "its messages take more of this node's time than its share")
            self._give_credit(peer, ends)

    def _give_credit(self, peer: int, ends: SessionEnds) -> None:
        """Let a neighbor send more, as soon as it has not used up its share of this node's time."""
        wait_s = min(self._work.wait_s(peer, self._now()), MOST_WAIT_S)
        if self._ends.get(peer) is not ends or self._failure is not None:
            return
        if wait_s > 0.0:
            asyncio.get_running_loop().call_later(wait_s, self._give_credit, peer, ends)
        else:
            ends.say(ends.incoming.credit())

    def _take(self, peer: int, message: Message) -> None:
        self._carry_out(self._sums.hear(peer, message, self._now()))

    def _wake(self) -> None:
        self._timer = None
        self._guarded(lambda: self._carry_out(self._sums.wake(self._now())))

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendToNeighbor():
                    self._send(effect.peer, effect.message)
                case Keep():
                    self._keep(effect.data, effect.members)
                case HeldUp():
                    self._alarm(HELD_UP, effect.member, effect.why)
                case SumDone() | Refused():
                    self._end(effect)
                case _:
                    assert_never(effect)
        self._set_clock()

    def _send(self, peer: int, message: Message) -> None:
        ends = self._ends.get(peer)
        if ends is not None:
            ends.outgoing.put(message)

    def _end(self, outcome: SumEnding) -> None:
        waiting, self._outcome = self._outcome, None
        if waiting is not None and not waiting.done():
            waiting.set_result(outcome)

    def _set_clock(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sums.deadline is not None:
            self._timer = asyncio.get_running_loop().call_at(self._sums.deadline, self._wake)

    def _guarded(self, act: Callable[[], None]) -> None:
        """A failure of ours ends the sum, and this node's part in all sums: it is raised where the sum is awaited."""
        if self._failure is not None:
            return
        try:
            act()
        except PeerFault:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            self._failure = error
            self.close()
            if self._outcome is not None and not self._outcome.done():
                self._outcome.set_exception(error)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
