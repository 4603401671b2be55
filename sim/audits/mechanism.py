"""An audit of the steps of a private round against their plan: measured from the models that rounds leave, not read
from code.

Each row moves one number of its own, which shows the rows that a step has drawn. A loss of zero leaves the noise alone;
almost no noise leaves what a row adds. Every check has a figure and, where steps that do what they claim cannot have
it, a mistake. Bounds are so wide that a correct mechanism fails one in some ten million audits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from p2pfl.config.model import TrainingConfig
from p2pfl.config.sections import RECORD
from p2pfl.learn.evaluation import loss_of
from p2pfl.learn.interface import RoundStart
from p2pfl.learn.privacy import Plan
from p2pfl.learn.privacy.draws import Chance, Secret
from p2pfl.learn.privacy.gradients import Loss
from p2pfl.learn.privacy.ledger import Ledger
from p2pfl.learn.privacy.plan import MOST_TIMES
from p2pfl.learn.privacy.protection import Protection
from p2pfl.learn.task import NodeContext, Task
from p2pfl.learn.trainer import TorchLearner
from sim.audits.canary import bare_chain, most_alike
from sim.audits.second import epsilon_at_least

Values = NDArray[np.float64]
QUIET = 1e-9
"""The noise multiplier for checking what rows add."""
LOUDNESSES = (3.0, 100.0, 1e4)
"""Factors on the loss, so that rows are clipped a little or a lot."""
LOUD = 1e4
MOST_ROWS, MOST_STEPS = 200, 8
FEW_ROWS = 12
NUMBERS = 40_000
"""The number of noise values that a check looks at, over all rounds."""
SURE = 5.5
"""A deviation of this many standard deviations is not an accident."""
FINE = 0.9
"""The minimum fraction of distinct noise values: float32 has tens of millions of values."""
CLOSE = 0.02
"""The tolerance for a row's count around one, and for a norm above the clip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A measured value, and the mistake that it reveals, if any."""

    name: str
    value: float
    mistake: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The audited task and rows (tensors) of a node, and its plan. `chance` is a real node's unless a test passes
    another.
    """

    task: Task
    rows: tuple[Tensor, Tensor]
    samples: int
    plan: Plan
    chance: Callable[[], Chance] = Secret

    @property
    def training(self) -> TrainingConfig:
        """The configured training with a few steps of plain descent, so that a round leaves the sum of its steps."""
        steps, batch = min(self.steps, MOST_STEPS), self.plan.training.batch_size
        return TrainingConfig(local_steps=steps, batch_size=batch, learning_rate=1.0, method="plain")

    @property
    def steps(self) -> int:
        """The configured number of steps in a round."""
        training = self.plan.training
        return training.local_steps or (training.local_epochs or 0) * math.ceil(self.samples / training.batch_size)

    def with_loss(self, loss: Loss) -> Task:
        """Return the node's task over its own rows, with a different loss."""
        return replace(
            self.task, loss=loss, metrics={}, metric=None, data=lambda _: (self.rows, None), files=lambda _: ()
        )

    def learner(self, task: Task, training: TrainingConfig, **changed: Any) -> TorchLearner:
        plan = replace(self.plan, training=training, **changed)
        context = NodeContext(node=0, nodes=2, name="node0", seed=0, base_dir=Path())
        return TorchLearner(
            task, context, training, protection=Protection(plan_for=lambda _: plan, chance=self.chance())
        )


def checks(subject: Subject, rounds: int = 150) -> Iterator[Check]:
    """Run all checks. `rounds` is the number of rounds whose rows are read."""
    if subject.plan.unit == RECORD:
        yield from sampling(subject, rounds)
    yield from noise(subject)
    yield coarse(subject)
    yield failing(subject)
    yield longest(subject)
    yield payment(subject)
    yield price_kept(subject)


# -- which rows a step takes ------------------------------------------------------------------------------------------


