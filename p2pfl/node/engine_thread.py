"""The engine's thread: operations in, events out, in order, and their changes to the log.

The answers to exchanges are delivered at once, with the number of the flush that the messages they lead to must wait
for (`DurableOutbox` in `driver`). Flushes run in another thread, one at a time, so that a slow disk delays messages and
not rounds; a flush makes durable all records that were appended before it began, and all operations that come meanwhile
share the next one. Once a node only mixes (`in_step`), they wait, too: closing rounds that outran the disk would mix
with nobody. Other urgent changes are on disk before their answer is delivered. If the disk refuses, the node is told,
what waits is not sent, and a full snapshot is retried later. `Needs` is the disk space that a state needs.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from msgspec.structs import force_setattr

from p2pfl.config.model import NodeConfig
from p2pfl.core.events import (
    EngineResult,
    Event,
    Operation,
    RequestApplied,
    RequestFrozen,
    RoundRefused,
    StorageFailed,
    StorageRestored,
)
from p2pfl.engine.changes import Change, entry, image
from p2pfl.engine.engine import Engine
from p2pfl.engine.state import Codecs, NodeState
from p2pfl.errors import StorageError, UserError
from p2pfl.learn.privacy import Spend
from p2pfl.learn.privacy.accounting import Ledger
from p2pfl.limits import LEAST_LOG_BYTES, LOG_MULTIPLE, USUAL_LOG_BYTES
from p2pfl.methods import Method
from p2pfl.storage import Durability, Flush, State, Store, disk
from p2pfl.storage.store import size_bytes


class Flushing:
    """The flushes that operations ask for, counted from 1. The engine's thread owns it.

    `tell` is called with the number of requests that are answered, `on_end` once a flush has ended: both may be called
    in the flushing thread.
    """

    def __init__(self, store: Store, *, tell: Callable[[int], None], on_end: Callable[[], None]) -> None:
        self._store = store
        self._tell, self._on_end = tell, on_end
        self.asked = 0
        """The number of the latest request: what its records allow to be sent must wait for its flush."""
        self._begun = 0
        """The latest request that a flush has begun to answer."""
        self._answered = 0
        """The latest request whose records are on disk. A refused flush answers none; the next snapshot does."""
        self._rounds = 0
        """The node's rounds in the records of the flush that is running."""
        self._running: tuple[Flush, int] | None = None
        self._work: queue.SimpleQueue[tuple[Flush, int] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def is_owed(self) -> bool:
        """True if a request may not be answered yet."""
        return self._answered < self.asked

    def ask(self) -> None:
        self.asked += 1

    def begin(self, rounds: int) -> None:
        """Begin a flush if one is asked for and none is running. Raises StorageError: the disk has refused before."""
        if self._running is not None or self._begun == self.asked:
            return
        flush = self._store.begin_flush()
        if flush is None:
            self.answer_all()
            return
        self._begun, self._rounds, self._running = self.asked, rounds, (flush, self.asked)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="flush", daemon=True)
            self._thread.start()
        self._work.put(self._running)

    def end(self) -> int:
        """Note that the running flush has ended; return the rounds that it brought to the disk, 0 if it did not.

        Raises StorageError if the disk refused it, unless that has been noticed before.
        """
        (flush, asked), self._running = self._running or (None, 0), None
        self._store.settle()
        if flush is None or flush.error is not None:  # a snapshot has it all, or is tried already
            return 0
        self._answered = max(self._answered, asked)
        return self._rounds

    def answer_all(self) -> None:
        """Note that all records are on disk, by a flush or a snapshot in the caller's thread."""
        if self.is_owed:
            self._begun = self._answered = self.asked
            self._tell(self.asked)

    def close(self) -> None:
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            flush, asked = work
            flush.run()
            if flush.error is None:
                self._tell(asked)
            self._on_end()


log = logging.getLogger("p2pfl")

RETRY_S = 5.0
LOOK_S = 1.0
"""How often a growing log's limit is adapted to the free space, in seconds."""


