"""Streams are named, repeat everywhere, and what is drawn from them has the distribution it claims."""

from __future__ import annotations

import math
import statistics

import pytest

from p2pfl.chance import stream
from sim import Spread, below, draw, exponential, log_uniform, permutation, quantized, sample, shuffle, uniform
from sim.worlds.settling import choice

PINNED = [0.3815993353442866, 0.7706436283087506, 0.5958551129675969, 0.5838966557904914]
DERIVED = [0.208705149, 7.52698345, -0.45248700633408445, 668, [3, 4, 0, 1, 2, 5]]


def test_the_numbers_of_a_stream_are_pinned():
    """They are part of every published digest."""
    assert [stream(7, "link", 0, 1).random() for _ in range(2)] == [PINNED[0]] * 2
    rng = stream(0, "speeds")
    assert [rng.random() for _ in range(3)] == PINNED[1:]


def test_derived_values_are_pinned():
    rng = stream(3, "pinned")
    values = [log_uniform(rng, 0.1, 1.0), exponential(rng, 5.0), uniform(rng, -1.0, 1.0), below(rng, 1000)]
    assert [*values, permutation(rng, 6)] == DERIVED


def test_streams_of_different_names_differ():
    names = [
        (0, "a"),
        (1, "a"),
        (0, "b"),
        (0, "a", 1),
        (0, "a", "1"),
        (0, "a", 1, 2),
        (0, "a", 12),
        (0, "a1"),
        (-1, "a"),
    ]
    assert len({stream(*name).random() for name in names}) == len(names)


def test_quantized_keeps_nine_digits():
    assert quantized(1.23456789449) == 1.23456789
    assert quantized(math.nextafter(0.1, 1)) == 0.1
    assert quantized(0.0) == 0.0


def test_a_last_bit_of_the_library_does_not_show(monkeypatch):
    def drawn():
        rng = stream(1, "libm")
        return [(log_uniform(rng, 0.001, 10.0), exponential(rng, 3.0)) for _ in range(200)]

    here = drawn()
    exp, log = math.exp, math.log
    monkeypatch.setattr(math, "exp", lambda x: math.nextafter(exp(x), math.inf))
    monkeypatch.setattr(math, "log", lambda x: math.nextafter(log(x), -math.inf))
    assert drawn() == here


def test_uniform_and_log_uniform_fill_their_range_evenly():
    rng = stream(2, "spread")
    values = [uniform(rng, 2.0, 6.0) for _ in range(20_000)]
    assert 2.0 <= min(values) < 2.01
    assert 5.99 < max(values) <= 6.0
    assert statistics.fmean(values) == pytest.approx(4.0, abs=0.05)
    logs = [math.log10(log_uniform(rng, 0.01, 100.0)) for _ in range(20_000)]
    assert -2.0 <= min(logs) < max(logs) <= 2.0
    assert statistics.fmean(logs) == pytest.approx(0.0, abs=0.05)
    assert statistics.pstdev(logs) == pytest.approx(4 / math.sqrt(12), rel=0.02)


def test_whole_numbers_choices_and_permutations_are_even():
    rng = stream(2, "whole")
    counts = [0] * 7
    for _ in range(14_000):
        counts[below(rng, 7)] += 1
    assert all(abs(count - 2000) < 200 for count in counts)
    assert {choice(rng, "abc") for _ in range(100)} == set("abc")
    first = [permutation(rng, 4)[0] for _ in range(8000)]
    assert all(abs(first.count(k) - 2000) < 200 for k in range(4))
    items = list(range(50))
    shuffle(rng, items)
    assert sorted(items) == list(range(50)) != items


def test_some_are_different_ones_in_their_old_order_and_each_is_as_likely():
    rng = stream(2, "some")
    picks = [sample(rng, range(10), 3) for _ in range(5000)]
    assert all(pick == sorted(set(pick)) and len(pick) == 3 for pick in picks)
    assert all(abs(sum(k in pick for pick in picks) - 1500) < 150 for k in range(10))


def test_a_spread_is_drawn_as_it_says():
    rng = stream(4, "draw")
    before = rng.getstate()
    assert draw(rng, Spread(low=0.25, high=9.0)) == 0.25
    assert rng.getstate() == before
    assert 1.0 <= draw(rng, Spread(kind="uniform", low=1.0, high=2.0)) <= 2.0
    assert 1.0 <= draw(rng, Spread(kind="log-uniform", low=1.0, high=10.0)) <= 10.0
    with pytest.raises(ValueError, match="not 'normal'"):
        draw(rng, Spread(kind="normal"))
