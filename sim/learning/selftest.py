"""A self-test: does a model learn and score bit for bit alike alone and in a group?

Torch's kernels differ by shape: a batched matrix product may round otherwise than a single one, for few samples (below
400 products it does) or from some size of the group on. So before a simulation, for each size of batches that nodes
have, a few rounds are trained by the shipped learner and in groups of several sizes. The verdict for the shipped
`digits` holds for the life of a process: a sweep, or a suite, would test the same again in each run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from p2pfl.learn.interface import Learner, Score
from p2pfl.methods.method import overrides
from sim.learning.grouped import LARGEST_GROUP, Grouped, Integers, RoundStarts

_SIZES = (1, 2, 3, 8, 64, LARGEST_GROUP)
_FEW_NODES, _FEW = 64, 32
"""A kind with fewer nodes than the first number is tested in groups of at most the second."""
_MOST_KINDS = 16
_SHIPPED = "p2pfl.learn.digits"
_SMALL = 16
"""Batches up to this size may have small products: see `stacked`."""


@dataclass(slots=True, kw_only=True)
class SelfTest:
    """The verdict for one kind: the results that are bitwise equal alone and in groups of up to `group`.

    They are trained vectors, losses, and scores. `apart` is the largest relative difference of two vectors.
    """

    group: int
    training: bool = True
    losses: bool = True
    test: bool = True
    local: bool = True
    apart: float = 0.0


_FOUND: dict[tuple[object, ...] | None, tuple[SelfTest, bool]] = {}
"""By trial, its verdict, and whether small products go one by one."""


@dataclass(frozen=True, slots=True)
class _Trial:
    """Rounds to train, as `Grouped.train` takes them."""

    nodes: Integers
    rounds: Integers
    starts: RoundStarts


def examine(grouped: Grouped, learners: Sequence[Learner]) -> dict[int, SelfTest]:
    """Test each kind of node, those with most nodes first; kinds beyond the sixteenth get no verdict."""
    kinds, nodes = np.unique(grouped.kinds, return_counts=True)
    order = np.argsort(-nodes, kind="stable")[:_MOST_KINDS]
    rng = np.random.default_rng(0)
    return {int(kinds[place]): _examine_kind(grouped, learners, int(kinds[place]), rng) for place in order}


def _examine_kind(grouped: Grouped, learners: Sequence[Learner], kind: int, rng: np.random.Generator) -> SelfTest:
    trial = _same_trial(grouped, kind)
    if trial not in _FOUND:
        verdict = _try_kind(grouped, learners, kind, rng)
        if trial is None:
            return verdict
        _FOUND[trial] = verdict, grouped.careful[kind]
    verdict, grouped.careful[kind] = _FOUND[trial]
    grouped.group[kind] = verdict.group
    return replace(verdict)


def _same_trial(grouped: Grouped, kind: int) -> tuple[object, ...] | None:
    """Return a key that is equal where a trial would compute the same products, whatever the nodes; None where that
    cannot be known.
    """
    first, method = grouped.nodes.prototype, grouped.stack.method
    if first.task.model.__module__ != _SHIPPED or method.is_users:
        return None
    tests = tuple(len(one) for one in grouped.nodes.tests if one is not None)
    model, training = str(first.model.module), replace(first.training, rounds=1, time_s=None)
    sizes, group = grouped.sizes[kind], _largest(grouped, kind)
    return model, training, type(method), sizes, group, tests, torch.get_num_threads()


def _try_kind(grouped: Grouped, learners: Sequence[Learner], kind: int, rng: np.random.Generator) -> SelfTest:
    """Test one kind, again with small products one by one where that may help."""
    plain = _attempt(grouped, learners, kind, rng)
    if plain.training or min(grouped.sizes[kind]) > _SMALL:
        return plain
    grouped.careful[kind] = True
    careful = _attempt(grouped, learners, kind, rng)
    grouped.careful[kind] = careful.training
    return careful if careful.training else plain


def _largest(grouped: Grouped, kind: int) -> int:
    largest = grouped.fitting_group(kind)
    return min(largest, _FEW) if np.count_nonzero(grouped.kinds == kind) < _FEW_NODES else largest


def _attempt(grouped: Grouped, learners: Sequence[Learner], kind: int, rng: np.random.Generator) -> SelfTest:
    """Test one setting; end at the first training result that differs."""
    members = np.flatnonzero(grouped.kinds == kind)
    largest = _largest(grouped, kind)
    verdict = SelfTest(group=largest)
    grouped.group[kind] = largest
    for number, size in enumerate([size for size in _SIZES if size < largest] + [largest]):
        trial = _trial(grouped, rng.choice(members, size), rng, by_method=number % 2 == 1)
        trained = _compare(grouped, learners, trial, verdict)
        if not verdict.training:
            break
        if size in {1, 3, largest}:
            verdict.test &= _same_scores(grouped, learners, trial.nodes, trained, "test")
            verdict.local &= _same_scores(grouped, learners, trial.nodes, trained, "local")
    return verdict


def _trial(grouped: Grouped, nodes: Integers, rng: np.random.Generator, *, by_method: bool) -> _Trial:
    initial = grouped.nodes.prototype.initial().astype(np.float32)
    spread = 0.1 * float(np.abs(initial).mean()) + 1e-3
    method = grouped.stack.method
    noise = rng.standard_normal((1 + len(method.given), len(nodes), len(initial)), dtype=np.float32)
    return _Trial(
        nodes=nodes,
        rounds=np.arange(len(nodes), dtype=np.int64) if _same_rate(grouped) else np.zeros(len(nodes), np.int64),
        starts=RoundStarts(
            initial + np.float32(spread) * noise[0],
            np.full(len(nodes), by_method and overrides(method, "gradient")),
            {name: np.float32(0.1 * spread) * one for name, one in zip(method.given, noise[1:], strict=True)},
        ),
    )


def _same_rate(grouped: Grouped) -> bool:
    """Return True if rounds with different numbers may be in one group, which needs equal learning rates."""
    return grouped.nodes.prototype.training.schedule == "constant"


def _compare(grouped: Grouped, learners: Sequence[Learner], trial: _Trial, verdict: SelfTest) -> NDArray[np.float32]:
    out = np.empty_like(trial.starts.models)
    losses = grouped.train(trial.nodes, trial.rounds, trial.starts, out)
    for row in _rows_to_check(len(out)):
        start = trial.starts.alone(row, grouped.stack.method)
        alone = learners[int(trial.nodes[row])].train(start, int(trial.rounds[row]))
        verdict.training &= _equal(alone.vector, out[row])
        verdict.losses &= _equal(np.float32(alone.loss), losses[row])
        verdict.apart = max(verdict.apart, _relative_difference(np.asarray(alone.vector), out[row]))
    return out


def _same_scores(
    grouped: Grouped, learners: Sequence[Learner], nodes: Integers, models: NDArray[np.float32], part: str
) -> bool:
    if not grouped.can_score(part):
        return False
    found = grouped.evaluate(models, part, nodes)
    return all(
        _alike(learners[int(nodes[row])].evaluate(models[row], part), found[row]) for row in _rows_to_check(len(nodes))
    )


def _rows_to_check(size: int) -> list[int]:
    """Choose the rows of a group that the shipped learner computes too."""
    return sorted({0, size // 2, size - 1})


def _alike(first: Score | None, other: Score | None) -> bool:
    return repr(first) == repr(other)


def _equal(first: object, other: object) -> bool:
    """Return True for the same bits, also where they are NaN."""
    return np.asarray(first).tobytes() == np.asarray(other).tobytes()


def _relative_difference(first: NDArray[np.floating], other: NDArray[np.floating]) -> float:
    distance = float(np.linalg.norm(first.astype(np.float64) - other))
    return distance / max(float(np.linalg.norm(other)), 1e-30)
