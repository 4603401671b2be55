"""The rule whose pulls fade with distance, and of which those that pull the same way share one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.aggregate import Neighborhood, Redescending, make_rule, redescending, selection
from p2pfl.aggregate.distances import spread_of

AXES = np.eye(4)
EVEN = np.full(5, 1 / 6)


def mixed(own, others, weights=None, liars=1):
    weights = np.full(len(others), 1 / (len(others) + 1)) if weights is None else weights
    around = Neighborhood(own=own, others=list(others), weights=weights, peers=tuple(range(len(others))))
    return make_rule(f"redescending:b={liars}").mix(around)


def test_by_hand_a_far_neighbor_fades_by_the_square_of_its_distance():
    """The first center is the own model at 0; the second lies a little towards the far one."""
    far = 10.0
    others = [AXES[0], -AXES[0], AXES[1], -AXES[1], far * AXES[2]]
    off = (1 / far) / (5 + 1 / far**2)
    alike = (off**2 / (1 + off**2)) ** 2
    faded = (1 + off**2) / (far - off) ** 2
    mixture = mixed(np.zeros(4), others)
    np.testing.assert_allclose(mixture.kept, [1 / (1 + 2 * alike)] * 4 + [faded], rtol=1e-12)
    np.testing.assert_allclose(mixture.model, faded * far / 6 * AXES[2], atol=1e-15)


def test_neighbors_that_show_the_same_share_one_pull():
    """Whoever copies an honest neighbor adds nothing, and two liars with one lie are as one."""
    chance = np.random.default_rng(1)
    own, *others = chance.standard_normal((6, 2000))
    kept = mixed(own, [*others, others[0]]).kept
    assert kept[0] == pytest.approx(kept[5])
    assert kept[0] == pytest.approx(0.5, abs=0.03)
    assert kept[1:5].min() > 0.9


def test_the_farther_a_lie_the_less_comes_of_it():
    chance = np.random.default_rng(2)
    own, *honest = chance.standard_normal((5, 300))
    way = chance.standard_normal(300)
    reach = [
        mixed(own, [*honest, scale * way]).kept[4] * np.linalg.norm(scale * way - own)
        for scale in (3, 10, 30, 100, 1000)
    ]
    assert reach == sorted(reach, reverse=True)
    assert reach[-1] < 1e-2 * reach[0]


def test_weights_scale_the_pulls():
    own, *others = np.random.default_rng(3).standard_normal((6, 50))
    whole = mixed(own, others, EVEN).model - own
    np.testing.assert_allclose(mixed(own, others, EVEN / 2).model - own, whole / 2, atol=1e-12)


def test_no_weight_counts_for_more_than_an_even_share():
    own, *others = np.random.default_rng(4).standard_normal((6, 50))
    boasting = mixed(own, others, np.array([1 / 6, 1 / 6, 1 / 6, 1 / 6, 0.3])).model
    np.testing.assert_array_equal(boasting, mixed(own, others, EVEN).model)


def test_neighbors_equal_to_the_own_model_change_nothing_and_one_apart_counts_for_nothing():
    own = np.full(7, 0.3, np.float32)
    assert mixed(own, [own.copy() for _ in range(5)]).model.tobytes() == own.tobytes()
    assert mixed(own, [*(own.copy() for _ in range(4)), own + 1]).kept[4] == 0


def test_the_own_model_counts_for_one_in_the_center_however_far_out_it_lies():
    """Seen from between, the five neighbors lie one way: together they pull as one of them would."""
    axes = np.eye(6)
    kept = mixed(30 * axes[0], [axes[1], -axes[1], axes[2], -axes[2], axes[3]]).kept
    assert kept.tolist() == pytest.approx([1 / 5] * 5, abs=0.02)


def test_models_that_are_as_good_a_first_center_tie_whatever_the_rounding_of_sums(monkeypatch):
    exact = selection.krum_scores
    noise = 1 + 1e-14 * np.array([0.0, 1.0, -1.0, 0.0])
    monkeypatch.setattr(selection, "krum_scores", lambda squares, count: exact(squares, count) * noise)
    spread = spread_of([np.array([value]) for value in (0.0, 1.0, 2.0, 3.0)])
    assert redescending.first_center(spread, 1).tolist() == [1 / 3, 1 / 3, 1 / 3, 0.0]


@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 40), liars=st.integers(1, 3), extra=st.integers(1, 5))
def test_no_lies_move_it_farther_than_a_multiple_of_how_far_the_honest_lie_apart(seed, size, liars, extra):
    """Of the diameter of the honest: 2 + ((n-b-1)/(n-2b))^.5 to the first center, n + 1 times that to the second."""
    chance = np.random.default_rng(seed)
    count = 2 * liars + 1 + extra
    own, *honest = chance.standard_normal((count - liars, size))
    lies = chance.standard_normal((liars, size)) * 10.0 ** chance.uniform(-2, 9, (liars, 1))
    if chance.random() < 0.5:
        lies[:] = lies[0]
    widest = max(np.linalg.norm(one - other) for one in (own, *honest) for other in (own, *honest))
    bound = 2 * (count + 1) * (2 + ((count - liars - 1) / (count - 2 * liars)) ** 0.5) * widest
    moved = mixed(own, [*honest, *lies], liars=liars).model - own
    assert np.linalg.norm(moved) <= bound + 1e-12


def pull_and_reach(own, others, liars):
    """The longest pull, weight 1, that a lie has (they come last), and the farthest honest distance from the center."""
    rows = np.array([own, *others])
    spread = spread_of(list(rows))
    center = redescending.first_center(spread, liars) @ rows
    pulls = redescending.factors(spread, liars) * np.linalg.norm(rows - own, axis=1)
    return pulls[-liars:].max(), np.linalg.norm(rows[:-liars] - center, axis=1).max()


@pytest.fixture
def one_step(monkeypatch):
    """The center whose factors are the last is then the first."""
    monkeypatch.setattr(redescending, "STEPS", 1)


@pytest.mark.usefixtures("one_step")
@pytest.mark.parametrize("seed", range(200))
def test_no_lie_pulls_farther_than_twice_the_farthest_honest_distance_from_the_center(seed):
    chance = np.random.default_rng(seed)
    liars, size = int(chance.integers(1, 4)), int(chance.integers(1, 30))
    own, *honest = chance.standard_normal((liars + 2 + seed % 4, size)) * 10.0 ** chance.uniform(-1, 1)
    lies = chance.standard_normal((liars, size)) * 10.0 ** chance.uniform(-2, 6, (liars, 1))
    pull, reach = pull_and_reach(own, [*honest, *lies], liars)
    assert pull <= 2 * reach * (1 + 1e-9)


@pytest.mark.usefixtures("one_step")
def test_where_the_own_model_is_the_odd_one_a_lie_across_from_it_pulls_farther_than_once_that():
    honest = [np.array([0.0, 0.01]), np.array([0.0, -0.01]), np.array([0.0, 0.0])]
    pull, reach = pull_and_reach(np.array([1.0, 0.0]), [*honest, np.array([-0.9, 0.0])], 1)
    assert pull > 1.5 * reach


@given(seed=st.integers(0, 2**32 - 1))
def test_it_follows_shifts_scales_rotations_and_the_order_of_neighbors(seed):
    chance = np.random.default_rng(seed)
    rows = chance.standard_normal((7, 6))
    rule = Redescending(f=2)
    found = rule(rows)
    turn = np.linalg.qr(chance.standard_normal((6, 6)))[0]
    order = [0, *(1 + chance.permutation(6))]
    for changed, wanted in (
        (rows + 5, found + 5),
        (rows * 3, found * 3),
        (rows @ turn, found @ turn),
        (rows[order], found),
    ):
        np.testing.assert_allclose(rule(changed), wanted, atol=1e-9)
