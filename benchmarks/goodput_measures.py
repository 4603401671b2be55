"""CPU time, memory and stalls of one process of `goodput.py`, and a thread that trains beside it."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

Figures = dict[str, float]


@dataclass(frozen=True)
class Options:
    body_bytes: int
    messages: int


def body_of(options: Options) -> memoryview:
    """Make values like those of a model: they do not compress."""
    return np.random.default_rng(0).standard_normal(options.body_bytes // 4, dtype=np.float32).data.cast("B")


class Meter:
    """Measures CPU time between `begin` and `end`, and the most memory taken since the meter was made."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")
        self._held_mb = memory_mb("VmRSS")

    def begin(self) -> None:
        self._cpu_s, self._wall_s = time.process_time(), time.perf_counter()

    def end(self) -> Figures:
        return {
            "cpu_s": time.process_time() - self._cpu_s,
            "wall_s": time.perf_counter() - self._wall_s,
            "peak_mb": memory_mb("VmHWM") - self._held_mb,
        }


def memory_mb(kind: str) -> float:
    """Read memory: VmRSS is what the process holds now; VmHWM the most since `clear_refs`. Linux only."""
    match = re.search(rf"{kind}:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(match[1]) * 1024 / 1e6 if match else float("nan")


class Probe:
    """Measures the worst delay of a timer of 1 ms, and the longest callback in CPU time of the loop's own thread.

    The first counts everything that keeps the loop from running, other processes and the GIL included; the second only
    what runs on it.
    """

    def __init__(self) -> None:
        self.late_s: list[float] = []
        self.callback_s = 0.0

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[Self]:
        handle: Any = asyncio.Handle
        run, task = handle._run, asyncio.ensure_future(self._watch())  # noqa: SLF001 - no public hook exists

        def timed(handle: asyncio.Handle) -> None:
            began = time.thread_time()
            run(handle)
            self.callback_s = max(self.callback_s, time.thread_time() - began)

        handle._run = timed  # noqa: SLF001
        try:
            yield self
        finally:
            handle._run = run  # noqa: SLF001
            task.cancel()

    async def _watch(self) -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            self.late_s.append(time.perf_counter() - began - 0.001)

    def figures(self) -> Figures:
        late = np.asarray(self.late_s)
        return {
            "stall_worst_ms": 1e3 * float(late.max()),
            "stall_p99_ms": 1e3 * float(np.quantile(late, 0.99)),
            "callback_worst_ms": 1e3 * self.callback_s,
        }


class Trainer(threading.Thread):
    """Steps of SGD on a model of that many bytes, as a node's training thread takes them."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(daemon=True)
        self.width = int((size_bytes / 4) ** 0.5)
        self.over = threading.Event()
        self.warm = threading.Event()

    def run(self) -> None:
        import torch  # noqa: PLC0415 - a second of imports that only two scenes need

        torch.set_num_threads(1)
        model = torch.nn.Linear(self.width, self.width)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        inputs = torch.randn(16, self.width)
        while not self.over.is_set():
            optimizer.zero_grad()
            loss: Any = model(inputs).square().mean()
            loss.backward()
            optimizer.step()
            self.warm.set()
