"""Schedules and directed graphs: whole matrices of shares, the same ones for the same request."""

from __future__ import annotations

import json
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

from topologies import (
    DENSE_SHARE,
    FAMILIES,
    LINKS_LIMIT,
    ZERO,
    GraphKind,
    MixingMatrix,
    Schedule,
    TopologyError,
    above,
    build,
    build_schedule,
    describe,
    describe_schedule,
    exact_after,
    kind,
    messages,
    product,
)
from topologies.schedule import contraction

NAMES = [name for name, family in FAMILIES.items() if family.schedule]
ANY_SIZE = [name for name in NAMES if name not in {"one-peer-hypercube", "random-regular-each-round"}]
CASES = [(name, n) for name in ANY_SIZE for n in (1, 2, 3, 6, 7, 16, 25)] + [
    ("base:k=3", 23),
    ("one-peer-hypercube", 1),
    ("one-peer-hypercube", 16),
    ("random-regular-each-round:degree=3,rounds=5", 10),
    ("random-regular-each-round:degree=6", 9),
]
ids = [f"{spec} {n}" for spec, n in CASES]


def links(mixing):
    return {*zip(mixing.receivers.tolist(), mixing.senders.tolist(), strict=True)}


def rounds_of(schedule):
    return [links(mixing) for mixing in schedule.mixings]


@pytest.mark.parametrize(("spec", "n"), CASES, ids=ids)
def test_every_matrix_is_doubly_stochastic_without_rounding(spec, n):
    schedule = build_schedule(spec, n)
    for mixing in schedule.mixings:
        W, below = product(Schedule("", n, [mixing], directed=True), 1)
        assert (W >= 0).all()
        assert (W.sum(axis=0) == below).all()
        assert (W.sum(axis=1) == below).all()
        np.testing.assert_allclose(mixing.dense(), (W / below).astype(float), atol=1e-15)


def test_only_a_directed_family_has_matrices_that_are_not_symmetric():
    for spec, n in CASES:
        schedule = build_schedule(spec, n)
        assert schedule.directed == (kind(spec) is GraphKind.DIRECTED)
        if not schedule.directed:
            assert all(np.array_equal(mixing.dense(), mixing.dense().T) for mixing in schedule.mixings)


def test_no_node_has_a_link_to_itself_and_no_link_comes_twice():
    for spec, n in CASES:
        for mixing in build_schedule(spec, n).mixings:
            assert len(links(mixing)) == mixing.messages
            assert all(i != j for i, j in links(mixing))


@pytest.mark.parametrize("name", ANY_SIZE)
def test_the_same_request_gives_the_same_rounds_and_only_a_random_family_heeds_the_seed(name):
    drawn = [rounds_of(build_schedule(name, 20, seed)) for seed in (0, 0, 1, 2)]
    assert drawn[0] == drawn[1]
    assert (len({str(rounds) for rounds in drawn}) > 1) == FAMILIES[name].random
    assert build_schedule(name, 20).random == FAMILIES[name].random


@pytest.mark.parametrize("name", ["random-matchings", "random-regular-each-round"])
def test_a_longer_draw_begins_with_the_shorter_one(name):
    short, long = (rounds_of(build_schedule(f"{name}:rounds={rounds}", 15, 4)) for rounds in (3, 9))
    assert long[:3] == short
    assert len(long) == 9


def test_a_regular_graph_in_each_round_is_another_one_of_that_degree():
    schedule = build_schedule("random-regular-each-round:degree=7,rounds=8", 96, 3)
    for mixing in schedule.mixings:
        assert (np.bincount(mixing.receivers) == 7).all()
        assert set(mixing.weights) == {1 / 8}
    assert len({str(rounds) for rounds in rounds_of(schedule)}) == schedule.period == 8
    assert 36 < 2 * len(schedule.union().edges) / 96 < 56
    assert rounds_of(schedule) != rounds_of(build_schedule("random-regular-each-round:degree=7,rounds=8", 96, 4))


def test_draws_are_those_of_every_other_process_and_version():
    """A federation's nodes each draw the schedule for themselves."""
    assert build_schedule("random-matchings:rounds=1", 8, 7).union().edges == ((0, 5), (1, 6), (2, 3), (4, 7))


@pytest.mark.parametrize("name", ["base:k=2", "base:k=63", "one-peer-exponential"])
def test_a_matrix_is_applied_as_it_is_written(name):
    for mixing in build_schedule(name, 64).mixings:
        x = np.random.default_rng(0).normal(size=(64, 3))
        np.testing.assert_allclose(mixing.apply(x), mixing.dense() @ x, atol=1e-14)
        np.testing.assert_allclose(mixing.apply(x[:, 0]), mixing.dense() @ x[:, 0], atol=1e-14)


