"""Effective resistances against the pseudo-inverse of the Laplacian."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from topologies import Topology, build
from topologies.metrics.distance import resistance

GRAPHS = [
    ("ring", 2, "complete"),
    ("ring", 9, "Fourier transform"),
    ("complete", 5, "complete"),
    ("path", 7, "tree"),
    ("star", 6, "tree"),
    ("torus", 20, "Fourier transform"),
    ("torus:rows=2", 10, "Fourier transform"),
    ("hypercube", 16, "Fourier transform"),
    ("circulant:offsets=1-3", 11, "Fourier transform"),
    ("circulant:offsets=1-4", 8, "Fourier transform"),
    ("exponential", 21, "Fourier transform"),
    ("watts-strogatz", 40, "dense inverse"),
    ("barbell:path=3", 11, "dense inverse"),
]


def resistances(topology):
    adjacency = nx.to_numpy_array(topology.to_networkx(), range(topology.nodes))
    inverse = np.linalg.pinv(np.diag(adjacency.sum(axis=0)) - adjacency)
    own = np.diag(inverse)
    return own[:, None] + own - 2 * inverse


@pytest.mark.parametrize(("spec", "nodes", "method"), GRAPHS)
def test_resistances_are_those_of_the_pseudo_inverse(spec, nodes, method):
    found = resistance(build(spec, nodes))
    expected = resistances(build(spec, nodes))
    assert found.method == method
    assert found.kirchhoff == pytest.approx(expected.sum() / 2)
    assert found.largest == pytest.approx(expected.max())
    assert found.average == pytest.approx(expected.sum() / nodes / (nodes - 1))


def test_a_ring_with_a_shortcut_is_not_taken_for_one_that_looks_the_same_everywhere():
    """Node 0 and the edge count are those of a circulant graph."""
    edges = [(0, 1), (0, 3), (1, 2), (2, 3), (4, 5), (2, 4), (3, 5)]
    topology = Topology("by hand", 7, [*edges, (5, 6)])
    assert resistance(topology).kirchhoff == pytest.approx(resistances(topology).sum() / 2)
    numbered = Topology("by hand", 20, build("torus", 20).ends)
    assert resistance(numbered).kirchhoff == pytest.approx(resistances(numbered).sum() / 2)


def test_a_ring_of_a_million_keeps_its_accuracy():
    n = 1_000_000
    found = resistance(build("ring", n))
    assert found.kirchhoff == pytest.approx((n**3 - n) / 12, rel=1e-8)
    assert found.largest == pytest.approx(n / 4, rel=1e-6)


def test_parts_have_no_finite_resistance_between_them():
    assert resistance(Topology("by hand", 4, [(0, 1), (2, 3)])) is None
    assert resistance(build("circulant:offsets=2", 8)) is None


def test_a_large_graph_without_a_formula_has_none():
    assert resistance(build("watts-strogatz", 40), limit=39) is None


def test_one_node_resists_nothing():
    found = resistance(build("ring", 1))
    assert (found.kirchhoff, found.average, found.largest) == (0.0, 0.0, 0.0)


def test_a_graph_whose_edges_are_not_held_has_what_its_formula_knows():
    assert resistance(build("complete", 100_000)).kirchhoff == 99_999.0
    assert resistance(build("complete-bipartite", 100_000)) is None
