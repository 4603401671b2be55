"""What is measured of right steps is in order, and each of a few mistakes is seen."""

from dataclasses import replace

import mechanism_kit
import pytest
import torch
from mechanism_kit import Subject, bits_tell, epsilon_at_least, mistakes, noise, payment
from torch import nn

from p2pfl.config import PRV, RECORD, TrainingConfig
from p2pfl.config.sections import MEMBER
from p2pfl.learn import Task
from p2pfl.learn.privacy import Grid, Plan, Seeded, Spend, epsilon_of
from sim import epsilon_of_gaussians

TRAINING = TrainingConfig(rounds=10, local_steps=3, batch_size=16)


def subject(unit=RECORD, chance=None, rows=120):
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(rows, 6, generator=generator), torch.arange(rows) % 3
    plan = Plan(unit=unit, epsilon=8.0, delta=1e-4, clip=0.5, noise=2.0, accountant=PRV, rounds=10, training=TRAINING)
    task = Task(
        name="mine",
        model=lambda: nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 3)),
        data=lambda _: ((inputs, targets), None),
    )
    how = {"task": task, "rows": (inputs, targets), "samples": rows, "plan": plan}
    return Subject(**how, chance=chance or (lambda: Seeded(3)))


@pytest.mark.long
@pytest.mark.parametrize("unit", [RECORD, MEMBER])
def test_right_steps_are_in_order(unit):
    assert list(mistakes(subject(unit), 60)) == []


@pytest.fixture
def few_numbers(monkeypatch):
    """A mistake that they tell of, more would."""
    monkeypatch.setattr(mechanism_kit, "NUMBERS", mechanism_kit.NUMBERS // 2)


@pytest.mark.usefixtures("few_numbers")
def test_a_bias_without_noise_is_seen(monkeypatch):
    hidden = Grid.hidden

    def last_three_bare(self, total, draws):
        found = hidden(self, total, draws)
        found[-3:] = total[-3:]
        return found

    monkeypatch.setattr(Grid, "hidden", last_three_bare)
    assert any("the noise of 2.bias" in one for one in noise(subject()))


def test_a_plan_that_counts_half_of_its_steps_pays_for_too_many_rounds(monkeypatch):
    spend = Plan.spend
    monkeypatch.setattr(Plan, "spend", lambda self, samples: spend(self, samples)._replace(steps=1))
    tight = subject()
    (said,) = payment(replace(tight, plan=replace(tight.plan, epsilon=1.5)))
    assert "the budget pays for" in said


@pytest.mark.parametrize(("unit", "chain"), [("record", True), ("record", False), ("member", True)])
def test_the_last_bits_of_a_step_from_zero_weights_do_not_tell_of_a_row(unit, chain):
    assert not bits_tell(unit=unit, chain=chain)


# The second accountant stays below what is known exactly, and close to it.


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
