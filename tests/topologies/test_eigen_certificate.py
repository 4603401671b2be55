"""A lower bound on lambda_2 that is called proven holds, whatever the weights; and it is found where it is affordable.

The oracle is Sylvester's law in exact rational arithmetic: a float is a fraction.
"""

from __future__ import annotations

from fractions import Fraction

import networkx as nx
import numpy as np
import pytest

from topologies import Topology, build
from topologies.eigen import dense_extremes, extremes
from topologies.eigen.certificate import CHEAP, FactorBudget, QuadraticForm, at_least, eliminate, too_wide
from topologies.eigen.laplacian import Laplacian

SPARSE = FactorBudget(core=3, fill=1e6)


def random_laplacian(seed: int, spread: float, nodes: int = 9) -> Laplacian:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, nodes))
    graph = nx.gnp_random_graph(n, 0.5, seed=seed)
    if not nx.is_connected(graph):
        graph = nx.random_labeled_tree(n, seed=seed)
    topology = Topology("random", n, list(graph.edges))
    c = np.exp(rng.normal(0.0, spread, topology.edge_count))
    return Laplacian(topology.ends, c, np.exp(rng.normal(0.0, spread, n)))


def negative_eigenvalues(laplacian: Laplacian, sigma: float) -> int:
    """Of L_c - sigma N, exactly: the signs of the pivots."""
    n = laplacian.nodes
    M = [[Fraction(0)] * n for _ in range(n)]
    for (i, j), c in zip(laplacian.ends.tolist(), laplacian.c.tolist(), strict=True):
        for a, b, sign in ((i, i, 1), (j, j, 1), (i, j, -1), (j, i, -1)):
            M[a][b] += sign * Fraction(c)
    for i, weight in enumerate(laplacian.n.tolist()):
        M[i][i] -= Fraction(sigma) * Fraction(weight)
    count = 0
    for k in range(n):
        assert M[k][k] != 0
        count += M[k][k] < 0
        for i in range(k + 1, n):
            factor = M[i][k] / M[k][k]
            for j in range(k + 1, n):
                M[i][j] -= factor * M[k][j]
    return count


@pytest.mark.long
@pytest.mark.parametrize("spread", [0.0, 1.0, 4.0, 10.0])
def test_what_is_proven_is_true_and_what_is_true_is_proven(spread):
    """Node and edge weights from e^-20 to e^20, an eigenvalue far below the rounding error of the largest entries."""
    for seed in range(25):
        laplacian = random_laplacian(seed, spread)
        low = extremes(laplacian).low
        for factor, expected in ((1.0 - 1e-6, True), (0.3, True), (1.0 + 1e-5, False), (1.937, False)):
            exact = negative_eigenvalues(laplacian, factor * low) <= 1
            assert exact is expected, seed
            assert at_least(laplacian, factor * low) is expected, seed


def test_the_sparse_proof_counts_one_negative_pivot_and_not_two():
    """Weighted complete graphs: every node has too many neighbors to be eliminated beforehand."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        topology = build("complete", 60)
        laplacian = Laplacian(topology.ends, np.exp(rng.normal(size=1770)), np.exp(rng.normal(size=60)))
        second, third = np.linalg.eigvalsh(laplacian.dense())[1:3]
        assert at_least(laplacian, second * (1.0 - 1e-6), SPARSE) is True
        assert at_least(laplacian, second * (1.0 + 1e-6), SPARSE) is False
        assert at_least(laplacian, (second + third) / 2.0, SPARSE) is False


@pytest.mark.long
@pytest.mark.parametrize(
    ("spec", "nodes"), [("ring", 100_000), ("path", 30_000), ("circulant", 20_000), ("torus", 10_000), ("star", 20_000)]
)
def test_a_millionth_decides_between_proven_and_not(spec, nodes):
    topology = build(spec, nodes)
    plain = Laplacian.plain(topology)
    assert at_least(plain, topology.formula.low * (1.0 - 1e-6)) is True
    assert at_least(plain, topology.formula.low * (1.0 + 1e-6)) is not True


def test_a_long_thin_bridge_between_cliques_is_certified():
    """lambda_2 is 1e-4 and the largest eigenvalue 51: a dense solver's error bound alone proves too little."""
    found = extremes(Laplacian.plain(build("barbell:path=200", 300)))
    assert found.certified
    assert found.lower >= found.low * (1.0 - 1.001e-6)


def test_two_eigenvalues_a_billionth_apart_are_certified_and_the_lower_one_is_found():
    """Two rings of 300 joined at one node: the weight of one edge moves one of the two lowest eigenvalues by 1e-9."""
    half = 300
    ring = np.stack([np.arange(half), (np.arange(half) + 1) % half], axis=1)
    ends = np.concatenate([ring, np.where(ring > 0, ring + half - 1, 0)])
    c = np.ones(2 * half)
    c[half // 2] += 1e-6
    topology = Topology("eight", 2 * half - 1, ends)
    order = np.lexsort((np.sort(ends, axis=1)[:, 1], np.sort(ends, axis=1)[:, 0]))
    laplacian = Laplacian(topology.ends, c[order], np.ones(topology.nodes))
    values = np.linalg.eigvalsh(laplacian.dense())
    found = extremes(laplacian)
    assert found.certified
    assert found.low == pytest.approx(values[1], rel=1e-6)


def test_a_proof_that_does_not_fit_is_refused_not_claimed():
    expander = Laplacian.plain(build("random-regular", 2000))
    assert at_least(expander, 1e-3, FactorBudget(core=50, fill=1e3)) is None


def test_the_bound_on_treewidth_never_forbids_what_elimination_does():
    """Its claim: no order of elimination leaves a smaller core than this."""
    for spec, nodes in (("torus", 100), ("random-regular", 120), ("hypercube", 64), ("complete", 40), ("star", 80)):
        laplacian = Laplacian.plain(build(spec, nodes))
        form = QuadraticForm.of(laplacian)
        widest = 0
        while form.size > 1:
            assert eliminate(form, degree=form.size, until=form.size - 1, edges=10**6)
            widest = max(widest, int(form.degrees.max(initial=0)))
        assert not too_wide(laplacian, dense_extremes(laplacian).low, FactorBudget(core=widest, fill=0.0))


def test_a_large_expander_is_not_even_tried():
    hypercube = build("hypercube", 1 << 17)
    assert too_wide(Laplacian.plain(hypercube), 2.0, CHEAP)
