"""What papers prove about the rules, and what no lie may change: with the constants, on any vectors.

S are the n - f honest vectors, m their mean, V the mean of |x - m|^2 over them. A rule is (f, kappa)-robust if
|F - m|^2 <= kappa V whatever the others are: Allouah et al. 2023, arXiv 2302.01772, definition 2 and table 1.
"""

from __future__ import annotations

import itertools
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.aggregate import (
    BLOCK,
    NNM,
    UNSORTED,
    ClippedSum,
    GeometricMedian,
    Hampel,
    Median,
    MixedRows,
    MoNNA,
    PlainRows,
    SelfCenteredClipping,
    TrimmedMean,
    distances,
    network,
    sorted_blocks,
    spread_of,
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


# -- Each rule on vectors so few and round that the answer is worked out by hand.

LINE = [[0.0], [1.0], [2.0], [4.0], [100.0]]


@pytest.mark.parametrize(
    ("rule", "vectors", "answer"),
    [
        (TrimmedMean(1), LINE, [7 / 3]),
        (TrimmedMean(2), LINE, [2.0]),
        (TrimmedMean(0), LINE, [21.4]),
        (TrimmedMean(1), [[1.0, 9.0], [2.0, -9.0], [-7.0, 0.0]], [1.0, 0.0]),
        (Median(), LINE, [2.0]),
        (Median(), LINE[:4], [1.5]),
        (Median(), LINE[:1], [0.0]),
        (GeometricMedian(), LINE, [2.0]),
        # On a line of four every point between 1 and 2 is one: the vector with the lower index.
        (GeometricMedian(), LINE[:4], [1.0]),
        # The Fermat point of an equilateral triangle is its middle.
        (GeometricMedian(), [[0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(3) / 2]], [0.5, math.sqrt(3) / 6]),
        # A corner of 120 degrees or more is one itself.
        (GeometricMedian(), [[0.0, 0.0], [3.0, 0.0], [-3.0, 0.5]], [0.0, 0.0]),
        (MoNNA(1), LINE, [1.75]),
        (MoNNA(2), LINE, [1.0]),
        (MoNNA(2, idx=3), LINE, [7 / 3]),
        # Gaps of 0 are 1, 2, 4, 100: the (4 - 2)-th smallest is 2, so 1 + 2 + 2 + 2, each a fifth.
        (ClippedSum(1), LINE, [1.4]),
        # Around 2 they are 2, 1, 2, 98: -2 - 1 + 2 + 2, each a fifth.
        (ClippedSum(1, idx=2), LINE, [2.2]),
        # tau^2 = (1 + 4 + 16) / 5 over a share of 1/5.
        (SelfCenteredClipping(1), LINE, [(1 + 2 + 4 + math.sqrt(21)) / 5]),
        (SelfCenteredClipping(1, tau=1.5), LINE, [(1 + 1.5 + 1.5 + 1.5) / 5]),
        (SelfCenteredClipping(0), LINE, [21.4]),
        (NNM(TrimmedMean(1), 1), LINE, [1.75]),
    ],
)
def test_worked_by_hand(rule, vectors, answer):
    assert rule(vectors) == pytest.approx(answer, abs=1e-9)


def test_nnm_gives_each_vector_the_mean_of_its_nearest():
    """For 4 the nearest four are all but 100, as for the others, with the mean 1.75; for 100 all but 0: 26.75."""
    assert NNM(TrimmedMean(0), 1)(LINE) == [pytest.approx((4 * 1.75 + 26.75) / 5)]
    assert NNM(TrimmedMean(0), 2)(LINE) == [pytest.approx((3 * 1.0 + 7 / 3 + 106 / 3) / 5)]


def weighted(rule, vectors, weights):
    return rule.mixture([np.array(row) for row in vectors], np.array(weights)).model.tolist()


def test_weights_scale_a_pull_after_it_is_clipped():
    vectors, weights = [[0.0], [1.0], [4.0], [-4.0]], [0.5, 0.25, 0.125]
    assert weighted(ClippedSum(1), vectors, weights) == [pytest.approx(0.5 + 0.25 - 0.125)]
    assert weighted(SelfCenteredClipping(1, tau=2.0), vectors, weights) == [pytest.approx(0.5 + 0.5 - 0.25)]
    assert weighted(MoNNA(1), vectors, weights) == MoNNA(1)(vectors)


def test_the_radius_of_self_centered_clipping_supposes_that_the_heaviest_lie():
    """tau^2 = (0.25 1 + 0.125 4) / 0.25, of the two nearest and the one largest weight."""
    found = weighted(SelfCenteredClipping(1), [[0.0], [1.0], [2.0], [10.0]], [0.25, 0.125, 0.125])
    assert found == [pytest.approx(0.25 + 0.25 * math.sqrt(3))]


# --- ties ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "vectors", "answer"),
    [
        (MoNNA(1), [[0.0], [1.0], [-1.0]], [0.5]),
        (MoNNA(1), [[0.0], [-1.0], [1.0]], [-0.5]),
    ],
)
def test_a_tie_goes_to_the_lower_index(rule, vectors, answer):
    assert rule(vectors) == answer