def sampling(subject: Subject, rounds: int) -> Iterator[Check]:
    """Check that each step draws every row independently, at the rate that is paid for, and counts it once."""
    training, samples = subject.training, min(subject.samples, MOST_ROWS)
    batch = min(samples, max(1, round(training.batch_size * samples / subject.samples)))
    counts, off = _counts(subject, replace(training, batch_size=batch), samples, rounds)
    text = f"a row counts up to {1 + off:.3g} times in a step, or less than once"
    yield Check(name="a row counts in a step, off from once", value=off, mistake=text if off > CLOSE else "")
    steps, rate = training.local_steps or 1, batch / samples
    spread = steps * rate * (1 - rate)
    share, few = float(counts.mean()) / (steps * rate), counts.size * steps * rate
    text = "steps take {value:.3g} times the rows that are paid for"
    yield _of_mean("rows that steps take, of those paid for", share, 2 * few / (1 - rate) if rate < 1 else few, text)
    if rate == 1:
        return
    off_by = counts - steps * rate
    text = "the sizes of batches have {value:.2g} times the variance that they have where every row is drawn by itself"
    yield _of_mean("variance of batch sizes", float((off_by.sum(1) ** 2).mean()) / (samples * spread), rounds, text)
    text = "how often rows are taken has {value:.2g} times the variance that it has where every row is drawn by itself"
    yield _of_mean("variance between rows", float((off_by.sum(0) ** 2).mean()) / (rounds * spread), samples, text)
    text = "the steps of a round take the same rows, or avoid them: {value:.2g} times the variance between rounds"
    few = counts.size * min(1.0, spread)
    yield _of_mean("variance of a row between rounds", float((off_by**2).mean()) / spread, few, text)
    alike = most_alike([f"round {number}" for number in range(rounds)], list(off_by))
    bound = SURE / math.sqrt(samples) + 0.25
    text = f"{' and '.join(alike.pair)} take the same rows (correlation {alike.correlation:.2f})"
    found = alike.correlation
    yield Check(name="rows of two rounds, correlation", value=found, mistake=text if found > bound else "")


def _counts(subject: Subject, training: TrainingConfig, samples: int, rounds: int) -> tuple[Values, float]:
    """Count how often each row was in the steps of each round (rounds, samples), and how far those counts are from
    integers.
    """
    inputs = LOUD * subject.plan.clip * torch.eye(samples)
    task = Task(
        name="rows",
        model=lambda: bare_chain(samples),
        data=lambda _: ((inputs, torch.zeros(samples)), None),
        loss=lambda outputs, _: outputs.mean(),
    )
    learner = subject.learner(task, training, noise=QUIET)
    found = _changes(learner, rounds) * -(training.batch_size / subject.plan.clip)
    counts: Values = np.rint(found)
    return counts, float((np.abs(found - counts) / np.maximum(1.0, counts)).max())


def _of_mean(name: str, value: float, numbers: float, text: str) -> Check:
    """Check the mean of `numbers` squares of Gaussians, which should be 1: the cube root of the mean is nearly Gaussian
    (Wilson and Hilferty 1931, doi 10.1073/pnas.17.12.684).
    """
    variance = 2.0 / (9.0 * numbers)
    off = (np.cbrt(value) - 1.0 + variance) / math.sqrt(variance)
    return Check(name=name, value=value, mistake=text.format(value=value) if abs(off) > SURE else "")


# -- the noise --------------------------------------------------------------------------------------------------------


def noise(subject: Subject) -> Iterator[Check]:
    """Check rounds of the node's own model with a loss of zero, which leaves only noise."""
    found, parts = _noises(subject)
    text = "the noise has {value:.3g} times the variance that is claimed"
    yield _of_mean("variance of the noise", float((found**2).mean()), found.size, text)
    squares = {name: found[:, part] ** 2 for name, part in parts.items()}
    name, least = min(squares.items(), key=lambda one: float(one[1].mean() - 1) * math.sqrt(one[1].size))
    text = f"the noise of {name} has {{value:.3g}} times the variance that is claimed"
    yield _of_mean("the same of the tensor that has least", float(least.mean()), least.size, text)
    tails = float((found**4).mean() / (found**2).mean() ** 2)
    text = f"the noise is not Gaussian: its kurtosis is {tails:.3g}"
    far = abs(tails - 3.0) > SURE * math.sqrt(24 / found.size) + 1000 / found.size
    yield Check(name="kurtosis of the noise, 3 of a Gaussian", value=tails, mistake=text if far else "")
    yield _independence(found)


