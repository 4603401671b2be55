"""A point of the history shows each node at the moment of a round at which a real node measures itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from p2pfl.config import TaskConfig
from p2pfl.core import Phase
from sim import (
    ComputeSpec,
    CrashSpec,
    Figures,
    LinkSpec,
    PreparedRun,
    Spread,
    WorldSpec,
    describe,
    evaluation_interval_ns,
    make_learners,
    script,
    settle,
    simulate,
)

SLOW_LINKS = WorldSpec(compute=ComputeSpec(jitter=0.1), links=LinkSpec(latency_s=Spread(low=0.004, high=0.004)))
"""so that mixing takes as long as training, and looks fall into both."""


def federation(*, nodes=6, rounds=8):
    made = describe(nodes=nodes, rounds=rounds, topology="ring", seed=2)
    training = replace(made.training, local_steps=4, learning_rate=0.3, closing_rounds=3)
    return replace(made, task=TaskConfig(name="quadratic"), training=training)


class Notes(dict):
    """By node, its model when its latest local round began; nothing before the first of a life."""

    def follow(self, stage):
        for host in stage.world.hosts:
            host.engine.begin_round = self._noted(host, host.engine.begin_round)

    def _noted(self, host, begin):
        def begin_round(effect):
            self[host.index] = host.engine.state.model.copy()
            begin(effect)

        return begin_round


def look_often(world):
    """Stage, notes and figures of a run under way, at each of some hundred times."""
    described = federation()
    spec = settle(world, len(described.members), described.seed)
    given = script(described, spec, make_learners(described))
    figures = Figures(given)
    stage = figures.stage = PreparedRun(given, figures.committed)
    notes = Notes()
    notes.follow(stage)
    every_ns = evaluation_interval_ns(given, stage) // 4
    while not stage.world.over and stage.world.kernel.pending:
        stage.world.run(until_ns=stage.world.kernel.now_ns + every_ns)
        yield stage, notes, figures


def test_a_node_is_seen_as_it_was_when_its_latest_local_round_began():
    between = 0
    for stage, notes, _ in look_often(SLOW_LINKS):
        seen = stage.scored_models(range(stage.nodes))
        for host, row, now in zip(stage.world.hosts, seen, stage.models(), strict=True):
            if host.core.rounds.phase is Phase.TRAINING and host.index in notes:
                np.testing.assert_array_equal(row, notes[host.index])
                between += not np.array_equal(row, now)
            else:
                np.testing.assert_array_equal(row, now)
    assert between > 20, "no look fell between a local round and its mixing: the test has shown nothing"


def test_after_a_restart_a_node_is_seen_as_it_is_until_it_trains():
    """What it began with in its life before is no model of its own any more."""
    world = replace(SLOW_LINKS, crashes=(CrashSpec(nodes=(1,), at_s=0.05, down_s=0.02),))
    waited = 0
    for stage, _, _ in look_often(world):
        host = stage.world.hosts[1]
        if host.starts == 2 and host.core.rounds.phase is Phase.WAITING:
            np.testing.assert_array_equal(stage.scored_models([1])[0], stage.models()[1])
            waited += 1
    assert waited


@pytest.mark.long
def test_of_many_nodes_a_few_are_looked_at(monkeypatch):
    monkeypatch.setattr("sim.report.MOST_EVALUATED", 3)
    report = simulate(federation(), world=SLOW_LINKS, references=False)
    assert report.history[-1].evaluated == 3
