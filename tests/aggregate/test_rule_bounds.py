"""What papers prove about the rules, and what no lie may change: with the constants, on any vectors.

S are the n - f honest vectors, m their mean, V the mean of |x - m|^2 over them. A rule is (f, kappa)-robust if
|F - m|^2 <= kappa V whatever the others are: Allouah et al. 2023, arXiv 2302.01772, definition 2 and table 1.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.aggregate import (
    NNM,
    ClippedSum,
    GeometricMedian,
    Hampel,
    Median,
    MoNNA,
    SelfCenteredClipping,
    TrimmedMean,
)

LIES = ("far", "near", "flipped", "mimic", "inside", "zero")


def ratio(n, f):
    return f / (n - 2 * f)


KAPPA = {
    "trimmed mean": (TrimmedMean, lambda n, f: 6 * ratio(n, f) * (1 + ratio(n, f))),
    "median": (lambda _: Median(), lambda n, f: 4 * (1 + ratio(n, f)) ** 2),
    "geometric median": (lambda f: GeometricMedian(f=f), lambda n, f: 4 * (1 + ratio(n, f)) ** 2),
}
"""Each rule for f, and its kappa."""


def lies_of(kind, honest, f, chance):
    spread, mean = honest.std() + 1e-12, honest.mean(axis=0)
    match kind:
        case "far":
            return mean + 10.0 ** chance.integers(1, 8) * chance.standard_normal((f, honest.shape[1]))
        case "near":
            return np.repeat((mean + 1.5 * spread * np.sign(chance.standard_normal(honest.shape[1])))[None], f, 0)
        case "flipped":
            return np.repeat(-3 * mean[None], f, 0)
        case "mimic":
            return np.repeat(honest[:1], f, 0)
        case "inside":
            return honest[chance.integers(0, len(honest), f)] + spread * chance.standard_normal((f, honest.shape[1]))
        case _:
            return np.zeros((f, honest.shape[1]))


@st.composite
def attacked(draw):
    """Vectors in any order, which of them are honest, and f: n is from 2f + 2 to 22."""
    f = draw(st.integers(1, 4))
    n = draw(st.integers(2 * f + 2, 22))
    size = draw(st.sampled_from([1, 2, 7, 300]))
    chance = np.random.default_rng(draw(st.integers(0, 10_000)))
    honest = chance.standard_normal((n - f, size)) * 10.0 ** draw(st.integers(-3, 3))
    if draw(st.booleans()):
        honest *= chance.exponential(size=(n - f, 1)) ** 2
    honest += draw(st.sampled_from([0.0, 1.0, 1e3]))
    vectors = np.concatenate([honest, lies_of(draw(st.sampled_from(LIES)), honest, f, chance)])
    order = chance.permutation(n)
    return vectors[order], order < n - f, f


def robustness(found, honest):
    mean = honest.mean(axis=0)
    return ((found - mean) ** 2).sum(), ((honest - mean) ** 2).sum(axis=1).mean()


@pytest.mark.parametrize("name", KAPPA)
@given(attacked())
def test_a_rule_is_as_robust_as_proven(name, case):
    vectors, honest, f = case
    make, kappa = KAPPA[name]
    error, variance = robustness(make(f)(vectors), vectors[honest])
    assert error <= kappa(len(vectors), f) * variance * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("name", KAPPA)
@given(attacked())
def test_nnm_makes_it_as_robust_as_proven(name, case):
    """Allouah et al. 2023, lemma 1: kappa' <= 8 f / (n - f) (kappa + 1)."""
    vectors, honest, f = case
    make, kappa = KAPPA[name]
    n = len(vectors)
    error, variance = robustness(NNM(make(f), f)(vectors), vectors[honest])
    assert error <= 8 * f / (n - f) * (kappa(n, f) + 1) * variance * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("make", [TrimmedMean, lambda _: Median()])
@given(case=attacked())
def test_no_coordinate_leaves_the_range_of_honest_ones(make, case):
    vectors, honest, f = case
    found = make(f)(vectors)
    slack = 1e-12 * (1 + np.abs(vectors[honest]).max())
    assert (found >= vectors[honest].min(axis=0) - slack).all()
    assert (found <= vectors[honest].max(axis=0) + slack).all()


def own_first(vectors, honest):
    """An honest vector in front, then all others, and which of them are honest."""
    own = int(np.flatnonzero(honest)[0])
    rest = np.delete(np.arange(len(vectors)), own)
    return vectors[np.r_[own, rest]], honest[rest]


@given(attacked())
def test_nearest_neighbor_averaging_errs_by_its_liars_share(case):
    """|NNA - m| <= 2 f / (n - f) max over S of |x - own|.

    It averages n - f vectors, as S has. Each of the at most f that are not in S stands for one of S that is left out
    and lies farther from the own one, so that it is less than twice as far from it.
    """
    vectors, honest, f = case
    rows, _ = own_first(vectors, honest)
    inside = vectors[honest]
    farthest = np.sqrt(((inside - rows[0]) ** 2).sum(axis=1)).max()
    error = np.linalg.norm(MoNNA(f)(rows) - inside.mean(axis=0))
    assert error <= 2 * f / (len(vectors) - f) * farthest * (1 + 1e-9) + 1e-9


@given(attacked())
def test_the_clipped_sum_is_robust_with_rho_two(case):
    """Gaucher, Dieuleveut, Hendrikx 2025, arXiv 2410.10418: |F - sum_S z|^2 <= rho b sum_S |z|^2, rho = 2 for CS+."""
    vectors, honest, f = case
    rows, true = own_first(vectors, honest)
    gaps = rows[1:][true] - rows[0]
    found = (ClippedSum(f)(rows) - rows[0]) * len(rows)
    slack = 1e-9 * len(rows) * np.abs(rows[0]).max() ** 2
    assert ((found - gaps.sum(axis=0)) ** 2).sum() <= 2 * f * (gaps**2).sum() * (1 + 1e-9) + slack**2 + 1e-12


