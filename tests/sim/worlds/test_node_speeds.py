"""How long rounds take: exact, the same for the same seed, never 0."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import ceil

import pytest

from sim import LONGEST_NS, UNIT, ComputeSpec, NodeSpeed, SlowNodes, Spread, WorldSpec, node_speeds

S = 1_000_000_000


def speeds(federation, seed=7, **compute):
    spec = ComputeSpec(**{"jitter": 0.0, **compute})
    return node_speeds(WorldSpec(compute=spec), replace(federation, seed=seed))


def node(speed, round_s=None, step_s=1.0):
    return NodeSpeed(speed, step_s=step_s, round_s=round_s, jitter=0.0, rng=None)


def test_a_round_is_its_steps_at_the_nodes_speed(federation):
    (first, *_) = speeds(federation, step_s=0.003, speed=Spread(low=2.0, high=2.0))
    assert [first.round_ns(steps) for steps in (1, 20)] == [1_500_000, 30_000_000]


def test_a_round_of_given_length_does_not_count_steps(federation):
    (first, *_) = speeds(federation, round_s=0.5, speed=Spread(low=0.25, high=0.25))
    assert {first.round_ns(steps) for steps in (0, 1, 20)} == {2 * S}


def test_in_the_default_world_equal_nodes_do_not_stay_in_lockstep(federation):
    """Twenty steps take 50 ms, and up to a fiftieth more."""
    lasts = [one.round_ns(20) for one in node_speeds(WorldSpec(), federation)]
    assert all(50_000_000 <= one <= 51_000_000 for one in lasts)
    assert len(set(lasts)) == len(lasts)


def test_tenfold_speeds_are_spread_over_a_factor_of_ten(federation_of):
    federation = federation_of([f"n{i}" for i in range(1000)])
    found = sorted(s.speed for s in speeds(federation, speed=Spread(kind="log-uniform", low=0.1, high=1.0)))
    assert 0.1 <= found[0] < 0.11
    assert 0.95 < found[-1] <= 1.0
    assert 0.29 < found[500] < 0.35


def test_the_seed_draws_the_speeds(federation):
    spread = Spread(kind="uniform", low=0.5, high=2.0)
    drawn = [[s.speed for s in speeds(federation, seed=seed, speed=spread)] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_slow_nodes_have_a_factor_on_their_speed(federation):
    world = WorldSpec(compute=ComputeSpec(speed=Spread(low=2, high=2)), slow=(SlowNodes(nodes=(3,), speed=0.1),))
    assert [s.speed for s in node_speeds(world, federation)] == [2.0] * 3 + [0.2] + [2.0] * 6


def test_jitter_lengthens_rounds_by_up_to_its_share_and_anew_each_time(federation):
    one, other = (speeds(federation, round_s=1.0, jitter=0.5)[:2] for _ in range(2))
    rounds = [one[0].round_ns(1) for _ in range(200)]
    assert rounds == [other[0].round_ns(1) for _ in range(200)]
    assert rounds != [one[1].round_ns(1) for _ in range(200)]
    assert S <= min(rounds) < 1.02 * S
    assert 1.48 * S < max(rounds) <= 1.5 * S


def test_no_round_takes_no_time_and_none_outlasts_the_clock():
    assert node(1e6, step_s=1e-6).round_ns(1) == 1
    assert node(1.0).round_ns(0) == 1
    assert node(1e-6, step_s=1e9).round_ns(1000) == LONGEST_NS < 2**63


@pytest.mark.parametrize("speed", [0.1, 0.3, 1 / 3, 0.7])
def test_the_duration_is_rounded_up_exactly(speed):
    assert node(speed, round_s=0.123456789).round_ns(1) == ceil(Fraction(123456789 * UNIT, round(speed * UNIT)))
