"""The bound by clusters never exceeds lambda_2, whatever the blocks and weights; and it is close where clusters are."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from topologies import Topology, build
from topologies.eigen import extremes as ladder
from topologies.eigen.certificate import CHEAP, FactorBudget
from topologies.eigen.decomposition import Blocks, blocks_along, bound_by_blocks, bound_of
from topologies.eigen.extremes import dense_extremes, extremes
from topologies.laplacian import Laplacian


def dense_bound(laplacian: Laplacian) -> float:
    return dense_extremes(laplacian).lower or 0.0


def random_blocks(seed: int) -> tuple[Laplacian, Blocks]:
    """A weighted graph, cut into connected blocks at random edges: good blocks, bad blocks and single nodes."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 26))
    graph = nx.gnp_random_graph(n, float(rng.uniform(0.1, 0.9)), seed=seed)
    graph.add_edges_from(nx.random_labeled_tree(n, seed=seed).edges)
    topology = Topology("random", n, list(graph.edges))
    spread = float(rng.choice([0.0, 1.0, 3.0]))
    c, weights = (np.exp(rng.normal(0.0, spread, size)) for size in (topology.edge_count, n))
    kept = topology.ends[rng.random(topology.edge_count) < rng.uniform(0.02, 0.3)]
    parts = nx.Graph(kept.tolist())
    parts.add_nodes_from(range(n))
    block = np.empty(n, np.int64)
    for number, members in enumerate(nx.connected_components(parts)):
        block[list(members)] = number
    return Laplacian(topology.ends, c, weights), Blocks(block, int(block.max()) + 1)


def test_no_blocks_prove_more_than_there_is():
    proven = 0
    for seed in (*range(60), 79, 264, 747, 1307):  # of the last ones, blocks are about as slow as what joins them
        laplacian, blocks = random_blocks(seed)
        if blocks.count > 1:
            lower = bound_of(laplacian, blocks, dense_bound)
            assert lower <= np.linalg.eigvalsh(laplacian.dense())[1] * (1.0 + 1e-9), seed
            proven += lower > 0.0
    assert proven > 40


def test_the_bound_is_met_where_all_that_gives_way_is_a_link():
    """Two single nodes; and two heavy cliques of 40 with one link between nodes that the cliques hold in place."""
    ends = np.array([[0, 1]])
    pair = Laplacian(ends, np.array([0.3]), np.array([2.0, 5.0]))
    assert bound_of(pair, Blocks(np.arange(2), 2), dense_bound) == pytest.approx(0.3 * (1 / 2 + 1 / 5), rel=1e-4)
    barbell = Laplacian.plain(build("barbell", 80))
    assert bound_of(barbell, Blocks(np.arange(80) // 40, 2), dense_bound) == pytest.approx(
        build("barbell", 80).formula.low, rel=2e-3
    )


def test_links_that_meet_in_a_light_node_share_what_holds_it():
    """A heavy node 0, a light one beside it, and ten links from that to a heavy clique."""
    links = [(1, other) for other in range(2, 12)]
    topology = Topology("hub", 12, [(0, 1), *links, *((i, j) for i in range(2, 12) for j in range(i + 1, 12))])
    c = np.where((topology.ends >= 2).all(axis=1), 10.0, 1.0)
    laplacian = Laplacian(topology.ends, c, np.array([100.0, 1.0, *[100.0] * 10]))
    lower = bound_of(laplacian, Blocks((np.arange(12) > 1).astype(np.int64), 2), dense_bound)
    exact = np.linalg.eigvalsh(laplacian.dense())[1]
    assert 0.9 * exact < lower < exact


def test_clusters_are_found_along_the_numbers_and_along_the_vector_of_a_shuffled_graph():
    graph = build("stochastic-block:blocks=4,inside=0.4,between=0.001", 240, 1)
    order = np.random.default_rng(5).permutation(240)
    shuffled = Topology("shuffled", 240, order[graph.ends])
    for topology, block in ((graph, np.arange(240) // 60), (shuffled, np.argsort(order) // 60)):
        laplacian = Laplacian.plain(topology)
        found = dense_extremes(laplacian)
        lower = bound_by_blocks(laplacian, found.vector, CHEAP, dense_bound)
        assert 0.7 * found.low < lower < found.low
        along = blocks_along(laplacian, np.argsort(block, kind="stable"))
        assert len(np.unique(along.block * 4 + block)) == along.count == 4


def test_where_there_are_no_clusters_nothing_is_claimed():
    laplacian = Laplacian.plain(build("random-regular:degree=6", 200))
    assert blocks_along(laplacian, np.arange(200)) is None
    assert bound_by_blocks(laplacian, dense_extremes(laplacian).vector, CHEAP, dense_bound) is None


def test_a_graph_of_clusters_too_large_to_factor_has_a_proven_lower_bound(monkeypatch):
    monkeypatch.setattr(ladder, "CHEAP", FactorBudget(core=300, fill=0.0))
    laplacian = Laplacian.plain(build("stochastic-block:blocks=12,inside=0.3,between=0.0002", 1_200, 1))
    found = extremes(laplacian)
    exact = np.linalg.eigvalsh(laplacian.dense())[1]
    assert not found.certified
    assert found.converged
    assert 0.7 * exact < found.lower < exact
    monkeypatch.setattr(ladder, "CHEAP", FactorBudget(core=100, fill=0.0))
    assert extremes(laplacian).lower is None  # the clusters are too large, too
