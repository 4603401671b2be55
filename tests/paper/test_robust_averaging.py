"""Averaging between two worlds, as published; `benchmarks/robust/averaging.py` prints more of it.

He, Karimireddy and Jaggi 2022, arXiv 2202.01545; Gaucher, Dieuleveut and Hendrikx 2025, arXiv 2410.10418.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "robust" / "averaging.py"


@pytest.fixture(scope="module")
def averaging():
    spec = importlib.util.spec_from_file_location("averaging", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def fallen(history):
    """The mean squared error at the end as a share of that at the beginning."""
    return history[-1] / history[0]


@pytest.mark.long
@pytest.mark.parametrize("rule", ["median:b=1", "trimmed-mean:b=1", "geometric-median:b=1", "nnm+trimmed-mean:b=1"])
def test_a_majority_rule_never_hears_the_world_behind_one_bridge(averaging, rule):
    """He et al., section 3.1: on a dumbbell they do not reach consensus though nobody lies."""
    assert fallen(averaging.average(averaging.dumbbell(5), rule, rounds=20)) == pytest.approx(1.0)


@pytest.mark.parametrize("rule", ["mean", "scc:b=1,tau=1"])
def test_gossip_and_clipping_at_a_radius_bring_the_worlds_behind_one_bridge_together(averaging, rule):
    history = averaging.average(averaging.dumbbell(5), rule, rounds=60)
    assert fallen(history) < 0.1
    assert history == sorted(history, reverse=True)


@pytest.mark.long
@pytest.mark.parametrize("attack", ["dissensus", "spectral", "alie"])
def test_clipped_sums_agree_while_the_liars_are_few_for_the_graph(averaging, attack):
    """Gaucher et al.: with CS+ the honest come together while 2 b is below mu_2, which is 8 here."""
    worlds = averaging.two_worlds(1, clique=6, bridges=4)
    assert averaging.gap(worlds) == pytest.approx(8.0)
    assert fallen(averaging.average(worlds, "cs+:b=1", attack, rounds=60)) < 0.1


@pytest.mark.long
def test_no_rule_agrees_once_the_liars_are_more_than_the_bridges(averaging):
    """Gaucher et al., the upper bound: each world cannot tell the liars, who hold with it, from the other world."""
    worlds = averaging.two_worlds(5, clique=6, bridges=4)
    for rule in ("cs+:b=5", "trimmed-mean:b=5", "median:b=5", "monna:b=5", "geometric-median:b=5"):
        assert fallen(averaging.average(worlds, rule, "spectral", rounds=20)) > 0.5, rule


def test_the_mean_is_carried_off_by_one_liar(averaging):
    worlds = averaging.two_worlds(1, clique=6, bridges=4)
    assert fallen(averaging.average(worlds, "mean", "dissensus", rounds=20)) > 10