@dataclass(frozen=True, slots=True)
class Look:
    """Call `use` with the engine between two operations; it must copy what it keeps."""

    use: Callable[[Engine], None]


@dataclass(frozen=True, slots=True)
class Pay:
    """Call `use` once the cost of a round is on disk; otherwise the event RoundRefused says why not.

    `wrong` gets the current ledger and returns an objection to one more round.
    """

    spend: Spend
    wrong: Callable[[Ledger | None], RoundRefused | None]
    use: Callable[[Engine], None]


@dataclass(frozen=True, slots=True)
class Correct:
    """Replace the ledger with the result of `correct`, and make that durable at once."""

    correct: Callable[[Ledger | None], Ledger | None]


class Order(Enum):
    CHECKPOINT = auto()
    """Write a full snapshot."""
    FLUSH_ENDED = auto()
    QUIT = auto()


Job = Operation | Look | Pay | Correct | Order


class Listener(Protocol):
    """Receives news from the thread; the methods are called in that thread, `flushed` also in the one that flushes.

    Messages that follow from a batch of events depend on flush number `flush`; `flushed` reports that this flush, and
    all before it, are done; `fail` reports a bug of ours that ended the thread.
    """

    def deliver(self, events: list[Event], flush: int) -> None: ...
    def flushed(self, flush: int) -> None: ...
    def fail(self, error: BaseException) -> None: ...


class SecondLedger(Protocol):
    """The second record of paid rounds, written before the log. Each method raises StorageError if the disk refuses.

    `cover` writes a ledger, unless the file already has as much. `write` is durable when it returns; `retry` writes the
    ledger that the disk refused.
    """

    def cover(self, ledger: Ledger) -> None: ...
    def write(self, ledger: Ledger) -> None: ...
    def retry(self) -> None: ...


