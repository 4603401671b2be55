"""One of five dies, or exchanges nothing: what that costs the others in rounds and in time, in virtual time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from p2pfl.config import TaskConfig
from p2pfl.core import WAIT_BURST_S, Ready, Reason, Reply, Request
from sim import ComputeSpec, CrashSpec, Network, SlowNodes, WorldSpec, describe, simulate

ROUNDS, ROUND_S, LINGER_S = 150, 0.04, 4.0
LATE = 3 / ROUND_S
"""Rounds until a neighbor is seen to take no part."""


def run(*, topology="ring", rule="mean", **world):
    federation = describe(nodes=5, topology=topology, rounds=ROUNDS, rule=rule, compressor="none", seed=1)
    federation = replace(
        federation,
        task=TaskConfig(name="quadratic", options={"size": 4}),
        gossip=replace(federation.gossip, linger_s=LINGER_S, start_wait_s=1.0),
    )
    spec = WorldSpec(compute=ComputeSpec(round_s=ROUND_S, jitter=0.1), **world)
    return simulate(federation, world=spec, references=False)


def mute(monkeypatch, is_lost):
    """Sessions stay, and exchanges are lost as `is_lost(source, target, now_s)` says."""
    send = Network.send

    def lossy(self, source, target, session, message):
        exchanges = isinstance(message, Request | Reply | Ready)
        if not (exchanges and is_lost(source, target, self.kernel.now_ns * 1e-9)):
            send(self, source, target, session, message)

    monkeypatch.setattr(Network, "send", lossy)


def dies(share, **changes):
    return CrashSpec(nodes=(3,), at_s=share * ROUNDS * ROUND_S, **changes)


@pytest.fixture(scope="module")
def undisturbed():
    return run()


@pytest.mark.long
@pytest.mark.parametrize(
    ("topology", "rule"), [("ring", "mean"), pytest.param("complete", "hampel:b=1", marks=pytest.mark.long)]
)
@pytest.mark.parametrize("share", [0.3, 0.95])
def test_a_dead_member_costs_the_others_no_rounds_but_those_until_they_know(topology, rule, share, undisturbed):
    """Before, both cost more than half as much again: training went on for linger_s."""
    report = run(topology=topology, rule=rule, crashes=(dies(share),))
    alive = [row for row in report.nodes if row.finished]
    assert len(alive) == 4
    allowed = max(row.rounds for row in undisturbed.nodes) + (0.1 * ROUNDS if share < 0.5 else LATE)
    assert max(row.rounds for row in alive) <= allowed
    assert min(row.rounds for row in alive) >= ROUNDS


@pytest.mark.long
@pytest.mark.parametrize("topology", ["ring", pytest.param("complete", marks=pytest.mark.long)])
def test_a_member_that_keeps_its_sessions_and_exchanges_nothing_costs_no_more_than_the_waits_for_it(
    monkeypatch, topology, undisturbed
):
    """Each neighbor may cost WAIT_BURST_S, in which those that are none of its own neighbors train on."""
    mute(monkeypatch, lambda source, _target, _now_s: source == 3)
    report = run(topology=topology)
    others = [*report.nodes[:3], report.nodes[4]]
    assert all(row.finished for row in others)
    waited = WAIT_BURST_S / ROUND_S if topology == "ring" else LATE / 10
    assert max(row.rounds for row in others) <= max(row.rounds for row in undisturbed.nodes) + waited
    assert Reason.HALF not in {row.ended_by for row in others}
    assert report.virtual_time_s < undisturbed.virtual_time_s + 0.7 * LINGER_S


@pytest.mark.long
def test_a_member_that_comes_back_while_the_others_wait_does_its_rounds_with_them():
    report = run(crashes=(dies(0.7, down_s=3.0),))
    assert all(row.finished and row.rounds >= ROUNDS for row in report.nodes)
    assert max(row.rounds_without_neighbor for row in report.nodes) <= 1


@pytest.mark.long
def test_a_slow_member_is_waited_for_as_if_nobody_could_be_missing():
    """It takes three times as long; the others have linger_s left for it, and train on."""
    report = run(slow=(SlowNodes(nodes=(3,), speed=1 / 3),))
    assert all(row.finished for row in report.nodes)
    waited = LINGER_S / ROUND_S
    assert report.nodes[1].rounds >= ROUNDS + 0.7 * waited
    assert report.nodes[3].rounds >= (ROUNDS + 0.7 * waited) / 3


@pytest.mark.long
def test_what_balanced_mixing_with_a_dead_member_drives_nobody_away():
    """With its flows the worst node fell to .72 now and then in 300 rounds."""
    federation = describe(nodes=8, topology="ring", rounds=100, partition="shards:2", seed=0)
    world = WorldSpec(
        compute=ComputeSpec(step_s=0.01), crashes=(CrashSpec(nodes=(3,), at_s=8.0),), evaluate_every_s=1.0
    )
    history = simulate(federation, world=world, references=False).history
    later = [point for point in history if point.time_s > 18.0]
    assert min(point.accuracy.min for point in later) > 0.93
    assert later[-1].loss.mean < 1.3 * min(point.loss.mean for point in history)


@pytest.mark.long
def test_a_board_with_a_pulled_cable_is_not_driven_away_from_what_it_learns_alone(monkeypatch):
    """Its sessions are still there. With their flows its loss came to 15; alone, with two classes, it is 4."""
    mute(monkeypatch, lambda source, target, now_s: 3 in {source, target} and now_s >= 8.0)
    federation = describe(nodes=8, topology="ring", rounds=90, partition="shards:2", seed=0)
    world = WorldSpec(compute=ComputeSpec(step_s=0.01), evaluate_every_s=1.0)
    history = simulate(federation, world=world, references=False).history
    assert max(point.loss.max for point in history if point.time_s < 24.0) < 6.0
