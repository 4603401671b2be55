"""The walk that searches for graphs: what guides it is the derivative, and what it skips could not have been taken."""

from __future__ import annotations

from random import Random

import networkx as nx
import numpy as np
import pytest

from topologies import build, spectrum
from topologies.design.goal import CRITERIA, Goal, adjacency_of, mixing_rate, weighted_laplacian
from topologies.design.search import Walk, evaluations_for, search

WEIGHTS = ("metropolis", "max-degree", "best-constant")


def walk_on(spec, nodes, weights="metropolis", *, seed=0, lowest=1, highest=5):
    return Walk(adjacency_of(nodes, build(spec, nodes, seed).ends), weights, lowest, highest)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize(("spec", "nodes"), [("star", 7), ("watts-strogatz", 15), ("random-regular:degree=3", 10)])
def test_the_fast_rate_is_the_one_of_the_spectrum(spec, nodes, weights):
    topology = build(spec, nodes)
    fast = mixing_rate(adjacency_of(nodes, topology.ends), weights)
    assert fast == pytest.approx(spectrum(topology, weights).mixing_rate, abs=1e-12)


def test_the_gain_of_an_edge_is_how_fast_the_rate_falls_as_its_weight_grows():
    walk = walk_on("watts-strogatz", 14, "best-constant", seed=2)
    values = np.linalg.eigvalsh(weighted_laplacian(walk.adjacency, "best-constant"))
    scale = 2.0 / (values[1] + values[-1]) ** 2
    step = 1e-6
    for edge in [(0, 7), (1, 9), (2, 3), (5, 12)]:
        i, j = edge
        nudged = walk.adjacency.copy()
        nudged[i, j] = nudged[j, i] = nudged[i, j] + step
        slope = (mixing_rate(nudged, "best-constant") - walk.rate) / step
        assert slope == pytest.approx(-scale * walk.gain(edge), abs=1e-5)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_a_walk_keeps_to_its_degrees_and_never_skips_a_better_graph(weights):
    rng = Random(1)
    walk = walk_on("random-regular:degree=4", 12, weights, lowest=3, highest=5)
    moves = 0
    for _ in range(400):
        move = walk.draw(rng)
        if move is None:
            continue
        moves += 1
        before = walk.adjacency.copy()
        walk.make(move)
        bound = walk.at_least(weighted_laplacian(walk.adjacency, weights))
        assert bound <= mixing_rate(walk.adjacency, weights) + 1e-12
        if moves % 3:
            walk.undo(move)
            assert np.array_equal(walk.adjacency, before)
        else:
            walk.keep(move)
        degrees = walk.adjacency.sum(axis=0)
        assert np.array_equal(walk.adjacency, walk.adjacency.T)
        assert degrees.tolist() == walk.degrees
        assert degrees.min() >= 3
        assert degrees.max() <= 5
        assert sorted(walk.edges) == [tuple(pair) for pair in np.argwhere(np.triu(walk.adjacency)).tolist()]
    assert moves > 100


@pytest.mark.parametrize("minimize", CRITERIA)
@pytest.mark.parametrize("budget", [None, 40_000_000])
def test_the_energy_grows_with_the_rate_so_that_a_bound_on_one_bounds_the_other(minimize, budget):
    goal = Goal(nodes=10, minimize=minimize, budget_bytes=budget)
    energies = [goal.energy(rate, 20) for rate in np.linspace(0.0, 1.0, 200)]
    assert energies == sorted(energies)


def test_more_is_tried_on_small_graphs_than_on_large_ones():
    tried = [evaluations_for(nodes) for nodes in (10, 60, 100, 200, 500)]
    assert tried == sorted(tried, reverse=True)
    assert tried[-1] >= 1_000


def test_the_search_reports_for_each_number_of_edges_a_graph_that_has_it():
    goal = Goal(nodes=10, max_degree=4)
    best = search(goal, [build("ring", 10).ends, build("circulant:offsets=1-3", 10).ends], 800)
    assert len(best.found) > 3
    for edges, (_, rate, ends) in best.found.items():
        assert len(ends) == edges
        assert rate == pytest.approx(mixing_rate(adjacency_of(10, ends), "metropolis"), abs=1e-12)


def test_a_walk_for_lambda_2_bounds_and_reaches_it():
    goal = Goal(nodes=10, max_degree=3, maximize="lambda_2")
    (_, rate, ends), *_ = search(goal, [build("ring", 10).ends], 1_000).ranked()
    low = np.linalg.eigvalsh(nx.laplacian_matrix(nx.Graph(ends.tolist())).toarray().astype(float))[1]
    assert rate == pytest.approx(1.0 / (1.0 + low))
    walk = Walk(adjacency_of(10, build("torus", 10).ends), goal.matrix, 1, 9)
    other = adjacency_of(10, build("ring", 10).ends)
    assert walk.at_least(weighted_laplacian(other, goal.matrix)) <= mixing_rate(other, goal.matrix)