@pytest.mark.parametrize("size", [3, 1000, 20_001])
def test_copies_of_one_vector_tie_whatever_the_rounding_of_sums(size, monkeypatch):
    """What a mimic sends: whichever copy is asked about, its distances are the same bits on every processor."""
    noise = 1 + 1e-14 * np.random.default_rng(0).standard_normal((9, 9))
    exact = distances._gram
    monkeypatch.setattr(distances, "_gram", lambda rows, center: exact(rows, center) * noise)
    chance = np.random.default_rng(size)
    vectors = chance.standard_normal((9, size)).astype(np.float32) + 1000
    vectors[[3, 5, 8]] = vectors[1]
    squares = spread_of(list(vectors)).squares
    assert (squares[[3, 5, 8]] == squares[1]).all()
    assert not squares[np.ix_([1, 3, 5, 8], [1, 3, 5, 8])].any()
    assert (squares == squares.T).all()


@pytest.mark.parametrize("rule", [NNM(TrimmedMean(2), 2), GeometricMedian()])
@pytest.mark.parametrize("far", [1e8, 1e12])
def test_a_first_vector_far_off_hides_no_distance_between_the_others(rule, far):
    """Distances come from inner products around the first vector, until those are too large to tell them."""
    vectors = np.random.default_rng(1).standard_normal((11, 30))
    vectors[-1] += far
    np.testing.assert_allclose(rule(vectors[::-1]), rule(vectors), atol=1e-6)


# -- The sorting network, against plain sorting.


@pytest.mark.parametrize("count", range(1, 11))
def test_it_sorts_every_column_of_zeros_and_ones(count):
    """The 0-1 principle: what sorts these sorts everything. For each part of the order that may be asked for."""
    columns = np.array(list(itertools.product([0.0, 1.0], repeat=count))).T
    order = np.sort(columns, axis=0)
    for start, stop in itertools.combinations(range(count + 1), 2):
        ((_, part),) = sorted_blocks(PlainRows(list(columns)), range(start, stop))
        assert (np.sort(part, axis=0) == order[start:stop]).all()


def test_no_more_is_compared_than_is_asked_for():
    """Of 20 values a trimmed mean of f=4 takes 84 comparisons, a median fewer, a mean of all none."""
    assert [len(network(20, start, 20 - start)) for start in (4, 9)] == [84, 80]
    assert network(1, 0, 1) == network(20, 0, 20) == ()


def test_mixed_rows_lie_between_those_that_they_are_mixed_of_also_where_these_are_the_largest_floats():
    largest = np.finfo(np.float32).max
    rows = [np.array([largest, *rest], np.float32) for rest in ((1.0, -1.0), (3.0, -3.0))]
    (mixed,) = MixedRows(rows, np.array([[0.5, 0.5 + 1e-6]])).read(slice(0, 3))
    assert mixed.tolist() == [largest, pytest.approx(2.0, rel=1e-5), pytest.approx(-2.0, rel=1e-5)]


@given(st.integers(1, 30), st.sampled_from([0, 1, 5, BLOCK - 1, BLOCK, BLOCK + 1]), st.data())
def test_median_and_trimmed_mean_are_those_of_sorted_columns(count, size, data):
    f = data.draw(st.integers(0, (count - 1) // 2))
    chance = np.random.default_rng(data.draw(st.integers(0, 100)))
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    vectors = (chance.integers(-3, 4, (count, size)) + chance.standard_normal(size)).astype(dtype)
    before = vectors.copy()
    order = np.sort(vectors.astype(np.float64), axis=0)
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == np.float32 else {"rtol": 1e-13, "atol": 1e-13}
    np.testing.assert_allclose(TrimmedMean(f)(vectors), order[f : count - f].mean(axis=0), **tolerance)
    np.testing.assert_allclose(Median()(vectors), np.median(order, axis=0), **tolerance)
    assert vectors.tobytes() == before.tobytes()


@pytest.mark.parametrize("size", [0, 1, 700, BLOCK + 1, UNSORTED + 1])
@given(count=st.integers(1, 7), large=st.booleans(), seed=st.integers(0, 99))
def test_a_mean_has_the_bits_of_the_plain_formula_and_where_a_sum_overflows_those_of_shares(size, count, large, seed):
    """In float64, and in no more than the BLOCK of columns where it does: here the last one, each way."""
    vectors = np.random.default_rng(seed).standard_normal((count, size), dtype=np.float32)
    vectors[:, -1:] = np.finfo(np.float32).max * np.sign(vectors[:, -1:]) if large else 1
    with np.errstate(over="ignore", invalid="ignore"):
        mean = sum(vectors[1:], vectors[0].copy()) * np.float32(1 / count)
    if not np.isfinite(mean).all():
        last = slice((size - 1) // BLOCK * BLOCK, size)
        mean[last] = (vectors[:, last].astype(np.float64) * (1 / count)).sum(axis=0)
    assert TrimmedMean(0)(vectors).tobytes() == mean.tobytes()


def test_large_models_are_not_stacked():
    """Nine models of 8 MB: beside the result only blocks of them."""
    rows = list(np.random.default_rng(0).standard_normal((9, 2_000_000), dtype=np.float32))
    tracemalloc.start()
    found = TrimmedMean(1)(rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.nbytes == 8_000_000
    assert peak < 9_500_000
