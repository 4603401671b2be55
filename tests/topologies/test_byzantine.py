"""What a graph is said to bear, and what it is warned of."""

from __future__ import annotations

import pytest

from topologies import Topology, TopologyError, build
from topologies.metrics.byzantine import CAUTION, tolerance, warnings


def said(topology, liars):
    return " ".join(warnings(topology, liars))


def test_a_hypercube_bears_liars_at_each_node_but_guarantees_none():
    found = tolerance(build("hypercube", 32))
    assert (found.local, found.guaranteed.upper, found.possible.upper) == (2, 0, 0)


def test_a_complete_graph_guarantees_a_quarter():
    found = tolerance(build("complete", 9))
    assert (found.local, found.guaranteed.lower, found.possible.upper) == (3, 2, 3)


def test_a_good_graph_is_not_warned_of():
    assert warnings(build("complete", 9), 2) == []
    assert warnings(build("ring", 9), 0) == []
    assert warnings(build("complete", 100_000), 3) == []
    assert warnings(build("ring", 1), 1) == []


def test_parts_are_counted_and_the_smallest_named():
    texts = warnings(Topology("by hand", 6, [(0, 1), (1, 2), (0, 2), (3, 4)]), 0)
    assert texts[0] == "The graph is in 3 parts, one of them node 5. Join them: no part learns from another."


def test_a_bridge_and_its_ends_are_named():
    text = said(build("barbell", 8), 0)
    assert "Edge 3-4 is a bridge" in text
    assert "Nodes 3, 4 are each the only way" in text


def test_many_bridges_are_counted_and_not_listed():
    assert "Edges 0-1, 1-2, 2-3, 3-4, 4-5 and 13 more are bridges" in said(build("path", 19), 0)


def test_a_thin_cut_is_warned_of_when_somebody_may_lie():
    """Two complete graphs joined by two edges: every node has enough neighbors, and there is no bridge."""
    assert warnings(two_cliques(2), 0) == []
    assert "Only 2 edges join nodes" in said(two_cliques(2), 1)
    assert "Only" not in said(two_cliques(3), 1)


def test_a_cut_of_three_edges_that_meet_in_two_nodes_is_thin():
    topology = Topology("by hand", 12, [*two_cliques(2).edges, (0, 7)])
    assert "all by way of 2 of the nodes" in said(topology, 1)


def two_cliques(joined):
    clique = build("complete", 6).edges
    between = [(i, i + 6) for i in range(joined)]
    return Topology("by hand", 12, [*clique, *((i + 6, j + 6) for i, j in clique), *between])


@pytest.mark.parametrize(
    ("spec", "nodes", "liars", "words"),
    [
        ("torus", 36, 1, "The graph is 1-robust: discarding 1 can keep two groups apart though nobody lies"),
        ("random-regular:degree=8", 20, 2, "not 5-robust, as 2 liars in a neighborhood need, but 4 at most"),
        ("random-regular:degree=8", 2_000, 1, "not proven 3-robust, as 1 liar in a neighborhood needs"),
    ],
)
def test_what_is_not_robust_enough_is_said_with_the_caution(spec, nodes, liars, words):
    texts = warnings(build(spec, nodes), liars)
    assert words in texts[-2]
    assert texts[-1] == CAUTION


@pytest.mark.parametrize("liars", [-1, 1.5, True])
def test_an_impossible_number_of_liars_is_refused(liars):
    with pytest.raises(TopologyError, match="liars"):
        warnings(build("ring", 4), liars)


def test_warnings_call_nodes_by_the_names_that_they_have():
    named = Topology("", 4, ((0, 1), (1, 2), (2, 3), (1, 3)), names=["ada", "bob", "eve", "joe"])
    bridge, only_way = warnings(named, 0)
    assert "ada-bob" in bridge
    assert "bob" in only_way
