"""Whether a model learns and scores bit for bit alike alone and in a group: tried, not believed.

Torch's kernels differ by shape, so a batched matrix product may round otherwise than a single one, and do so from some
size on. Before a simulation a few rounds are trained by the shipped learner and in groups of several sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2pfl.learn.interface import Learner, Score
from sim.learning.grouped import LARGEST_GROUP, Flags, Grouped, Integers

_SIZES = (1, 2, 3, 8, 64, LARGEST_GROUP)
_KINDS = 3
"""how many of the nodes' different batch sizes are tried."""
_ALONE = 3
"""rows of each group that the shipped learner trains too."""


@dataclass(slots=True, kw_only=True)
class Verdict:
    """`training` and `scores` are bitwise equal; `losses` of training too; `apart`: the largest relative difference of
    two vectors.
    """

    training: bool = True
    losses: bool = True
    scores: bool = True
    apart: float = 0.0


@dataclass(frozen=True, slots=True)
class _Trial:
    """Rounds to train: `rows` (b,) nodes, and the rest of what `Grouped.train` takes."""

    nodes: Integers
    rounds: Integers
    starts: NDArray[np.float32]
    corrections: NDArray[np.float32]
    corrected: Flags


def examine(grouped: Grouped, learners: Sequence[Learner]) -> Verdict:
    """Ends at the first training result that differs."""
    rng = np.random.default_rng(0)
    verdict = Verdict()
    kinds = np.unique(grouped.kinds)
    for kind in rng.permutation(kinds)[:_KINDS].tolist():
        largest = grouped.group_size(kind)
        sizes = [size for size in _SIZES if size < largest] + [largest]
        for number, size in enumerate(sizes):
            trial = _trial(grouped, kind, size, rng, corrected=number % 2 == 1)
            trained = _compare(grouped, learners, trial, verdict)
            if not verdict.training:
                return verdict
            if size <= 8 or size == largest:
                _compare_scores(grouped, learners, trial.nodes, trained, verdict)
    return verdict


def _trial(grouped: Grouped, kind: int, size: int, rng: np.random.Generator, *, corrected: bool) -> _Trial:
    initial = grouped.nodes.prototype.initial().astype(np.float32)
    spread = 0.1 * float(np.abs(initial).mean()) + 1e-3
    noise = rng.standard_normal((2, size, len(initial))).astype(np.float32)
    return _Trial(
        nodes=rng.choice(np.flatnonzero(grouped.kinds == kind), size),
        rounds=np.arange(size, dtype=np.int64),
        starts=initial + np.float32(spread) * noise[0],
        corrections=np.float32(0.1 * spread) * noise[1],
        corrected=np.full(size, corrected),
    )


def _compare(grouped: Grouped, learners: Sequence[Learner], trial: _Trial, verdict: Verdict) -> NDArray[np.float32]:
    out = np.empty_like(trial.starts)
    losses = grouped.train(trial.nodes, trial.rounds, trial.starts, trial.corrections, trial.corrected, out)
    last = len(out) - 1
    for row in sorted({*range(min(_ALONE, len(out))), last}):
        correction = trial.corrections[row] if trial.corrected[row] else None
        alone = learners[int(trial.nodes[row])].train(trial.starts[row], correction, int(trial.rounds[row]))
        verdict.training &= _equal(alone.vector, out[row])
        verdict.losses &= _equal(np.float32(alone.loss), losses[row])
        verdict.apart = max(verdict.apart, _apart(np.asarray(alone.vector), out[row]))
    return out


def _compare_scores(
    grouped: Grouped, learners: Sequence[Learner], nodes: Integers, models: NDArray[np.float32], verdict: Verdict
) -> None:
    for part in filter(grouped.can_score, ("test", "local")):
        found = grouped.evaluate(models, part, nodes)
        for row in {0, len(nodes) - 1}:
            verdict.scores &= _alike(learners[int(nodes[row])].evaluate(models[row], part), found[row])


def _alike(one: Score | None, other: Score | None) -> bool:
    return repr(one) == repr(other)


def _equal(one: object, other: object) -> bool:
    """The same bits, also where they are no numbers."""
    return np.asarray(one).tobytes() == np.asarray(other).tobytes()


def _apart(one: NDArray[np.floating], other: NDArray[np.floating]) -> float:
    distance = float(np.linalg.norm(one.astype(np.float64) - other))
    return distance / max(float(np.linalg.norm(other)), 1e-30)
