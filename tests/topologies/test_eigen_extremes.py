"""lambda_2 and lambda_max by every method of the ladder, against dense algebra, formulas and the known traps."""

from __future__ import annotations

import math
import subprocess
import sys
import tracemalloc
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest

from topologies import (
    CHEAP,
    FactorBudget,
    Laplacian,
    NotConverged,
    QuadraticForm,
    Topology,
    at_least,
    build,
    dense_extremes,
    describe,
    eliminate,
    extremes,
    from_vector,
    inverse_extremes,
    largest,
    require_converged,
    survey,
    too_wide,
)
from topologies import eigen as ladder

CORES = (FactorBudget(core=8, fill=1e6), FactorBudget(core=200, fill=0.0))


def stripped(spec: str, nodes: int, seed: int = 0) -> tuple[Laplacian, Topology]:
    """The graph alone: nothing that is known of its family."""
    topology = build(spec, nodes, seed)
    return Laplacian.plain(Topology(spec, nodes, topology.ends)), topology


def random_laplacian(seed: int) -> Laplacian:
    """A tree, a small world, a graph with hubs or one in the plane; every second one with random weights."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(6, 60))
    graph = (
        nx.random_labeled_tree(n, seed=seed),
        nx.barabasi_albert_graph(n, 2, seed=seed),
        nx.random_geometric_graph(n, 0.4, seed=seed),
        nx.connected_watts_strogatz_graph(n, 4, 0.1, seed=seed),
        nx.cycle_graph(n),
    )[seed % 5]
    part = nx.convert_node_labels_to_integers(graph.subgraph(max(nx.connected_components(graph), key=len)))
    topology = Topology("random", len(part), list(part.edges))
    spread = seed % 2
    c = np.exp(rng.normal(0.0, spread, topology.edge_count))
    return Laplacian(topology.ends, c, np.exp(rng.normal(0.0, spread, topology.nodes)))


def by_lanczos(laplacian: Laplacian) -> tuple[ladder.Ritz, ladder.Extremes | None]:
    return ladder.lanczos_extremes(laplacian, ladder.krylov_of(laplacian))


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 200, 20))
def test_every_method_agrees_with_numpy_on_random_graphs(first):
    for seed in range(first, first + 20):
        laplacian = random_laplacian(seed)
        if laplacian.nodes < 3:
            continue
        values = np.linalg.eigvalsh(laplacian.dense())
        high, lanczos = by_lanczos(laplacian)
        results = [dense_extremes(laplacian), lanczos, *(inverse_extremes(laplacian, core, high) for core in CORES)]
        for found in results:
            assert found.converged, (seed, found.method)
            assert found.low == pytest.approx(values[1], rel=1e-6), (seed, found.method)
            assert found.high == pytest.approx(values[-1], rel=1e-6), (seed, found.method)
            assert found.highest >= values[-1] * (1.0 - 1e-12), (seed, found.method)
        assert extremes(laplacian).certified, seed


PALEY = "circulant:offsets=" + "-".join(str(s) for s in sorted({pow(k, 2, 1009) for k in range(1, 505)}) if s <= 504)

FORMULAS = [
    ("ring", 3),
    ("ring", 20_000),
    ("path", 2),
    ("path", 10_000),
    ("torus", 4),
    ("torus", 10_000),
    ("hypercube", 4096),
    ("star", 20_000),
    ("complete", 5),
    ("circulant", 10_000),
    ("exponential", 3000),
    (PALEY, 1009),
]


@pytest.mark.long
@pytest.mark.parametrize(("spec", "nodes"), FORMULAS)
def test_without_its_formula_a_family_has_the_same_spectrum(spec, nodes):
    laplacian, topology = stripped(spec, nodes)
    found = extremes(laplacian)
    assert found.converged
    assert found.low == pytest.approx(topology.formula.low, rel=1e-6)
    assert found.high == pytest.approx(topology.formula.high, rel=1e-6)


@pytest.mark.long
def test_a_ring_of_a_million_is_certified_although_its_gap_is_below_rounding():
    laplacian, topology = stripped("ring", 1_000_000)
    found = extremes(laplacian)
    assert found.certified
    assert found.low == pytest.approx(topology.formula.low, rel=1e-6)


def test_a_core_that_cannot_be_inverted_is_no_crash():
    """Next to the second weight the first one is nothing; the two heavy nodes are joined by it all the same."""
    ends = Topology("path", 3, [(0, 1), (1, 2)]).ends
    found = extremes(Laplacian(ends, np.array([1e-10, 1e10]), np.array([1e5, 1e-6, 1e6])))
    assert found.low >= 1.1e-15 * (1.0 - 1e-6)
    assert found.certified or not found.converged


def test_lanczos_stopped_early_on_a_long_ring_claims_nothing():
    """Its lowest Ritz value is then hundreds of times too large."""
    laplacian, _ = stripped("ring", 20_000)
    _, found = by_lanczos(laplacian)
    assert found is None


def test_where_nothing_converges_the_result_says_so_and_is_still_an_upper_bound(monkeypatch):
    laplacian, topology = stripped("ring", 5_000)
    monkeypatch.setattr(ladder, "inverse_extremes", lambda *_: None)
    monkeypatch.setattr(ladder, "at_least", lambda *_: None)
    monkeypatch.setattr(ladder, "LONGEST", 300)
    monkeypatch.setattr(ladder, "MOST", 250)
    found = extremes(laplacian)
    assert not found.converged
    assert not found.certified
    assert found.low > topology.formula.low
    with pytest.raises(NotConverged) as caught:
        require_converged(found)
    assert caught.value.exit_code == 4


def test_a_method_that_found_the_wrong_eigenvalue_is_refuted_and_the_next_one_asked(monkeypatch):
    """The third eigenvector of a path has a perfect residual."""
    laplacian, topology = stripped("path", 1500)
    node = np.arange(1500) + 0.5
    wrong = from_vector(laplacian, np.cos(2 * np.pi * node / 1500), "wrong", high := ladder.Ritz(4.0, 0.0))
    assert wrong.converged
    monkeypatch.setattr(ladder, "lanczos_extremes", lambda *_: (high, wrong))
    found = extremes(laplacian)
    assert (found.method, found.certified) == ("inverse", True)
    assert found.low == pytest.approx(topology.formula.low, rel=1e-6)


def test_edges_given_twice_and_in_both_directions_count_once():
    ring = build("ring", 1200).ends
    twice = Topology("twice", 1200, np.concatenate([ring, ring[:, ::-1], ring]))
    assert extremes(Laplacian.plain(twice)).low == pytest.approx(4 * math.sin(math.pi / 1200) ** 2, rel=1e-6)


def test_two_nodes_have_one_eigenvalue_and_its_weight():
    laplacian = Laplacian(np.array([[0, 1]]), np.array([3.0]), np.array([1.0, 4.0]))
    found = extremes(laplacian)
    assert (found.low, found.high, found.certified) == (pytest.approx(3.75), pytest.approx(3.75), True)


def test_the_largest_eigenvalue_of_many_components_is_found_at_once():
    """Five hundred triangles and squares, and one star that decides."""
    triangles = [(3 * k + a, 3 * k + b) for k in range(500) for a, b in ((0, 1), (1, 2), (0, 2))]
    star = [(1500, 1500 + k) for k in range(1, 9)]
    assert largest(Laplacian.plain(Topology("parts", 1509, triangles + star)))[0] == pytest.approx(9.0, rel=1e-9)


def test_lanczos_ends_where_the_residual_tells_a_millionth_and_makes_a_vector_only_for_who_needs_it(monkeypatch):
    laplacian, topology = stripped("watts-strogatz", 1200)
    exact = np.linalg.eigvalsh(laplacian.dense())[1]
    found = by_lanczos(laplacian)[1]
    assert found.converged
    assert found.residual <= ladder.TOLERANCE * found.low
    assert found.low == pytest.approx(exact, rel=1e-6)
    made = []
    vector = ladder.Krylov.vector
    monkeypatch.setattr(ladder.Krylov, "vector", lambda *given: made.append(1) or vector(*given))
    assert describe(topology)["algebraic_connectivity"] == found.low
    assert not made
    survey(topology)
    assert made == [1]


def test_what_is_left_of_the_inverse_is_not_searched_where_no_products_would_be_enough(monkeypatch):
    laplacian, _ = stripped("ring", 20_000)
    wave = np.cos(2 * np.pi * np.arange(20_000) / 20_000) + 1e-6 * np.random.default_rng(0).normal(size=20_000)
    monkeypatch.setattr(
        ladder, "inverse_extremes", lambda *_: from_vector(laplacian, wave, "rough", ladder.Ritz(4.0, 0.0))
    )
    monkeypatch.setattr(ladder, "at_least", lambda *_: False)
    monkeypatch.setattr(ladder, "_from_ritz", None)
    found = extremes(laplacian)
    assert (found.method, found.converged) == ("rough", False)


@pytest.mark.long
def test_no_square_matrix_is_made_above_the_dense_limit():
    laplacian, _ = stripped("random-regular", 8_000)
    tracemalloc.start()
    extremes(laplacian)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8_000**2 * 8 * 3 / 4


def test_scipy_is_not_imported_for_a_small_graph():
    """A board in the field has none, and its import takes longer than the answer."""
    code = (
        "import sys; from topologies import build, spectrum, Topology; g = build('barbell:path=90', 120);"
        "s = spectrum(Topology('x', 120, g.ends)); assert s.certified; sys.exit('scipy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


@pytest.mark.long
def test_without_scipy_the_dense_method_goes_on_beyond_its_limit(monkeypatch):
    monkeypatch.setattr(ladder, "find_spec", lambda _: None)
    monkeypatch.setitem(sys.modules, "scipy", None)
    found = extremes(stripped("path", 1100)[0])
    assert (found.method, found.certified) == ("dense", True)


def test_a_basis_too_large_to_keep_is_computed_again(monkeypatch):
    laplacian = random_laplacian(3)
    vectors = []
    for kept in (10**9, 100):
        monkeypatch.setattr("topologies.eigen.iterations.BASIS_BYTES", kept)
        krylov = ladder.krylov_of(laplacian)
        krylov.extend(30)
        vectors.append(krylov.vector(krylov.lowest()))
        assert krylov.products == (krylov.size if kept > 100 else 2 * krylov.size - 1)
    assert np.allclose(*vectors, atol=1e-12)


def test_the_probable_bound_holds_and_certifies_nothing():
    laplacian, _ = stripped("random-regular", 3000)
    found = by_lanczos(laplacian)[1]
    exact = extremes(laplacian)
    assert exact.certified
    assert 0.0 < found.probable < exact.lower
    assert not found.certified
    assert found.lower is None


# A lower bound on lambda_2 that is called proven holds, whatever the weights; and it is found where it is affordable.
#
# The oracle is Sylvester's law in exact rational arithmetic: a float is a fraction.

SPARSE = FactorBudget(core=3, fill=1e6)


def small_laplacian(seed: int, spread: float, nodes: int = 9) -> Laplacian:
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
        laplacian = small_laplacian(seed, spread)
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


def test_a_proof_that_does_not_fit_is_refused_and_tried_once_for_all_weights(monkeypatch):
    graph, budget, tried = build("barabasi-albert", 2000), FactorBudget(core=50, fill=1e3), []
    assert at_least(Laplacian.plain(graph), 1e-3, budget) is None
    monkeypatch.setattr(ladder, "CHEAP", budget)
    monkeypatch.setattr(ladder, "at_least", lambda *given: tried.append(1) or at_least(*given))
    found = survey(graph)
    assert (found["certified"], found["mixing_certified"], tried) == (False, False, [1])


@pytest.mark.parametrize(("nodes", "fits"), [(1200, True), (1500, False)])
def test_a_core_with_many_edges_is_given_up_unless_it_nearly_fits(nodes, fits):
    budget, laplacian = FactorBudget(core=200, fill=0.0), Laplacian.plain(build("barabasi-albert", nodes))
    assert (at_least(laplacian, 1e-9, budget) is not None) is fits


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
