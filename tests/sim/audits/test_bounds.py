"""Bounds agree with tables and with what the papers say."""

import math

import numpy as np
import pytest

from sim import clopper_pearson, epsilon_of_gaussians, proof


@pytest.mark.parametrize(
    ("hits", "tries", "low", "high"),
    [(0, 10, 0.0, 0.30849711), (3, 10, 0.06673951, 0.65245285), (10, 10, 0.69150289, 1.0), (0, 1, 0.0, 0.975)],
)
def test_clopper_and_pearson_are_those_of_the_tables(hits, tries, low, high):
    """As scipy's `binomtest(hits, tries).proportion_ci(method="exact")` has them."""
    assert clopper_pearson(hits, tries) == pytest.approx((low, high), abs=1e-7)


def test_epsilon_of_two_gaussians_is_that_of_the_analytic_mechanism():
    """Noise 1 and delta 1e-5: 4.3772 by the formula of Balle and Wang 2018 (arXiv 1805.06530, theorem 8)."""
    assert epsilon_of_gaussians(1.0, 1e-5) == pytest.approx(4.3772, abs=1e-4)
    assert epsilon_of_gaussians(0.0, 1e-5) == 0.0
    assert math.isfinite(epsilon_of_gaussians(30.0, 1e-5))


def test_a_proof_stays_below_the_truth_in_nearly_all_of_many_audits():
    rng, too_much = np.random.default_rng(0), 0
    for _ in range(30):
        found = proof(rng.normal(1.0, 1.0, 400), rng.normal(0.0, 1.0, 400), 1e-5)
        too_much += found.mu > 1.0
    assert too_much <= 2


def test_runs_that_can_be_told_apart_prove_much_and_equal_ones_nothing():
    rng = np.random.default_rng(1)
    apart = proof(rng.normal(10.0, 1.0, 400), rng.normal(0.0, 1.0, 400), 1e-5)
    equal = proof(rng.normal(0.0, 1.0, 400), rng.normal(0.0, 1.0, 400), 1e-5)

    assert apart.mu > 4
    assert apart.epsilon > 4
    assert equal.mu < 0.1
