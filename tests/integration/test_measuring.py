"""What waits to be tested takes a bounded memory, however long a test takes."""

from __future__ import annotations

import asyncio
import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from p2pfl.node import TRAINING_NICE, EngineThread, LocalRounds

pytestmark = pytest.mark.usefixtures("lone")


class NoTrainer:
    """Keeps what it is to do."""

    def __init__(self):
        self.work = []

    def submit(self, *work):
        self.work.append(work)


async def copies(size, times):
    """How many copies of a model of `size` values wait after it was to be measured so often; and who measures."""
    engine = SimpleNamespace(state=SimpleNamespace(model=np.zeros(size, np.float32), edges={}, rounds=0, version=0))
    thread = EngineThread(engine, None, durability="snapshot", extra={})
    runner = SimpleNamespace(evaluate_every=1, measure=lambda _model, _of: None)
    local = LocalRounds(thread, runner, on_measure=lambda: None)
    local._trainer = NoTrainer()
    for _ in range(times):
        local.measure()
    while not thread.jobs.empty():
        thread.jobs.get().use(engine)
    return local, local._trainer.work


@pytest.mark.long
@pytest.mark.parametrize(("size", "expected"), [(1000, 10), (4_000_000, 4), (30_000_000, 1)])
async def test_large_models_do_not_pile_up_before_a_slow_test(size, expected):
    _, work = await copies(size, 10)
    assert len(work) == expected


async def test_once_one_is_tested_the_next_may_wait():
    local, work = await copies(30_000_000, 2)
    act, *arguments = work.pop()
    act(*arguments)
    told = asyncio.Event()
    local.loop.call_soon(told.set)
    await told.wait()
    local.measure()
    assert local.engine_thread.jobs.qsize() == 1


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives each thread a priority")
async def test_training_yields_to_the_threads_that_gossip():
    engine = SimpleNamespace(state=SimpleNamespace(model=np.zeros(1, np.float32), edges={}))
    thread = EngineThread(engine, None, durability="snapshot", extra={})
    local = LocalRounds(thread, None, on_measure=lambda: None)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert local._trainer.submit(os.getpriority, os.PRIO_PROCESS, 0).result() == min(19, own + TRAINING_NICE)
    assert os.getpriority(os.PRIO_PROCESS, 0) == own
    local.close()
