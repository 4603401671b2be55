"""Local rounds and scores of many nodes, in groups that one batched call can compute.

All rows of a group have the same batch sizes, so nothing is padded. If the model is batch-stable, the result does not
depend on the grouping.

Each node draws the same numbers as from its own generator in `p2pfl.chance`, computed more cheaply for many (node,
round) pairs at once. Most of a generator's cost is numpy's SeedSequence, a hash of four words. Here it is computed for
all pairs together; the generators themselves are numpy's own. The hash is fixed: numpy promises that it never changes
(https://numpy.org/doc/stable/reference/random/compatibility.html), and the tests compare.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, cast

import numpy as np
import torch
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray
from torch import Tensor

from p2pfl.learn.batches import batch_sizes, draw_rows
from p2pfl.learn.evaluation import BATCH, are_classes, intervals_of
from p2pfl.learn.interface import RoundStart, Score
from p2pfl.learn.methods import Method
from p2pfl.learn.metrics import ACCURACY
from p2pfl.learn.samples import TensorSamples
from p2pfl.learn.task import Task
from sim.learning.nodes import Pool, TorchNodes
from sim.learning.stacked import Batch, StackedModel, losses_of

Words = NDArray[np.uint32]
Integers = NDArray[np.int64]
Rows = NDArray[np.floating[Any]]
Flags = NDArray[np.bool_]

_POOL = 4
_WORD = 0xFFFF_FFFF
_INIT_A, _MULT_A = 0x43B0D7E5, 0x931E8875
_INIT_B, _MULT_B = 0x8B51F9DD, 0x58F38DED
_MIX_L, _MIX_R = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
_SHIFT = np.uint32(16)


def scores(
    stack: StackedModel, models: Tensor, inputs: Tensor, targets: Tensor, *, common: bool, careful: bool = False
) -> list[Score]:
    """Score models (c, d) on inputs and targets (c, n, ...), or on the same (n, ...) if `common` to all."""
    task, rows = stack.task, 0 if common else 1
    n = targets.shape[rows]
    loss, hits, judged = np.zeros(len(models)), np.zeros(len(models), dtype=np.int64), 0
    kept: list[tuple[Tensor, Tensor]] = []
    for x, y in zip(torch.split(inputs, BATCH, dim=rows), torch.split(targets, BATCH, dim=rows), strict=True):
        outputs = stack.outputs(models, x, common=common, careful=careful)
        with torch.no_grad():
            loss += losses_of(task, outputs, y, common=common).double().numpy() * y.shape[rows]
        if are_classes(outputs[0], y if common else y[0]):
            hits += _hits(outputs, y)
            judged += y.numel() if common else y[0].numel()
        if task.metrics:
            kept.append((outputs, y))
    metrics = _metrics(task, kept, len(models), common=common)
    return [
        Score(
            accuracy=int(hits[row]) / judged if judged else metrics[row].get(ACCURACY.name),
            loss=float(loss[row]) / n,
            samples=n,
            metrics=metrics[row],
            intervals=intervals_of(
                task, _of_row(kept, row, common=common), hits=int(hits[row]), judged=judged, samples=n
            ),
        )
        for row in range(len(models))
    ]


def _of_row(kept: list[tuple[Tensor, Tensor]], row: int, *, common: bool) -> list[tuple[Tensor, Tensor]]:
    """Return the outputs and targets of one of the models."""
    return [(outputs[row], targets if common else targets[row]) for outputs, targets in kept]


LARGEST_GROUP = 256
_GROUP_FLOATS = 640_000
"""Parameters per group; its gradients and activations should stay in the cache."""
_BATCH_FLOATS = 4_000_000
"""Input values in one batch of a group."""
_SCORED_FLOATS = 2_500_000
"""Input values in one batch for scoring; activations are assumed to be about as large."""


@dataclass(frozen=True, slots=True)
class RoundStarts:
    """The starts of local rounds of many nodes: `models` (b, d), and the vectors `given` to each by the method (b, d).

    `by_method` (b,): True if the steps use the method's gradients; otherwise they use the loss's own, and `given` is
    ignored. `elapsed_s` (b,) is how long each node has trained; None if not at all.
    """

    models: Rows
    by_method: Flags
    given: Mapping[str, Rows] = field(default_factory=dict)
    elapsed_s: Rows | None = None

    def of(self, rows: Integers | slice) -> RoundStarts:
        """Return some of the starts."""
        given = {name: one[rows] for name, one in self.given.items()}
        elapsed_s = None if self.elapsed_s is None else self.elapsed_s[rows]
        return RoundStarts(self.models[rows], self.by_method[rows], given, elapsed_s)

    def trained_s(self, row: int) -> float:
        """Return how long one of the nodes has trained."""
        return 0.0 if self.elapsed_s is None else float(self.elapsed_s[row])

    def alone(self, row: int, method: Method) -> RoundStart:
        """Return one of the starts, for a single learner."""
        if not self.by_method[row]:
            return RoundStart(self.models[row], elapsed_s=self.trained_s(row))
        given = {name: one[row] for name, one in self.given.items()}
        return RoundStart(self.models[row], given, method, self.trained_s(row))


class Grouped:
    """The batched data plane for `nodes`, whose data are in one pool."""

    def __init__(self, nodes: TorchNodes, pool: Pool, method: Method) -> None:
        self.nodes, self.pool = nodes, pool
        self.stack = StackedModel(nodes.prototype, method)
        self._training, self._seed = nodes.prototype.training, nodes.prototype.context.seed
        self._places = np.array([context.node for context in nodes.contexts], dtype=np.int64)
        sizes = {int(n): tuple(batch_sizes(self._training, int(n))) for n in np.unique(pool.counts)}
        self.sizes = sorted(set(sizes.values()))
        self._totals = np.array([sum(one) for one in self.sizes])
        numbers = {n: self.sizes.index(one) for n, one in sizes.items()}
        self.kinds: Integers = np.array([numbers[n] for n in pool.counts.tolist()], dtype=np.int64)
        """The kind of each node (nodes,): an index into `sizes`, which holds the numbers of rows in a round's
        batches.
        """
        self.group = [self.fitting_group(kind) for kind in range(len(self.sizes))]
        """The largest group for each kind."""
        self.careful = [False] * len(self.sizes)
        """For each kind, True if its small products are not batched."""

    def fitting_group(self, kind: int) -> int:
        """Return how many nodes of a kind fit well into one group."""
        inputs = max(self.sizes[kind]) * self.pool.rows.inputs[0].numel()
        fitting = min(_GROUP_FLOATS // self.nodes.prototype.size, _BATCH_FLOATS // max(inputs, 1))
        return max(1, min(LARGEST_GROUP, fitting))

    def can_score(self, part: str) -> bool:
        return part == "local" or all(isinstance(one, TensorSamples) for one in self.nodes.tests)

    def train(self, nodes: Integers, rounds: Integers, starts: RoundStarts, out: Rows) -> Rows:
        """Train as `BatchedLearners.train` does."""
        losses = np.empty(len(nodes), dtype=np.float32)
        kinds = self.kinds[nodes] * 2 + starts.by_method
        rates = np.array([self._training.rate(int(done), starts.trained_s(row)) for row, done in enumerate(rounds)])
        for kind, rate in sorted(set(zip(kinds.tolist(), rates.tolist(), strict=True))):
            rows = np.flatnonzero((kinds == kind) & (rates == rate))
            drawn = self.draw(nodes[rows], rounds[rows])
            by_method, careful = kind % 2, self.careful[kind // 2]
            for group in _chunks(rows, self.group[kind // 2]):
                index = np.array(list(islice(drawn, len(group)))) + self.pool.first[nodes[group], None]
                batches = self.batches(torch.from_numpy(index), self.sizes[kind // 2])
                given = {name: _select(one, group) for name, one in starts.given.items()} if by_method else None
                result = torch.empty(len(group), starts.models.shape[1])
                learned = self.stack.train(
                    _select(starts.models, group), batches, given, result, careful=careful, rate=rate
                )
                losses[group] = learned.numpy()
                out[group] = result.numpy()
        return losses

    def evaluate(self, models: Rows, part: str, nodes: Integers) -> list[Score | None]:
        """Score as `BatchedLearners.evaluate` does; the test sets must be tensors."""
        found: list[Score | None] = [None] * len(nodes)
        sets = self.nodes.test_of[nodes] if part == "test" else self.pool.counts[nodes]
        for number in np.unique(sets[sets >= 0]).tolist():
            rows = np.flatnonzero(sets == number)
            count = len(self.nodes.tests[number]) if part == "test" else number
            for group in _chunks(rows, self._scored_at_once(count)):
                some = self._score_group(_select(models, group), nodes[group], number, common=part == "test")
                for row, score in zip(group.tolist(), some, strict=True):
                    found[row] = score
        return found

    def _score_group(self, models: Tensor, nodes: Integers, number: int, *, common: bool) -> list[Score]:
        """Score on the test set `number`, or on the nodes' own data, `number` rows each."""
        if common:
            test = self.nodes.tests[number]
            if not isinstance(test, TensorSamples):
                raise TypeError("a test set that is read row by row cannot be scored in groups")
            return scores(self.stack, models, test.inputs, test.targets, common=True)
        index = torch.from_numpy(self.pool.first[nodes][:, None] + np.arange(number))
        careful = self.careful[int(self.kinds[nodes[0]])]
        return scores(self.stack, models, *self.gather(index), common=False, careful=careful)

    def _scored_at_once(self, count: int) -> int:
        """Return how many models fit well into one group with `count` samples each."""
        inputs = min(count, BATCH) * self.pool.rows.inputs[0].numel()
        return max(1, min(LARGEST_GROUP // 2, _SCORED_FLOATS // max(inputs, 1)))

    def draw(self, nodes: Integers, rounds: Integers) -> Iterator[Integers]:
        """Draw the rows that each node sees in its round, step by step."""
        made = generators(self._seed, "batches", self._places[nodes], rounds)
        counts, totals = self.pool.counts[nodes].tolist(), self._totals[self.kinds[nodes]].tolist()
        for count, total, rng in zip(counts, totals, made, strict=True):
            yield draw_rows(count, total, rng)

    def batches(self, index: Tensor, sizes: tuple[int, ...]) -> Iterator[Batch]:
        for rows in torch.split(index, list(sizes), dim=1):
            yield self.gather(rows)

    def gather(self, rows: Tensor) -> Batch:
        """Return inputs and targets (c, n, ...) of the pool's `rows` (c, n)."""
        inputs, targets = self.pool.rows.rows(rows.reshape(-1))
        return inputs.view(*rows.shape, *inputs.shape[1:]), targets.view(*rows.shape, *targets.shape[1:])


def generators(seed: int, purpose: str, *paths: Integers) -> Iterator[np.random.Generator]:
    """Yield `generator(seed, purpose, *path)` for each path, a row of the columns `paths` (b,); entries are below
    2^32.
    """
    material = _Material()
    for words in _states(seed, purpose, paths):
        material.words = words
        yield np.random.Generator(np.random.PCG64(cast("Any", material)))  # any ISeedSequence will do


class _Material(ISeedSequence):
    """A seed sequence whose answer is already computed."""

    words: NDArray[np.uint64]

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[Any]:
        del n_words, dtype  # PCG64 asks for four words of 64 bits
        return self.words


class _Hash:
    """The hash of numpy's SeedSequence, in which each word uses another constant."""

    def __init__(self) -> None:
        self._factor = _INIT_A

    def __call__(self, words: Words) -> Words:
        value = words ^ np.uint32(self._factor)
        self._factor = self._factor * _MULT_A & _WORD
        value *= np.uint32(self._factor)
        return value ^ (value >> _SHIFT)


def _hits(outputs: Tensor, targets: Tensor) -> NDArray[np.int64]:
    """Count how often each model's largest output (c, n, classes, ...) is the target's, (c,).

    The result equals argmax's, which is slow along few classes; argmax is used only if two are equal, one is NaN, or a
    target is not a class.
    """
    classes = outputs.movedim(2, 0).contiguous()
    top = classes == classes.amax(dim=0)
    known = int(targets.min()) >= 0 and int(targets.max()) < len(classes)
    if not known or bool((top.sum(dim=0) != 1).any()):
        right = outputs.argmax(dim=2) == targets
    else:
        wanted = targets.expand(classes.shape[1:])[None]
        right = top.gather(0, wanted)[0]
    found: NDArray[np.int64] = right.flatten(1).sum(dim=1).numpy()
    return found


def _metrics(task: Task, kept: list[tuple[Tensor, Tensor]], count: int, *, common: bool) -> list[dict[str, float]]:
    """Compute the user's metrics one model at a time, because the functions need not support vmap."""
    if not kept:
        return [{} for _ in range(count)]
    outputs = torch.cat([pair[0] for pair in kept], dim=1)
    targets = torch.cat([pair[1] for pair in kept], dim=0 if common else 1)
    return [
        {
            name: float(metric(outputs[row], targets if common else targets[row]))
            for name, metric in task.metrics.items()
        }
        for row in range(count)
    ]


def _chunks(rows: Integers, size: int) -> Iterable[Integers]:
    return (rows[start : start + size] for start in range(0, len(rows), size))


def _select(array: Rows, rows: Integers) -> Tensor:
    return torch.from_numpy(array[rows].astype(np.float32, copy=False))


def _states(seed: int, purpose: str, paths: tuple[Integers, ...]) -> NDArray[np.uint64]:
    """Compute the state that each SeedSequence would give to PCG64, (b, 4)."""
    fixed = [*_words_of(seed), zlib.crc32(purpose.encode())]
    count = len(paths[0])
    entropy = [np.full(count, word, dtype=np.uint32) for word in fixed]
    entropy += [column.astype(np.uint32) for column in paths]
    pool = _mixed_pool(entropy, count)
    factor = _INIT_B
    state = np.empty((count, 2 * _POOL), dtype=np.uint32)
    for place in range(2 * _POOL):
        value = pool[place % _POOL] ^ np.uint32(factor)
        factor = factor * _MULT_B & _WORD
        value *= np.uint32(factor)
        state[:, place] = value ^ (value >> _SHIFT)
    halves = state.astype(np.uint64)
    return np.ascontiguousarray(halves[:, 0::2] | (halves[:, 1::2] << np.uint64(32)))


def _mixed_pool(entropy: list[Words], count: int) -> list[Words]:
    hashed = _Hash()
    pad = [np.zeros(count, dtype=np.uint32)] * (_POOL - len(entropy))
    pool = [hashed(words) for words in (entropy + pad)[:_POOL]]
    for source in range(_POOL):
        for target in range(_POOL):
            if source != target:
                pool[target] = _mix(pool[target], hashed(pool[source]))
    for words in entropy[_POOL:]:
        for target in range(_POOL):
            pool[target] = _mix(pool[target], hashed(words))
    return pool


def _mix(x: Words, y: Words) -> Words:
    value: Words = x * _MIX_L - y * _MIX_R
    return value ^ (value >> _SHIFT)


def _words_of(seed: int) -> list[int]:
    """Split an integer into 32-bit words, lowest first."""
    words = [seed & _WORD]
    while seed := seed >> 32:
        words.append(seed & _WORD)
    return words
