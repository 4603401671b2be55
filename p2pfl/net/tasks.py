"""The tasks of a network edge: sessions, dials, visits, and hourly work. A bug in one ends all."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

Work = Coroutine[Any, Any, None]


class Tasks:
    def __init__(self) -> None:
        self.group = asyncio.TaskGroup()
        self.sessions: set[asyncio.Task[None]] = set()
        self.dials: dict[int, asyncio.Task[None]] = {}
        """The dials, by neighbor."""
        self.hours: set[asyncio.Task[None]] = set()
        self.visits: set[asyncio.Task[None]] = set()

    def spawn(self, work: Work) -> asyncio.Task[None] | None:
        """Start a task; None: the node is already stopping because of a bug elsewhere."""
        try:
            return self.group.create_task(work)
        except RuntimeError:
            work.close()
            return None

    def track(self, work: Work, tasks: set[asyncio.Task[None]]) -> asyncio.Task[None] | None:
        """Start a task, and keep it in `tasks` while it runs; None as for `spawn`."""
        task = self.spawn(work)
        if task is not None:
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        return task
