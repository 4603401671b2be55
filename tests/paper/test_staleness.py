"""Staleness weights against the formulas of FedAsync (Xie, Koyejo, Gupta 2019, arXiv 1903.03934, section 5.2)."""

from __future__ import annotations

import math

import pytest

from p2pfl.core import LIMIT, parse_staleness

TAUS = range(LIMIT + 1)


@pytest.mark.parametrize("c", [1.0, 0.3])
def test_constant(c):
    weight = parse_staleness(f"constant:{c}")
    assert [weight(tau) for tau in TAUS] == [c for _ in TAUS]


@pytest.mark.parametrize(("a", "b"), [(10.0, 4.0), (0.5, 0.0), (4.0, 16.0)])
def test_hinge(a, b):
    weight = parse_staleness(f"hinge:{a},{b}")
    for tau in TAUS:
        assert weight(tau) == pytest.approx(1.0 if tau <= b else 1.0 / (a * (tau - b) + 1.0))


@pytest.mark.parametrize("a", [0.5, 1.0, 3.0])
def test_polynomial(a):
    weight = parse_staleness(f"polynomial:{a}")
    for tau in TAUS:
        assert weight(tau) == pytest.approx(math.pow(tau + 1, -a))


def test_the_default_is_one_for_four_rounds_and_then_falls_with_the_root():
    weight = parse_staleness("hinge-polynomial:4,0.5")
    assert [weight(tau) for tau in range(5)] == [1.0] * 5
    assert [weight(tau) for tau in (5, 12, 64)] == pytest.approx([1 / math.sqrt(2), 1 / 3, 1 / math.sqrt(61)])


@pytest.mark.parametrize("spec", ["constant", "hinge:10,4", "polynomial:0.5", "hinge-polynomial:4,0.5"])
def test_every_weight_falls_from_one_never_rises_and_is_zero_beyond_the_limit(spec):
    weight = parse_staleness(spec)
    values = [weight(tau) for tau in range(LIMIT + 10)]
    assert values[0] == 1.0
    assert values == sorted(values, reverse=True)
    assert all(0.0 < value <= 1.0 for value in values[: LIMIT + 1])
    assert values[LIMIT + 1 :] == [0.0] * 9


def test_none_never_weighs_less():
    assert {parse_staleness("none")(tau) for tau in (0, 10, 10**6)} == {1.0}


@pytest.mark.parametrize(
    "spec", ["", "no", "hinge", "hinge:1", "polynomial:1,2", "constant:1,2", "none:1", "hinge:x,y"]
)
def test_what_is_no_staleness_weight_is_refused(spec):
    with pytest.raises(ValueError, match=r"staleness|float"):
        parse_staleness(spec)
