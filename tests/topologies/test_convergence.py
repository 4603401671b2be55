"""Consensus in numpy: what is measured is what the eigenvalues predict, and the mean stays where it should."""

from __future__ import annotations

import numpy as np
import pytest

from topologies import MixingMatrix, Schedule, TopologyError, build, build_schedule, spectrum
from topologies.experiments import ConsensusSettings, drift, mixing_step, simulate, simulate_schedule, tail

GRAPHS = [
    ("ring", 24),
    ("ring", 25),
    ("path", 12),
    ("star", 20),
    ("torus", 36),
    ("complete", 12),
    ("hypercube", 32),
    ("barbell", 16),
    ("exponential", 33),
    ("random-regular:degree=4", 40),
    ("watts-strogatz", 40),
    ("erdos-renyi:p=0.3", 30),
    ("path", 2),
]
WEIGHTS = ["metropolis", "best-constant", "sample-weighted"]


def facts(spec, nodes, **asked):
    return simulate(build(spec, nodes, 1), ConsensusSettings(**asked)).facts


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize(("spec", "nodes"), GRAPHS)
def test_the_measured_contraction_is_the_predicted_one_and_the_mean_stays(spec, nodes, weights):
    """Xiao and Boyd 2004: max(|1 - l2|, |1 - lmax|) of the weighted Laplacian."""
    found = facts(spec, nodes, weights=weights)
    assert found["settled"]
    assert found["measured_contraction"] == pytest.approx(found["predicted_contraction"], abs=1e-9)
    assert found["measured_rounds"] <= found["predicted_rounds"]
    assert found["mean_drift"] <= 1e-12


@pytest.mark.parametrize("rounds", [2, 10, 50, 200])
def test_before_the_contraction_settles_it_is_a_lower_bound(rounds):
    topology = build("ring", 40)
    predicted = spectrum(topology).mixing_rate
    early = tail(mixing_step(topology), np.random.default_rng(2).normal(size=40), rounds)
    later = tail(mixing_step(topology), np.random.default_rng(2).normal(size=40), 2 * rounds)
    assert not early.settled
    assert early.contraction < later.contraction < predicted


def test_no_round_of_the_history_is_above_its_prediction():
    history = simulate(build("barbell", 12), ConsensusSettings(rounds=60)).history
    assert [row["round"] for row in history] == list(range(61))
    assert all(row["distance"] <= row["predicted"] + 1e-12 for row in history)


def test_messages_are_two_for_each_edge_and_round():
    found = facts("torus", 16)
    assert found["measured_messages"] == 2 * 32 * found["measured_rounds"]


@pytest.mark.long
def test_the_same_seed_gives_the_same_figures_and_another_gives_others():
    def rounds(seed):
        report = simulate(build("path", 12), ConsensusSettings(seed=seed))
        return report.facts["measured_contraction"], report.history[-1]["distance"]

    assert rounds(3) == rounds(3)
    assert rounds(3) != rounds(4)


def test_drift_is_told_in_root_mean_square_distances_to_the_mean():
    x = np.array([-2.0, 2.0, -2.0, 2.0])
    assert drift(x + 1.0, x) == pytest.approx(0.5)


def test_a_disconnected_graph_never_agrees_and_ends_with_exit_code_three():
    with pytest.raises(TopologyError, match="2 components") as caught:
        simulate(build("circulant:offsets=2", 8))
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"epsilon": 1.0}, "epsilon: impossible accuracy"),
        ({"rounds": 0}, "rounds: out of range"),
        ({"rounds": 10**7}, "from 1 to 1000000"),
        ({"weights": "metropolic"}, "did you mean 'metropolis'"),
    ],
)
def test_an_impossible_request_names_what_is_wrong_with_it(asked, text):
    with pytest.raises(TopologyError, match=text):
        simulate(build("ring", 8), ConsensusSettings(**asked))


def test_one_node_has_nobody_to_agree_with():
    with pytest.raises(TopologyError, match="from 2"):
        simulate(build("ring", 1))


@pytest.mark.parametrize(("spec", "nodes"), [("one-peer-exponential", 16), ("base:k=1", 12), ("base:k=2", 22)])
def test_a_schedule_that_averages_exactly_is_seen_to_do_so(spec, nodes):
    found = simulate_schedule(build_schedule(spec, nodes)).facts
    assert found["measured_exact_after"] == found["predicted_exact_after"] is not None
    assert found["measured_contraction"] == 0.0
    assert found["mean_drift"] < 1e-12


@pytest.mark.parametrize(("spec", "nodes"), [("one-peer-exponential", 12), ("random-matchings:rounds=4", 10)])
def test_a_schedule_that_does_not_contracts_in_the_long_run_by_the_largest_eigenvalue_of_its_period(spec, nodes):
    schedule = build_schedule(spec, nodes, 2)
    product = np.eye(nodes)
    for mixing in schedule.mixings:
        product = mixing.dense() @ product
    modulus = np.sort(np.abs(np.linalg.eigvals(product)))[-2]
    found = simulate_schedule(schedule).facts
    assert found["measured_exact_after"] is None
    assert found["measured_contraction"] == pytest.approx(modulus ** (1 / schedule.period), abs=1e-4)
    assert found["measured_rounds"] <= found["predicted_rounds"]


def test_no_round_of_a_schedule_is_above_its_prediction():
    report = simulate_schedule(build_schedule("one-peer-exponential", 12), settings=ConsensusSettings(rounds=40))
    assert all(row["distance"] <= row["predicted"] + 1e-12 for row in report.history)


def test_a_schedule_whose_union_is_disconnected_ends_with_exit_code_three():
    pair = MixingMatrix.of(4, {})
    with pytest.raises(TopologyError) as caught:
        simulate_schedule(Schedule("by hand", 4, [pair], directed=False))
    assert caught.value.exit_code == 3
