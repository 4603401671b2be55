"""Local rounds and scores of many simulated nodes in one call, where that gives the bits of the shipped learner.

A local round depends on nothing that happens after it began. So when the first result of those under way is due, all
that have begun are trained by `torch.func`, in groups whose batches have the same sizes. Torch may round otherwise by
shape and processor: `same_bits` looks at the start, and where it says no, nodes are trained one at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call, grad, vmap

from p2pfl.config.model import FederationConfig, TrainingConfig
from p2pfl.learn.evaluation import log_shares, loss_of, score_of, with_prior
from p2pfl.learn.interface import Learner, LocalRound, RoundStart, Score, batch_sizes
from p2pfl.learn.methods import method_of
from p2pfl.learn.torch_model import make_optimizer
from p2pfl.methods import Method, overrides
from p2pfl.plugins import FAILURES
from sim.learning.nodes import Begun, Learners, Pool, TorchNodes, load_learners

Integers = NDArray[np.int64]
Named = Mapping[str, Tensor]
Batch = tuple[Tensor, Tensor]
"""Inputs and targets (c, n, ...) of c models."""

FEWEST, MOST, MOST_KINDS = 5, 256, 16
"""Nodes for which a group is worth its while, nodes in a group, and kinds of groups."""
WORTH_A_LOOK = 250
"""Rounds of all nodes for which a look at the start, two CPU-seconds, is worth its while."""
GROUP_FLOATS, BATCH_FLOATS = 640_000, 2_500_000
"""Parameters and input values of a group: they, gradients and activations should stay in the cache."""


def make_learners(federation: FederationConfig, **how: Any) -> Learners:
    """Build all members' learners, from one task; `how` is for `load_learners`, which raises UserError."""
    learners, method, rounds = load_learners(federation, **how), method_of(federation), federation.training.rounds
    if federation.hides is not None or (rounds is not None and rounds * len(learners) < WORTH_A_LOOK):
        return Learners(learners, method)
    return BatchedLearners(learners, method)


class BatchedLearners(Learners):
    """The learners of all nodes, trained and scored together where that has the bits of each node alone."""

    def __init__(self, learners: Sequence[Learner], method: Method) -> None:
        super().__init__(learners, method)
        self._trained, self._scored = np.zeros((2, len(learners)), np.bool_)
        self._done: dict[int, LocalRound] = {}
        self.how = f"one at a time: {self._compare()}"
        if self._trained.any():
            alone = int(np.count_nonzero(~self._trained))
            self.how = f"batched, but {alone} of {len(learners)} nodes {self.how}" if alone else "batched"

    def _compare(self) -> str:
        """Find out which nodes may be trained and scored together; return why the others may not."""
        nodes = self.nodes
        if nodes is None or isinstance(nodes.pool, str):
            return "the task has learners of its own" if nodes is None else str(nodes.pool)
        if nodes.prototype.plan or not nodes.shareable or any(True for _ in nodes.prototype.model.module.buffers()):
            return "each node keeps something to itself, or has noise of its own, or the model has buffers"
        models = self._models = ManyModels(nodes, nodes.pool, self.method)
        kinds, counts = np.unique(models.kinds, return_counts=True)
        why = "few have batches of the same sizes, or fit into a group"
        for kind in kinds[np.argsort(-counts, kind="stable")][:MOST_KINDS].tolist():
            own = np.flatnonzero(models.kinds == kind)
            if len(models.parts(own, max(models.sizes[kind]))[0]) >= FEWEST:
                try:
                    self._trained[own], self._scored[own] = same_bits(models, self.learners, own)
                except Exception as error:  # noqa: BLE001 - any model may make torch.func raise anything
                    return f"torch.func cannot batch the model: {' '.join(str(error).split())[:120]}"
                why = why if self._trained[own[0]] else "a group rounds otherwise than a node alone"
        return why

    def drop(self, node: int) -> None:
        super().drop(node)
        self._done.pop(node, None)

    def end(self, node: int) -> LocalRound:
        if node not in self._done and self._trained[node]:
            work = list(self._begun.values())
            for row, local in self._grouped(work).items():
                self._done[work[row][0]] = local
                del self._begun[work[row][0]]
        return self._done.pop(node) if node in self._done else super().end(node)

    def train(self, work: Sequence[Begun]) -> list[LocalRound]:
        grouped, alone = self._grouped(work), self.learners
        return [grouped[row] if row in grouped else alone[begun[0]].train(*begun[1:]) for row, begun in enumerate(work)]

    def _grouped(self, work: Sequence[Begun]) -> dict[int, LocalRound]:
        """Train those that form a group, unless it fails: which round is to blame is not known."""
        rounds: dict[int, LocalRound] = {}
        keys = {row: self._models.key(*begun) for row, begun in enumerate(work) if self._trained[begun[0]]}
        for key, rows in groupby(sorted(keys, key=keys.__getitem__), keys.__getitem__):
            for part in self._models.parts(list(rows), max(self._models.sizes[key[0]])):
                if len(part) >= FEWEST:
                    with suppress(*FAILURES):
                        rounds |= zip(part, self._models.train([work[row] for row in part]), strict=True)
        return rounds

    def evaluate(self, models: NDArray[Any], part: str, nodes: Integers) -> list[Score | None]:
        scores: dict[int, Score | None] = {}
        if part == "test" and self._scored[nodes].any():
            rows = np.flatnonzero(self._scored[nodes])
            scores |= zip(rows.tolist(), self._models.evaluate(models[rows], part, nodes[rows], FEWEST), strict=True)
        return [scores.get(row) or self.learners[node].evaluate(models[row], part) for row, node in enumerate(nodes)]


