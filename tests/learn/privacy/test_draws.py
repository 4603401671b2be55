"""What privacy draws: the right distributions, from a source that nobody else can follow."""

from __future__ import annotations

import os

import numpy as np
import pytest
from scipy import stats

from p2pfl.learn.privacy import BLOCK, UNIT, Secret, Seeded, noise


@pytest.fixture
def replayed(monkeypatch):
    """Secret draws whose keys are known: so that a test of their distribution does not fail by chance."""
    rng = np.random.default_rng(7)
    monkeypatch.setattr(noise.os, "urandom", rng.bytes)


def sources():
    return [pytest.param(Secret, id="secret"), pytest.param(lambda: Seeded(3).of_round(1, 4), id="seeded")]


@pytest.mark.usefixtures("replayed")
@pytest.mark.parametrize("source", sources())
def test_noise_is_standard_gaussian(source):
    found = source().noise(200_000) / UNIT
    assert stats.kstest(found, "norm").pvalue > 1e-3
    low, high = stats.chi2(len(found)).ppf([1e-4, 1 - 1e-4])
    assert low < (found**2).sum() < high
    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 4 / np.sqrt(len(found))
    assert abs(np.corrcoef(found[: len(found) // 2], found[len(found) // 2 :])[0, 1]) < 5 / np.sqrt(len(found))


@pytest.mark.usefixtures("replayed")
def test_noise_reaches_as_far_as_a_gaussian_does():
    """Of 4 million the farthest are beyond 4.5 standard deviations, about as many as there should be."""
    found = sum(int((np.abs(Secret().noise(500_000)) > 4.5 * UNIT).sum()) for _ in range(8))
    least, most = stats.poisson(4e6 * 2 * stats.norm.sf(4.5)).ppf([1e-4, 1 - 1e-4])
    assert least <= found <= most


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK + 1])
def test_there_are_as_many_numbers_as_asked_for(size):
    assert Secret().noise(size).shape == (size,)


@pytest.mark.usefixtures("replayed")
@pytest.mark.parametrize("source", sources())
def test_how_many_rows_a_step_sees_is_binomial_and_no_row_is_preferred(source):
    noise, samples, rate, steps = source(), 40, 0.15, 4000
    drawn = [noise.rows(samples, rate) for _ in range(steps)]
    counts = np.bincount([len(one) for one in drawn], minlength=samples + 1)
    expected = steps * stats.binom(samples, rate).pmf(np.arange(samples + 1))
    known = expected > 5
    tail = counts[~known].sum(), expected[~known].sum()
    observed, wanted = np.append(counts[known], tail[0]), np.append(expected[known], tail[1])
    assert stats.chisquare(observed, wanted).pvalue > 1e-3
    by_row = np.bincount(np.concatenate(drawn), minlength=samples)
    assert stats.chisquare(by_row).pvalue > 1e-3
    assert all((np.diff(one) > 0).all() for one in drawn)


@pytest.mark.parametrize("source", sources())
def test_at_rate_one_every_row_is_seen(source):
    assert source().rows(1000, 1.0).tolist() == list(range(1000))


def test_secret_draws_never_repeat_and_no_seed_decides_them():
    def drawn(seed):
        np.random.seed(seed)  # noqa: NPY002 - it is what must not matter
        noise = Secret().of_round(0, 0)
        return (*noise.noise(4).tolist(), tuple(noise.rows(200, 0.5)), noise.seed())

    found = [drawn(0) for _ in range(20)]
    for place in range(len(found[0])):
        assert len({one[place] for one in found}) == len(found)


def test_a_forked_process_draws_other_numbers():
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, Secret().noise(2).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 16) != Secret().noise(2).tobytes()


def test_seeded_draws_are_those_of_seed_node_and_round():
    def drawn(seed, node, round_index):
        noise = Seeded(seed).of_round(node, round_index)
        return tuple(noise.rows(100, 0.5)), *noise.noise(2).tolist(), noise.seed()

    first = drawn(1, 2, 3)
    assert drawn(1, 2, 3) == first
    for other in (drawn(0, 2, 3), drawn(1, 0, 3), drawn(1, 2, 0)):
        assert not set(other) & set(first)
