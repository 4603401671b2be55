"""Spectrum and Fiedler vector beyond the dense limit: what is proven of them, and what is only found."""

from __future__ import annotations

import math

import numpy as np
import pytest

from topologies import Topology, build, contraction, spectrum
from topologies import eigen as ladder
from topologies.eigen.laplacian import Laplacian
from topologies.spectral import fiedler_vector


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


@pytest.mark.long
@pytest.mark.parametrize("weights", ["best-constant", "metropolis"])
def test_mixing_rates_of_a_large_torus_follow_from_its_formula(weights):
    topology = build("torus", 4096)
    low, high = topology.formula.low, topology.formula.high
    constant = 2.0 / (low + high) if weights == "best-constant" else 0.2
    found = spectrum(Topology("torus", 4096, topology.ends), weights)
    assert 1.0 - found.mixing_rate == pytest.approx(1.0 - abs(1.0 - constant * low), rel=1e-5)


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
