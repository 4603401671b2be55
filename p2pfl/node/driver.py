"""A thin shell around the core: it supplies real time and carries out effects.

The core runs on the event loop, the engine in its own thread, training and evaluation in another, so that a large
exchange never stalls the loop and gossip never stalls training.

The core goes on as soon as the engine has computed; a Request or Reply leaves once the records up to it are durable.
So does Done, because a neighbor that has heard it waits for nothing more. Other messages leave at once: they only say
where this end stands, and are judged again in each session. A node holds at most one Request or Reply for each
neighbor, however long the disk stalls.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import suppress

from p2pfl.core.core import Algorithm
from p2pfl.core.events import (
    Alarm,
    ChangeEdges,
    CloseSession,
    Effect,
    Event,
    Finish,
    MessageReceived,
    RoundCommitted,
    Send,
    SessionClosed,
    SessionOpened,
    Started,
    StartRound,
    StopRequested,
    StorageFailed,
)
from p2pfl.core.messages import Done, Message, Reply, Request
from p2pfl.core.settings import Phase
from p2pfl.errors import LearningError
from p2pfl.limits import DISK_DRAIN_S, FIRST_ALARMS, LATER_ALARMS
from p2pfl.net.link import MALFORMED, SILENT
from p2pfl.net.links import Links
from p2pfl.node.engine_thread import EngineThread, Order
from p2pfl.node.learner_runner import LocalRounds
from p2pfl.node.status import Feed, Presence
from p2pfl.plugins import describe_failure
from p2pfl.reporting.alarms import LOST

DRAINS = 100


class DurableOutbox:
    """The messages to all neighbors, in order. Flushes are counted as in `Flushing`."""

    def __init__(self, send: Callable[[Send], None]) -> None:
        self._send = send
        self._promised = 0
        """The flush that messages from now on depend on."""
        self._flushed = 0
        self._held: deque[tuple[int, Send]] = deque()

    @property
    def waiting(self) -> int:
        """The number of messages that wait."""
        return len(self._held)

    def promise(self, flush: int) -> None:
        self._promised = max(self._promised, flush)

    def put(self, effect: Send) -> None:
        if self._promised <= self._flushed or not isinstance(effect.message, Request | Reply | Done):
            self._send(effect)
        elif not any(_is_repeated(effect, each) for _, each in self._held):
            self._held.append((self._promised, effect))

    def release(self, flush: int) -> None:
        """Send what depends on this flush or an earlier one, which is done."""
        self._flushed = max(self._flushed, flush)
        while self._held and self._held[0][0] <= self._flushed:
            self._send(self._held.popleft()[1])

    async def drain(self) -> None:
        """Wait until all has left, or for `DISK_DRAIN_S`."""
        for _ in range(DRAINS):
            if not self._held:
                return
            await asyncio.sleep(DISK_DRAIN_S / DRAINS)

    def forget(self) -> None:
        """Drop what is held: the disk has refused, and the sessions end."""
        self._held.clear()


def _is_repeated(effect: Send, held: Send) -> bool:
    """Return True for a message that is repeated while it waits: it leaves once."""
    if (held.peer, held.session) != (effect.peer, effect.session):
        return False
    return held.message is effect.message or (isinstance(effect.message, Done) and isinstance(held.message, Done))


log = logging.getLogger("p2pfl")

NOTICES = frozenset(
    {
        "joined",
        "storage-restored",
        "enough-neighbors",
        "kept-again",
        "looks-alike",
        "member-ended",
        "probation",
        "trained-enough",
        "budget-begun",
        "budget-spent",
        "waits-for",
    }
)
"""Kinds of notices about good or planned events, which are not alarms."""
MIXES_ONLY = frozenset({Phase.CLOSING, Phase.LINGERING, Phase.FINISHED})
"""The phases in which a node does not train, but for closing rounds that do."""


class Driver:
    """Carries events to the core and effects from it until the core finishes.

    `name_of` turns a member index into a name for the log; `on_amended` is called when a change of the federation takes
    effect.
    """

    def __init__(
        self,
        core: Algorithm,
        engine_thread: EngineThread,
        local: LocalRounds,
        *,
        name_of: Callable[[int], str],
        on_amended: Callable[[], None] = lambda: None,
    ) -> None:
        self.core = core
        self.engine_thread = engine_thread
        self.local = local
        local.node = self
        self.name_of = name_of
        self.on_amended = on_amended
        self.links: Links
        self.held = DurableOutbox(lambda effect: self.links.send(effect.peer, effect.session, effect.message))
        self.loop = asyncio.get_running_loop()
        self.finished = asyncio.Event()
        self.failure: BaseException | None = None
        self.alarms: Counter[str] = Counter()
        self.feed = Feed(name_of)
        self.presence = Presence(
            core, name_of=name_of, on_alarm=self._raise_alarm, now=self.loop.time(), feed=self.feed
        )
        self._alarm_counts: Counter[tuple[str, int | None]] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    # -- in -----------------------------------------------------------------------------------------------------------

    def start(self, links: Links) -> None:
        self.links = links
        self.take(Started())

    def session_opened(self, peer: int, session: int) -> None:
        self.presence.opened(peer, self.loop.time())
        self.take(SessionOpened(peer=peer, session=session))

    def session_closed(self, peer: int, session: int, reason: str) -> None:
        self.presence.ended(peer, reason, self.loop.time())
        malformed = reason.removeprefix(MALFORMED) if reason.startswith(MALFORMED) else ""
        self.take(SessionClosed(peer=peer, session=session, malformed=malformed))

    def message_received(self, peer: int, session: int, message: Message) -> None:
        self.take(MessageReceived(peer=peer, session=session, message=message))

    def stop(self) -> None:
        """Stop the node at the user's request: end cleanly, keep a snapshot."""
        self.take(StopRequested())

    def deliver(self, events: list[Event], flush: int) -> None:
        """Accept events from the engine's thread. Messages that follow from them leave once that flush is done."""
        self.loop.call_soon_threadsafe(self._take_all, events, flush)

    def flushed(self, flush: int) -> None:
        """Send what has waited for this flush; called in any thread."""
        with suppress(RuntimeError):  # the loop has ended, and nothing is sent any more
            self.loop.call_soon_threadsafe(self.held.release, flush)

    def fail(self, error: BaseException) -> None:
        """End the node, from any thread, because of our own bug or a learner that calls exit. Neither may look like a
        normal finish.
        """
        if isinstance(error, SystemExit | asyncio.CancelledError):
            error = LearningError(f"the task would have ended the process: {describe_failure(error)}")
        self.loop.call_soon_threadsafe(self._fail, error)

    def take(self, event: Event) -> None:
        """Hand one event to the core and carry out what it decides."""
        if isinstance(event, RoundCommitted) and event.failed:
            self.local.restore_learner()
        effects = self.core.handle(event, self.loop.time())
        self.engine_thread.in_step = self.core.phase in MIXES_ONLY
        self.carry_out(effects)
        only_mixes = self.core.phase is Phase.CLOSING and not self.core.settings.closing_trains
        if isinstance(event, RoundCommitted) and only_mixes:
            self.local.look_between_rounds(event.version, self.core.facts.closing_rounds_done)

    def _take_all(self, events: list[Event], flush: int) -> None:
        self.held.promise(flush)
        for event in events:
            if isinstance(event, StorageFailed):
                self.held.forget()
            self.take(event)

    def _fail(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self.finished.set()

    # -- out ----------------------------------------------------------------------------------------------------------

    def carry_out(self, effects: Iterable[Effect]) -> None:
        """Carry out what the algorithm has decided, on the event loop."""
        for effect in effects:
            self._carry_out(effect)
        self._schedule()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send():
                self.held.put(effect)
            case CloseSession(peer=peer, session=session, reason=reason, rest_s=rest_s):
                self.links.close(peer, session, reason, rest_s)
            case StartRound():
                self.local.start(effect)
            case Alarm():
                self._raise_alarm(effect)
            case Finish():
                self.finished.set()
            case ChangeEdges():
                self.engine_thread.jobs.put(effect)
                self.presence.follow(self.loop.time())
                for about in [about for about in self._alarm_counts if about[1] not in (None, *self.core.peers)]:
                    del self._alarm_counts[about]
                self.on_amended()
            case _:
                self.engine_thread.jobs.put(effect)

    def _schedule(self) -> None:
        """Set the one timer to the core's next deadline."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self.core.deadline()
        if deadline is not None and not self.finished.is_set():
            self._timer = self.loop.call_at(deadline, self._wake)

    def _wake(self) -> None:
        self.carry_out(self.core.wake(self.loop.time()))

    def alarm(self, kind: str, peer: int | None, text: str) -> None:
        """Raise an alarm from the network, or from a feature that watches this node."""
        if kind == SILENT and self.feed.stands(LOST, peer):
            return  # one alarm for one cause
        self._raise_alarm(Alarm(kind=kind, peer=peer, text=text))

    def _raise_alarm(self, alarm: Alarm) -> None:
        """Count every alarm; log the first of a kind, then fewer and fewer, so that no neighbor can fill the disk."""
        planned = alarm.notice or alarm.kind in NOTICES
        if planned:
            self.feed.settle(alarm.kind, alarm.peer)
        else:
            self.alarms[alarm.kind] += 1
            self.feed.stand(alarm.kind, alarm.peer, alarm.text)
        self._alarm_counts[alarm.kind, alarm.peer] += 1
        times = self._alarm_counts[alarm.kind, alarm.peer]
        hundreds, rest = divmod(times, LATER_ALARMS)
        if times <= FIRST_ALARMS or (rest == 0 and hundreds.bit_count() == 1):
            self.feed.tell(alarm.kind, alarm.peer, alarm.text, wrong=not planned, times=times)

    # -- the end ------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Stop both threads. The engine finishes its queued jobs; the learner's work is abandoned."""
        self.local.close()
        if self._timer is not None:
            self._timer.cancel()
        if self.engine_thread.is_alive():
            self.engine_thread.jobs.put(Order.QUIT)
            await asyncio.to_thread(self.engine_thread.join)