@given(attacked())
def test_self_centered_clipping_errs_by_the_root_of_its_liars_share(case):
    """With the radius found by itself: |F - sum_S w z|^2 <= (9/4)^2 delta sum_S w |z|^2, delta = f w.

    Lies add at most delta tau, itself at most the root of delta E; of S at most f are farther than what the radius is
    made of and lose no more than that root; clipping the others costs at most their w |z|^2 / (4 tau).
    """
    vectors, honest, f = case
    rows, true = own_first(vectors, honest)
    weight = 1 / len(rows)
    gaps = rows[1:][true] - rows[0]
    found = SelfCenteredClipping(f)(rows) - rows[0]
    error = np.linalg.norm(found - weight * gaps.sum(axis=0))
    slack = 1e-9 * (1 + np.abs(rows[0]).max())
    assert error <= 2.25 * np.sqrt(f * weight * weight * (gaps**2).sum()) + slack


@given(attacked(), st.floats(1e-3, 1e3))
def test_a_fixed_radius_bounds_what_one_liar_moves(case, tau):
    vectors, honest, f = case
    rows, true = own_first(vectors, honest)
    others = np.flatnonzero(~true) + 1
    lied = rows.copy()
    lied[others] = 1e6
    slack = 1e-9 * (1 + np.abs(rows).max())
    clipped = SelfCenteredClipping(f, tau=tau)
    assert np.linalg.norm(clipped(lied) - clipped(rows)) <= 2 * tau * f / len(rows) + slack


# --- symmetry ------------------------------------------------------------------------------------------------------

ALL = {
    "trimmed mean": TrimmedMean,
    "median": lambda _: Median(),
    "geometric median": lambda f: GeometricMedian(f=f),
    "nna": MoNNA,
    "scc": SelfCenteredClipping,
    "cs+": ClippedSum,
    "hampel": Hampel,
    "nnm, trimmed mean": lambda f: NNM(TrimmedMean(f), f),
    "nnm, median": lambda f: NNM(Median(), f),
    "nnm, geometric median": lambda f: NNM(GeometricMedian(f=f), f),
}
COLUMNS = ("trimmed", "median", "hampel")
ROTATING = [name for name in ALL if not any(word in name for word in COLUMNS)]
ROTATING += [name for name in ALL if "geometric" in name]


def general(seed, n=13, size=6):
    """No two distances alike, so that no tie is broken by rounding."""
    return np.random.default_rng(seed).standard_normal((n, size))


@pytest.mark.parametrize("name", ALL)
@given(st.integers(0, 1000), st.integers(0, 2))
def test_the_order_of_the_others_does_not_matter(name, seed, f):
    vectors = general(seed)
    order = np.r_[0, 1 + np.random.default_rng(seed + 1).permutation(12)]
    np.testing.assert_allclose(ALL[name](f)(vectors), ALL[name](f)(vectors[order]), atol=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
@given(st.integers(0, 1000), st.integers(0, 2), st.floats(1e-3, 1e3), st.floats(-1e3, 1e3))
def test_it_moves_and_grows_with_the_vectors(name, seed, f, scale, offset):
    vectors = general(seed)
    shift = offset * np.random.default_rng(seed + 1).standard_normal(6)
    found = ALL[name](f)(vectors * scale + shift)
    np.testing.assert_allclose(found, ALL[name](f)(vectors) * scale + shift, atol=1e-7 * scale + 1e-9, rtol=1e-7)


@pytest.mark.parametrize("name", ROTATING)
@given(st.integers(0, 1000), st.integers(0, 2))
def test_it_turns_with_the_vectors(name, seed, f):
    vectors = general(seed)
    turn = np.linalg.qr(np.random.default_rng(seed + 1).standard_normal((6, 6)))[0]
    np.testing.assert_allclose(ALL[name](f)(vectors @ turn), ALL[name](f)(vectors) @ turn, atol=1e-8)


@given(st.integers(0, 1000), st.integers(3, 12))
def test_no_point_has_a_smaller_sum_of_distances_than_the_geometric_median(seed, n):
    chance = np.random.default_rng(seed)
    vectors = chance.standard_normal((n, 4)) * chance.exponential(size=(n, 1))
    found = GeometricMedian()(vectors)
    total = np.linalg.norm(vectors - found, axis=1).sum()
    for size in (1e-6, 1e-3, 1.0):
        other = found + size * chance.standard_normal((20, 4))
        sums = np.linalg.norm(vectors[:, None] - other, axis=2).sum(axis=0)
        assert (sums >= total * (1 - 1e-12)).all()


@pytest.mark.parametrize("far", [1e3, 1e8, 1e20, 1e37])
@pytest.mark.parametrize("place", [0, 5])
def test_a_lie_however_far_leaves_the_geometric_median_exact(far, place):
    """The limit is its direction: the sum of the honest directions is minus that one."""
    vectors = general(7, n=9, size=50)
    toward = np.eye(50)[0]
    vectors = np.insert(vectors, place, far * toward, axis=0)
    found = GeometricMedian()(vectors)
    honest = np.delete(vectors, place, axis=0) - found
    force = (honest / np.linalg.norm(honest, axis=1)[:, None]).sum(axis=0)
    assert np.linalg.norm(force + toward) < 1e-2 if far == 1e3 else np.linalg.norm(force + toward) < 1e-6
