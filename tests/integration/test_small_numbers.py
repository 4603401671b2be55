"""The two ends of an edge compute the same bits, also where numbers are next to nothing."""

from __future__ import annotations

import numpy as np
import torch

from p2pfl.node import Look


async def test_a_task_that_has_torch_flush_small_numbers_does_not_reach_the_engine(ward, start):
    found = []
    torch.set_flush_denormal(True)
    try:
        node = start(ward(2, training={"rounds": 1000}, task={"step_s": 0.02}))[0]
        await node.until(lambda: node.rounds)
        node.application.thread.jobs.put(Look(lambda _: found.append(float(np.float32(1e-38) / np.float32(4)))))
        await node.until(lambda: found)
    finally:
        torch.set_flush_denormal(False)
    assert found[0] > 0
