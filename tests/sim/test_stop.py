"""A simulated federation whose nodes stop when nothing gets better, in both profiles and over crashes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from oracle import checked

from p2pfl.config import TaskConfig
from p2pfl.core import Reason
from sim import CrashSpec, WorldSpec, describe, simulate

ROUNDS = 60
CRASHES = (CrashSpec(nodes=(1,), at_s=0.1, down_s=0.05), CrashSpec(nodes=(2,), at_s=0.1, down_s=0.05, amnesia=True))


def federation(stop, *, rule="mean"):
    plain = describe(nodes=4, rounds=ROUNDS, topology="complete", compressor="q8", seed=1, rule=rule)
    training = replace(plain.training, local_steps=1, closing_rounds=1, learning_rate=0.5, stop=stop)
    gossip = replace(plain.gossip, linger_s=0.2)
    return replace(plain, task=TaskConfig(name="quadratic", options={"size": 2}), training=training, gossip=gossip)


@pytest.mark.parametrize(("figure", "rule"), [("loss", "mean"), ("test_loss", "trimmed-mean:b=1")])
def test_all_stop_together_long_before_their_rounds_are_done(figure, rule):
    report = simulate(federation(f"no improvement of {figure} by 0.001 in 3 rounds", rule=rule), references=False)
    assert all(node.finished for node in report.nodes)
    assert max(report.rounds.values()) < ROUNDS / 2
    assert {node.ended_by for node in report.nodes} <= set(Reason)
    through = [node.through_by for node in report.nodes if node.through_by]
    assert len(through) >= 2, "half of four"
    assert all(f"no improvement of {figure} since round" in why for why in through)


@pytest.mark.long
def test_the_same_seed_stops_in_the_same_round_also_after_crashes_and_no_invariant_breaks():
    described, world = federation("no improvement by 0.001 in 5 rounds"), WorldSpec(crashes=CRASHES)
    one, other = (checked(described, world=world) for _ in "ab")
    assert (one.digest, one.value_digest) == (other.digest, other.value_digest)
    assert all(node.finished for node in one.nodes)
    assert [node.starts for node in one.nodes] == [1, 2, 2, 1]
    assert max(one.rounds.values()) < ROUNDS


def test_a_time_ends_the_rounds_of_all():
    report = simulate(federation("after 0.2 s"), references=False)
    assert max(report.rounds.values()) < ROUNDS
    assert all(node.finished for node in report.nodes)
    assert {node.through_by for node in report.nodes} == {"it has trained for 0.2 s"}
