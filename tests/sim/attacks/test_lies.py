"""Lies made of what a liar sees: each against a case worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from sights import DEVIATION, EDGES, MEAN, MODELS, sight

from sim import ATTACKS, AttackEntry, fiedler, parse_attack, response


def told(spec, **changes):
    return parse_attack(spec).tell(sight(**changes))


# -- what a liar sees -------------------------------------------------------------------------------------------------


def test_around_a_victim_are_its_own_model_and_those_of_its_honest_neighbors_that_are_known():
    assert sight().known == (1, 2, 3)
    assert sight().lying == (4, 5)
    assert np.array_equal(sight().around, np.stack([MODELS[node] for node in range(4)]))
    assert np.array_equal(sight().around.mean(axis=0), MEAN)
    few = sight(models={0: MODELS[0], 2: MODELS[2]})
    assert few.known == (2,)
    assert few.around.shape == (2, 4)


def test_who_knows_nothing_takes_its_own_model_for_its_victims():
    blind = sight(models={}, edges=(), liars=frozenset())
    assert np.array_equal(blind.around, MODELS[4][None])
    assert blind.lying == (4,)


# -- models around the victim -----------------------------------------------------------------------------------------


def test_alie_is_the_mean_less_z_deviations():
    assert np.allclose(told("alie"), MEAN - 1.5 * DEVIATION)
    assert np.allclose(told("alie:-0.3"), MEAN + 0.3 * DEVIATION)


def test_ipm_is_the_mean_backwards():
    assert np.allclose(told("ipm"), -0.1 * MEAN)
    assert np.allclose(told("ipm:3"), -3 * MEAN)


def test_mimic_copies_the_honest_neighbor_furthest_out_along_the_longest_direction():
    models = MODELS | {2: np.array([1.0, 100.0, 2.0, -1.0])}
    for liar in (4, 5):
        assert np.array_equal(told("mimic", models=models, node=liar), models[2])
    assert np.array_equal(told("mimic", models={0: MODELS[0]}), MODELS[0])


def test_a_mirror_shows_each_its_own_model_and_leaves_a_rule_of_the_nearest_no_radius():
    assert np.array_equal(told("mirror"), MODELS[0])
    assert np.array_equal(told("mirror", peer=6), MODELS[6])
    bitten = sight(rule="cs+:b=2")  # five neighbors: not more than 3 b
    assert np.array_equal(response(bitten, told("mirror")), MODELS[0])
    borne = sight(rule="cs+:b=1", liars=frozenset({4}))  # more than 3 b
    assert not np.allclose(response(borne, told("mirror")), MODELS[0])


def test_where_all_agree_no_lie_can_hide():
    models = dict.fromkeys(range(7), MODELS[1])
    assert np.allclose(told("alie", models=models), MODELS[1])


def test_a_scaled_backdoor_shows_more_than_it_has_learned():
    assert np.allclose(told("backdoor:3"), MEAN + 3 * (MODELS[4] - MEAN))


# -- the victim's rule ------------------------------------------------------------------------------------------------


def test_a_victim_of_the_mean_takes_a_laplacian_step():
    weights = {1: 0.1, 2: 0.2, 3: 0.05, 4: 0.3, 5: 0.1}
    lie = np.full(4, 10.0)
    want = MODELS[0] + sum(weights[n] * (MODELS[n] - MODELS[0]) for n in (1, 2, 3)) + 0.4 * (lie - MODELS[0])
    assert np.allclose(response(sight(weights=weights), lie), want)
    equal = np.mean([*(MODELS[n] for n in range(4)), lie, lie], axis=0)
    assert np.allclose(response(sight(), lie), equal)


@pytest.mark.parametrize("rule", [None, "trimmed-mean:b=2", "median:b=2", "cs+:b=1"])
def test_fall_of_empires_moves_the_rule_further_than_any_scale_of_a_coarse_grid(rule):
    def moved(lie):
        return np.linalg.norm(response(sight(rule=rule), lie) - MEAN)

    found = moved(told("foe", rule=rule))
    assert found >= max(moved((1 - eps) * MEAN) for eps in (0.25, 0.5, 1, 2, 4, 8)) - 1e-9
    assert found > moved(MEAN)


def test_fall_of_empires_uses_the_largest_scale_against_the_mean_and_not_against_a_median():
    assert np.linalg.norm(told("foe")) > 7 * np.linalg.norm(MEAN)
    bounded = response(sight(rule="median:b=2"), told("foe", rule="median:b=2"))
    assert np.linalg.norm(bounded) < 10


# -- the graph --------------------------------------------------------------------------------------------------------


def test_dissensus_of_one_leaves_the_victim_of_the_mean_where_it_is():
    weights = {1: 0.1, 2: 0.2, 3: 0.05, 4: 0.3, 5: 0.1}
    assert np.allclose(response(sight(weights=weights), told("dissensus:1", weights=weights)), MODELS[0])


def test_dissensus_of_more_drives_the_victim_away_from_its_honest_neighbors():
    pull = sum((MODELS[n] - MODELS[0]) / 6 for n in (1, 2, 3))
    assert np.allclose(told("dissensus"), MODELS[0] - 1.5 * pull / (2 / 6))
    assert np.allclose(response(sight(), told("dissensus")) - MODELS[0], -0.5 * pull)


def test_the_fiedler_vector_of_a_dumbbell_parts_its_halves():
    edges = ((0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (3, 5), (4, 5))
    vector = fiedler(edges, tuple(range(6)))
    assert (vector[:3] < 0).all()
    assert (vector[3:] > 0).all()
    assert np.allclose(vector[[2, 3]], [-0.26096, 0.26096], atol=1e-5)
    assert np.isclose(np.linalg.norm(vector), 1)
    assert np.array_equal(fiedler(edges, (2,)), [0.0])


def test_the_fiedler_vector_of_a_ring_is_one_of_its_two_whoever_computes_it():
    ring = tuple((node, (node + 1) % 6) for node in range(6))
    vector = fiedler(ring, tuple(range(6)))
    waves = np.array([[np.cos(np.pi / 3 * node), np.sin(np.pi / 3 * node)] for node in range(6)])
    assert np.isclose(np.linalg.norm(waves.T @ vector) / np.sqrt(3), 1)
    rising = waves @ (waves.T @ np.arange(6))
    assert np.allclose(vector, rising / np.linalg.norm(rising))


def test_the_fiedler_vector_of_two_parts_parts_them():
    assert np.allclose(fiedler(((0, 1), (2, 3)), (0, 1, 2, 3)), [-0.5, -0.5, 0.5, 0.5])


def test_spectral_pushes_the_two_ends_of_a_path_apart():
    """Honest path 0 - 1 - 2: its slowest mode is (1, 0, -1)/sqrt 2; the push is as long as 1.5 deviations."""
    edges = ((0, 1), (1, 2), (0, 4), (1, 4), (2, 4))
    models = {0: np.array([1.0, 0.0]), 1: np.array([0.0, 0.0]), 2: np.array([-1.0, 0.0]), 4: np.array([7.0, 7.0])}
    common = {"edges": edges, "models": models, "own": models[4], "initial": np.zeros(2), "liars": frozenset({4})}
    for peer, side in ((0, 1), (2, -1)):
        shown = told("spectral", peer=peer, **common)
        assert np.allclose(shown - models[peer], [1.5 * side * 0.5, 0.0])
    assert np.allclose(told("spectral", peer=1, **common), models[1], atol=1e-9)


# -- attacks around attacks -------------------------------------------------------------------------------------------


def test_a_sleeper_is_honest_and_lies_by_turns():
    shown = [np.array_equal(told("sleeper:sign-flip@2", rounds=rounds), MODELS[4]) for rounds in range(8)]
    assert shown == [True, True, False, False] * 2
    assert np.array_equal(told("sleeper:sign-flip@2", rounds=3), -MODELS[4])
    assert np.allclose(told("sleeper:alie:2@2", rounds=3), MEAN - 2 * DEVIATION)


def test_a_flood_shows_the_truth_or_its_lie():
    assert np.array_equal(told("flood"), MODELS[4])
    assert np.array_equal(told("flood:sign-flip"), -MODELS[4])
    assert parse_attack("flood:sign-flip").flood


@pytest.mark.parametrize("size", [1, 2, 3, 300])
def test_a_wrong_shape_is_of_another_length_and_never_empty(size):
    own = np.arange(float(size))
    shown = parse_attack("wrong-shape").tell(sight(own=own))
    assert shown.size not in {0, size}
    assert parse_attack("wrong-shape").refused


# -- all of them ------------------------------------------------------------------------------------------------------

ALL = sorted(name for name, entry in ATTACKS.items() if type(entry) is AttackEntry and not entry.refused)


@pytest.mark.parametrize("spec", ALL)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_lie_is_finite_in_the_type_of_the_own_model_the_same_again_and_changes_nothing(spec, dtype):
    models = {node: model.astype(dtype) for node, model in MODELS.items()}
    before = {node: model.copy() for node, model in models.items()}
    shown = told(spec, models=models, own=models[4])
    assert (shown.dtype, shown.shape) == (dtype, (4,))
    assert np.isfinite(shown).all()
    shown[:] = 0
    assert all(np.array_equal(models[node], before[node]) for node in models)
    again = told(spec, models=dict(reversed(models.items())), own=models[4], edges=EDGES[::-1])
    assert again.tobytes() == told(spec, models=models, own=models[4]).tobytes()


@pytest.mark.parametrize("spec", ALL)
@pytest.mark.parametrize("known", [{}, {0: MODELS[0]}, {2: MODELS[2]}, {0: MODELS[0], 4: MODELS[4]}])
def test_a_liar_that_knows_little_still_has_a_lie(spec, known):
    for edges, liars in ((EDGES, frozenset({4, 5})), ((), frozenset())):
        assert np.isfinite(told(spec, models=known, edges=edges, liars=liars)).all()


@pytest.mark.parametrize("spec", ALL)
def test_liars_in_league_tell_each_other_the_truth(spec):
    assert np.array_equal(told(spec, peer=5), MODELS[4])
