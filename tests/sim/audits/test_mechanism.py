"""What is measured of right steps is in order, and each of a few mistakes is seen."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from p2pfl.config.model import TrainingConfig
from p2pfl.config.sections import MEMBER, PRV, RECORD
from p2pfl.learn.privacy import Plan
from p2pfl.learn.privacy.draws import Seeded, SeededDraws
from p2pfl.learn.privacy.gaussian import UNIT
from p2pfl.learn.privacy.grid import Grid
from p2pfl.learn.task import Task
from sim.audits import mechanism
from sim.audits.mechanism import Subject, noise, payment, sampling

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


def mistakes(found):
    return [check.mistake for check in found if check.mistake]


@pytest.mark.long
@pytest.mark.parametrize("unit", [RECORD, MEMBER])
def test_right_steps_are_in_order(unit):
    found = list(mechanism.checks(subject(unit), 60))

    assert mistakes(found) == []
    assert len(found) == (15 if unit == RECORD else 9)


def chance_with(**changed):
    class Draws(SeededDraws):
        pass

    for name, function in changed.items():
        setattr(Draws, name, function)

    class Chance(Seeded):
        def of_round(self, node, round_index):
            return Draws(3, node, round_index)

    return lambda: Chance(3)


SAMPLINGS = {
    "of a fixed size": (lambda draws, n, rate: draws._rows.permutation(n)[: round(rate * n)], "sizes of batches"),
    "the same in each step": (
        lambda draws, n, rate: np.flatnonzero(SeededDraws(*draws._place)._rows.random(n) < rate),
        "the same rows",
    ),
    "the same in each round": (
        lambda _, n, rate: np.flatnonzero(np.random.default_rng(5).random(n) < rate),
        "same rows",
    ),
    "the first rows more": (
        lambda draws, n, rate: np.flatnonzero(draws._rows.random(n) < rate * np.linspace(2, 0, n)),
        "how often rows are taken",
    ),
    "twice": (lambda draws, n, rate: np.repeat(np.flatnonzero(draws._rows.random(n) < rate / 2), 2), "variance"),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", SAMPLINGS)
def test_rows_that_are_not_drawn_each_by_itself_are_seen(kind):
    rows, said = SAMPLINGS[kind]
    assert any(said in one for one in mistakes(sampling(subject(chance=chance_with(rows=rows)), 60)))


NOISES = {
    "as much, but flat": (lambda draws, size: draws._noise.uniform(-1, 1, size) * 3**0.5, "kurtosis"),
    "cut": (lambda draws, size: draws._noise.standard_normal(size).clip(-1.5, 1.5), "variance"),
    "half of it again": (
        lambda draws, size: np.tile(draws._noise.standard_normal(size // 2 + 1), 2)[:size],
        "repeats itself",
    ),
    "the same in each round": (lambda _, size: np.random.default_rng(0).standard_normal(size), "variance"),
}


@pytest.fixture
def few_numbers(monkeypatch):
    """A mistake that they tell of, more would."""
    monkeypatch.setattr(mechanism, "NUMBERS", mechanism.NUMBERS // 2)


@pytest.mark.long
@pytest.mark.usefixtures("few_numbers")
@pytest.mark.parametrize("kind", NOISES)
def test_noise_that_is_none_is_seen(kind):
    draw, said = NOISES[kind]
    chance = chance_with(noise=lambda draws, size: np.rint(draw(draws, size) * UNIT).astype(np.int64))
    assert any(said in one for one in mistakes(noise(subject(chance=chance))))


@pytest.mark.usefixtures("few_numbers")
def test_a_bias_without_noise_is_seen(monkeypatch):
    hidden = Grid.hidden

    def last_three_bare(self, total, draws):
        found = hidden(self, total, draws)
        found[-3:] = total[-3:]
        return found

    monkeypatch.setattr(Grid, "hidden", last_three_bare)
    assert any("the noise of 2.bias" in one for one in mistakes(noise(subject())))


def test_a_plan_that_counts_half_of_its_steps_pays_for_too_many_rounds(monkeypatch):
    spend = Plan.spend
    monkeypatch.setattr(Plan, "spend", lambda self, samples: spend(self, samples)._replace(steps=1))
    tight = subject()
    assert "the budget pays for" in payment(replace(tight, plan=replace(tight.plan, epsilon=1.5))).mistake