def _noises(subject: Subject) -> tuple[Values, dict[str, slice]]:
    """Return the noise of rounds (rounds, d) relative to what is claimed, and the slice of each trained tensor."""
    loss, training, plan = loss_of(subject.task), subject.training, subject.plan
    learner = subject.learner(subject.with_loss(lambda *pair: loss(*pair) * 0.0), training)
    places = [place for place in learner.model.flat.places if place.trained]
    parts: dict[str, slice] = {}
    first = 0
    for place in places:
        size = math.prod(place.shape)
        parts[place.name], first = slice(first, first + size), first + size
    chosen = np.concatenate([np.arange(learner.size)[place.part] for place in places])
    found = _changes(learner, min(400, max(6, math.ceil(NUMBERS / first))))[:, chosen] / (plan.noise * plan.clip)
    if plan.unit == RECORD:
        found *= min(training.batch_size, subject.samples) / math.sqrt(training.local_steps or 1)
    return found, parts


def _independence(noise_values: Values) -> Check:
    """Check that no value of the noise (rounds, d) predicts another, using the correlations at every distance."""
    flat = noise_values.ravel()[: 1 << 20]
    power = np.abs(np.fft.rfft(flat - flat.mean(), 2 * len(flat))) ** 2
    shifted = np.fft.irfft(power)[1 : len(flat) // 2]
    worst = int(np.abs(shifted).argmax())
    value = float(shifted[worst] / (flat**2).sum())
    bound = math.sqrt(2 * math.log(2e7 * len(flat)) / len(flat))
    text = f"the noise repeats itself after {worst + 1} numbers (correlation {value:.2f})"
    return Check(name="correlation within the noise", value=value, mistake=text if abs(value) > bound else "")


def coarse(subject: Subject) -> Check:
    """Check that noise takes many values: if it took few, the remainder would reveal what was added to the noise.

    The check counts repeated values; it starts from zero weights, so that only float32 rounds them.
    """
    size = NUMBERS // 2
    task = Task(
        name="numbers",
        model=lambda: bare_chain(size),
        data=lambda _: ((torch.zeros(1, size), torch.zeros(1)), None),
        loss=lambda outputs, _: outputs.mean() * 0.0,
    )
    training = replace(subject.training, local_steps=1, batch_size=1)
    drawn = np.abs(_changes(subject.learner(task, training), 2))
    value = len(np.unique(drawn)) / drawn.size
    text = f"the noise takes few values: of {drawn.size:,} numbers {value:.3g} are different ones"
    return Check(name="share of the noise's numbers that differ", value=value, mistake=text if value < FINE else "")


def failing(subject: Subject) -> Check:
    """Check that rounds whose loss is NaN also have noise; without it they reveal that the rows cause the NaN."""
    loss, plan = loss_of(subject.task), subject.plan
    training = replace(subject.training, local_steps=1)
    learner = subject.learner(subject.with_loss(lambda *pair: loss(*pair) * math.nan), training)
    found = np.nan_to_num(_changes(learner, 3), nan=0.0) / (plan.noise * plan.clip)
    if plan.unit == RECORD:
        found *= min(training.batch_size, subject.samples)
    trained = np.concatenate([found[:, place.part].ravel() for place in learner.model.flat.places if place.trained])
    text = "the noise of rounds without a finite loss has {value:.3g} times the variance that is claimed"
    return _of_mean("variance of the noise where the loss is no number", float((trained**2).mean()), trained.size, text)


# -- what a row adds --------------------------------------------------------------------------------------------------


def longest(subject: Subject) -> Check:
    """Measure how far one row can move a step of the node's own model, or all rows a round, in multiples of the clip
    and without noise.
    """
    value = max(_largest_move(subject, loudness) for loudness in LOUDNESSES)
    what = "a row moves a step" if subject.plan.unit == RECORD else "a round is moved"
    text = f"{what} by {value:.3g} clips"
    return Check(name="what one adds at most, in clips", value=value, mistake=text if value > 1 + CLOSE else "")


def _largest_move(subject: Subject, loudness: float) -> float:
    """Measure it with the losses multiplied by `loudness`."""
    loss, clip = loss_of(subject.task), subject.plan.clip

    def loud(*pair: Any) -> Tensor:
        return loss(*pair) * (loudness * clip)

    if subject.plan.unit == RECORD:
        return max(_effect_of_row(subject, loud, row) for row in range(4)) / clip
    found = _changes(subject.learner(subject.with_loss(loud), subject.training, noise=QUIET), 2)
    return float(np.linalg.norm(found, axis=1).max()) / clip


def _effect_of_row(subject: Subject, loss: Loss, row: int) -> float:
    """Measure how much one row changes the sums of a step over a few rows."""
    few = list(range(min(FEW_ROWS, subject.samples)))
    sums = []
    for left in (few, [one for one in few if one != row]):
        inputs, targets = subject.rows
        fewer = replace(subject, rows=(inputs[torch.tensor(left)], targets[torch.tensor(left)]))
        training = replace(subject.training, local_steps=1, batch_size=len(left))
        learner = fewer.learner(fewer.with_loss(loss), training, noise=QUIET)
        sums.append(_changes(learner, 1)[0] * len(left))
    return float(np.linalg.norm(sums[0] - sums[1]))


def _changes(learner: TorchLearner, rounds: int) -> Values:
    """Return how each of the rounds changes the initial model, (rounds, d)."""
    start = RoundStart(learner.initial())
    ended = [learner.train(start, number).vector for number in range(rounds)]
    return np.stack(ended).astype(np.float64) - start.model


# -- what is paid -----------------------------------------------------------------------------------------------------


def payment(subject: Subject) -> Check:
    """Pay for rounds until the plan allows no more, and let a second accountant say what they reveal together."""
    plan, ledger, rounds = subject.plan, Ledger(unit=subject.plan.unit, word=""), 0
    while plan.allows(ledger.spent, plan.spend(subject.samples)) and rounds < MOST_TIMES * plan.rounds:
        ledger, rounds = ledger.plus(plan.spend(subject.samples)), rounds + 1
    rate, steps = 1.0, rounds
    if plan.unit == RECORD:
        rate, steps = min(1.0, plan.training.batch_size / subject.samples), rounds * subject.steps
    value = epsilon_at_least(noise=plan.noise, rate=rate, steps=steps, delta=plan.delta) if steps else 0.0
    text = f"the budget pays for {rounds} rounds; they tell epsilon {value:.3g} at least, not {plan.epsilon:.3g}"
    name = "epsilon of all that is paid for, at least, by a second accountant"
    return Check(name=name, value=value, mistake=text if value > plan.epsilon * 1.001 else "")


def price_kept(subject: Subject) -> Check:
    """Check that expensive rounds keep their price when cheaper ones follow, as when rows are added."""
    plan, ledger = subject.plan, Ledger(unit=subject.plan.unit, word="")
    costs = [plan.spend(samples) for samples in (subject.samples, 4 * subject.samples)]
    for cost in costs:
        ledger = ledger.plus(cost)
    dear = costs[0].rate
    value = sum(one.steps for one in ledger.spent if one.rate >= dear) / sum(
        one.steps for one in costs if one.rate >= dear
    )
    text = f"when rows are added the ledger keeps {value:.3g} of the dearer steps that were taken"
    return Check(name="dearer steps that the ledger keeps", value=value, mistake=text if value < 1 else "")
