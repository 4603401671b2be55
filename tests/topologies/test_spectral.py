"""Eigenvalues against an independent eigensolver and against the formulas of the literature."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from topologies import (
    LARGEST_WEIGHT,
    WEIGHTS,
    DisconnectedError,
    Laplacian,
    Topology,
    TopologyError,
    _CentralPath,
    build,
    component_count,
    contraction,
    fiedler_vector,
    mixing_matrix,
    optimal_weights,
    own_weights,
    sample_weights,
    spectrum,
    survey,
)
from topologies import eigen as ladder

GRAPHS = [("ring", 9), ("star", 2), ("torus", 4), ("random-regular:degree=4", 30), ("watts-strogatz", 25)]


def laplacian(topology):
    return nx.laplacian_matrix(topology.to_networkx(), nodelist=range(topology.nodes)).toarray().astype(float)


@pytest.mark.parametrize(("spec", "nodes"), GRAPHS)
def test_lambda_2_and_lambda_max_agree_with_numpy(spec, nodes):
    topology = build(spec, nodes)
    found = spectrum(topology)
    values = np.linalg.eigvalsh(laplacian(topology))
    assert found.algebraic_connectivity == pytest.approx(values[1], abs=1e-9)
    assert found.laplacian_max_eigenvalue == pytest.approx(values[-1], abs=1e-9)
    assert found.certified is True


def test_a_family_with_a_formula_uses_it():
    found = spectrum(build("torus:rows=4", 40))
    assert found.algebraic_connectivity == pytest.approx(2 - 2 * math.cos(2 * math.pi / 10), abs=1e-9)
    assert found.method == "closed form"


def test_a_formula_is_not_trusted_for_edges_that_are_not_the_familys():
    cut = Topology("ring", 6, build("path", 6).edges)
    assert spectrum(cut).algebraic_connectivity == pytest.approx(2 - 2 * math.cos(math.pi / 6), abs=1e-9)


@pytest.mark.parametrize("spec", ["circulant:offsets=2", "erdos-renyi:p=0.02"])
def test_a_disconnected_graph_has_lambda_2_exactly_zero_and_never_mixes(spec):
    found = spectrum(build(spec, 30))
    assert (found.algebraic_connectivity, found.mixing_rate) == (0.0, 1.0)


def test_beyond_the_dense_limit_another_method_takes_over():
    found = spectrum(build("random-regular", 2002))
    assert (found.method, found.converged, found.certified) == ("lanczos", True, True)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize(("spec", "nodes"), [("ring", 9), ("star", 7), ("barbell", 10), ("complete", 5)])
def test_the_mixing_rate_is_the_second_modulus_of_the_mixing_matrix(spec, nodes, weights):
    topology = build(spec, nodes)
    if weights == "file":
        topology = topology.with_weights(np.linspace(0.5, 1.0, topology.edge_count) / nodes)
    W = mixing_matrix(topology, weights)
    moduli = np.sort(np.abs(np.linalg.eigvals(W)))
    assert np.allclose(W.sum(axis=1), 1.0)
    assert spectrum(topology, weights).mixing_rate == pytest.approx(moduli[-2], abs=1e-9)


def test_best_constant_weights_are_the_best_of_the_constant_ones():
    topology = build("barbell", 12)
    rates = {weights: spectrum(topology, weights).mixing_rate for weights in ("best-constant", "metropolis")}
    assert rates["best-constant"] < rates["metropolis"] < 1.0


def test_unknown_weights_suggest_the_nearest():
    with pytest.raises(TopologyError, match="did you mean 'metropolis'"):
        spectrum(build("ring", 4), "metropolys")


# -- Spectrum and Fiedler vector beyond the dense limit: what is proven of them, and what is only found.


def bare(spec: str, nodes: int) -> Topology:
    return Topology(spec, nodes, build(spec, nodes).ends)


def test_a_mixing_rate_with_unequal_weights_is_certified_on_its_own():
    """A path: the formula tells the Laplacian's spectrum, not that of the Metropolis weights."""
    found = spectrum(build("path", 3000))
    assert found.method == "closed form"
    assert found.mixing_converged
    assert found.mixing_certified
    # all weights are 1/3 but for the two ends: the rate is that of the constant ones up to the ends' share
    assert 1.0 - found.mixing_rate == pytest.approx(found.algebraic_connectivity / 3.0, rel=1e-5)


def test_an_uncertified_spectrum_has_an_uncertified_mixing_rate_and_a_probable_bound(monkeypatch):
    """As that of a hypercube of 2^14 nodes, where each of the two would take too long."""
    monkeypatch.setattr(ladder, "inverse_extremes", lambda *_: None)
    monkeypatch.setattr(ladder, "at_least", lambda *_: None)
    found = spectrum(bare("hypercube", 1 << 11))
    assert (found.converged, found.certified, found.mixing_certified) == (True, False, False)
    assert found.lower_bound is None


