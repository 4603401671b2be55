"""A federation that shares a part of its model: each simulated node has the rest to itself, over crashes too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from p2pfl.compress import make_compressor
from p2pfl.config import TrainingConfig
from p2pfl.core import CommitRound, StartRound
from p2pfl.engine import Codecs
from p2pfl.errors import UserError
from p2pfl.learn import NodeContext, Task, learner_for, make_learner
from sim import (
    NS,
    ComputeSpec,
    CrashSpec,
    ExactEngine,
    ExactPlan,
    PreparedRun,
    WorldSpec,
    describe,
    make_learners,
    script,
    settle,
    simulate,
)

SHARED = ("1.*",)
"""the first of the two layers of the digits' model: 64 x 32 weights and 32 biases."""
CRASHES = (CrashSpec(nodes=(1,), at_s=0.06, down_s=0.02), CrashSpec(nodes=(3,), at_s=0.08, down_s=0.02, amnesia=True))


def digits(*, share=SHARED, rounds=6):
    federation = describe(nodes=5, rounds=rounds, topology="complete", partition="shards:2", seed=4)
    training = replace(federation.training, local_steps=3, closing_rounds=3)
    return replace(federation, training=training, gossip=replace(federation.gossip, share=share, start_wait_s=0.2))


def stage_of(federation, world):
    spec = settle(world, len(federation.members), federation.seed)
    return PreparedRun(script(federation, spec, make_learners(federation)))


def heads(stage):
    return [host.engine.state.local for host in stage.world.hosts]


def test_each_node_has_its_own_part_and_all_share_the_other():
    stage = stage_of(digits(), WorldSpec())
    stage.world.run(until_ns=100 * NS)
    assert stage.models().shape == (5, 64 * 32 + 32)
    for one in range(5):
        assert set(heads(stage)[one]) == {"3.weight", "3.bias"}
        for other in range(one):
            assert not np.array_equal(heads(stage)[one]["3.weight"], heads(stage)[other]["3.weight"])


def test_a_node_is_scored_with_the_part_that_is_its_own():
    federation = digits()
    stage = stage_of(federation, WorldSpec())
    stage.world.run(until_ns=100 * NS)
    scores = stage.script.learners.evaluate(stage.models(), "local", np.arange(5))
    for node, model in enumerate(stage.models()):
        learner = make_learner(
            federation.task,
            federation.training,
            seed=federation.seed,
            node_index=node,
            node_count=5,
            node_name=federation.members[node].name,
            base_dir=federation.path.parent,
            local={},
            local_dir=federation.path.parent,
            share=SHARED,
        )
        learner.load_local_state(heads(stage)[node])
        assert scores[node] == learner.evaluate(model, "local")


def test_a_crash_takes_the_own_part_back_to_what_the_disk_has():
    """With a lost disk: to what the task made it."""
    stage = stage_of(digits(rounds=40), WorldSpec(compute=ComputeSpec(jitter=0.0), crashes=CRASHES))
    unlearned = stage.script.learners.learners[0].local_state()
    stage.world.run(until_ns=round(0.0801 * NS), finish=False)
    for node, changed in ((1, True), (3, False)):
        engine = stage.world.hosts[node].engine
        kept = engine.plan.learner.local_state()
        assert all(np.array_equal(kept[name], engine.state.local[name]) for name in kept)
        assert np.array_equal(kept["3.weight"], unlearned["3.weight"]) != changed


def test_a_round_that_the_engine_drops_leaves_the_own_part_as_it_was():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.shared, self.count = nn.Linear(2, 1), nn.Parameter(torch.zeros(1))

        def forward(self, inputs):
            return self.shared(inputs) - self.count

    slopes = iter([1.0, 1.0, 1e20, 1.0])  # the first is asked for when the learner is made
    pair = torch.ones(4, 2), torch.ones(4, 1)
    task = Task(model=Counting, data=lambda _: (pair, None), loss=lambda outputs, _: next(slopes) * outputs.mean())
    context = NodeContext(node=0, nodes=1, name="a", seed=0, base_dir=Path())
    learner = learner_for(task, context, TrainingConfig(local_steps=1, learning_rate=1.0), ("shared.*",))
    codecs = Codecs(make_compressor("none"))
    engine = ExactEngine(ExactPlan(index=0, neighbors=(), learner=learner, codecs=codecs))
    engine.boot(1)
    counts = []
    for index in range(3):
        engine.begin_round(StartRound(index=index, accompanied=False))
        engine.end_round()
        engine.run(CommitRound(version=index + 1, trained=True, rho=1.0, elapsed_s=1.0, least_samples=0.0))
        counts += learner.local_state()["count"].tolist()
    assert counts == [1.0, 1.0, 2.0]


@pytest.mark.long
def test_such_a_run_is_the_same_every_time_and_has_no_reference_of_a_server():
    world = WorldSpec(crashes=CRASHES)
    first, second, other = (simulate(digits(share=share), world=world) for share in (SHARED, SHARED, ("!1.*",)))
    assert first.config["gossip"]["share"] == SHARED
    assert first.reference.fedavg is None
    assert first.reference.centralized.one_node.accuracy > 0.1
    assert (first.digest, first.value_digest) == (second.digest, second.value_digest)
    assert other.bytes_sent < first.bytes_sent / 2


def test_a_pattern_that_matches_nothing_and_a_task_without_names_are_refused():
    with pytest.raises(UserError, match="matches no floating tensor"):
        simulate(digits(share=("backbone.*",)))
    quadratic = replace(digits(), task=replace(digits().task, name="quadratic", options={}))
    with pytest.raises(UserError, match=r"its own learner"):
        simulate(quadratic)
