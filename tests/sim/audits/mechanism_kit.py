"""Measures the steps of a private round against their plan, from the models that rounds leave, not read from code.

    python tests/sim/audits/mechanism_kit.py FEDERATION

says what is wrong with them. Each row moves one number of its own, which shows the rows that a step has drawn. A loss
of zero leaves the noise alone; almost no noise leaves what a row adds. Bounds are so wide that right steps fail one in
some ten million audits.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import faces  # noqa: F401
import numpy as np
import torch
from torch import Tensor

from p2pfl.config import RECORD, TrainingConfig
from p2pfl.learn import NodeContext, RoundStart, Task, TorchLearner, loss_of
from p2pfl.learn.privacy import MOST_TIMES, Chance, Ledger, Plan, Protection, Secret
from sim import Auditor, bare_chain, bare_learner, most_alike, proof, scene_of

QUIET = 1e-9
"""The noise multiplier for checking what rows add."""
LOUDNESSES = (3.0, 100.0, 1e4)
"""Factors on the loss, so that rows are clipped a little or a lot."""
LOUD = 1e4
MOST_ROWS, MOST_STEPS, FEW_ROWS = 200, 8, 12
NUMBERS = 40_000
"""The number of noise values that a check looks at, over all rounds."""
SURE = 5.5
"""A deviation of this many standard deviations is not an accident."""
FINE = 0.9
"""The minimum fraction of distinct noise values: float32 has tens of millions of values."""
CLOSE = 0.02
"""The tolerance for a row's count around one, and for a norm above the clip."""


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

    def with_loss(self, change: Callable[[Tensor], Tensor]) -> Task:
        """Return the node's task over its own rows, with its loss changed."""
        loss = loss_of(self.task)
        own = {"metrics": {}, "metric": None, "data": lambda _: (self.rows, None)}
        return replace(self.task, loss=lambda *pair: change(loss(*pair)), **own)

    def learner(self, task: Task, training: TrainingConfig, **changed: Any) -> TorchLearner:
        plan = replace(self.plan, training=training, **changed)
        context = NodeContext(node=0, nodes=2, name="node0", seed=0, base_dir=Path())
        protection = Protection(plan_for=lambda _: plan, chance=self.chance())
        return TorchLearner(task, context, training, protection=protection)


def mistakes(subject: Subject, rounds: int = 150) -> Iterator[str]:
    """What steps that do what they claim cannot show; `rounds` is the number of rounds whose rows are read."""
    if subject.plan.unit == RECORD:
        yield from sampling(subject, rounds)
    for check in (noise, coarse, failing, longest, payment, price_kept):
        yield from check(subject)


def changes(learner: TorchLearner, rounds: int) -> np.ndarray:
    """Return how each of the rounds changes the initial model, (rounds, d)."""
    start = RoundStart(learner.initial())
    ended = [learner.train(start, number).vector for number in range(rounds)]
    return np.stack(ended).astype(np.float64) - start.model


def unlike_one(value: float, numbers: float, text: str) -> Iterator[str]:
    """Say so where the mean of `numbers` squares of Gaussians is not 1: its cube root is nearly Gaussian (Wilson and
    Hilferty 1931, doi 10.1073/pnas.17.12.684).
    """
    variance = 2.0 / (9.0 * numbers)
    if abs((np.cbrt(value) - 1.0 + variance) / math.sqrt(variance)) > SURE:
        yield text.format(value=value)


def sampling(subject: Subject, rounds: int) -> Iterator[str]:
    """Check that each step draws every row independently, at the rate that is paid for, and counts it once."""
    training, samples = subject.training, min(subject.samples, MOST_ROWS)
    batch = min(samples, max(1, round(training.batch_size * samples / subject.samples)))
    counts, off = _counts(subject, replace(training, batch_size=batch), samples, rounds)
    if off > CLOSE:
        yield f"a row counts up to {1 + off:.3g} times in a step, or less than once"
    steps, rate = training.local_steps or 1, batch / samples
    spread, few = steps * rate * (1 - rate), counts.size * steps * rate
    text = "steps take {value:.3g} times the rows that are paid for"
    yield from unlike_one(float(counts.mean()) / (steps * rate), 2 * few / (1 - rate) if rate < 1 else few, text)
    if rate == 1:
        return
    off_by = counts - steps * rate
    alone = "where every row is drawn by itself"
    text = f"the sizes of batches have {{value:.2g}} times the variance that they have {alone}"
    yield from unlike_one(float((off_by.sum(1) ** 2).mean()) / (samples * spread), rounds, text)
    text = f"how often rows are taken has {{value:.2g}} times the variance that it has {alone}"
    yield from unlike_one(float((off_by.sum(0) ** 2).mean()) / (rounds * spread), samples, text)
    text = "the steps of a round take the same rows, or avoid them: {value:.2g} times the variance between rounds"
    yield from unlike_one(float((off_by**2).mean()) / spread, counts.size * min(1.0, spread), text)
    alike = most_alike([f"round {number}" for number in range(rounds)], list(off_by))
    if alike.correlation > SURE / math.sqrt(samples) + 0.25:
        yield f"{' and '.join(alike.pair)} take the same rows (correlation {alike.correlation:.2f})"


