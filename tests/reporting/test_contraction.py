"""The predicted contraction of a schedule is what its rounds do one after the other, with the weights of nodes."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest

from p2pfl.compress import make_compressor
from p2pfl.reporting import predicted
from topologies import build, contraction

HYPERCUBE = (((0, 1), (2, 3)), ((0, 2), (1, 3)))
UNEVEN = (((0, 1), (0, 2)), ((1, 2), (2, 3)), ((0, 3),))


def federation(rounds, nodes=4, gamma=1.0, compressor="q4", own=MappingProxyType({})):
    """What `predicted` reads of one."""
    edges = tuple(sorted({edge for one in rounds for edge in one}))
    return SimpleNamespace(
        topology="made by hand",
        members=range(nodes),
        edges=edges,
        schedule=rounds if len(rounds) > 1 else (),
        degrees=[max(Counter(end for edge in one for end in edge)[node] for one in rounds) for node in range(nodes)],
        seed=0,
        gossip=SimpleNamespace(gamma=gamma, compressor=compressor),
        edge_compressors=dict(own),
        edge_weights={},
        compressor_of=lambda i, j: own.get((i, j), compressor),
    )


def one_period(rounds, degrees, n, x, gamma):
    """What x is after each round in turn, every edge of it at once: (nodes, d). `gamma` is one for all, or by edge."""
    for edges in rounds:
        moved = x.copy()
        for i, j in edges:
            step = gamma[i, j] if isinstance(gamma, dict) else gamma
            flow = step * min(n[i] / (degrees[i] + 1), n[j] / (degrees[j] + 1)) * (x[i] - x[j])
            moved[i] -= flow / n[i]
            moved[j] += flow / n[j]
        x = moved
    return x


@pytest.mark.parametrize("gamma", [1.0, 0.6])
def test_no_start_shrinks_less_in_a_period_than_predicted_and_the_worst_one_by_that_much(gamma):
    n = np.array([10.0, 60.0, 25.0, 200.0])
    degrees = [2, 1, 2, 1]
    factor = predicted(federation(UNEVEN, gamma=gamma), n)
    root = np.sqrt(n)[:, None]
    starts = np.random.default_rng(0).normal(size=(4, 20_000))
    starts -= np.average(starts, axis=0, weights=n)
    after = one_period(UNEVEN, degrees, n, starts, gamma)
    ratios = np.linalg.norm(root * after, axis=0) / np.linalg.norm(root * starts, axis=0)
    assert ratios.max() <= factor**3 + 1e-12
    assert ratios.max() == pytest.approx(factor**3, rel=0.01)


def test_pairs_of_equal_nodes_on_a_hypercube_have_the_mean_after_one_period():
    assert predicted(federation(HYPERCUBE), None) == pytest.approx(0.0, abs=1e-7)
    assert predicted(federation(HYPERCUBE), [30, 30, 30, 60]) > 0.1


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_what_rounding_leaves_of_an_exact_schedule_is_no_contraction(gamma):
    """Groups of three, then three of other groups: the product misses zero by no more than its own rounding."""
    first = tuple(edge for i in (0, 3, 6) for edge in combinations((i, i + 1, i + 2), 2))
    second = tuple(edge for i in range(3) for edge in combinations((i, i + 3, i + 6), 2))
    factor = predicted(federation((first, second), nodes=9, gamma=gamma), None)
    assert (factor == 0.0) == (gamma == 1.0)


def test_a_union_that_falls_apart_does_not_contract():
    assert predicted(federation((((0, 1),), ((2, 3),))), None) == 1.0


def test_a_graph_that_stands_still_has_the_contraction_of_the_library():
    ring = federation((build("ring", 4).edges,))
    assert predicted(ring, [1, 2, 3, 4]) == contraction(build("ring", 4), [1, 2, 3, 4])


@pytest.mark.parametrize("compressor", ["q4", "top-k:0.1", "random-k:30"])
def test_a_compressor_shortens_the_step_as_it_says(compressor):
    """One for all edges is as if `gossip.gamma` were smaller."""
    gamma = make_compressor(compressor).gamma(100)
    ring = federation((build("ring", 5).edges,), nodes=5, gamma=0.8, compressor=compressor)
    assert predicted(ring, [1, 2, 3, 4, 5], 100) == contraction(build("ring", 5), [1, 2, 3, 4, 5], 0.8 * gamma)
    uneven, slower = (federation(UNEVEN, compressor=spec, gamma=g) for spec, g in ((compressor, 1.0), ("q4", gamma)))
    assert predicted(uneven, None, 100) == pytest.approx(predicted(slower, None, 100))


@pytest.mark.parametrize("rounds", [UNEVEN, (build("complete", 4).edges,)])
def test_with_another_step_on_some_edges_it_is_that_of_the_worst_start_too(rounds):
    own = {(0, 3): "top-k:0.02", (0, 1): "random-k:0.3"}
    federated = federation(rounds, own=own)
    n = np.array([10.0, 60.0, 25.0, 200.0])
    steps = {edge: make_compressor(own.get(edge, "q4")).gamma(100) for edge in federated.edges}
    root = np.sqrt(n)[:, None]
    starts = np.random.default_rng(0).normal(size=(4, 20_000))
    starts -= np.average(starts, axis=0, weights=n)
    after = one_period(rounds, federated.degrees, n, starts, steps)
    ratios = np.linalg.norm(root * after, axis=0) / np.linalg.norm(root * starts, axis=0)
    factor = predicted(federated, n, 100) ** len(rounds)
    assert ratios.max() <= factor + 1e-12
    assert ratios.max() == pytest.approx(factor, rel=0.01)
