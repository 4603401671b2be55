"""An audit of the noise that hides a row, or a member: many rounds with a canary and without it.

The canary is a row with an arbitrarily large gradient that points against all others, so that whatever passes the
clipping is seen (Nasr et al. 2021, arXiv 2101.04535; 2023, arXiv 2302.07956). The model is a bare vector; the mechanism
is the learner's own: its randomness, its clipping, its noise. `proof` turns errors into a bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from p2pfl.config.model import TrainingConfig
from p2pfl.config.sections import PRV, RECORD
from p2pfl.learn.interface import RoundStart
from p2pfl.learn.privacy import Plan
from p2pfl.learn.privacy.draws import Chance, Secret
from p2pfl.learn.privacy.protection import Protection
from p2pfl.learn.task import NodeContext, Task
from p2pfl.learn.trainer import TorchLearner
from sim.audits.bounds import Proof, epsilon_of_gaussians, proof

Values = NDArray[np.floating[Any]]
NOISE = 1.0
"""The audit's noise multiplier: at 1 the errors prove most."""
SIZE = 32
"""The size of the bare model."""
ROWS = 8
LOUD = 1e3
"""The norm of the canary's gradient, in multiples of the clipping bound: far more than clipping lets through."""
MISTAKEN = 6.0
"""The number of standard deviations that the correlation of independent noises never reaches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """The result of one step that includes every row, at noise 1.

    `claimed` is the epsilon for two Gaussians at distance 1, `proven` what the errors prove with 95% confidence.
    `noise_at_most` is an upper bound on the actual noise multiplier.
    """

    claimed: float
    proven: float
    noise_at_most: float
    proof: Proof

    @property
    def holds(self) -> bool:
        return self.proven <= self.claimed


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """The two rounds whose noises are most alike, and their `correlation`, in [-1, 1], over `size` numbers."""

    pair: tuple[str, str]
    correlation: float
    size: int

    @property
    def is_reused(self) -> bool:
        return abs(self.correlation) * float(np.sqrt(self.size)) > MISTAKEN


class Bare(nn.Module):
    """A model with a single vector w, whose gradient for a row x is x.

    It is not a chain of layers, so rows go through `torch.func`.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.weight[:, None]


def bare_chain(size: int) -> nn.Module:
    """Build the bare model as a chain of one layer."""
    layer = nn.Linear(size, 1, bias=False)
    nn.init.zeros_(layer.weight)
    return nn.Sequential(layer)


def bare_learner(
    rows: Tensor,
    *,
    unit: str = RECORD,
    clip: float = 1.0,
    delta: float = 1e-5,
    chance: Chance | None = None,
    node: int = 0,
    chain: bool = True,
) -> TorchLearner:
    """Build a learner whose rounds are one step over all `rows` (n, SIZE), each row its own gradient, at
    noise NOISE.
    """
    training = TrainingConfig(rounds=1, local_steps=1, batch_size=len(rows), learning_rate=1.0, method="plain")
    plan = Plan(
        unit=unit, epsilon=1e3, delta=delta, clip=clip, noise=NOISE, accountant=PRV, rounds=1, training=training
    )
    task = Task(
        name="canary",
        model=(lambda: bare_chain(rows.shape[1])) if chain else (lambda: Bare(rows.shape[1])),
        data=lambda _: ((rows, torch.zeros(len(rows))), None),
        loss=lambda outputs, _: outputs.mean(),
    )
    context = NodeContext(node=node, nodes=2, name=f"node{node}", seed=0, base_dir=Path())
    return TorchLearner(
        task, context, training, protection=Protection(plan_for=lambda _: plan, chance=chance or Secret())
    )


def canary(
    *,
    unit: str = RECORD,
    clip: float = 1.0,
    delta: float = 1e-5,
    tries: int = 1000,
    chance: Chance | None = None,
    chain: bool = True,
) -> Canary:
    """Train `tries` rounds with the canary and as many without it. `chance` is the same as in real nodes, unless a test
    passes another.
    """
    rows = _rows(unit, clip)
    learners = [bare_learner(one, unit=unit, clip=clip, delta=delta, chance=chance, chain=chain) for one in rows]
    with_it, without = (_scores(learner, tries, place * tries) for place, learner in enumerate(learners))
    proven = proof(with_it, without, delta)
    return Canary(
        claimed=epsilon_of_gaussians(1 / NOISE, delta),
        proven=epsilon_of_gaussians(proven.mu, delta),
        noise_at_most=1 / proven.mu if proven.mu else float("inf"),
        proof=proven,
    )


def _rows(unit: str, clip: float) -> tuple[Tensor, Tensor]:
    """Return the rows with the canary, and with nothing in its place; without a member there are no rows at all."""
    loud = LOUD * clip * torch.eye(1, SIZE)
    others = loud.repeat(ROWS - 1, 1)
    with_it = torch.cat([others, -LOUD * loud])
    without = torch.cat([others, torch.zeros(1, SIZE)])
    return with_it, without if unit == RECORD else torch.zeros_like(with_it)


def _scores(learner: TorchLearner, tries: int, first: int) -> Values:
    """Measure how far each round moved in the canary's direction: against its own gradient, which is forward along the
    first axis.
    """
    start = RoundStart(learner.initial())
    return np.array([learner.train(start, first + number).vector[0] for number in range(tries)], dtype=np.float64)


def reuse(unit: str = RECORD, clip: float = 1.0, chance: Callable[[], Chance] = Secret, size: int = 1024) -> Reuse:
    """Compare the noise of two rounds, of two nodes, and of a restarted node: none may predict another."""
    noises: dict[str, Values] = {}
    for name, node, rounds in (("node 0", 0, 3), ("node 1", 1, 2), ("node 0 started again", 0, 2)):
        learner = bare_learner(torch.zeros(ROWS, size), unit=unit, clip=clip, node=node, chance=chance())
        if name.endswith("again") and not chance().is_secret:
            continue  # a simulation repeats its noise
        start = RoundStart(learner.initial())
        for number in range(rounds):
            noises[f"{name}, round {number}"] = learner.train(start, number).vector.astype(np.float64)
    return most_alike(list(noises), list(noises.values()))


def most_alike(names: Sequence[str], noises: Sequence[Values]) -> Reuse:
    """Return the pair among at least two `noises` (d,) with the largest correlation."""
    stacked = np.stack([noise / max(1e-300, float(np.linalg.norm(noise))) for noise in noises])
    products = stacked @ stacked.T
    np.fill_diagonal(products, 0.0)
    one, other = divmod(int(np.abs(products).argmax()), len(names))
    return Reuse(pair=(names[one], names[other]), correlation=float(products[one, other]), size=len(noises[0]))
