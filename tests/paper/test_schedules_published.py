"""What the papers say of their schedules and directed graphs, of the ones that we build."""

from __future__ import annotations

import math

import numpy as np
import pytest

from topologies import build_schedule, exact_after, product


def averages_exactly(schedule):
    """Whether the product of all rounds is J/n, in whole numbers."""
    P, below = product(schedule, schedule.period)
    return bool((schedule.nodes * P == below).all())


@pytest.mark.parametrize("n", range(2, 41))
def test_one_peer_exponential_is_exact_after_log2_n_rounds_if_and_only_if_n_is_a_power_of_two(n):
    """Ying et al. 2021, arXiv:2110.13363, section 4."""
    tau = math.ceil(math.log2(n))
    schedule = build_schedule("one-peer-exponential", n)
    assert schedule.period == tau
    assert exact_after(schedule) == (tau if n == 2**tau else None)


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


@pytest.mark.long
@pytest.mark.parametrize("k", range(1, 5))
def test_base_averages_any_number_of_nodes_exactly_with_at_most_k_peers(k):
    """Takezawa et al. 2023, arXiv:2305.11420, Theorem 1: in at most 2 log_{k+1} n + 2 rounds; n from 1 to 64."""
    for n in range(1, 65):
        schedule = build_schedule(f"base:k={k}", n)
        assert averages_exactly(schedule), n
        assert schedule.period <= 2 * math.log(n, k + 1) + 2, n
        for mixing in schedule.mixings:
            assert np.bincount(mixing.receivers, minlength=n).max() <= k, n


@pytest.mark.parametrize(
    ("family", "k", "n", "rounds"),
    [
        ("base", 1, 5, 5),
        ("base", 1, 6, 4),
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
