"""How algebraic connectivity decays as nodes or edges fail."""

from __future__ import annotations

import numpy as np
import pytest

from topologies import Topology, TopologyError, build, spectrum
from topologies.failures import PATHS_LIMIT, STRATEGIES, connectivity_bounds, decay, random_decays
from topologies.spectral import fiedler_vector

BOTTLENECKS = ["barbell", "barbell:path=2", "ring", "path", "watts-strogatz:k=4,p=0.1", "random-regular:degree=3"]


def without(topology, failed):
    """The connectivity that is left without these nodes, or without one edge, by numpy alone."""
    nodes = topology.nodes
    laplacian = np.zeros((nodes, nodes))
    for i, j in topology.edges:
        if (i, j) == failed or (len(failed) == 1 and failed[0] in (i, j)):
            continue
        laplacian[[i, j], [i, j]] += 1.0
        laplacian[[i, j], [j, i]] -= 1.0
    if len(failed) == 1:
        laplacian = np.delete(np.delete(laplacian, failed[0], 0), failed[0], 1)
    return np.linalg.eigvalsh(laplacian)[1]


@pytest.mark.parametrize("edges", [False, True])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_row_is_about_the_graph_without_what_failed(strategy, edges):
    topology = build("watts-strogatz:k=4,p=0.3", 20, 3)
    first = decay(topology, 1, strategy, edges=edges).left
    assert first[0].failed == ()
    assert first[0].algebraic_connectivity == pytest.approx(spectrum(topology).algebraic_connectivity, abs=1e-12)
    assert first[1].algebraic_connectivity == pytest.approx(without(topology, first[1].failed), abs=1e-10)


@pytest.mark.parametrize("edges", [False, True])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_fails_is_named_by_the_numbers_of_the_whole_graph_and_fails_once(strategy, edges):
    topology = build("random-regular:degree=4", 16, 1)
    found = decay(topology, 9, strategy, edges=edges, seed=4)
    failed = [left.failed for left in found.left[1:]]
    assert len(set(failed)) == 9
    if edges:
        kept = set(topology.edges) - set(failed)
        assert set(found.remaining.edges) == kept
    else:
        gone = {node for (node,) in failed}
        number = [int(name) for name in found.remaining.names]
        assert number == [node for node in range(16) if node not in gone]
        kept = {(i, j) for i, j in topology.edges if not {i, j} & gone}
        assert {(number[i], number[j]) for i, j in found.remaining.edges} == kept


@pytest.mark.long
@pytest.mark.parametrize("edges", [False, True])
@pytest.mark.parametrize("spec", BOTTLENECKS)
def test_the_fiedler_vector_finds_a_place_at_least_as_bad_as_chance_does_on_average(spec, edges):
    topology = build(spec, 24, 1)
    worst = decay(topology, 3, "fiedler", edges=edges).left
    chance = random_decays(topology, 3, 20, edges=edges)
    for left, row in zip(worst[1:], chance[1:], strict=True):
        assert left.algebraic_connectivity <= row["lambda_2_mean"] + 1e-9


@pytest.mark.parametrize("edges", [False, True])
def test_the_fiedler_vector_finds_the_bridge_at_once(edges):
    left = decay(build("barbell", 20), 1, "fiedler", edges=edges).left[1]
    assert left.failed == ((9, 10) if edges else left.failed)
    assert set(left.failed) <= {9, 10}
    assert left.components == 2


@pytest.mark.parametrize("edges", [False, True])
@pytest.mark.parametrize("spec", BOTTLENECKS)
def test_the_bound_is_never_below_the_connectivity_that_is_left(spec, edges):
    topology = build(spec, 16, 2)
    bounds = connectivity_bounds(topology, fiedler_vector(topology), edges=edges)
    failing = topology.edges if edges else [(node,) for node in range(16)]
    assert len(bounds) == len(failing)
    for bound, failed in zip(bounds, failing, strict=True):
        assert bound >= without(topology, failed) - 1e-9