def test_the_fiedler_vector_of_a_long_path_is_its_cosine():
    nodes = 20_000
    expected = np.cos(np.pi * (np.arange(nodes) + 0.5) / nodes)
    found = fiedler_vector(bare("path", nodes))
    assert found.max() == np.abs(found).max()
    assert abs(found @ expected) / np.linalg.norm(expected) == pytest.approx(1.0, abs=1e-9)


def test_contraction_of_a_large_disconnected_graph_with_a_long_step_diverges():
    """With n = 1 the largest eigenvalue on a ring is 4/3: a step of 2 multiplies by 1 - 8/3."""
    two = np.concatenate([build("ring", 600).ends, build("ring", 600).ends + 600])
    assert contraction(Topology("two", 1200, two), gamma=2.0) == pytest.approx(5.0 / 3.0, rel=1e-5)


def test_samples_that_differ_a_millionfold_leave_the_contraction_right():
    """Two heavy nodes at the ends of a path, in closed form: light nodes are a chain of springs between them."""
    samples = [1e6, *[1.0] * 1100, 1e6]
    topology = bare("path", 1102)
    laplacian_low = 1.0 - contraction(topology, samples)
    # the chain of 1101 springs of weight 1/3 (1/2 at most at the ends: min of the shares) joins two masses
    stiffness = 1.0 / (1101 * 3.0)
    assert laplacian_low == pytest.approx(2.0 * stiffness / 1e6, rel=2e-3)
    assert Laplacian.plain(topology).nodes == 1102
    assert math.isfinite(laplacian_low)


# -- The mixing weights of a federation: what they conserve, and that `contraction` predicts the mixing exactly.


def test_an_edge_weighs_the_smaller_share_of_its_ends():
    path = build("path", 3)
    assert sample_weights(path, [6, 30, 2]) == pytest.approx([min(6 / 2, 30 / 3), min(30 / 3, 2 / 2)])


def test_a_disconnected_graph_does_not_contract():
    assert contraction(build("circulant:offsets=2", 8)) == 1.0


def test_one_node_is_at_consensus():
    assert contraction(build("ring", 1)) == 0.0


@pytest.mark.parametrize("samples", [[1, 2], [1, 1, 0], [1, 1, float("nan")]])
def test_impossible_samples_are_refused(samples):
    with pytest.raises(TopologyError, match="3 positive numbers"):
        contraction(build("ring", 3), samples)


# -- Optimal weights are allowed, and none are better: closed forms, and linear programs as an independent solver.


def modulus(topology, weights):
    values = np.linalg.eigvalsh(mixing_matrix(topology.with_weights(weights), "file") - 1.0 / topology.nodes)
    return float(np.abs(values).max())


def lowest_rate(topology):
    """Kelley's cutting planes: every unit vector v gives s >= |v' W(c) v|, linear in c, and a lower bound."""
    i, j = topology.ends.T
    edges, nodes = topology.edge_count, topology.nodes
    incidence = np.zeros((nodes, edges + 1))
    incidence[i, np.arange(edges)] = incidence[j, np.arange(edges)] = 1.0
    rows, limits = list(incidence), [1.0] * nodes
    bounds = [(0.0, LARGEST_WEIGHT)] * edges + [(0.0, 1.0)]
    for _ in range(400):
        found = linprog([0.0] * edges + [1.0], A_ub=np.array(rows), b_ub=limits, bounds=bounds)
        c = np.maximum(found.x[:-1], 1e-12)
        laplacian = np.zeros((nodes, nodes))
        np.add.at(laplacian, (i, i), c)
        np.add.at(laplacian, (j, j), c)
        laplacian[i, j] = laplacian[j, i] = -c
        values, vectors = np.linalg.eigh(np.eye(nodes) - laplacian - 1.0 / nodes)
        if np.abs(values).max() <= found.fun + 1e-5:
            return found.fun
        for value, v in zip(values, vectors.T, strict=True):
            if abs(value) > 0.5 * np.abs(values).max():
                own = (v[i] - v[j]) ** 2  # sign * (v'v - v'Jv - own . c) <= s
                sign = math.copysign(1.0, value)
                rows.append(np.append(-sign * own, -1.0))
                limits.append(-sign * (1.0 - v.sum() ** 2 / nodes))
    raise AssertionError("the linear programs did not converge")


