"""The interface between learning and everything else: flat float32 vectors in, flat vectors out.

The engine, the node and the simulator see only this; torch appears behind it and nowhere else.

Which tensors of a model are gossiped: `[gossip] share` has shell patterns for their names. A tensor is shared if one
of its names matches a pattern and none matches a pattern that starts with `!`. All others are personal: the node
trains them, and they never leave it. If all patterns begin with `!`, they exclude from the whole model.

Two nodes compare a digest of the shared tensors' names, shapes, dtypes and order before they mix.

Here are also the rows of each step of a local round. Nothing here imports torch.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from p2pfl.config.model import NOT_FROZEN, TrainingConfig
from p2pfl.errors import UserError
from p2pfl.learn.intervals import Interval
from p2pfl.learn.privacy.plan import Plan
from p2pfl.methods import Method

Vector = NDArray[np.floating[Any]]
"""A one-dimensional array of float32, or of float64 in some tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRound:
    """The outcome of one local round. `vector` (d,) is the model after `steps` steps at `learning_rate`.

    `samples` is n, the current size of the node's training set and its weight in the mean. It may change between
    rounds. `local` is the learner's `local_state` after the round. The caller records it, and keeps or drops it
    together with the round.
    """

    vector: Vector
    steps: int
    learning_rate: float
    samples: int
    loss: float
    local: dict[str, NDArray[np.generic]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The result of a test. `accuracy` is in [0, 1], or None if there is none; `loss` is the mean over `samples`."""

    accuracy: float | None
    loss: float
    samples: int
    metrics: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, Interval] = field(default_factory=dict)
    """95% intervals of accuracy and metrics, by name, for those that have one. They cover the chance in which rows are
    tested.
    """


@dataclass(frozen=True, slots=True)
class RoundStart:
    """The input of a local round: the `model` (d,), which is not modified, and the vectors (d,) `given` by the
    `method`. Each step uses the method's `gradient`.

    Without a method the round uses the gradients of the loss unchanged. `elapsed_s` is how long the node has been
    training, `closing` the number of the closing round that it is, from 1, or 0: the learning rate depends on both.
    """

    model: Vector
    given: Mapping[str, Vector] = field(default_factory=dict)
    method: Method | None = None
    elapsed_s: float = 0.0
    closing: int = 0

    def __post_init__(self) -> None:
        if self.given and self.method is None:
            raise ValueError("vectors for a method, but no method")


class Learner(Protocol):
    """One node's model and data.

    It is called from one thread at a time. `size` is d; `personal` is the number of other floating-point values, which
    stay on the node. `shape_digest` (16 bytes) covers the names, shapes and order of all shared tensors: two nodes may
    mix only if their digests are equal. A learner may list the task's measures, the main one first, in `measures`; see
    `p2pfl.learn.metrics`. One whose rounds have no steps says in `round_is` what they are; one that
    keeps in its process what `local_state` does not have says so by `stays_in_process`.
    """

    size: int
    personal: int
    shape_digest: bytes
    samples: int

    def initial(self) -> Vector:
        """The model (d,) that every node starts from, a function of the federation's seed alone."""
        ...

    def train(self, start: RoundStart, round_index: int) -> LocalRound:
        """Run one local round from `start`, with its method's gradients.

        Randomness depends only on (federation seed, node, round_index). State that is not shared carries over from the
        last successful round.

        Raises LearningError: the user's code failed, or the state that is not shared is not finite.
        """
        ...

    def evaluate(self, vector: Vector, part: str) -> Score | None:
        """Score the model on `part`: "test" (common test set) or "local" (own training data). Return None if there are
        no such data.
        """
        ...

    def local_state(self) -> dict[str, NDArray[np.generic]]:
        """Return the state that is not shared but must survive a restart, by name: personal tensors, integer buffers,
        and the optimizer's state if it is kept. Nobody writes to these arrays.
        """
        ...

    def load_local_state(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Restore what `local_state` returned, in this or another process."""
        ...

    def state_dict(self, vector: Vector) -> dict[str, NDArray[np.generic]]:
        """Return the plain model: all tensors, local ones included, under the names in torch's `state_dict`."""
        ...


def plan_by(learner: Learner) -> Plan | None:
    """Return the plan for a learner's noise, or None if its rounds are not private."""
    plan: Plan | None = getattr(learner, "plan", None)
    return plan


def device_of(learner: Learner) -> str:
    """Return a description of the device on which a learner computes; "cpu" if the learner does not name it."""
    return str(getattr(learner, "device", "cpu"))


WHOLE = ("*",)
"""The patterns that share everything."""
KEY = "gossip.share"
_MOST_NAMES = 12


def shared_names(tensors: Mapping[str, Sequence[str]], patterns: Sequence[str]) -> list[str]:
    """Return the keys of `tensors` that are shared, in order. Each key stands for a tensor and maps to all its names.
    `NOT_FROZEN` is no pattern for names, and left to the caller.

    Raises UserError: a pattern matches nothing, or nothing is left to share.
    """
    patterns = [pattern for pattern in patterns if pattern != NOT_FROZEN]
    every = [name for names in tensors.values() for name in names]
    for pattern in patterns:
        if not _matches(every, pattern.removeprefix("!")):
            text = "this pattern matches no floating tensor of the model"
            raise UserError(text, key=KEY, value=pattern, allowed=_shortened(every))
    without = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    chosen = [pattern for pattern in patterns if not pattern.startswith("!")] or WHOLE
    shared = [
        key
        for key, names in tensors.items()
        if any(_matches(names, pattern) for pattern in chosen)
        and not any(_matches(names, pattern) for pattern in without)
    ]
    if not shared:
        value = ", ".join(patterns)
        raise UserError("no tensor is left to share", key=KEY, value=value, allowed=_shortened(every))
    return shared


def _matches(names: Iterable[str], pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)


def _shortened(names: Sequence[str]) -> str:
    """List a few names as they are; summarize many by their common prefixes, each with a count."""
    if len(names) <= _MOST_NAMES:
        return ", ".join(names)
    beginnings = _beginnings(names)
    texts = [f"{start} ({count} tensors)" if count > 1 else start for start, count in beginnings.items()]
    more = len(texts) - _MOST_NAMES
    return ", ".join(texts[:_MOST_NAMES] + ([f"and {more} more"] if more > 0 else []))


def _beginnings(names: Sequence[str]) -> Counter[str]:
    """Count tensors by the prefixes of their names, with as few parts as yield more than one prefix."""
    deepest = max(name.count(".") for name in names)
    for depth in range(1, deepest + 1):
        counts = Counter(_beginning(name, depth) for name in names)
        if len(counts) > 1:
            return counts
    return Counter(names)


def _beginning(name: str, depth: int) -> str:
    parts = name.split(".")
    return name if len(parts) <= depth else ".".join(parts[:depth]) + ".*"


DIGEST_BYTES = 16


def shape_digest(tensors: Iterable[tuple[str, Sequence[int], str]]) -> bytes:
    """Return the BLAKE2b-128 digest of (name, shape, dtype) of every shared tensor, in the order of the vector."""
    rows = [[name, list(shape), dtype] for name, shape, dtype in tensors]
    text = json.dumps(rows, separators=(",", ":"), ensure_ascii=True)
    return hashlib.blake2b(text.encode("ascii"), digest_size=DIGEST_BYTES).digest()


def batch_sizes(training: TrainingConfig, samples: int) -> list[int]:
    """Return the number of rows in each step of a round, at a node with `samples` rows."""
    size = min(training.batch_size, samples)
    if training.local_steps is not None:
        return [size] * training.local_steps
    full, left = divmod(samples, size)
    if left == 0:
        one_pass = [size] * full
    elif left == 1 and size > 1:
        one_pass = [size] * (full - 1) + [size + 1]
    else:
        one_pass = [size] * full + [left]
    return one_pass * (training.local_epochs or 0)


def draw_rows(samples: int, total: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw the rows (total,) for all steps in sequence, from one permutation after another.

    The last permutation is drawn only as far as needed.
    """
    if total == samples:
        return rng.permutation(samples)
    passes = [rng.permutation(samples) for _ in range(total // samples)]
    if total % samples:
        passes.append(rng.choice(samples, total % samples, replace=False))
    return np.concatenate(passes)