def closing_of(training: TrainingConfig, done: int) -> int:
    """Return which closing round nodes in step begin after `done` rounds: those beyond the asked are, if they train."""
    return 0 if training.closing == "mix" else max(0, done + 1 - (training.rounds or 0))


def rate_of(training: TrainingConfig, done: int) -> float:
    """Return the learning rate of nodes in step after `done` rounds."""
    return training.rate(done, 0.0, closing_of(training, done))


class ManyModels:
    """One module for many vectors (c, d). `kinds` (nodes,) number `sizes`, the rows in each batch of a round."""

    def __init__(self, nodes: TorchNodes, pool: Pool, method: Method) -> None:
        self.nodes, self.pool, self.method = nodes, pool, method
        learner = nodes.prototype
        self.task, self.training, self.places = learner.task, learner.training, learner.model.flat.places
        counts, of = np.unique(pool.counts, return_inverse=True)
        sizes = [tuple(batch_sizes(self.training, count)) for count in counts.tolist()]
        self.sizes = sorted(set(sizes))
        self.kinds: Integers = np.array([self.sizes.index(each) for each in sizes], dtype=np.int64)[of]
        self._module, self._loss = learner.model.module, loss_of(self.task)
        self.priors = None
        """What the loss adds to each node's outputs (nodes, classes), if it is adjusted."""
        if self.training.logit_adjust:
            weight, classes = self.training.logit_adjust, learner.classes
            each = [log_shares(pool.of(node).targets, classes, weight) for node in range(len(pool.counts))]
            self.priors = torch.stack(each)
        self._gradients = vmap(grad(self._loss_of_one, has_aux=True))
        self._outputs = vmap(partial(functional_call, self._module))

    def parts(self, rows: Sequence[int] | Integers, count: int) -> list[list[int]]:
        """Split rows equally, into groups of nodes that fit into the cache with `count` rows of data each."""
        inputs = count * self.pool.rows.inputs[0].numel()
        most = max(1, min(MOST, GROUP_FLOATS // self.nodes.prototype.size, BATCH_FLOATS // max(1, inputs)))
        return [part.tolist() for part in np.array_split(rows, -(-len(rows) // most))]

    def key(self, node: int, start: RoundStart, index: int) -> tuple[int, float, bool]:
        """Return what rounds must have in common to be trained together: kind, rate, and whose gradients they use."""
        return int(self.kinds[node]), self.training.rate(index, start.elapsed_s, start.closing), start.method is None

    def train(self, work: Sequence[Begun]) -> list[LocalRound]:
        """Train rounds with the same key."""
        nodes, starts, rounds = zip(*work, strict=True)
        kind, rate, plain = self.key(*work[0])
        rows = zip(*([start.model, *start.given.values()] for start in starts), strict=True)
        models, *vectors = (torch.from_numpy(np.stack(each).astype(np.float32, copy=False)) for each in rows)
        given = None if plain else dict(zip(starts[0].given, vectors, strict=True))
        batches = self.nodes.batches(self.pool, np.array(nodes), np.array(rounds), self.sizes[kind])
        losses = self.learn(models, batches, given, rate, nodes=torch.tensor(nodes)).tolist()
        each = zip(models.numpy(), self.pool.counts[list(nodes)].tolist(), losses, strict=True)
        made = partial(LocalRound, steps=len(self.sizes[kind]), learning_rate=rate)
        return [made(vector=vector, samples=count, loss=loss) for vector, count, loss in each]

    def learn(
        self, models: Tensor, batches: Iterable[Batch], given: Named | None, rate: float, nodes: Tensor
    ) -> Tensor:
        """Move each of `models` (c, d), of `nodes` (c,), by a step for each of `batches`, by gradients of the loss or
        by the method's with the vectors `given` (c, d) to it. Returns the mean losses (c,).
        """
        prior = () if self.priors is None else (self.priors[nodes].to(models.device),)
        tensors = self._tensors(models)
        parts = {} if given is None else {of: self._tensors(rows) for of, rows in {"anchor": models, **given}.items()}
        trained = {place.name: tensors.pop(place.name) for place in self.places if place.trained}
        step = make_optimizer(list(trained.values()), self.training, self.task.name).begin(rate)  # type: ignore[arg-type]
        losses = []
        self._module.train()
        for batch in batches:
            inputs, targets = (each.to(models.device) for each in batch)
            gradients, outputs = self._gradients(trained, tensors, inputs, targets, *prior)
            for name, tensor in trained.items():
                own = {of: part[name] for of, part in parts.items()}
                tensor.grad = self.method.gradient(gradients[name], tensor, own) if own else gradients[name]
            step()
            # vmap takes a mean in another order than torch does for one model.
            losses.append([self._loss(*row) for row in zip(outputs, targets, strict=True)])
        for place in self.places:
            models[:, place.part] = (trained if place.trained else tensors)[place.name].flatten(1)
        return torch.stack([torch.stack(row).float().mean() for row in zip(*losses, strict=True)])

    @torch.no_grad()
    def evaluate(self, models: NDArray[Any], part: str, nodes: Integers, fewest: int = 1) -> list[Score | None]:
        """Score `models` (b, d), each with all rows of its node's set at once; None where there is none, or for fewer
        nodes of one kind than `fewest`.
        """
        scores: list[Score | None] = [None] * len(nodes)
        sets, kinds = self.nodes.test_of[nodes] if part == "test" else self.pool.counts[nodes], self.kinds[nodes]
        self._module.eval()
        for number, kind in sorted({both for both in zip(sets.tolist(), kinds.tolist(), strict=True) if both[0] >= 0}):
            count = len(self.nodes.tests[number]) if part == "test" else number
            alike = np.flatnonzero((sets == number) & (kinds == kind))
            for rows in self.parts(alike, count) if len(alike) >= fewest else ():
                inputs, targets = self.nodes.data_of(self.pool, part, nodes[rows])
                outputs = self._outputs(self._tensors(torch.from_numpy(models[rows].astype(np.float32))), inputs)
                for row, *pair in zip(rows, outputs, targets, strict=True):
                    scores[row] = score_of([(*pair, count)], count, self.task)
        return scores

    def _loss_of_one(
        self, trained: Any, fixed: Any, inputs: Tensor, targets: Tensor, prior: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        outputs = functional_call(self._module, trained | fixed, inputs)
        if prior is not None:
            outputs = with_prior(outputs, prior)
        return self._loss(outputs, targets).reshape(()), outputs

    def _tensors(self, models: Tensor) -> dict[str, Tensor]:
        """Return new tensors (c, shape) by name."""
        parts = {
            place.name: models[:, place.part].reshape(len(models), *place.shape).to(place.dtype)
            for place in self.places
        }
        return {name: part.clone(memory_format=torch.contiguous_format) for name, part in parts.items()}


def same_bits(models: ManyModels, learners: Sequence[Learner], nodes: Integers) -> tuple[bool, bool]:
    """Compare groups of `nodes`, all of one kind, with each alone: do rounds, and then scores, have the same bits?"""
    rng, initial, own = np.random.default_rng(0), models.nodes.prototype.initial(), models.method
    spread = np.float32(0.1 * np.abs(initial).mean() + 1e-3)
    most = len(models.parts(nodes, max(models.sizes[models.kinds[nodes[0]]]))[0])
    trained = scored = True
    for size, by_method in ((FEWEST, True), (min(64, most), False), (most, True)):
        method = own if by_method and overrides(own, "gradient") else None
        given = own.given if method else ()
        noise = spread * rng.standard_normal((size, 1 + len(given), len(initial)), dtype=np.float32)
        starts = [RoundStart(initial + draw[0], dict(zip(given, draw[1:], strict=True)), method) for draw in noise]
        chosen = rng.choice(nodes, size)
        rounds = models.train([(node, start, 0) for node, start in zip(chosen.tolist(), starts, strict=True)])
        after = np.stack([local.vector for local in rounds])
        scores = models.evaluate(after, "test", chosen)
        for row in (0, size // 2, size - 1):
            alone = learners[chosen[row]].train(starts[row], 0)
            trained &= (alone.vector.tobytes(), repr(alone.loss)) == (after[row].tobytes(), repr(rounds[row].loss))
            scored &= repr(learners[chosen[row]].evaluate(after[row], "test")) == repr(scores[row])
    return trained, trained and scored
