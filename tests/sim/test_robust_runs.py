"""Runs with a robust rule: what the report tells of them, and that they are one run however they are computed."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from oracle import checked

from p2pfl.aggregate import make_rule
from p2pfl.compress import make_compressor
from p2pfl.core import ApplyRequest, Freeze, Request
from p2pfl.engine import Codecs, NodeState
from sim import CrashSpec, ExactEngine, ExactPlan, LiarSpec, LinkSpec, WorldSpec, describe, simulate

LAST = LiarSpec(attack="nan", nodes=(7,))


def plainly(federation, world):
    return simulate(federation, world=world, references=False)


def run(simulated=plainly, *, topology="random-regular:degree=4", rule="trimmed-mean:b=1", liars=None, world=None):
    described = describe(nodes=8, topology=topology, rounds=6, partition="iid", rule=rule)
    training = replace(described.training, local_steps=4, closing_rounds=2)
    gossip = replace(described.gossip, linger_s=1.0)
    return simulated(
        replace(described, training=training, gossip=gossip),
        world=replace(world or WorldSpec(), liars=liars, evaluate_every_s=10.0),
    )


@pytest.mark.long
def test_every_tick_with_neighbors_enough_is_mixed_by_the_rule():
    report = run()
    assert report.rule == "trimmed-mean:b=1"
    assert report.config["gossip"]["rule"] == "trimmed-mean:b=1"
    for node in report.nodes:
        assert node.rounds_mixed >= 8
        assert node.rounds_alone == 0


def test_two_neighbors_are_too_few_where_one_may_lie():
    report = run(topology="ring")
    for node in report.nodes:
        assert node.rounds_mixed == 0
        assert node.rounds_alone >= 8
        assert node.alarms["too-few-neighbors"] == 1


@pytest.mark.long
def test_a_mirror_beside_three_neighbors_is_told_of_by_every_honest_node():
    world = WorldSpec(liars=LiarSpec(attack="mirror", nodes=(3,)), evaluate_every_s=10.0)
    described = describe(nodes=4, topology="complete", rounds=16, partition="shards:3", rule="hampel:b=1")
    described = replace(described, training=replace(described.training, local_steps=5, closing_rounds=1))
    report = simulate(described, world=world, references=False)
    honest = [node for node in report.nodes if not node.byzantine]
    assert [node.alarms.get("nothing-kept") for node in honest] == [1, 1, 1]
    assert all(node.rounds_alone == 0 for node in honest)


def test_the_mean_counts_no_rounds():
    assert {node.rounds_mixed for node in run(rule="mean").nodes} == {None}


@pytest.mark.long
def test_faults_are_held_against_the_one_that_lies_and_nobody_else():
    report = run(liars=LAST)
    held = report.held_against
    assert {one.neighbor for one in held} == {"node7"}
    assert {one.node for one in held} <= {"node0", "node1", "node2", "node3", "node4", "node5", "node6"}
    assert all(one.faults.keys() <= {"payload", "resync", "flood"} and one.standing < 1 for one in held)


@pytest.mark.long
@pytest.mark.parametrize("rule", ["cs+:b=1", "geometric-median:b=1", "nnm+trimmed-mean:b=1"])
def test_nothing_but_the_rule_and_learning_moves_a_model_whoever_crashes(rule):
    crashes = (
        CrashSpec(nodes=(1,), at_s=0.05, down_s=0.05),
        CrashSpec(nodes=(2,), at_s=0.07, down_s=0.05, amnesia=True),
    )
    world = WorldSpec(crashes=crashes, links=LinkSpec(drop=0.1))
    watched, plain = run(checked, rule=rule, world=world), run(rule=rule, world=world)
    assert watched.digest == plain.digest
    assert sum(node.rounds_mixed for node in watched.nodes) > 30


def weights_told(rule):
    """What a liar says of its weight in a request and in a reply, where its core says 0.25."""
    codecs = Codecs(make_compressor("none"))
    learner = SimpleNamespace(samples=5, initial=lambda: np.ones(4, np.float32), local_state=dict)
    plan = {"index": 0, "neighbors": (1,), "learner": learner, "codecs": codecs, "rule": make_rule(rule)}
    liar = ExactEngine(ExactPlan(**plan, show=lambda model, _peer: -model))._engine
    frozen = {"incarnation": 0, "seq": 1, "version": 1, "echo": 0, "weight": 0.25, "staleness": 1.0, "pace_s": 0.1}
    request = liar.run(Freeze(peer=1, audit=False, **frozen)).event.request
    heard = Request(audit=b"", body=np.zeros(4, np.float32).tobytes(), **frozen)
    apply = ApplyRequest(peer=1, request=heard, factor=0.0, weight=0.25, version=1, pace_s=0.1)
    liar.state = NodeState.new(np.ones(4, np.float32), 5, (1,), {})
    return request.weight, liar.run(apply).event.reply.weight


def test_a_liar_boasts_of_its_samples_where_that_gives_it_weight():
    told = weights_told("cs+:b=1")
    assert min(told) > 1e6
    assert weights_told("mean") == (0.25, 0.25)
