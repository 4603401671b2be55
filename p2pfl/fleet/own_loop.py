"""An event loop in a thread of its own, for a program or a notebook whose own loop may be busy."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Generic, TypeVar

T = TypeVar("T")

LISTEN_EVERY_S = 0.1
"""Ctrl-C takes effect within this time."""


def run_in_own_loop(work: Callable[[], Coroutine[Any, Any, T]], cancel: Callable[[], object] | None = None) -> T:
    """Run `work` to its end and return its result, or raise its error.

    Ctrl-C calls `cancel`, by default to cancel all of the work, and waits for the end.
    """
    outcome = _Outcome(work)
    thread = threading.Thread(target=outcome.find, name="p2pfl")
    try:
        thread.start()
        while not outcome.is_there.wait(LISTEN_EVERY_S):
            pass
    finally:
        (cancel or outcome.cancel)()
        if thread in threading.enumerate():  # Ctrl-C may come while the thread starts
            outcome.is_there.wait()  # in Python 3.11 a thread whose join was interrupted counts as stopped
            thread.join()
    return outcome.result()


class _Outcome(Generic[T]):
    """The outcome, passed from the loop's thread to the caller's."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.is_there = threading.Event()
        self._work = work
        self._is_cancelled = False
        self._stop: Callable[[], object] = lambda: None
        self._result: list[T] = []
        self._error: BaseException | None = None

    def find(self) -> None:
        try:
            self._result = [asyncio.run(self._run())]
        except BaseExceptionGroup as errors:
            self._error = _first(errors)
        except BaseException as error:  # noqa: BLE001 - it is raised again in the caller's thread
            self._error = error
        finally:
            self.is_there.set()

    async def _run(self) -> T:
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(self._work())
        self._stop = lambda: loop.call_soon_threadsafe(task.cancel)
        if self._is_cancelled:  # Ctrl-C came before there was anything to cancel
            task.cancel()
        return await task

    def cancel(self) -> None:
        self._is_cancelled = True
        with suppress(RuntimeError):  # the loop is closed: it is over
            self._stop()

    def result(self) -> T:
        if not self._result:
            raise self._error or AssertionError("the nodes ended without a result")
        return self._result[0]


def _first(errors: BaseExceptionGroup) -> BaseException:
    """Return the first real error: the nodes that are stopped because of it have none of their own."""
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
