"""The interface between learning and everything else: flat float32 vectors in, flat vectors out.

The engine, the node and the simulator see only this; torch appears behind it and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from p2pfl.learn.intervals import Interval
from p2pfl.learn.privacy.plan import Plan
from p2pfl.methods.method import Method

Vector = NDArray[np.floating[Any]]
"""A one-dimensional array of float32, or of float64 in some tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRound:
    """Outcome of one local round. `vector` (d,) is the model after `steps` steps at `learning_rate`.

    `samples` is n, the size of the node's training set now: its weight in the mean. It may change between rounds.
    `local` is the learner's `local_state` after the round, recorded by the caller: it survives with the round, or is
    dropped with it.
    """

    vector: Vector
    steps: int
    learning_rate: float
    samples: int
    loss: float
    local: dict[str, NDArray[np.generic]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Scores: `accuracy` in [0, 1], or None if the task has none; `loss` is the mean over `samples`."""

    accuracy: float | None
    loss: float
    samples: int
    metrics: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, Interval] = field(default_factory=dict)
    """95% intervals of accuracy and metrics, by name where there is one, by the chance of which rows are tested."""


@dataclass(frozen=True, slots=True)
class RoundStart:
    """What a local round begins with: `model` (d,), which is left as it is, and the vectors (d,) `given` by `method`,
    whose `gradient` each step takes. None: the round takes the loss's gradients as they are. `elapsed_s` is how long
    the node has trained.
    """

    model: Vector
    given: Mapping[str, Vector] = field(default_factory=dict)
    method: Method | None = None
    elapsed_s: float = 0.0

    def __post_init__(self) -> None:
        if self.given and self.method is None:
            raise ValueError("vectors for a method, but no method")


class Learner(Protocol):
    """One node's model and data.

    Called from one thread at a time. `size` is d, `personal` how many floating values the model has besides, which stay
    with the node; `shape_digest` (16 bytes) covers the names, shapes and order of all shared tensors: two nodes may mix
    only if it is equal. What the task is measured by, the main measure first, a learner may say as `measures`; see
    `p2pfl.learn.metrics`.
    """

    size: int
    personal: int
    shape_digest: bytes
    samples: int

    def initial(self) -> Vector:
        """The model every node of the federation starts from: (d,), a function of the federation's seed alone."""
        ...

    def train(self, start: RoundStart, round_index: int) -> LocalRound:
        """Run one local round from `start`, with its method's gradients.

        Randomness depends only on (federation seed, node, round_index). What is not shared continues from the last
        successful round.

        Raises LearningError: the user's code failed, or what is not shared is no longer finite.
        """
        ...

    def evaluate(self, vector: Vector, part: str) -> Score | None:
        """Score on `part`: "test" (common test set) or "local" (the node's own training data). None: no such data."""
        ...

    def local_state(self) -> dict[str, NDArray[np.generic]]:
        """What is not shared but must survive a restart (personal tensors, integer buffers, what a kept optimizer
        remembers), by name: arrays that
        nobody writes to.
        """
        ...

    def load_local_state(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Restore what `local_state` returned, in this or another process."""
        ...

    def state_dict(self, vector: Vector) -> dict[str, NDArray[np.generic]]:
        """The plain model: tensors by name as torch's `state_dict` would name them, local ones included."""
        ...


def plan_by(learner: Learner) -> Plan | None:
    """The plan of its noise; None: its rounds are not private."""
    plan: Plan | None = getattr(learner, "plan", None)
    return plan


def device_of(learner: Learner) -> str:
    """Where it computes, in words; one that does not say is on the processor."""
    return str(getattr(learner, "device", "cpu"))
