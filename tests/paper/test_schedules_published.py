"""What the papers say of their schedules and directed graphs, of the ones that we build."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest

from topologies import build_schedule
from topologies.schedules.contraction import contraction
from topologies.schedules.schedule import Schedule, exact_after, product

EPSILON = 1e-3


def averages_exactly(schedule):
    """Whether the product of all rounds is J/n, in whole numbers."""
    P, below = product(schedule, schedule.period)
    return bool((schedule.nodes * P == below).all())


def is_symmetric_and_doubly_stochastic(mixing):
    """In whole numbers."""
    W, below = product(Schedule("", mixing.nodes, [mixing], directed=False), 1)
    return np.array_equal(W, W.T) and bool((W.sum(axis=0) == below).all()) and W.min() >= 0


def norm_of_one(schedule):
    """||W - J/n||."""
    return float(np.linalg.norm(schedule.mixings[0].dense() - 1 / schedule.nodes, 2))


@pytest.mark.parametrize("n", range(2, 41))
def test_one_peer_exponential_is_exact_after_log2_n_rounds_if_and_only_if_n_is_a_power_of_two(n):
    """Ying et al. 2021, arXiv:2110.13363, section 4."""
    tau = math.ceil(math.log2(n))
    schedule = build_schedule("one-peer-exponential", n)
    assert schedule.period == tau
    assert exact_after(schedule) == (tau if n == 2**tau else None)


@pytest.mark.parametrize("n", [*range(2, 33), 50, 63, 64, 65, 100])
def test_the_static_exponential_graph_has_a_gap_of_two_over_one_plus_log2_n(n):
    """Ying et al. 2021, Proposition 1: of even n exactly, of odd n at least that; and the norm is the modulus."""
    schedule = build_schedule("directed-exponential", n)
    least = 2 / (1 + math.ceil(math.log2(n)))
    gap = 1 - norm_of_one(schedule)
    moduli = np.sort(np.abs(np.linalg.eigvals(schedule.mixings[0].dense())))
    assert moduli[-2] == pytest.approx(1 - gap, abs=1e-9)
    if n % 2 == 0:
        assert gap == pytest.approx(least, abs=1e-12)
    else:
        assert gap > least + 1e-6


@pytest.mark.parametrize("k", range(1, 7))
def test_the_one_peer_hypercube_is_exact_after_k_rounds(k):
    """Shi et al. 2016, doi:10.1109/TNET.2015.2484345, and Ying et al. 2021: no sooner, either."""
    assert exact_after(build_schedule("one-peer-hypercube", 2**k)) == k


@pytest.mark.parametrize("n", [3, 5, 6, 12])
def test_pairs_never_average_exactly_unless_n_is_a_power_of_two(n):
    """Shi et al. 2016, of averages of two: so Base-2 needs other weights than one half."""
    assert exact_after(build_schedule("round-robin", n)) is None
    assert exact_after(build_schedule("random-matchings:rounds=30", n)) is None
    assert {0.5} < {float(w) for mixing in build_schedule("base", n).mixings for w in mixing.weights}


@pytest.mark.parametrize(("k", "D"), [(2, 1), (2, 5), (3, 3), (4, 2), (7, 1), (5, 2)])
def test_de_bruijn_is_exact_after_as_many_rounds_as_a_word_has_letters(k, D):
    """There is exactly one walk of D links between any two words, so that A^D = J."""
    assert exact_after(build_schedule(f"de-bruijn:k={k}", k**D)) == D


@pytest.mark.parametrize(("k", "D"), [(2, 1), (2, 4), (3, 2), (4, 2)])
def test_no_node_of_a_kautz_graph_is_further_than_d_hops_and_its_second_modulus_is_one_in_k(k, D):
    """Kautz 1968; its spectrum is that of the complete directed graph on k + 1 letters and zeros."""
    mixing = build_schedule(f"kautz:k={k}", k**D + k ** (D - 1)).mixings[0]
    graph = nx.DiGraph(zip(mixing.senders.tolist(), mixing.receivers.tolist(), strict=True))
    assert nx.diameter(graph) == D
    moduli = np.sort(np.abs(np.linalg.eigvals(mixing.dense())))
    assert moduli[-2] == pytest.approx(1 / k, abs=1e-3)


@pytest.mark.long
@pytest.mark.parametrize("k", range(1, 5))
@pytest.mark.parametrize("family", ["base", "simple-base"])
def test_base_averages_any_number_of_nodes_exactly_with_at_most_k_peers(family, k):
    """Takezawa et al. 2023, arXiv:2305.11420, Theorem 1: in at most 2 log_{k+1} n + 2 rounds; n from 1 to 64."""
    for n in range(1, 65):
        schedule = build_schedule(f"{family}:k={k}", n)
        assert averages_exactly(schedule), n
        assert schedule.period <= 2 * math.log(n, k + 1) + 2, n
        for mixing in schedule.mixings:
            assert np.bincount(mixing.receivers, minlength=n).max() <= k, n
            assert is_symmetric_and_doubly_stochastic(mixing), n


@pytest.mark.parametrize(
    ("family", "k", "n", "rounds"),
    [
        ("base", 1, 5, 5),
        ("base", 1, 6, 4),
        ("simple-base", 1, 6, 5),
        ("base", 1, 8, 3),
        ("base", 1, 25, 9),
        ("base", 2, 25, 6),
        ("base", 4, 25, 2),
    ],
)
def test_base_has_the_published_length(family, k, n, rounds):
    """Takezawa et al. 2023, arXiv:2305.11420, and none of them is exact any sooner."""
    schedule = build_schedule(f"{family}:k={k}", n)
    assert schedule.period == rounds
    assert exact_after(schedule) == rounds


def test_base_is_never_longer_than_simple_base():
    """Takezawa et al. 2023, Algorithm 3."""
    for k in (1, 2, 3):
        split = [build_schedule(f"base:k={k}", n).period for n in range(1, 65)]
        simple = [build_schedule(f"simple-base:k={k}", n).period for n in range(1, 65)]
        assert all(a <= b for a, b in zip(split, simple, strict=True))
        assert split != simple


@pytest.mark.parametrize(("k", "n", "rounds"), [(1, 32, 5), (2, 12, 3), (4, 60, 3), (5, 36, 2), (9, 10, 1), (3, 1, 1)])
def test_a_hyper_hypercube_is_exact_after_as_many_rounds_as_n_has_factors(k, n, rounds):
    """Takezawa et al. 2023, Algorithm 1, with as few factors up to k + 1 as there can be."""
    schedule = build_schedule(f"hyper-hypercube:k={k}", n)
    assert schedule.period == rounds
    assert averages_exactly(schedule)


def mean_square(schedule):
    """The mean over all rounds of W^T W, without J/n. Shape (n, n)."""
    matrices = (mixing.dense() for mixing in schedule.mixings)
    return sum(W.T @ W for W in matrices) / schedule.period - 1 / schedule.nodes


@pytest.mark.long
@pytest.mark.parametrize("eta", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("n", [7, 12])
def test_one_round_of_od_equi_dyn_shrinks_every_start_alike_on_average(n, eta):
    """Song et al. 2022, arXiv:2210.07881, section 4: of uniform shifts E P_u = (J - I)/(n - 1), from which
    E ||W x - mean||^2 = (1 - 2 eta (1 - eta (n-1)/n)) ||x - mean||^2: a constant, whatever the number of nodes.
    """
    expected = 1 - 2 * eta * (1 - eta * (n - 1) / n)
    values = np.linalg.eigvalsh(mean_square(build_schedule(f"od-equi-dyn:eta={eta},rounds=3000", n)))
    # the eigenvector of all ones is left with nothing
    assert np.sort(np.abs(values))[0] == pytest.approx(0.0, abs=1e-12)
    assert np.sort(values)[1:] == pytest.approx(np.full(n - 1, expected), abs=0.04)


@pytest.mark.parametrize("n", [10, 31, 100])
def test_one_round_of_ou_equi_dyn_shrinks_the_worst_start_by_a_constant_on_average(n):
    """Song et al. 2022, section 4: no rate depends on the number of nodes. A random matching of all nodes would give
    one half at eta = 1/2; the nodes that a shift leaves alone cost the rest.
    """
    worst = np.linalg.eigvalsh(mean_square(build_schedule("ou-equi-dyn:eta=0.5,rounds=800", n)))[-1]
    assert 0.45 < worst < 0.7


@pytest.mark.long
@pytest.mark.parametrize("n", [50, 1_000, 20_000])
def test_d_equi_static_with_order_log_n_shifts_has_a_rate_that_does_not_depend_on_n(n):
    """Song et al. 2022, section 3: m = 8 ln(2 n / p) / (3 rho^2) shifts make ||W - J/n|| < rho with probability
    1 - p.
    """
    rho, p = 0.5, 0.1
    m = math.ceil(8 * math.log(2 * n / p) / (3 * rho**2))
    drawn = [build_schedule(f"d-equi-static:m={m}", n, seed) for seed in range(5)]
    assert sum(contraction(schedule, EPSILON).norm < rho for schedule in drawn) == 5
