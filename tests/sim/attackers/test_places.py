"""Which nodes lie: no honest node has more liars around it than this many liars on this graph make necessary."""

from __future__ import annotations

from itertools import combinations

import networkx as nx
import pytest

from sim import cost, liars_heard, spread_out


def around_of(graph):
    return [set(graph[node]) for node in range(len(graph))]


def test_two_liars_of_a_ring_share_no_neighbor_and_cut_off_nobody():
    """Side by side each has one honest neighbor, and the others are still one path."""
    edges = [(i, (i + 1) % 8) for i in range(8)]
    low, high = spread_out(8, edges, 2, 0)
    assert (high - low) % 8 in {1, 7}


def test_the_only_way_between_the_honest_does_not_lie_where_another_can():
    assert 0 not in spread_out(6, [(0, leaf) for leaf in range(1, 6)], 1, 0)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("nodes", "degree", "count"), [(8, 4, 2), (10, 4, 2), (10, 3, 3), (12, 6, 2)])
def test_no_other_choice_has_fewer_liars_at_its_worst_node(nodes, degree, count, seed):
    graph = nx.random_regular_graph(degree, nodes, seed=seed)
    around, edges = around_of(graph), [tuple(sorted(edge)) for edge in graph.edges]
    found = spread_out(nodes, edges, count, seed)
    assert len(set(found)) == count
    assert cost(around, found)[0] == min(cost(around, liars)[0] for liars in combinations(range(nodes), count))


def test_the_seed_decides_among_equals_and_nothing_else_does():
    edges = [(i, (i + 1) % 12) for i in range(12)]
    chosen = [spread_out(12, edges, 1, seed) for seed in range(20)]
    assert len(set(chosen)) > 3
    assert chosen == [spread_out(12, list(reversed(edges)), 1, seed) for seed in range(20)]


def test_all_but_one_may_lie():
    assert len(spread_out(5, [(i, (i + 1) % 5) for i in range(5)], 4, 0)) == 4


def test_what_honest_nodes_hear_is_counted_for_them_alone():
    assert liars_heard([{1, 2}, {0, 2}, {0, 1}], [0, 2]) == {1: 2}
