"""The figures of a schedule against the matrices multiplied out."""

from __future__ import annotations

import json
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

from topologies import TopologyError, build, build_schedule
from topologies import schedule as schedule_module
from topologies.metrics.describe import describe, describe_schedule, messages
from topologies.schedule import MixingMatrix, Schedule, above

CASES = [
    ("one-peer-exponential", 12),
    ("one-peer-exponential", 16),
    ("base:k=2", 23),
    ("one-peer-hypercube", 16),
    ("random-matchings:rounds=5", 17),
    ("round-robin", 9),
]
ids = [f"{spec} {n}" for spec, n in CASES]


def norms(schedule, rounds):
    """||W_t ... W_1 - J/n|| for t = 0, 1, ..., by singular values."""
    D = np.eye(schedule.nodes) - 1 / schedule.nodes
    found = [1.0]
    for t in range(rounds):
        D = schedule.mixing(t).dense() @ D
        found.append(float(np.linalg.norm(D, 2)))
    return np.array(found)


@pytest.mark.parametrize(("spec", "n"), CASES, ids=ids)
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


@pytest.mark.parametrize(("spec", "n"), CASES, ids=ids)
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
    assert schedule_module.exact_after(schedule) == rounds
    monkeypatch.setattr(schedule_module, "RATIONAL_LIMIT", 0)
    assert schedule_module.exact_after(schedule) == rounds


def test_a_schedule_that_is_nearly_exact_is_not_exact():
    """A share of 1/2 + 2^-50 is 1/2 to all but sixteen digits."""
    share = Fraction(2**49 + 1, 2**50)
    mixing = MixingMatrix.of(2, {(0, 1): share, (1, 0): share})
    assert schedule_module.exact_after(Schedule("", 2, [mixing], directed=False)) is None


def test_a_fast_but_geometric_decay_is_not_exact_to_random_starts(monkeypatch):
    monkeypatch.setattr(schedule_module, "RATIONAL_LIMIT", 0)
    mixing = MixingMatrix.of(2, dict.fromkeys([(0, 1), (1, 0)], Fraction(45, 100)))
    schedule = Schedule("", 2, [mixing] * 30, directed=False)
    assert norms(schedule, 30)[-1] < schedule_module.ZERO
    assert schedule_module.exact_after(schedule) is None


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
