"""Consensus in numpy: what is measured is what the eigenvalues predict, and the mean stays where it should."""

from __future__ import annotations

import numpy as np
import pytest

from topologies import (
    STRATEGIES,
    ConsensusSettings,
    MixingMatrix,
    Schedule,
    Topology,
    TopologyError,
    build,
    build_schedule,
    drift,
    mixing_step,
    simulate,
    simulate_schedule,
    spectrum,
    tail,
)
from topologies.experiments import decay

GRAPHS = [
    ("ring", 24),
    ("path", 12),
    ("star", 20),
    ("torus", 36),
    ("barbell", 16),
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


# -- How algebraic connectivity decays as nodes fail.


def without(topology, node):
    """The connectivity that is left without this node, by numpy alone."""
    laplacian = np.zeros((topology.nodes, topology.nodes))
    for i, j in topology.edges:
        if node not in {i, j}:
            laplacian[[i, j], [i, j]] += 1.0
            laplacian[[i, j], [j, i]] -= 1.0
    return np.linalg.eigvalsh(np.delete(np.delete(laplacian, node, 0), node, 1))[1]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_row_is_about_the_graph_without_what_failed(strategy):
    topology = build("watts-strogatz:k=4,p=0.3", 20, 3)
    first = decay(topology, 1, strategy)
    assert first[0].failed is None
    assert first[0].algebraic_connectivity == pytest.approx(spectrum(topology).algebraic_connectivity, abs=1e-12)
    assert first[1].algebraic_connectivity == pytest.approx(without(topology, first[1].failed), abs=1e-10)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_fails_is_named_by_the_numbers_of_the_whole_graph_and_fails_once(strategy):
    topology = build("random-regular:degree=4", 16, 1)
    found = decay(topology, 9, strategy, seed=4)
    gone = {left.failed for left in found[1:]}
    assert len(gone) == 9
    assert gone < set(range(16))
    assert found[-1].largest <= 7


def test_the_hub_of_a_star_is_what_degree_takes_first():
    left = decay(build("star", 8), 1, "degree")[1]
    assert (left.failed, left.components, left.largest) == (0, 7, 1)


def test_degree_looks_again_after_each_failure():
    """Node 0 has most; without it node 5 has, though node 1 had as many before."""
    edges = [(0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (5, 6), (5, 7), (5, 8), (4, 5)]
    failed = [left.failed for left in decay(Topology("by hand", 9, edges), 2, "degree")[1:]]
    assert failed == [0, 5]


def test_random_failures_differ_by_seed_and_repeat_with_it():
    def failed(seed):
        return [left.failed for left in decay(build("ring", 30), 5, seed=seed)]

    assert failed(1) == failed(1)
    assert failed(1) != failed(2)


def test_no_more_can_fail_than_there_is():
    with pytest.raises(TopologyError, match="0 to 7 nodes"):
        decay(build("ring", 8), 8)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_all_that_may_fail_can(strategy):
    last = decay(build("ring", 6), 5, strategy)[-1]
    assert (last.algebraic_connectivity, last.components) == (0.0, 1)


def test_an_unknown_strategy_is_told_the_nearest():
    with pytest.raises(TopologyError, match="did you mean 'degree'"):
        decay(build("ring", 8), 1, "degre")
    with pytest.raises(TopologyError, match="fiedler is gone: use degree"):
        decay(build("ring", 8), 1, "fiedler")


def test_the_graph_that_is_asked_about_stays_as_it_was():
    topology = build("torus", 16)
    decay(topology, 3)
    assert topology == build("torus", 16)
    assert spectrum(topology).method == "closed form"
