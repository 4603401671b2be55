"""What a closed form says of a graph is what the graph is: eigenvalues, edges, degrees, diameter."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import networkx as nx
import numpy as np
import pytest

from topologies import TopologyError, build
from topologies.eigen.laplacian import Laplacian
from topologies.families import FAMILIES, parse
from topologies.family import GraphRequest
from topologies.graph import EDGES_LIMIT, component_count
from topologies.metrics import hops

SIZES = [*range(2, 27), 29, 30, 32, 36, 37, 41, 60, 61, 64]
SPECS = [
    "ring",
    "path",
    "star",
    "complete",
    "hypercube",
    "torus",
    "torus:rows=2",
    "torus:cols=3",
    "torus:dims=2x2x2",
    "torus:dims=2x3x4",
    "torus:dims=5x2x3x2",
    "torus:dims=7",
    "grid",
    "grid:rows=2",
    "grid:dims=2x2x2",
    "grid:dims=3x5x2",
    "grid:dims=13",
    "circulant:offsets=1",
    "circulant",
    "circulant:offsets=2",
    "circulant:offsets=3-6",
    "circulant:offsets=1-4-5-7",
    "exponential",
    "barbell",
]


def formula(spec, nodes, seed=0):
    wanted = GraphRequest(spec=spec, nodes=nodes, parameters=parse(spec).parameters, seed=seed)
    return FAMILIES[parse(spec).name].closed(wanted)


def graphs(spec):
    """All sizes at which there is such a graph."""
    for nodes in SIZES:
        try:
            yield build(spec, nodes, seed=nodes)
        except TopologyError:
            continue


@pytest.mark.parametrize("spec", SPECS)
def test_a_closed_form_is_exact_at_every_size(spec):
    """lambda_2 and lambda_max to 1e-12 of a dense eigensolver, which is itself no better than that times the norm."""
    known = 0
    for topology in graphs(spec):
        form = topology.formula
        if form is None:
            continue
        known += 1
        values = np.linalg.eigvalsh(Laplacian.plain(topology).dense())
        assert form.high == pytest.approx(values[-1], rel=1e-12, abs=0)
        assert form.low == pytest.approx(values[1], abs=1e-12 * max(1.0, values[-1]))
        assert (form.low > 0.0) == nx.is_connected(topology.to_networkx())
        assert form.edges == topology.edge_count
        assert form.degrees == (topology.degrees.min(), topology.degrees.max())
        if form.diameter is not None:
            assert form.diameter == nx.diameter(topology.to_networkx())
    assert known > 0


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.closed])
def test_every_family_with_a_closed_form_is_among_those_tested(name):
    assert any(parse(spec).name == name for spec in SPECS)


@pytest.mark.parametrize("spec", [spec for spec in SPECS if FAMILIES[parse(spec).name].transitive])
def test_in_a_transitive_family_every_node_sees_the_same_distances(spec):
    for topology in list(graphs(spec))[:12]:
        seen = {tuple(np.bincount(hops(topology, node) + 1)) for node in range(topology.nodes)}
        assert len(seen) == 1


def gap(turns, nodes):
    """2 - 2 cos(2 pi turns / nodes) in extended precision."""
    fraction = np.longdouble(1) * (np.asarray(turns) % nodes) / np.longdouble(nodes)
    pi = np.longdouble("3.14159265358979323846264338327950288")
    return 4 * np.sin(pi * fraction) ** 2


@pytest.mark.parametrize("nodes", [99_991, 100_000, 1_000_000])
def test_a_tiny_lambda_2_keeps_its_digits(nodes):
    """Written as a difference of cosines it would lose ten of sixteen."""
    assert formula("ring", nodes).low == pytest.approx(float(gap(1, nodes)), rel=1e-13, abs=0)
    assert formula("path", nodes).low == pytest.approx(float(gap(0.5, nodes)), rel=1e-13, abs=0)
    k = np.arange(1, nodes // 2 + 1)
    steps = (7_001, 9_000, 31_415)
    expected = float(sum(gap(k * step, nodes) for step in steps).min())
    text = "-".join(map(str, steps))
    assert formula(f"circulant:offsets={text}", nodes).low == pytest.approx(expected, rel=1e-12, abs=0)


def test_an_offset_that_comes_round_from_behind_keeps_its_digits():
    """With offset 3 on a million nodes the smallest eigenvalue is that of k = 333333, whose turn is n - 1."""
    assert formula("circulant:offsets=3", 1_000_000).low == pytest.approx(float(gap(1, 1_000_000)), rel=1e-13, abs=0)


@pytest.mark.parametrize("m", [2, 3, 10, 1_000, 500_000])
def test_a_bridge_between_cliques_keeps_its_digits(m):
    """It is the smaller root of a quadratic, here in sixty digits."""
    with localcontext(prec=60):
        barbell = (m + 2 - (Decimal(m + 2) ** 2 - 8).sqrt()) / 2
    assert formula("barbell", 2 * m).low == pytest.approx(float(barbell), rel=1e-14, abs=0)


@pytest.mark.parametrize(
    ("spec", "nodes", "low", "high"),
    [
        ("complete", 2_000_000, 2e6, 2e6),
        ("barbell", 1_000_000, 4e-6, 500_001.999992),
        ("hypercube", 1 << 20, 2.0, 40.0),
        ("torus:dims=100x100x100", 1_000_000, 2 - 2 * math.cos(2 * math.pi / 100), 12.0),
    ],
)
def test_a_formula_holds_at_a_million_nodes(spec, nodes, low, high):
    form = formula(spec, nodes)
    assert form.low == pytest.approx(low, rel=1e-5, abs=0)
    assert form.high == pytest.approx(high, rel=1e-9, abs=0)
    if form.edges > EDGES_LIMIT:
        assert build(spec, nodes).implicit


@pytest.mark.long
def test_a_disconnected_graph_too_large_to_hold_is_not_called_connected():
    offsets = "-".join(str(2 * k) for k in range(1, 2_600))
    topology = build(f"circulant:offsets={offsets}", 20_000)
    assert topology.implicit
    assert topology.formula.low == 0.0
    with pytest.raises(TopologyError, match="more than can be held"):
        component_count(topology)
