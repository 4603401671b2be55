"""Epsilon of what was spent and the noise that keeps within it, beside Opacus' own accountants and dp-accounting's."""

from __future__ import annotations

import logging
import math
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from p2pfl.errors import UserError
from p2pfl.learn.privacy import CLOSE, MOST_KINDS, Spend, _epsilon, epsilon_of, noise_for, require_opacus

THOUSAND = Spend(1.1, 0.01, 1000)
DELTA = 1e-5
CHEAP = Spend(5.0, 1.0, 40)
"""At rate 1 the accountants are fast."""


def of_opacus(name, spent, delta):
    accountant = getattr(pytest.importorskip("opacus.accountants"), name)()
    accountant.history = list(spent)
    with np.errstate(all="ignore"):
        return accountant.get_epsilon(delta)


def test_the_known_figures_of_a_thousand_steps():
    """Noise 1.1, rate .01, delta 1e-5: 1.525 by PRV, as by Opacus itself, and above what PLD says."""
    assert epsilon_of([THOUSAND], DELTA) == pytest.approx(1.525, abs=5e-4)
    assert epsilon_of([THOUSAND], DELTA) == of_opacus("PRVAccountant", [THOUSAND], DELTA)
    assert epsilon_of([THOUSAND], DELTA, "rdp") == of_opacus("RDPAccountant", [THOUSAND], DELTA)
    assert epsilon_of([THOUSAND], DELTA) > 1.515  # by dp-accounting's PLD, recorded: the test below asks it


def test_dp_accounting_finds_less_than_the_bounds_and_almost_as_much():
    """The privacy loss distribution of Google's library: another implementation, from above too."""
    dp = pytest.importorskip("dp_accounting")
    pld = pytest.importorskip("dp_accounting.pld.pld_privacy_accountant")
    accountant = pld.PLDAccountant(value_discretization_interval=1e-3)
    step = dp.PoissonSampledDpEvent(THOUSAND.rate, dp.GaussianDpEvent(THOUSAND.noise))
    found = accountant.compose(step, THOUSAND.steps).get_epsilon(DELTA)
    assert found == pytest.approx(1.515, abs=2e-3)
    assert found < epsilon_of([THOUSAND], DELTA) < found + 0.02


@pytest.mark.parametrize("accountant", ["prv", "rdp"])
def test_steps_of_several_kinds_compose_as_in_opacus_in_any_order(accountant):
    spent = [Spend(2.0, 1.0, 4), Spend(3.0, 0.2, 50), Spend(2.0, 1.0, 3)]
    theirs = of_opacus(f"{accountant.upper()}Accountant", [Spend(2.0, 1.0, 7), Spend(3.0, 0.2, 50)], DELTA)
    assert epsilon_of(spent, DELTA, accountant) == pytest.approx(theirs, rel=1e-12)
    assert epsilon_of(spent[::-1], DELTA, accountant) == epsilon_of(spent, DELTA, accountant)


def test_a_gaussian_told_once_costs_what_theory_says():
    """Noise 1 at rate 1: epsilon 4.3772 at delta 1e-5, by Balle and Wang 2018 (arXiv 1805.06530), equation 6."""
    exact = 4.3772

    def delta_at(epsilon):
        def below(x):
            return math.erfc(-x / math.sqrt(2)) / 2

        return below(0.5 - epsilon) - math.exp(epsilon) * below(-0.5 - epsilon)

    assert delta_at(exact) == pytest.approx(DELTA, rel=1e-3)
    assert exact < epsilon_of([Spend(1.0, 1.0, 1)], DELTA) < exact + 0.02


def test_nothing_spent_is_nothing_and_more_steps_are_more():
    assert epsilon_of([], DELTA) == epsilon_of([Spend(1.0, 0.5, 0)], DELTA) == 0.0
    assert epsilon_of([CHEAP], DELTA) < epsilon_of([CHEAP._replace(steps=41)], DELTA)


@pytest.mark.parametrize("accountant", ["prv", "rdp"])
@pytest.mark.parametrize("epsilon", [0.3, 8.0])
def test_the_noise_for_an_epsilon_keeps_within_it_and_wastes_little(epsilon, accountant):
    noise = noise_for(epsilon, DELTA, 1.0, 40, accountant)
    assert CLOSE * epsilon <= epsilon_of([Spend(noise, 1.0, 40)], DELTA, accountant) <= epsilon


def test_the_noise_of_sampled_steps_keeps_within_an_epsilon_too():
    noise = noise_for(2.0, DELTA, 0.05, 100)
    assert CLOSE * 2.0 <= epsilon_of([Spend(noise, 0.05, 100)], DELTA) <= 2.0


def test_an_epsilon_that_no_noise_reaches_has_none():
    with pytest.raises(ValueError, match="noise 1000"):
        noise_for(1e-3, DELTA, 1.0, 40)


def test_of_many_kinds_of_steps_the_bound_is_that_of_rdp():
    spent = [Spend(4.0 + index / 8, 0.5 + index % 7 / 100, 1 + index) for index in range(MOST_KINDS + 1)]
    assert epsilon_of(spent, DELTA) == epsilon_of(spent, DELTA, "rdp") > epsilon_of(spent[1:], DELTA)


def test_at_a_delta_that_rounding_would_hide_the_bound_is_still_above_theory():
    """4,000 Gaussians at rate 1 are one of noise 1/3. Exact by Balle and Wang, equation 8; PRV alone finds 25.39."""
    exact, delta = 25.5926, 3e-13
    mean = 3.0
    tail = stats.norm.sf(exact / mean - mean / 2) - math.exp(exact + stats.norm.logsf(exact / mean + mean / 2))
    assert tail == pytest.approx(delta, rel=1e-3)
    assert epsilon_of([Spend(math.sqrt(4000) / mean, 1.0, 4000)], delta) > exact


@pytest.mark.parametrize("trouble", [RuntimeError("Cannot compute epsilon"), math.nan, math.inf])
def test_where_prv_fails_rdp_gives_the_bound_and_the_log_says_so(monkeypatch, caplog, trouble):
    def prv(kinds, delta):
        if isinstance(trouble, Exception):
            raise trouble
        return trouble

    monkeypatch.setattr("p2pfl.learn.privacy.accounting._by_prv", prv)
    _epsilon.cache_clear()
    with caplog.at_level(logging.INFO, "p2pfl"):
        assert epsilon_of([CHEAP], DELTA) == epsilon_of([CHEAP], DELTA, "rdp")
    assert "RDP" in caplog.text
    _epsilon.cache_clear()


def test_without_opacus_one_error_names_the_extra(monkeypatch):
    monkeypatch.setattr("p2pfl.learn.privacy.accounting.find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"\.\[privacy\]") as caught:
        require_opacus("ward/federation.toml")
    assert (caught.value.file, caught.value.key) == ("ward/federation.toml", "privacy")


def test_an_opacus_that_cannot_be_imported_is_one_error_too(monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus.accountants.analysis.rdp", None)
    with pytest.raises(UserError, match="cannot be imported") as caught:
        require_opacus("ward/federation.toml")
    assert (caught.value.file, caught.value.key) == ("ward/federation.toml", "privacy")


def test_opacus_is_imported_when_it_is_asked_and_not_before():
    code = """if True:
        import sys, p2pfl, p2pfl.learn.privacy.plan, p2pfl.federation
        print(sorted({"opacus", "scipy", "torch"} & set(sys.modules)))
    """
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
