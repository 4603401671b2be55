"""Optimal weights are allowed, and none are better: closed forms, and linear programs as an independent solver."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from topologies import Topology, TopologyError, build, mixing_matrix, spectrum
from topologies import spectral as module
from topologies.errors import DisconnectedError
from topologies.graph import component_count
from topologies.metrics.describe import survey
from topologies.spectral import LARGEST_WEIGHT, optimal_weights, own_weights


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
    topology, right = build("geometric", 20, 2), module._CentralPath._newton_step

    def spoiled(self, s, c, t):
        step, decrement = right(self, s, c, t)
        return (step, decrement) if t < 1e6 else (1e6 * step, max(decrement, 3.0))

    monkeypatch.setattr(module._CentralPath, "_newton_step", spoiled)
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
