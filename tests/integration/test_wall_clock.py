"""The wall clock of a machine is set while its nodes run: nothing that lasts or is due is by it."""

from __future__ import annotations

import itertools
import time

import pytest


@pytest.mark.long
async def test_a_wall_clock_that_jumps_ten_years_costs_no_session_and_blames_nobody(ward, start, finish, monkeypatch):
    wall, hours = time.time, itertools.cycle((5, 87_660, 2, -87_660, 0, -1))
    monkeypatch.setattr(time, "time", lambda: wall() + 3600.0 * next(hours))
    nodes = start(ward(3, training={"rounds": 40}, task={"step_s": 0.01}))
    results = await finish(nodes, rounds=40)
    assert not [result.alarms for result in results if result.alarms]
    assert not [near.faults for result in results for near in result.neighbors if near.faults or near.resyncs]
