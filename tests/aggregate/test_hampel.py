"""The rule whose pulls are clipped, fade at last, and are cut in each coordinate."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.aggregate import Hampel, Neighborhood, center, distances, fading, make_rule, spread_of

AXES = np.eye(6)


def mixed(own, others, weights=None, liars=1):
    weights = np.full(len(others), 1 / (len(others) + 1)) if weights is None else np.array(weights)
    around = Neighborhood(own=own, others=list(others), weights=weights, peers=tuple(range(len(others))))
    return make_rule(f"hampel:b={liars}").mix(around)


def pulls_of(rows):
    return Hampel(1).pulls(rows[0], rows[1:], np.full(len(rows) - 1, 1 / len(rows)))


def test_by_hand_the_three_parts_of_a_pull():
    """The center is the own model, with its three nearest; t = 2, the second of four, and r = 3, the fourth of five."""
    near, bend, long, far = AXES[0], 2 * AXES[1], 3 * AXES[2], 9 * AXES[3]
    rows = [np.zeros(6), near, bend, long, far]
    middle = (near + bend + long) / 4
    c = [np.linalg.norm(row - middle) for row in rows]
    r = sorted(c)[3]
    kept = pulls_of(rows) * 5
    np.testing.assert_allclose(kept, [1, 1, 2 / 3, (2 / 9) * (2 * r / c[4]) ** 2], rtol=1e-12)


def test_by_hand_a_coordinate_is_cut_at_twice_the_second_longest_pull_there():
    own = np.zeros(2)
    others = [np.array([1.0, 0.1]), np.array([-1.0, 0.2]), np.array([1.0, 5.0]), np.array([-1.0, 0.0])]
    wanted = pulls_of([own, *others]) @ [0.1, 0.2, 0.4, 0.0]
    assert mixed(own, others).model[1] == pytest.approx(wanted)


def test_what_only_liars_move_a_coordinate_by_stays_as_it_is():
    """As a backdoor in pixels that are dark in all images: honest models are alike there."""
    chance = np.random.default_rng(0)
    own, *honest = chance.standard_normal((5, 30))
    for row in honest:
        row[:5] = own[:5]
    lie = np.mean([own, *honest], axis=0)
    lie[:5] += 0.5
    assert mixed(own, [*honest, lie]).model[:5].tolist() == own[:5].tolist()


def test_the_farther_a_lie_the_less_comes_of_it():
    chance = np.random.default_rng(2)
    own, *honest = chance.standard_normal((5, 300))
    way = chance.standard_normal(300)
    reach = [mixed(own, [*honest, scale * way]).kept[4] * scale for scale in (3, 10, 30, 100, 1000)]
    assert reach == sorted(reach, reverse=True)
    assert reach[-1] < 1e-2 * reach[0]


def test_what_a_neighbor_says_of_its_weight_gives_it_no_more_and_no_less_unless_it_is_not_there():
    own, *others = np.random.default_rng(3).standard_normal((6, 50))
    even = mixed(own, others)
    told = mixed(own, others, [0.02, 0.05, 0.1, 0.12, 0.3])
    np.testing.assert_array_equal(told.model, even.model)
    np.testing.assert_array_equal(told.kept, even.kept)
    assert even.kept.max() == 1.0
    assert mixed(own, others, [0.02, 0.0, 0.1, 0.12, 0.3]).kept[1] == 0.0


def test_neighbors_equal_to_the_own_model_change_nothing_and_one_apart_counts_for_nothing():
    own = np.full(7, 0.3, np.float32)
    assert mixed(own, [own.copy() for _ in range(5)]).model.tobytes() == own.tobytes()
    mixture = mixed(own, [*(own.copy() for _ in range(4)), own + 1])
    assert mixture.kept[4] == 0
    assert mixture.model.tobytes() == own.tobytes()


def test_models_that_are_as_good_a_center_tie_whatever_the_rounding_of_sums(monkeypatch):
    exact = distances.krum_scores
    noise = 1 + 1e-14 * np.array([0.0, 1.0, -1.0, 0.0])
    monkeypatch.setattr(distances, "krum_scores", lambda squares, count: exact(squares, count) * noise)
    spread = spread_of([np.array([value]) for value in (0.0, 1.0, 2.0, 3.0)])
    assert center(spread, 1).tolist() == [1 / 3, 1 / 3, 1 / 3, 0.0]


@st.composite
def neighborhoods(draw):
    """The own model, honest neighbors, and liars, who may be anywhere, at an honest place too."""
    chance = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    liars, size = draw(st.integers(1, 3)), draw(st.integers(1, 40))
    rows = chance.standard_normal((liars + 2 + draw(st.integers(0, 6)), size))
    own, *honest = rows * (10.0 ** chance.uniform(-2, 2, (len(rows), 1)) if draw(st.booleans()) else 1.0)
    kind = draw(st.sampled_from(["far", "one place", "copies", "mirrors"]))
    lies = chance.standard_normal((liars, size)) * 10.0 ** chance.uniform(-2, 9, (liars, 1))
    if kind == "one place":
        lies[:] = lies[0]
    if kind == "copies":
        lies = np.array([honest[chance.integers(len(honest))] for _ in range(liars)])
    if kind == "mirrors":
        lies[:] = own
    return own, np.array(honest), lies, liars


@given(neighborhoods())
def test_no_liar_pulls_farther_than_an_honest_neighbor_nor_much_farther_in_a_coordinate(case):
    own, honest, lies, liars = case
    rows = np.array([own, *honest, *lies])
    pulls = Hampel(liars).pulls(own, list(rows[1:]), np.full(len(rows) - 1, 1 / len(rows)))
    farthest = np.linalg.norm(honest - own, axis=1).max()
    lengths = pulls[-liars:] * len(rows) * np.linalg.norm(lies - own, axis=1)
    assert lengths.max() <= farthest * (1 + 1e-9)
    without = Hampel(liars)([own, *honest, *np.repeat(own[None], liars, 0)])
    assert without.shape == own.shape
    moved = np.abs(Hampel(liars)(rows) - own)
    widest = np.abs(honest - own).max(axis=0)
    assert (moved <= (len(honest) + 2 * liars) / len(rows) * widest * (1 + 1e-9) + 1e-12).all()


@given(neighborhoods())
def test_at_most_as_many_vectors_fade_as_there_may_be_liars(case):
    own, honest, lies, liars = case
    assert (fading(spread_of([own, *honest, *lies]), liars) < 1).sum() <= liars


@given(neighborhoods())
def test_the_error_of_the_sum_of_pulls_is_bounded_by_the_honest_pulls(case):
    """|n (F - own) - sum_S z|^2 <= 9 b sum_S |z|^2, of which 2 b are those of CS+.

    2 b pulls are clipped: of liars c, of honest ones h that fade besides and u that do not. Others that fade are g, so
    g + h <= b. The liars add at most b t, and the u lose |z| - t each, so the error before cuts is at most

        sum_u |z| + sum_h |z| + sum_g |z| + (b - u) t,   b - u = c + h - b <= h,

    and t is at most each |z| of the h: with e = max(0, c + h - b) / h its square is at most (u + (1 + e)^2 h + g) times
    sum |z|^2, which is most, 4 b, where c = h = b. Cuts take at most b honest values of a coordinate, so the root of
    b sum |z|^2. Together (2 + 1)^2 b.
    """
    own, honest, lies, liars = case
    rows = np.array([own, *honest, *lies])
    gaps = honest - own
    error = (Hampel(liars)(rows) - own) * len(rows) - gaps.sum(axis=0)
    assert (error**2).sum() <= 9 * liars * (gaps**2).sum() * (1 + 1e-9) + 1e-9


@pytest.mark.parametrize("size", [1, 16_384, 16_385, 40_000])
def test_blocks_leave_no_trace(size):
    rows = np.random.default_rng(size).standard_normal((6, size))
    whole = Hampel(1)(rows)
    pulls = Hampel(1).pulls(rows[0], list(rows[1:]), np.full(5, 1 / 6))
    gaps = rows[1:] - rows[0]
    most = 2 * np.sort(np.abs(gaps), axis=0)[-2]
    np.testing.assert_allclose(whole, rows[0] + pulls @ np.clip(gaps, -most, most), atol=1e-12)


def test_a_larger_cut_lets_through_what_one_neighbor_alone_knows():
    own = np.zeros(2)
    others = [np.array([1.0, 0.1]), np.array([-1.0, 0.2]), np.array([1.0, 5.0]), np.array([-1.0, 0.0])]
    mixture = make_rule("hampel:b=1,cut=1e9").mix(
        Neighborhood(own=own, others=others, weights=np.full(4, 0.2), peers=(0, 1, 2, 3))
    )
    assert mixture.model[1] == pytest.approx(pulls_of([own, *others]) @ [0.1, 0.2, 5.0, 0.0])


@pytest.mark.parametrize("cut", [0.5, 0.0, -1.0, float("nan"), float("inf"), 1e39])
def test_a_cut_below_one_or_that_gives_no_number_is_refused(cut):
    """Infinity times a coordinate in which nobody differs is none."""
    with pytest.raises(ValueError, match="cut is a number from 1 up to 1e\\+30"):
        Hampel(1, cut=cut)


def test_the_largest_cut_leaves_alone_what_all_agree_on():
    rows = np.random.default_rng(4).standard_normal((6, 3)).astype(np.float32) * np.float32(1e20)
    rows[:, 0] = 1.0
    assert Hampel(1, cut=1e30)(rows)[0] == 1.0


def test_what_is_kept_of_a_neighbor_counts_what_coordinates_were_cut():
    own = np.zeros(4)
    honest = [np.array([1.0, 0.0, 0.0, 0.0]), np.array([-1.0, 0.0, 0.0, 0.0]), np.array([0.9, 0.0, 0.0, 0.0])]
    assert mixed(own, [*honest, np.array([0.0, 0.5, 0.0, 0.0])]).kept[3] == 0.0
    half = mixed(own, [*honest, np.array([0.6, 0.8, 0.0, 0.0])]).kept[3]
    assert half == pytest.approx(0.6)