def test_the_hub_of_a_star_is_what_degree_takes_first():
    left = decay(build("star", 8), 1, "degree").left[1]
    assert (left.failed, left.components, left.largest) == ((0,), 7, 1)


def test_the_edge_between_two_hubs_is_what_degree_takes_first():
    stars = Topology("by hand", 8, [(0, 1), (0, 2), (0, 3), (0, 4), (4, 5), (4, 6), (4, 7)])
    assert decay(stars, 1, "degree", edges=True).left[1].failed == (0, 4)


def test_most_shortest_paths_of_a_line_use_its_middle():
    assert decay(build("path", 9), 1, "betweenness").left[1].failed == (4,)
    assert decay(build("path", 8), 1, "betweenness", edges=True).left[1].failed == (3, 4)


def test_degree_looks_again_after_each_failure():
    """Node 0 has most; without it node 5 has, though node 1 had as many before."""
    edges = [(0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (5, 6), (5, 7), (5, 8), (4, 5)]
    failed = [left.failed for left in decay(Topology("by hand", 9, edges), 2, "degree").left[1:]]
    assert failed == [(0,), (5,)]


def test_what_is_cut_off_already_is_left_alone():
    """A clique of six and a path of four on it: the bridge goes first, then what hurts the clique."""
    clique = [(i, j) for i in range(6) for j in range(i)]
    found = decay(Topology("by hand", 10, [*clique, (5, 6), (6, 7), (7, 8), (8, 9)]), 2, "fiedler", edges=True)
    assert found.left[1].components == 2
    assert max(found.left[2].failed) < found.left[1].largest


def test_random_failures_differ_by_seed_and_repeat_with_it():
    def failed(seed):
        return [left.failed for left in decay(build("ring", 30), 5, seed=seed).left]

    assert failed(1) == failed(1)
    assert failed(1) != failed(2)


def test_the_mean_of_many_draws_lies_between_their_least_and_largest():
    topology = build("random-regular:degree=4", 20, 1)
    rows = random_decays(topology, 3, 8, seed=5)
    draws = [decay(topology, 3, seed=5 + k).left[3].algebraic_connectivity for k in range(8)]
    assert rows[3]["lambda_2_mean"] == pytest.approx(np.mean(draws))
    assert (rows[3]["lambda_2_min"], rows[3]["lambda_2_max"]) == (min(draws), max(draws))
    assert rows[0]["lambda_2_min"] == rows[0]["lambda_2_max"]


def test_the_share_of_connected_draws_is_counted():
    rows = random_decays(build("path", 10), 1, 40, seed=0)
    ends = sum(decay(build("path", 10), 1, seed=k).left[1].failed[0] in (0, 9) for k in range(40))
    assert rows[1]["connected_share"] == ends / 40


@pytest.mark.parametrize(("edges", "remove", "allowed"), [(False, 8, "0 to 7 nodes"), (True, 9, "0 to 8 edges")])
def test_no_more_can_fail_than_there_is(edges, remove, allowed):
    with pytest.raises(TopologyError, match=allowed):
        decay(build("ring", 8), remove, edges=edges)


@pytest.mark.parametrize("edges", [False, True])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_all_that_may_fail_can(strategy, edges):
    found = decay(build("ring", 6), 6 if edges else 5, strategy, edges=edges)
    assert found.left[-1].algebraic_connectivity == 0.0
    assert found.left[-1].components == (6 if edges else 1)


def test_an_unknown_strategy_is_told_the_nearest():
    with pytest.raises(TopologyError, match="did you mean 'fiedler'"):
        decay(build("ring", 8), 1, "fidler")


def test_shortest_paths_are_not_counted_on_large_graphs():
    with pytest.raises(TopologyError, match="betweenness up to"):
        decay(build("ring", PATHS_LIMIT + 1), 1, "betweenness")


def test_the_graph_that_is_asked_about_stays_as_it_was():
    topology = build("torus", 16)
    decay(topology, 3)
    assert topology == build("torus", 16)
    assert spectrum(topology).method == "closed form"
