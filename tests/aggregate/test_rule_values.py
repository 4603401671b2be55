"""Each rule on vectors so few and round that the answer is worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from p2pfl.aggregate import (
    NNM,
    ClippedSum,
    GeometricMedian,
    Median,
    MoNNA,
    SelfCenteredClipping,
    TrimmedMean,
    distances,
)
from p2pfl.aggregate.distances import spread_of

LINE = [[0.0], [1.0], [2.0], [4.0], [100.0]]
PLANE = [[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [1.0, 1.0], [90.0, 90.0]]


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
