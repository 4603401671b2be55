"""What the literature proves about graphs, and `topologies.metrics` relies on: one claim in each test."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest

from topologies import Topology, build, connectivity, robustness, tolerance

REGULAR = [
    ("ring", 8),
    ("torus", 12),
    ("torus", 16),
    ("hypercube", 16),
    ("circulant:offsets=1-3", 11),
    ("exponential", 13),
]


def laplacian(topology):
    adjacency = nx.to_numpy_array(topology.to_networkx(), range(topology.nodes))
    return np.diag(adjacency.sum(axis=0)) - adjacency


@pytest.mark.parametrize(("spec", "nodes"), REGULAR)
def test_a_graph_that_looks_the_same_from_everywhere_loses_no_edge_connectivity(spec, nodes):
    """Mader 1971: it is the degree. Watkins 1970: the vertex connectivity is at least two thirds of degree + 1."""
    topology = build(spec, nodes)
    graph, degree = topology.to_networkx(), int(topology.degrees[0])
    assert nx.edge_connectivity(graph) == degree == connectivity(topology).edges.lower
    assert nx.node_connectivity(graph) >= 2 * (degree + 1) / 3


@pytest.mark.parametrize("nodes", range(1, 9))
def test_a_complete_graph_is_the_most_robust(nodes):
    """LeBlanc et al. 2013: ceil(n/2), and no graph on n nodes is more."""
    found = robustness(build("complete", nodes))
    assert (found.lower, found.upper) == (math.ceil(nodes / 2),) * 2


@pytest.mark.parametrize(
    ("spec", "nodes"),
    [("ring", 4), ("ring", 9), ("star", 7), ("path", 6), ("hypercube", 16), ("hypercube", 32), ("torus", 36)],
)
def test_graphs_that_mix_well_may_be_1_robust(spec, nodes):
    """LeBlanc et al. 2013 and Usevitch and Panagou 2018: degree and connectivity do not make a graph robust."""
    found = robustness(build(spec, nodes))
    assert (found.lower, found.upper) == (1, 1)


@pytest.mark.parametrize("seed", range(6))
def test_growing_by_nodes_with_r_edges_keeps_r_robustness(seed):
    """LeBlanc et al. 2013, on preferential attachment: from K_5, which is 3-robust."""
    rng = np.random.default_rng(seed)
    edges = [*build("complete", 5).edges]
    for node in range(5, 14):
        edges += [(int(other), node) for other in rng.choice(node, 3, replace=False)]
    assert robustness(Topology("by hand", 14, edges)).lower >= 3


@pytest.mark.parametrize(("spec", "nodes"), [("random-regular:degree=4", 14), ("random-regular:degree=6", 14)])
def test_the_integer_program_finds_the_same_robustness(spec, nodes):
    """Usevitch and Panagou, arXiv:1810.01784: minimize t with L b1 <= t, L b2 <= t for disjoint nonempty b1, b2."""
    optimize = pytest.importorskip("scipy.optimize")
    topology = build(spec, nodes)
    L = laplacian(topology)
    one, none, eye, zero = np.ones((nodes, 1)), np.zeros((nodes, 1)), np.eye(nodes), np.zeros((nodes, nodes))
    some = np.hstack([np.zeros((2, 1)), np.kron(np.eye(2), np.ones(nodes))])
    A = np.vstack([np.hstack([-one, L, zero]), np.hstack([-one, zero, L]), np.hstack([none, eye, eye]), some])
    upper = np.concatenate([np.zeros(2 * nodes), np.ones(nodes), [nodes, nodes]])
    lower = np.concatenate([np.full(3 * nodes, -np.inf), [1, 1]])
    cost, whole = np.eye(2 * nodes + 1)[0], np.ones(2 * nodes + 1)
    found = optimize.milp(
        cost,
        constraints=optimize.LinearConstraint(A, lower, upper),
        integrality=whole,
        bounds=optimize.Bounds(0, np.concatenate([[nodes], np.ones(2 * nodes)])),
    )
    assert round(found.fun) == robustness(topology).lower == robustness(topology).upper


def agree(topology, liars, start, rounds=300):
    """W-MSR with F = 1: each honest node discards the highest above its own value and the lowest below it."""
    values, rows = np.array(start, dtype=float), topology.adjacency()
    for turn in range(rounds):
        fresh = values.copy()
        for node, row in enumerate(rows):
            above = sorted(values[other] for other in row if values[other] > values[node])[:-1]
            below = sorted(values[other] for other in row if values[other] < values[node])[1:]
            same = [values[other] for other in row if values[other] == values[node]]
            fresh[node] = np.mean([values[node], *above, *below, *same])
        fresh[liars] = 10.0 * (-1.0) ** turn
        values = fresh
    honest = np.delete(values, liars)
    return float(np.ptp(honest)), float(honest.min()), float(honest.max())


def test_a_3_robust_graph_agrees_with_one_liar_and_within_the_honest_range():
    """LeBlanc et al. 2013, F-local model: (2F + 1)-robustness is enough."""
    topology = build("random-regular:degree=8", 20)
    assert tolerance(topology).guaranteed.lower == 1
    spread, low, high = agree(topology, [7], np.linspace(0.0, 1.0, 20))
    assert spread < 1e-6
    assert low >= 0.0
    assert high <= 1.0


def test_a_1_robust_hypercube_does_not_agree_though_nobody_lies():
    """LeBlanc et al. 2013, F-local model: without (F + 1)-robustness two groups can ignore each other."""
    spread, _, _ = agree(build("hypercube", 16), [], np.arange(16) // 8)
    assert spread == 1.0
