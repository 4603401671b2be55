"""What a run keeps does not grow with the virtual time that it lasts."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from drawn_worlds import draw

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from year import Year, growth

from sim import LOG_ENTRIES, NS, ChurnSpec, ComputeSpec, PreparedRun, WorldSpec, make_learners, script, settle

LASTS_S = 30.0


def stage():
    described, _ = draw(3)
    training = replace(described.training, rounds=None, time_s=LASTS_S)
    described = replace(described, training=training)
    churn = ChurnSpec(up_s=1.0, down_s=0.1, until_s=LASTS_S, amnesia=0.5)
    world = settle(WorldSpec(compute=ComputeSpec(round_s=0.1), churn=churn), len(described.members), described.seed)
    put_up = PreparedRun(script(described, world, make_learners(described)))
    put_up.world.run(until_ns=round(LASTS_S * NS))
    return put_up


@pytest.mark.long
def test_a_disk_in_memory_does_not_keep_all_that_was_ever_written():
    hosts = stage().world.hosts
    assert sum(host.starts for host in hosts) > 10 * len(hosts)
    assert max(host.engine.store.logged for host in hosts) <= LOG_ENTRIES + len(hosts)


@pytest.mark.long
def test_boards_that_come_and_go_leave_nothing_behind_in_a_node_that_stays():
    """Ten days of `benchmarks/year.py` in which as much happens as in three months."""
    boards = Year(10, minutes=60, every_days=0.7)
    before, after = boards.until(2), boards.until(10)
    boards.watch.look()
    assert after["rows"] > before["rows"] + 8
    assert [line for line in growth(before, after) if "board" in line] == []