def test_a_round_with_several_links_to_one_node_is_applied_link_by_link_where_it_is_sparse():
    mixing = build_schedule("base:k=7", 64 * 8).mixings[0]
    assert len(mixing.layers) == 7 <= 512 / DENSE_SHARE
    assert sorted(np.concatenate(mixing.layers)) == list(range(mixing.messages))
    assert all(len(set(mixing.receivers[layer])) == len(layer) for layer in mixing.layers)
    x = np.random.default_rng(0).normal(size=(512, 2))
    np.testing.assert_allclose(mixing.apply(x), mixing.dense() @ x, atol=1e-14)


def test_the_union_has_the_edges_of_all_rounds():
    for spec, n in CASES:
        schedule = build_schedule(spec, n)
        pairs = {(min(pair), max(pair)) for links in rounds_of(schedule) for pair in links}
        assert set(schedule.union().edges) == pairs


@pytest.mark.parametrize("n", [2, 7, 10])
def test_a_random_matching_leaves_at_most_one_node_alone(n):
    for mixing in build_schedule("random-matchings:rounds=20", n).mixings:
        assert len(set(mixing.receivers.tolist())) == mixing.messages == 2 * (n // 2)
        assert (mixing.weights == 0.5).all()


@pytest.mark.parametrize("n", [2, 3, 8, 9])
def test_in_a_round_robin_every_pair_meets_once(n):
    schedule = build_schedule("round-robin", n)
    assert sum(mixing.messages for mixing in schedule.mixings) == n * (n - 1)
    assert schedule.union() == build("complete", n)
    assert all(np.bincount(mixing.receivers).max() == 1 for mixing in schedule.mixings)


def test_a_round_robin_mixes_about_as_fast_as_random_matchings():
    """In the order of the circle it takes thousands of rounds."""
    robin, drawn = (contraction(build_schedule(spec, 101), 1e-3) for spec in ("round-robin", "random-matchings"))
    assert robin.rounds < 2 * drawn.rounds


def test_a_one_peer_node_hears_the_one_two_to_the_t_further_on():
    schedule = build_schedule("one-peer-exponential", 11)
    assert [mixing.senders[10] for mixing in schedule.mixings] == [0, 1, 3, 7]
    assert (schedule.mixing(5).senders == schedule.mixing(1).senders).all()


@pytest.mark.parametrize(
    ("spec", "n", "message"),
    [
        ("one-peer-hypercube", 12, "8 or 16"),
        ("base:k=0", 8, "from 1"),
        ("random-matchings:rounds=10001", 1, "random-matchings:rounds: too many.*10000"),
        ("random-matchings:rounds=100", 1_000_000, "more than can be held"),
        ("random-regular-each-round:degree=7", 95, "random-regular-each-round:degree: no such graph.*94 or 96"),
        ("round-robin", 100_000, "more than can be held"),
        ("base:k=2", 2_000_000, "more than can be held"),
        ("ring", 8, "neither changes"),
    ],
)
def test_a_mistake_says_what_would_be_right(spec, n, message):
    with pytest.raises(TopologyError, match=message):
        build_schedule(spec, n)


def test_a_schedule_is_no_static_graph():
    with pytest.raises(TopologyError, match="changes over time"):
        build("base", 8)


@pytest.mark.parametrize("spec", ["base", "one-peer-exponential", "random-matchings"])
def test_a_hundred_thousand_nodes_are_no_matter(spec):
    schedule = build_schedule(spec, 100_000)
    assert sum(mixing.messages for mixing in schedule.mixings) < LINKS_LIMIT / 10
    x = np.random.default_rng(0).normal(size=100_000)
    assert schedule.mixing(1).apply(x).mean() == pytest.approx(x.mean(), abs=1e-12)


def test_weights_that_are_all_the_same_are_held_once():
    mixing = build_schedule("one-peer-exponential", 1024).mixings[0]
    assert mixing.numerators.base.nbytes == 8


def test_a_round_without_links_changes_nothing():
    mixing = MixingMatrix.joined(4, [])
    x = np.arange(4.0)
    assert mixing.apply(x).tolist() == mixing.apply(x[:, None]).ravel().tolist() == x.tolist()
    assert Schedule("", 4, [mixing], directed=False).union().edge_count == 0


# -- The figures of a schedule against the matrices multiplied out.

DESCRIBED = [
    ("one-peer-exponential", 12),
    ("one-peer-exponential", 16),
    ("base:k=2", 23),
    ("one-peer-hypercube", 16),
    ("random-matchings:rounds=5", 17),
    ("round-robin", 9),
]
DESCRIBED_IDS = [f"{spec} {n}" for spec, n in DESCRIBED]


def norms(schedule, rounds):
    """||W_t ... W_1 - J/n|| for t = 0, 1, ..., by singular values."""
    D = np.eye(schedule.nodes) - 1 / schedule.nodes
    found = [1.0]
    for t in range(rounds):
        D = schedule.mixing(t).dense() @ D
        found.append(float(np.linalg.norm(D, 2)))
    return np.array(found)


@pytest.mark.parametrize(("spec", "n"), DESCRIBED, ids=DESCRIBED_IDS)
@pytest.mark.parametrize("epsilon", [0.5, 1e-3, 1e-6])
def test_rounds_to_consensus_are_the_first_with_a_norm_of_at_most_epsilon(spec, n, epsilon):
    schedule = build_schedule(spec, n)
    described = describe_schedule(schedule, epsilon)
    rounds = described["rounds_to_consensus"]
    found = norms(schedule, rounds)
    assert found[-1] <= epsilon * (1 + 1e-9)
    assert (found[:-1] > epsilon * (1 - 1e-9)).all()
    sent = sum(schedule.mixing(t).messages for t in range(rounds))
    assert described["messages_to_consensus"] == messages(schedule, rounds) == sent


@pytest.mark.parametrize(("spec", "n"), [("base:k=1", 6), ("base:k=2", 25), ("base:k=1", 150)])
@pytest.mark.parametrize("epsilon", [1e-16, 1e-30, 5e-324])
def test_an_exact_schedule_reaches_every_epsilon_when_it_is_exact(spec, n, epsilon):
    """Rounding leaves some 1e-17 of a distance that is nothing."""
    described = describe_schedule(build_schedule(spec, n), epsilon)
    assert described["rounds_to_consensus"] == described["exact_after"]


def test_an_epsilon_far_below_rounding_is_reached_by_what_only_decays_too():
    slow = build_schedule("round-robin", 7)
    D, rounds = np.eye(7) - 1 / 7, 0
    while np.linalg.norm(D, 2) > 1e-30:
        D = slow.mixing(rounds).dense() @ D
        D -= D.mean(axis=0)
        rounds += 1
    assert describe_schedule(slow, 1e-30)["rounds_to_consensus"] == rounds


def test_a_rate_that_rounding_hides_is_not_certified():
    """After three hundred rounds of matchings the norm is what the multiplications left."""
    described = describe_schedule(build_schedule("random-matchings:rounds=300", 24))
    assert described["mixing_rate"] ** 300 < 1e-12
    assert described["exact_after"] is None
    assert not described["certified"]


def test_a_schedule_that_is_exact_before_its_period_ends_has_a_rate_of_zero():
    schedule = Schedule("", 7, 3 * build_schedule("base", 7).mixings, directed=False)
    described = describe_schedule(schedule)
    assert (described["exact_after"], described["mixing_rate"], described["certified"]) == (5, 0.0, True)


@pytest.mark.parametrize("largest", [0.99999, 1.00001])
def test_a_norm_close_to_epsilon_is_told_by_singular_values_where_bounds_leave_it_open(largest):
    """Many singular values just below the largest: a few turns of an iteration do not find it."""
    D = np.diag([largest, *[0.9999] * 40]) * 1e-3
    assert above(D, 1e-3) == (largest > 1)


@pytest.mark.parametrize(("spec", "n"), DESCRIBED, ids=DESCRIBED_IDS)
def test_the_mixing_rate_is_the_norm_over_a_period_for_each_round(spec, n):
    schedule = build_schedule(spec, n)
    described = describe_schedule(schedule)
    assert described["mixing_rate"] ** schedule.period == pytest.approx(norms(schedule, schedule.period)[-1], abs=1e-12)
    assert described["certified"]


@pytest.mark.parametrize(
    ("spec", "n", "rounds"),
    [("base", 25, 9), ("base", 1, 0), ("one-peer-exponential", 12, None)],
)
def test_exactness_is_told_by_whole_numbers_and_from_random_starts_alike(spec, n, rounds, monkeypatch):
    schedule = build_schedule(spec, n)
    assert exact_after(schedule) == rounds
    monkeypatch.setattr("topologies.schedule.RATIONAL_LIMIT", 0)
    assert exact_after(schedule) == rounds


def test_a_schedule_that_is_nearly_exact_is_not_exact():
    """A share of 1/2 + 2^-50 is 1/2 to all but sixteen digits."""
    share = Fraction(2**49 + 1, 2**50)
    mixing = MixingMatrix.of(2, {(0, 1): share, (1, 0): share})
    assert exact_after(Schedule("", 2, [mixing], directed=False)) is None


def test_a_fast_but_geometric_decay_is_not_exact_to_random_starts(monkeypatch):
    monkeypatch.setattr("topologies.schedule.RATIONAL_LIMIT", 0)
    mixing = MixingMatrix.of(2, dict.fromkeys([(0, 1), (1, 0)], Fraction(45, 100)))
    schedule = Schedule("", 2, [mixing] * 30, directed=False)
    assert norms(schedule, 30)[-1] < ZERO
    assert exact_after(schedule) is None


def test_a_schedule_whose_union_is_disconnected_never_reaches_consensus():
    described = describe_schedule(build_schedule("random-matchings:rounds=1", 10))
    assert described["algebraic_connectivity"] == 0
    assert described["rounds_to_consensus"] is described["messages_to_consensus"] is described["exact_after"] is None
    assert (described["components"], described["connected"], described["mixing_rate"]) == (5, False, 1.0)


def test_a_connected_union_that_never_mixes_is_seen_by_its_norm():
    """Two nodes that swap for ever."""
    swap = MixingMatrix.of(2, {(0, 1): Fraction(1), (1, 0): Fraction(1)})
    described = describe_schedule(Schedule("swap", 2, [swap], directed=False))
    assert described["connected"]
    assert described["mixing_rate"] == 1.0
    assert described["rounds_to_consensus"] is None


@pytest.mark.parametrize("spec", ["base", "one-peer-exponential", "random-matchings"])
def test_one_node_agrees_with_itself_at_once(spec):
    described = describe_schedule(build_schedule(spec, 1))
    assert described["rounds_to_consensus"] == described["exact_after"] == described["messages_to_consensus"] == 0
    assert described["connected"]


def test_what_is_said_of_the_union_is_what_is_said_of_that_graph():
    described, union = describe_schedule(build_schedule("round-robin", 10)), describe(build("complete", 10))
    for key in ("edges", "connected", "diameter", "algebraic_connectivity", "laplacian_max_eigenvalue"):
        assert described[key] == pytest.approx(union[key]), key


def test_degrees_are_those_of_a_round():
    assert describe_schedule(build_schedule("round-robin", 9))["degree"] == {"min": 0, "mean": 8 / 9, "max": 1}
    assert describe_schedule(build_schedule("base:k=3", 8))["degree"]["max"] == 3


def test_a_description_is_plain_json_and_shares_the_keys_of_a_static_graph():
    described = describe_schedule(build_schedule("random-matchings", 12, 5))
    assert json.loads(json.dumps(described)) == described
    static = set(describe(build("ring", 12))) - {"weights", "lower_bound", "converged"}
    promised = {"nodes", "edges", "degree", "algebraic_connectivity", "mixing_rate", "rounds_to_consensus", "certified"}
    assert promised <= set(described) & static
    assert (described["live"], described["random"], described["seed"], described["period"]) == (True, True, 5, 8)


@pytest.mark.parametrize("epsilon", [0.0, 1.0, -1.0, float("nan")])
def test_an_impossible_accuracy_is_refused(epsilon):
    with pytest.raises(TopologyError, match="between 0 and 1"):
        describe_schedule(build_schedule("base", 4), epsilon)


@pytest.mark.long
def test_ten_thousand_nodes_are_described_without_a_dense_matrix(monkeypatch):
    """The union's eigenvalues are another module's work."""
    found = SimpleNamespace(low=1.0, high=1.0, method="none", certified=False)
    monkeypatch.setattr("topologies.metrics.describe.plain_extremes", lambda _: found)
    described = describe_schedule(build_schedule("base", 10_000))
    assert described["exact_after"] == described["rounds_to_consensus"] == build_schedule("base", 10_000).period
    assert (described["mixing_rate"], described["method"], described["certified"]) == (0.0, "random starts", False)


def test_a_norm_that_is_epsilon_but_for_rounding_has_reached_it():
    assert describe_schedule(build_schedule("round-robin", 6), 0.5)["rounds_to_consensus"] == 2
