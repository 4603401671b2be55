"""One of eight lies: what that costs the honest, by the rule. `tests/e2e/test_liars.py` has it with real processes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sim import LiarSpec, WorldSpec, describe, simulate, spread_out

ROUNDS = 20
RULE = "hampel:b=1"


def run(rule, attack=None):
    """The federation of the demo with those options; the liar is the one that the demo would choose."""
    federation = describe(
        topology="random-regular:degree=4", partition="dirichlet:1", rounds=ROUNDS, rule=rule, compressor="q4"
    )
    federation = replace(federation, gossip=replace(federation.gossip, linger_s=1.0))
    (liar,) = spread_out(len(federation.members), federation.edges, 1, federation.seed)
    liars = None if attack is None else LiarSpec(attack=attack, nodes=(liar,))
    return simulate(federation, world=WorldSpec(liars=liars, evaluate_every_s=5.0), references=False)


@pytest.fixture(scope="module")
def unharmed():
    """The worst node's accuracy without a liar."""
    worst = run(RULE).accuracy.min
    assert worst > 0.9
    return worst


@pytest.mark.long
@pytest.mark.parametrize("attack", ["sign-flip", "nan", "wrong-shape", "flood"])
def test_beside_one_liar_the_worst_of_the_honest_ends_where_it_would_without_it(unharmed, attack):
    report = run(RULE, attack)
    assert len(report.byzantine) == 1
    assert report.accuracy.min >= unharmed - 0.03
    for row in report.nodes:
        assert row.byzantine or (row.finished and row.rounds >= ROUNDS)


@pytest.mark.long
def test_under_the_mean_one_liar_ruins_what_all_of_the_honest_learn(unharmed):
    assert run("mean").accuracy.min > 0.9
    assert run("mean", "sign-flip").accuracy.max < unharmed - 0.3
