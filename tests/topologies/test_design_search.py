"""The walk that searches for graphs: what guides it is the derivative, and what it skips could not have been taken."""

from __future__ import annotations

from random import Random

import networkx as nx
import numpy as np
import pytest

from topologies import build
from topologies.design.candidates import CRITERIA, Goal, adjacency_of, mixing_rate
from topologies.design.search import SymmetricWalk, evaluations_for, rotations, search
from topologies.design.walk import Walk

WEIGHTS = ("metropolis", "best-constant")


def walk_on(spec, nodes, weights="metropolis", *, seed=0, liars=0):
    goal = Goal(nodes=nodes, max_degree=5, byzantine=liars, weights=weights)
    return Walk(goal, build(spec, nodes, seed).ends)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_a_walk_keeps_to_its_degrees_and_never_skips_a_better_graph(weights):
    rng = Random(1)
    walk = walk_on("random-regular:degree=4", 12, weights, liars=1)
    moves = 0
    for _ in range(400):
        move = walk.draw(rng)
        if move is None:
            continue
        moves += 1
        before = walk.adjacency.copy()
        changes = walk.changes(move)
        walk.make(move)
        exact = mixing_rate(walk.adjacency, weights)
        assert walk.at_least(changes) <= exact + 1e-12
        assert walk.rate_after(changes) == pytest.approx(exact, abs=1e-12)
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
def test_the_energy_grows_with_the_rate_so_that_a_bound_on_one_bounds_the_other(minimize):
    goal = Goal(nodes=10, minimize=minimize)
    energies = [goal.energy(rate, 20) for rate in np.linspace(0.0, 1.0, 200)]
    assert energies == sorted(energies)


def test_more_is_tried_on_small_graphs_than_on_large_ones():
    tried = [evaluations_for(nodes) for nodes in (10, 60, 100, 200, 500)]
    assert tried == sorted(tried, reverse=True)
    assert tried[-2:] == [10_000, 1_000]


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
    walk = Walk(goal, build("torus", 10).ends)
    ring, torus = ({tuple(pair) for pair in build(spec, 10).ends.tolist()} for spec in ("ring", "torus"))
    changes = walk.changes((tuple(torus - ring), tuple(ring - torus)))
    other = adjacency_of(10, np.array(sorted(ring)))
    assert walk.at_least(changes) <= mixing_rate(other, goal.matrix) == pytest.approx(walk.rate_after(changes))


@pytest.mark.parametrize(
    ("nodes", "degree", "rate"),
    [
        pytest.param(10, 3, 1 - 2 / 4, id="Petersen"),
        pytest.param(14, 3, 1 - (3 - 2**0.5) / 4, id="Heawood"),
        pytest.param(16, 5, 1 - 4 / 6, id="Clebsch"),
    ],
)
def test_symmetric_walks_alone_reach_the_optimum(nodes, degree, rate):
    """Far below the default budget, without families and without a graph to start from."""
    best = search(Goal(nodes=nodes, max_degree=degree), [], 3_000).ranked()[0]
    assert best[1] == pytest.approx(rate)
    assert evaluations_for(nodes) > 5 * 3_000


@pytest.mark.parametrize("sparse", [False, True])
def test_a_symmetric_walk_keeps_to_its_degree_and_can_be_undone(sparse):
    rng = Random(3)
    for cycles in [(4, 4, 2, 1), (5, 5), (3, 3, 3, 3)]:
        walk = SymmetricWalk(cycles, 4, rng, sparse=sparse)
        for turn in range(60):
            before, state = walk.adjacency.copy(), walk.state
            move = walk.move(rng)
            degrees = walk.adjacency.sum(axis=0)
            assert degrees.max() <= 4
            assert walk.least_degree == degrees.min()
            assert walk.edge_count == degrees.sum() / 2
            assert (walk.state == state) == np.array_equal(walk.adjacency, before)
            if move is not None and turn % 2:
                walk.undo(move)
                assert np.array_equal(walk.adjacency, before)
                assert walk.state == state


def test_a_search_that_is_over_ends_with_what_it_has():
    asked = []

    def over():
        asked.append(None)
        return len(asked) > 40

    best = search(Goal(nodes=12, max_degree=3), [build("ring", 12).ends], 10**9, over=over)
    assert best.found
    assert len(asked) < 60


@pytest.mark.parametrize("nodes", [8, 9])
def test_where_every_edge_is_allowed_each_rotation_is_walked_once_because_nothing_can_be_added(nodes):
    """`over` only ends a search that would go on drawing moves that nothing can make."""
    walked, asked = [], []

    def over():
        asked.append(None)
        return len(asked) > 100_000

    best = search(Goal(nodes=nodes), [], 400, walked.append, over)
    assert len([text for text in walked if "symmetric" in text]) == len(rotations(nodes))
    assert best.ranked()[0][1] == pytest.approx(0.0)