def _counts(subject: Subject, training: TrainingConfig, samples: int, rounds: int) -> tuple[np.ndarray, float]:
    """Count how often each row was in the steps of each round (rounds, samples), and how far those counts are from
    integers.
    """
    inputs = LOUD * subject.plan.clip * torch.eye(samples)
    task = bare_task(samples, (inputs, torch.zeros(samples)), lambda outputs: outputs.mean())
    found = changes(subject.learner(task, training, noise=QUIET), rounds) * -(training.batch_size / subject.plan.clip)
    counts = np.rint(found)
    return counts, float((np.abs(found - counts) / np.maximum(1.0, counts)).max())


def bare_task(size: int, rows: tuple[Tensor, Tensor], loss: Callable[[Tensor], Tensor]) -> Task:
    return Task(name="bare", model=lambda: bare_chain(size), data=lambda _: (rows, None), loss=lambda out, _: loss(out))


def relative(subject: Subject, found: np.ndarray, training: TrainingConfig) -> np.ndarray:
    """Noise relative to what is claimed."""
    found = found / (subject.plan.noise * subject.plan.clip)
    batch = min(training.batch_size, subject.samples) / math.sqrt(training.local_steps or 1)
    return found * batch if subject.plan.unit == RECORD else found


def noise(subject: Subject) -> Iterator[str]:
    """Check rounds of the node's own model with a loss of zero, which leaves only noise."""
    training = subject.training
    learner = subject.learner(subject.with_loss(lambda loss: loss * 0.0), training)
    places = [place for place in learner.model.flat.places if place.trained]
    parts, first = {}, 0
    for place in places:
        parts[place.name] = slice(first, first := first + math.prod(place.shape))
    chosen = np.concatenate([np.arange(learner.size)[place.part] for place in places])
    drawn = changes(learner, min(400, max(6, math.ceil(NUMBERS / first))))[:, chosen]
    found = relative(subject, drawn, training)
    text = "the noise has {value:.3g} times the variance that is claimed"
    yield from unlike_one(float((found**2).mean()), found.size, text)
    squares = {name: found[:, part] ** 2 for name, part in parts.items()}
    name, least = min(squares.items(), key=lambda one: float(one[1].mean() - 1) * math.sqrt(one[1].size))
    text = f"the noise of {name} has {{value:.3g}} times the variance that is claimed"
    yield from unlike_one(float(least.mean()), least.size, text)
    tails = float((found**4).mean() / (found**2).mean() ** 2)
    if abs(tails - 3.0) > SURE * math.sqrt(24 / found.size) + 1000 / found.size:
        yield f"the noise is not Gaussian: its kurtosis is {tails:.3g}"
    flat = found.ravel()[: 1 << 20]
    power = np.abs(np.fft.rfft(flat - flat.mean(), 2 * len(flat))) ** 2
    shifted = np.fft.irfft(power)[1 : len(flat) // 2]
    worst = int(np.abs(shifted).argmax())
    value = float(shifted[worst] / (flat**2).sum())
    if abs(value) > math.sqrt(2 * math.log(2e7 * len(flat)) / len(flat)):
        yield f"the noise repeats itself after {worst + 1} numbers (correlation {value:.2f})"


def coarse(subject: Subject) -> Iterator[str]:
    """Check that noise takes many values: if it took few, the remainder would reveal what was added to the noise.

    It starts from zero weights, so that only float32 rounds them.
    """
    size = NUMBERS // 2
    task = bare_task(size, (torch.zeros(1, size), torch.zeros(1)), lambda outputs: outputs.mean() * 0.0)
    training = replace(subject.training, local_steps=1, batch_size=1)
    drawn = np.abs(changes(subject.learner(task, training), 2))
    value = len(np.unique(drawn)) / drawn.size
    if value < FINE:
        yield f"the noise takes few values: of {drawn.size:,} numbers {value:.3g} are different ones"


def failing(subject: Subject) -> Iterator[str]:
    """Check that rounds whose loss is NaN also have noise; without it they reveal that the rows cause the NaN."""
    training = replace(subject.training, local_steps=1)
    learner = subject.learner(subject.with_loss(lambda loss: loss * math.nan), training)
    found = relative(subject, np.nan_to_num(changes(learner, 3), nan=0.0), training)
    trained = np.concatenate([found[:, place.part].ravel() for place in learner.model.flat.places if place.trained])
    text = "the noise of rounds without a finite loss has {value:.3g} times the variance that is claimed"
    yield from unlike_one(float((trained**2).mean()), trained.size, text)


def longest(subject: Subject) -> Iterator[str]:
    """Measure how far one row can move a step of the node's own model, or all rows a round, in multiples of the clip
    and without noise.
    """
    value = max(_largest_move(subject, loudness) for loudness in LOUDNESSES)
    if value > 1 + CLOSE:
        what = "a row moves a step" if subject.plan.unit == RECORD else "a round is moved"
        yield f"{what} by {value:.3g} clips"


def _largest_move(subject: Subject, loudness: float) -> float:
    clip = subject.plan.clip
    loud = subject.with_loss(lambda loss: loss * (loudness * clip))
    if subject.plan.unit != RECORD:
        found = changes(subject.learner(loud, subject.training, noise=QUIET), 2)
        return float(np.linalg.norm(found, axis=1).max()) / clip
    few, moves = list(range(min(FEW_ROWS, subject.samples))), []
    for row in range(4):
        sums = []
        for left in (few, [one for one in few if one != row]):
            rows = tuple(each[torch.tensor(left)] for each in subject.rows)
            training = replace(subject.training, local_steps=1, batch_size=len(left))
            task = replace(loud, data=lambda _, rows=rows: (rows, None))
            sums.append(changes(subject.learner(task, training, noise=QUIET), 1)[0] * len(left))
        moves.append(float(np.linalg.norm(sums[0] - sums[1])))
    return max(moves) / clip


def payment(subject: Subject) -> Iterator[str]:
    """Pay for rounds until the plan allows no more, and let a second accountant say what they reveal together."""
    plan, ledger, rounds = subject.plan, Ledger(unit=subject.plan.unit, word=""), 0
    while plan.allows(ledger.spent, plan.spend(subject.samples)) and rounds < MOST_TIMES * plan.rounds:
        ledger, rounds = ledger.plus(plan.spend(subject.samples)), rounds + 1
    rate, steps = 1.0, rounds
    if plan.unit == RECORD:
        rate, steps = min(1.0, plan.training.batch_size / subject.samples), rounds * subject.steps
    value = epsilon_at_least(noise=plan.noise, rate=rate, steps=steps, delta=plan.delta) if steps else 0.0
    if value > plan.epsilon * 1.001:
        yield f"the budget pays for {rounds} rounds; they tell epsilon {value:.3g} at least, not {plan.epsilon:.3g}"


def price_kept(subject: Subject) -> Iterator[str]:
    """Check that expensive rounds keep their price when cheaper ones follow, as when rows are added."""
    plan, ledger = subject.plan, Ledger(unit=subject.plan.unit, word="")
    costs = [plan.spend(samples) for samples in (subject.samples, 4 * subject.samples)]
    for cost in costs:
        ledger = ledger.plus(cost)
    kept, taken = (sum(one.steps for one in all_ if one.rate >= costs[0].rate) for all_ in (ledger.spent, costs))
    if kept < taken:
        yield f"when rows are added the ledger keeps {kept / taken:.3g} of the dearer steps that were taken"


# -- a second accountant ----------------------------------------------------------------------------------------------

LOST, MOST_CELLS, REACH, PARTS = 0.02, 1 << 22, 12.0, 200_000
"""The most epsilon that all rounding may cost; the grid; the noise to integrate over, in deviations and in parts."""


def epsilon_at_least(*, noise: float, rate: float, steps: int, delta: float) -> float:
    """Return a lower bound on epsilon at that delta, for adding or removing a row, whichever reveals more.

    It shares no code with the first accountant: it composes the privacy losses of steps with Poisson sampling on a
    grid, by Fourier transform (Koskela, Jälkö and Honkela 2020, arXiv 1906.03049), and rounds each loss down. So an
    accountant that reports less is wrong, however it computes.
    """
    edges = np.linspace(-REACH * noise, REACH * noise + 1.0, PARTS + 1)
    loss = (2.0 * edges - 1.0) / (2.0 * noise**2)
    ratio = np.log1p(rate * np.expm1(loss)) if rate < 1 else loss
    without = np.diff(_phi(edges / noise))
    with_it = (1.0 - rate) * without + rate * np.diff(_phi((edges - 1.0) / noise))
    both = ((ratio[:-1], with_it), (-ratio[1:], without))  # the ratio rises, so this is the smallest loss of each part
    return max(_composed(*losses, steps, delta) for losses in both)


def _phi(values: np.ndarray) -> np.ndarray:
    return np.array([0.5 * math.erfc(-value / math.sqrt(2.0)) for value in values.tolist()])


def _composed(losses: np.ndarray, chances: np.ndarray, steps: int, delta: float) -> float:
    """Compose the steps. Probability beyond the range counts as a loss of minus infinity."""
    mean = float((losses * chances).sum())
    spread = math.sqrt(max(1e-300, float(((losses - mean) ** 2 * chances).sum())))
    likely = float(np.abs(losses[chances > delta * 1e-6]).max(initial=0.0))
    reach = 1 + max(likely, abs(mean) * steps + 12 * spread * math.sqrt(steps))
    cells = min(MOST_CELLS, 1 << math.ceil(math.log2(2 * reach * steps / (2 * LOST))))
    width = 2 * reach / cells
    places = np.floor(losses / width).astype(np.int64)
    seen = np.abs(places) < cells // 2
    one = np.bincount(places[seen] % cells, weights=chances[seen], minlength=cells)
    whole = np.maximum(np.fft.irfft(np.fft.rfft(one) ** steps, cells), 0.0)
    at = np.where(np.arange(cells) < cells // 2, np.arange(cells), np.arange(cells) - cells) * width
    low, high = 0.0, float(at.max())
    for _ in range(50):
        middle = (low + high) / 2
        beyond = at > middle
        delta_here = float((whole[beyond] * -np.expm1(middle - at[beyond])).sum())
        low, high = (middle, high) if delta_here > delta else (low, middle)
    return low


# -- the last bits ----------------------------------------------------------------------------------------------------


def bits_tell(
    *, unit: str = RECORD, clip: float = 1.0, delta: float = 1e-5, tries: int = 60, chain: bool = True
) -> bool:
    """True if the last bits of what leaves a node tell of a row: where float noise is added to a float, a small result
    keeps the last bits of the larger one (Mironov 2012, doi 10.1145/2382196.2382264).
    """
    size = 1024
    row, moved = torch.full((1, size), 1e3 * clip), clip / math.sqrt(size)
    finest = 2.0 ** (math.floor(math.log2(moved)) - 25)
    scores = []
    for place, rows in enumerate((row, torch.zeros_like(row))):
        learner = bare_learner(rows, unit=unit, clip=clip, delta=delta, chain=chain)
        start = RoundStart(learner.initial())
        ended = [learner.train(start, place * tries + n).vector.astype(np.float64) for n in range(tries)]
        small = [one[np.abs(one) < moved / 4] for one in ended]
        scores.append(np.array([-float((np.fmod(one, finest) != 0).any()) for one in small]))
    return proof(*scores, delta).mu > 0


def main(folder: str) -> int:
    """Say what is wrong with the mechanism for this federation, in each unit, and what its canary proves."""
    auditor = Auditor(scene_of(Path(folder)), attacks=("canary",))
    auditor.try_canary()
    found, scene = auditor.findings.mistakes, auditor.scene
    for layer in auditor.layers:
        if layer.plan is not None and not layer.missing:
            rows = scene.rows()
            found += mistakes(Subject(task=scene.task, rows=rows, samples=len(rows[1]), plan=layer.plan))
            if bits_tell(unit=layer.plan.unit, clip=layer.plan.clip, delta=layer.plan.delta):
                found.append("its last bits tell of a row")
    sys.stderr.writelines(f"error: {text}\n" for text in found)
    return 1 if found else 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    raise SystemExit(main(sys.argv[1]))
