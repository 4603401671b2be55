"""Whose figures a report tells: honest nodes that are up, and all that they did since their first start."""

from __future__ import annotations

from dataclasses import replace

import pytest

from p2pfl.config import TaskConfig
from p2pfl.reporting import spread
from sim import ComputeSpec, CrashSpec, LiarSpec, WorldSpec, describe, simulate

STEADY = ComputeSpec(jitter=0.0)


def quadratic(*, rounds=8, closing_rounds=4, topology="ring", nodes=6, linger_s=1.0):
    federation = describe(nodes=nodes, rounds=rounds, topology=topology, compressor="none", seed=1)
    training = replace(
        federation.training, local_steps=2, closing_rounds=closing_rounds, learning_rate=0.1, evaluate_every=1
    )
    gossip = replace(federation.gossip, max_wait_s=0.2, linger_s=linger_s)
    return replace(federation, task=TaskConfig(name="quadratic"), training=training, gossip=gossip)


@pytest.mark.long
def test_a_dead_node_leaves_the_history_and_the_last_point_agrees_with_the_final_figures():
    world = WorldSpec(compute=STEADY, crashes=(CrashSpec(nodes=(1,), at_s=0.02),))
    report = simulate(quadratic(), world=world, references=False)
    last = report.history[-1]
    assert report.died == ["node1"]
    assert last.evaluated == 5
    assert last.loss == report.loss
    assert last.consensus_distance == pytest.approx(report.consensus_distance)
    assert last.rounds == spread(row.rounds for row in report.nodes if row.finished)
    assert last.rounds.min >= 8.0


def test_how_long_a_liar_takes_does_not_enter_the_history():
    slow = WorldSpec(compute=STEADY, liars=LiarSpec(attack="sign-flip", nodes=(4,)))
    report = simulate(quadratic(), world=slow, references=False)
    honest = [row.staleness.mean for row in report.nodes if not row.byzantine]
    assert report.history[-1].staleness.mean == pytest.approx(sum(honest) / len(honest))


@pytest.mark.long
@pytest.mark.parametrize("topology", ["ring", "random-regular:degree=4", "base:k=1"])
def test_liars_who_hardly_lie_do_not_change_the_measured_contraction(topology):
    federation = quadratic(nodes=24, closing_rounds=12, topology=topology)
    found = []
    for liars in (None, LiarSpec(attack="noise:1e-9", nodes=(0, 3, 7, 13, 20, 22))):
        report = simulate(federation, world=WorldSpec(compute=STEADY, liars=liars), references=False)
        found.append(report.contraction.measured)
    assert found[1] == pytest.approx(found[0], rel=0.01)


@pytest.mark.long
def test_what_a_node_did_before_a_crash_counts():
    def exchanged(*crashes):
        federation = quadratic(rounds=30, topology="complete")
        report = simulate(federation, world=WorldSpec(compute=STEADY, crashes=crashes), references=False)
        return report.nodes[1]

    whole, broken = exchanged(), exchanged(CrashSpec(nodes=(1,), at_s=0.25, down_s=0.01))
    assert broken.starts == 2
    assert broken.exchanges > 0.8 * whole.exchanges


def test_one_node_that_is_left_alone_has_no_contraction():
    world = WorldSpec(compute=STEADY, crashes=(CrashSpec(nodes=(0, 1), at_s=0.02),))
    report = simulate(quadratic(nodes=3), world=world, references=False)
    assert [row.finished for row in report.nodes] == [False, False, True]
    assert report.contraction.measured is None


def test_a_run_ends_when_its_last_node_dies_however_seldom_one_looks():
    crash = CrashSpec(nodes=(0, 1, 2), at_s=0.503)
    world = WorldSpec(compute=STEADY, crashes=(crash,), evaluate_every_s=10.0)
    report = simulate(quadratic(nodes=3, rounds=200), world=world, references=False)
    assert report.virtual_time_s == crash.at_s
