"""The second accountant stays below what is known exactly, and close to it."""

import pytest

from p2pfl.learn.privacy.accounting import Spend, epsilon_of
from sim.audits.bounds import epsilon_of_gaussians
from sim.audits.second import epsilon_at_least


@pytest.mark.parametrize(("noise", "steps"), [(1.0, 1), (3.8, 40), (23.8, 40)])
def test_where_every_row_is_in_each_step_it_is_that_of_two_gaussians(noise, steps):
    exact = epsilon_of_gaussians(steps**0.5 / noise, 1e-5)
    found = epsilon_at_least(noise=noise, rate=1.0, steps=steps, delta=1e-5)

    assert exact - 0.03 < found <= exact


@pytest.mark.long
@pytest.mark.parametrize(("noise", "rate", "steps"), [(1.1, 0.01, 1000), (2.0, 0.03, 1)])
def test_it_is_below_the_first_accountant_and_above_what_half_of_the_steps_tell(noise, rate, steps):
    found = epsilon_at_least(noise=noise, rate=rate, steps=steps, delta=1e-5)
    first = epsilon_of((Spend(noise, rate, steps),), 1e-5)

    assert first - 0.06 < found < first
    assert steps == 1 or found > epsilon_of((Spend(noise, rate, steps // 2),), 1e-5) + 0.1
