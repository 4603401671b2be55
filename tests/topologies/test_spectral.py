"""Eigenvalues against an independent eigensolver and against the formulas of the literature."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest

from topologies import Topology, TopologyError, build, mixing_matrix, spectrum
from topologies.spectral import WEIGHTS

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