@pytest.mark.parametrize(
    ("spec", "nodes", "rate"),
    [
        ("path", 2, 0.0),
        ("path", 9, math.cos(math.pi / 9)),  # Boyd, Diaconis, Sun and Xiao 2006
        (
            "ring",
            8,
            1.0 - 2.0 * (a := 1.0 - math.cos(math.pi / 4)) / (a + 2.0),
        ),  # one weight, both ends of the spectrum
        ("complete", 6, 0.0),
        ("star", 6, 1.0 - 1.0 / 5.0),
        ("hypercube", 8, 1.0 - 2.0 / 4.0),
    ],
)
def test_the_rate_is_the_closed_form_where_there_is_one(spec, nodes, rate):
    found = optimal_weights(build(spec, nodes))
    assert found.rate == pytest.approx(rate, abs=1e-5)
    assert found.bound <= rate + 1e-12


@st.composite
def small_graphs(draw):
    nodes = draw(st.integers(3, 7))
    pairs = [(i, j) for i in range(nodes) for j in range(i + 1, nodes)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True, min_size=nodes - 1))
    tree = [(draw(st.integers(0, node - 1)), node) for node in range(1, nodes)]
    return Topology("by hand", nodes, [*edges, *tree])


@settings(max_examples=4)
@given(topology=small_graphs())
def test_no_weights_are_better_and_these_can_be_used(topology):
    found = optimal_weights(topology)
    assert modulus(topology, found.weights) == pytest.approx(found.rate, abs=1e-9)
    assert found.rate == pytest.approx(lowest_rate(topology), abs=3e-5)
    assert found.bound <= found.rate <= found.bound + 2e-5
    assert found.weights.max() <= LARGEST_WEIGHT
    own_weights(topology.with_weights(found.weights))  # refuses what is above 1 at a node


def test_a_step_that_rounding_spoils_ends_the_search_at_the_last_allowed_weights(monkeypatch):
    """How far from its bounds rounding throws a step depends on the machine's BLAS; here it always does, in time."""
    topology, right = build("geometric", 20, 2), _CentralPath._newton_step

    def spoiled(self, s, c, t):
        step, decrement = right(self, s, c, t)
        return (step, decrement) if t < 1e6 else (1e6 * step, max(decrement, 3.0))

    monkeypatch.setattr(_CentralPath, "_newton_step", spoiled)
    found = optimal_weights(topology)
    assert modulus(topology, found.weights) == pytest.approx(found.rate, abs=1e-9)
    assert found.bound < found.rate < found.bound + 1e-2
    own_weights(topology.with_weights(found.weights))


def test_parts_that_never_agree_have_none_and_the_rate_is_one():
    topology = Topology("two", 4, [(0, 1), (2, 3)])
    assert component_count(topology) == 2
    with pytest.raises(DisconnectedError):
        optimal_weights(topology)
    assert spectrum(topology, "optimal").mixing_rate == 1.0
    assert survey(topology, "optimal")["rounds_to_consensus"] is None


def test_what_is_too_large_is_refused():
    with pytest.raises(TopologyError, match=r"too many edges .*found 1682.*up to 1500"):
        optimal_weights(build("torus", 841))


def test_info_names_the_fewest_rounds():
    found = survey(build("ring", 16), "optimal")
    assert (found["weights"], found["rounds_to_consensus"], found["fewest_rounds"]) == ("optimal", 91, 91)
    assert "fewest_rounds" not in survey(build("ring", 16))


def test_a_graph_mixes_with_its_own_weights_unless_others_are_named():
    ring = build("ring", 4).with_weights([0.25] * 4)
    assert spectrum(ring).mixing_rate == pytest.approx(0.5)
    assert spectrum(ring, "metropolis").mixing_rate == pytest.approx(1.0 / 3.0)
    found = survey(ring)
    assert (found["weights"], found["mixing_rate"]) == ("file", pytest.approx(0.5))


def test_weights_that_carry_a_node_beyond_its_neighbors_are_refused():
    star = Topology("net.json", 3, [(0, 1), (0, 2)], names=["hub", "a", "b"], weights=[0.5, 0.75])
    with pytest.raises(
        TopologyError, match=r"the weights of node hub add up to 1\.25; allowed: at most 1 at each node"
    ):
        spectrum(star)
    with pytest.raises(TopologyError, match="the edges of ring have no weights"):
        spectrum(build("ring", 5), "file")


def test_samples_scale_a_files_weights_by_the_smaller_end():
    pair = Topology("pair", 2, [(0, 1)], weights=[0.4])
    matrix = mixing_matrix(pair, "file", samples=[1.0, 3.0])
    assert matrix == pytest.approx(np.array([[0.6, 0.4], [0.4 / 3.0, 1.0 - 0.4 / 3.0]]))
