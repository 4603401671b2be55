"""Flushes of a node's log in a thread of their own, so that a slow disk delays messages and not rounds.

One flush runs at a time; it makes durable all records that were appended before it began, so those that come meanwhile
share the next one.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from p2pfl.storage import Flush, Store


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