class EngineThread(threading.Thread):
    """The thread that runs the engine.

    `extra` is added to the header of every snapshot. `second_ledger` records paid rounds before the log does.
    """

    def __init__(
        self,
        engine: Engine,
        store: Store,
        *,
        durability: Durability,
        extra: dict[str, object],
        second_ledger: SecondLedger | None = None,
    ) -> None:
        super().__init__(name="engine", daemon=True)
        self.engine = engine
        self.store = store
        self.durability = durability
        self.extra = extra
        self.second_ledger = second_ledger
        self.listener: Listener
        """Receives the events; set it before `start`."""
        self.jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self.flushing = Flushing(
            store,
            tell=lambda flush: self.listener.flushed(flush),  # noqa: PLW0108 - there is no listener yet
            on_end=lambda: self.jobs.put(Order.FLUSH_ENDED),
        )
        self.in_step = False
        """True if no answer is delivered before it is on disk, since there is nothing to train meanwhile."""
        self.broken_since: float | None = None
        self.refusal: str | None = None
        """Why the disk does not accept the state; None while it does."""
        self.kept_rounds: int | None = None
        """The round count of the state on disk; None while there is none."""
        self._look_at = float("-inf")
        self._log_limit = 0

    def run(self) -> None:
        try:
            while self._batch():
                pass
        except BaseException as error:  # noqa: BLE001 - a bug in this thread must end the node, not vanish
            self.listener.fail(error)
        finally:
            self.flushing.close()

    def checkpoint(self, state: NodeState) -> None:
        """Write `state` as a new generation. Raises StorageError if the disk refuses."""
        picture = image(state, with_replicas=self.durability == "exchange", copied=False)
        try:
            self.store.checkpoint(State(header=picture.header | self.extra, arrays=picture.arrays, blobs=picture.blobs))
        except StorageError as error:
            self.refusal = str(error)
            raise
        self.refusal, self.kept_rounds = None, state.rounds
        self.flushing.answer_all()

    def _flush(self) -> None:
        """Flush in this thread, after the one that is running."""
        self.store.flush()
        self.flushing.answer_all()
        if self.durability == "exchange":
            self.kept_rounds = self.engine.state.rounds

    def _end_flush(self) -> None:
        self.kept_rounds = max(self.flushing.end(), self.kept_rounds or 0)

    def _batch(self) -> bool:
        """Do all waiting jobs, and begin a flush of what they changed; return False after the last batch."""
        jobs = self._wait()
        events: list[Event] = []
        waits = [self._do(job, events) for job in jobs]
        quits = Order.QUIT in jobs
        if self.broken_since is None:
            if any(waits) or (quits and self.flushing.is_owed):
                self._guard(events, self._flush)
            else:
                self._guard(events, lambda: self.flushing.begin(self.engine.state.rounds))
        self._upkeep(events)
        if events:
            self.listener.deliver(events, self.flushing.asked)
        return not quits

    def _do(self, job: Job, events: list[Event]) -> bool:
        """Do one job; return True if its event must wait for a flush, and not only the messages that follow."""
        match job:
            case Look(use=use):
                use(self.engine)
            case Pay():
                self._pay(job, events)
            case Correct():
                self._correct(job, events)
            case Order.CHECKPOINT:
                self._guard(events, lambda: self.checkpoint(self.engine.state))
            case Order.FLUSH_ENDED:
                self._guard(events, self._end_flush)
            case Order.QUIT:
                pass
            case _:
                return self._operate(job, events)
        return False

    def _wait(self) -> list[Job]:
        """Return all waiting jobs; at least one, unless a failed disk must be retried first."""
        jobs: list[Job] = []
        try:
            jobs.append(self.jobs.get(timeout=None if self.broken_since is None else RETRY_S))
            while True:
                jobs.append(self.jobs.get_nowait())
        except queue.Empty:
            return jobs

    def _operate(self, operation: Operation, events: list[Event]) -> bool:
        begun_s = time.thread_time()
        outcome = self.engine.run(operation)
        change = outcome.change
        if change is not None and self.broken_since is None:
            self._guard(events, lambda: self.store.append(*entry(change)))
        if outcome.event is not None:
            if isinstance(outcome.event, EngineResult):
                # No other code has seen it yet.
                force_setattr(outcome.event, "cost_s", time.thread_time() - begun_s)
            events.append(outcome.event)
        is_sent = isinstance(outcome.event, RequestFrozen | RequestApplied) and not self.in_step
        if outcome.urgent and is_sent and self.durability == "exchange":
            self.flushing.ask()
        return outcome.urgent and not is_sent

    def _pay(self, job: Pay, events: list[Event]) -> None:
        """Pay at once, without the batch's flush: nothing in the round may be computed before it is paid for.

        A payment that cannot be written is still spent: a later snapshot has it, although nothing came of it.
        """
        if self.durability != "exchange":
            raise ValueError("a budget needs a log")
        ledger = self.engine.state.ledger
        refused = job.wrong(ledger)
        if refused is None and ledger is not None and self.broken_since is None and self.second_ledger is not None:
            file, paid = self.second_ledger, ledger.plus(job.spend)
            self._guard(events, lambda: file.cover(paid))
        if refused is None and self.broken_since is None:
            change = self.engine.pay(job.spend)
            self._guard(events, lambda: self._write_now(change))
        if refused is None and self.broken_since is not None:
            refused = RoundRefused(why=f"the disk refuses: {self.refusal}", for_good=False)
        if refused is None:
            job.use(self.engine)
        else:
            events.append(refused)

    def _correct(self, job: Correct, events: list[Event]) -> None:
        state = self.engine.state
        before, state.ledger = state.ledger, job.correct(state.ledger)
        if state.ledger is not None and state.ledger != before:
            corrected = state.ledger
            if self.second_ledger is not None:
                file = self.second_ledger
                self._guard(events, lambda: file.write(corrected))
            self._guard(events, lambda: self.checkpoint(state))

    def _write_now(self, change: Change) -> None:
        self.store.append(*entry(change))
        self._flush()

    def _guard(self, events: list[Event], write: Callable[[], object]) -> None:
        """Write; if the disk refuses, report that before any event of this batch."""
        try:
            write()
        except StorageError as error:
            self.refusal = str(error)
            if self.broken_since is None:
                log.warning("%s; a full snapshot is tried every %g s", error, RETRY_S)
                events.insert(0, StorageFailed())
            self.broken_since = time.monotonic()

    def _upkeep(self, events: list[Event]) -> None:
        """Retry a failed disk, and turn a long log into a snapshot."""
        if self.broken_since is not None:
            if time.monotonic() - self.broken_since < RETRY_S:
                return
            try:
                if self.second_ledger is not None:
                    self.second_ledger.retry()
                self.checkpoint(self.engine.state)
            except StorageError as error:
                self.refusal = str(error)
                self.broken_since = time.monotonic()
            else:
                self.broken_since = None
                events.append(StorageRestored())
        elif self.store.wal_bytes > LEAST_LOG_BYTES and self.store.wal_bytes > self.log_limit():
            self._guard(events, lambda: self.checkpoint(self.engine.state))

    def log_limit(self) -> int:
        """Return the log's size limit, given the room on the disk."""
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_S
            needs = needs_of(self.engine.state, self.durability, self.engine.codecs, self.engine.method)
            with suppress(StorageError):  # then the limit stays as it was
                self._log_limit = needs.log_limit(self.store.room_bytes)
        return self._log_limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The disk space that a state needs.

    `snapshot_bytes` is the maximum size of one snapshot; `logging` says whether there is a log too.
    """

    snapshot_bytes: int
    logging: bool

    @property
    def least_bytes(self) -> int:
        """The minimum room; with less there can be no second snapshot."""
        return disk.least_bytes(self.snapshot_bytes, logging=self.logging)

    def log_limit(self, room_bytes: float) -> int:
        """Return the log's size limit if state and free space together are `room_bytes`."""
        usual_bytes = max(USUAL_LOG_BYTES, LOG_MULTIPLE * self.snapshot_bytes)
        return disk.log_limit(room_bytes, snapshot_bytes=self.snapshot_bytes, usual_bytes=usual_bytes)

    def shortage(self, node: NodeConfig) -> str | None:
        """Return the text to log if state and free space together are below the minimum; None if there is enough.

        Raises UserError if not even the whole volume is that large.
        """
        folder = node.state_dir
        volume, room = disk.volume_bytes(folder), disk.free_bytes(folder) + disk.used_bytes(folder)
        if volume < self.least_bytes:
            raise UserError(
                "the volume is too small for two snapshots of the state",
                file=node.path,
                key="node.state_dir",
                value=f"{folder}, on a volume of {volume:,.0f} bytes",
                allowed=f"one of at least {self.least_bytes:,} bytes",
            )
        if room >= self.least_bytes:
            return None
        there = f"there are {room:,.0f}, what it holds included"
        return f"{folder} needs {self.least_bytes:,} bytes for the state, and {there}"


def needs_of(state: NodeState, durability: Durability, codecs: Codecs, method: Method) -> Needs:
    """Return the room that the state needs, with two unanswered messages per edge and all vectors of the method."""
    logging = durability == "exchange"
    picture = image(state, with_replicas=logging, copied=False)
    kept = size_bytes(State(header=picture.header, arrays=picture.arrays, blobs=picture.blobs))
    bodies = 2 * len(state.edges) * codecs.largest_bytes(state.channels.size) if logging else 0
    there = sum(len(blob) for blob in picture.blobs.values())
    to_come = state.model.nbytes * (len(method.kept) - len(state.kept))
    for edge in state.edges.values() if logging else ():
        to_come += state.channels.nbytes * (len(method.kept_edges) - len(edge.kept))
    return Needs(snapshot_bytes=kept + to_come + max(0, bodies - there), logging=logging)
