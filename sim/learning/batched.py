"""Local rounds and scores of all nodes in a simulation, batched if that gives the bits of the shipped learner.

A self-test at the start decides. If batching is impossible, or gives different bits, each node uses its own `Learner`,
and `how` says why.

For engines that do everything else immediately, local rounds are computed ahead: a round depends only on its start and
its number. So when one result is needed, all rounds in progress are computed, and the results of the other nodes wait
until their time is up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.config.model import FederationConfig
from p2pfl.errors import LearningError
from p2pfl.learn.interface import Learner, LocalRound, RoundStart, Score, Vector
from p2pfl.learn.methods import Method, method_of
from p2pfl.methods.plain import Plain
from p2pfl.plugins import FAILURES, describe_failure
from sim.attacks import Poison
from sim.learning.grouped import Flags, Grouped, Integers, RoundStarts
from sim.learning.nodes import TorchNodes, gathered, load_learners, poisoned
from sim.learning.selftest import SelfTest, examine
from sim.learning.stacked import describe

Rows = NDArray[np.floating[Any]]

TOLERANCE = 1e-5
FEWEST = 5
"""Fewer rounds than this are trained one at a time, which is faster for the shipped digits model."""


def make_learners(
    federation: FederationConfig,
    *,
    local: Mapping[str, Mapping[str, Any]] | None = None,
    approximate: bool = False,
    batching: bool = True,
    poison: Poison | None = None,
    liars: frozenset[int] = frozenset(),
) -> BatchedLearners:
    """Build all members' learners, from one task. `local` has the `[data]` tables by node name, with absolute paths.

    `liars` train on what `poison` makes of their data. Raises UserError if the task, its options or a node's data are
    wrong, or if the data cannot be poisoned.
    """
    learners, method = load_learners(federation, local), method_of(federation)
    if poison is not None:
        learners = poisoned(learners, poison, liars)
    return BatchedLearners(learners, method, approximate=approximate, batching=batching)


class BatchedLearners:
    """The learners of all nodes.

    `how` is "batched" or "batched to 1e-05", perhaps with ", but K of N nodes one at a time: REASON"; or "one at a
    time: REASON". `batch_stable`: every vector is bitwise equal to the single learner's, whatever the grouping.
    `verdicts` are the self-test's, by kind of node. `personal` is the number of floating-point values that each node
    does not share, in addition to `size`.
    """

    def __init__(
        self,
        learners: Sequence[Learner],
        method: Method | None = None,
        *,
        approximate: bool = False,
        batching: bool = True,
    ) -> None:
        """Build the data plane; `method` is plain by default.

        `approximate` also batches if rows agree with the single learner only to 1e-5 (relative). Without `batching` it
        is not tried: with few nodes or rounds, importing torch.func alone costs more.
        """
        self.learners = learners
        self.method = method or Plain()
        self.size, self.personal = learners[0].size, learners[0].personal
        nodes = learners if isinstance(learners, TorchNodes) else gathered(learners)
        self.nodes = nodes if isinstance(nodes, TorchNodes) else None
        self.samples: list[int] = [one.samples for one in learners] if self.nodes is None else self.nodes.counts
        self.verdicts: dict[int, SelfTest] = {}
        self.batch_stable = True
        self._probed: dict[int, LocalRound] = {}
        found = self._test_batching(nodes) if batching else "batching is off"
        self._grouped = None if isinstance(found, str) else found
        self._together, self.how = self._decide(found, approximate=approximate)

    def __len__(self) -> int:
        return len(self.learners)

    def initial(self) -> Vector:
        """Return the model that every node starts from, (d,)."""
        return self.learners[0].initial()

    def steps(self, node: int) -> int:
        """Return the number of steps in this node's next local round."""
        if self.nodes is not None:
            return self.nodes.prototype.steps_with(self.samples[node])
        return self._probe(node).steps

    @property
    def exchanged_size(self) -> int:
        """The number of values that neighbors exchange: model size times the method's channels."""
        return self.size * len(self.method.channels)

    @property
    def trains_together(self) -> bool:
        """True if a group's rounds are computed in one call, with the same bits and figures as each single learner."""
        return self.nodes is not None and self.batch_stable and bool(self._together.any())

    def rate(self, rounds: int, elapsed_s: float) -> float:
        """Return the learning rate of a node's next round, after `rounds` rounds in `elapsed_s` seconds."""
        if self.nodes is not None:
            return self.nodes.prototype.training.rate(rounds, elapsed_s)
        return self._probe(0).learning_rate

    def train(self, nodes: Integers, rounds: Integers, starts: RoundStarts, out: Rows) -> Rows:
        """Train one local round of each (node, round) from `starts`; the models go to `out` (b, d).

        `out` may be the models of `starts`. Returns the mean losses (b,). No pair may occur twice if rounds go one at a
        time. Raises LearningError if the user's code failed.
        """
        losses = np.empty(len(nodes))
        together = self._together[nodes]
        if self.batch_stable and together.sum() < FEWEST:
            together = np.zeros_like(together)
        if self._grouped is not None and together.any():
            rows = slice(None) if together.all() else np.flatnonzero(together)
            try:
                self._train_together(self._grouped, rows, (nodes, rounds, starts), out, losses)
            except FAILURES as error:
                raise LearningError(f"training failed: {describe_failure(error)}") from error
        for row, local in self._train_alone(np.flatnonzero(~together).tolist(), nodes, rounds, starts):
            out[row], losses[row] = local.vector, local.loss
        return losses

    def evaluate(self, models: Rows, part: str, nodes: Integers) -> list[Score | None]:
        """Score each of `models` (b, d) on the `part`, "test" or "local", of its node; None if there are no such
        data.
        """
        together = self._scored_together(part)[nodes]
        found: list[Score | None] = [None] * len(nodes)
        rows = np.flatnonzero(together)
        if self._grouped is not None and len(rows):
            scores = self._grouped.evaluate(models[rows], part, nodes[rows])
            for row, score in zip(rows.tolist(), scores, strict=True):
                found[row] = score
        alone = np.flatnonzero(~together).tolist()
        scored = [self.learners[int(nodes[row])].evaluate(models[row], part) for row in alone]
        for row, score in zip(alone, scored, strict=True):
            found[row] = score
        return found

    def _train_alone(
        self, rows: list[int], nodes: Integers, rounds: Integers, starts: RoundStarts
    ) -> Iterator[tuple[int, LocalRound]]:
        """Yield these rows' rounds, one after the other."""
        for row in rows:
            yield row, self.learners[int(nodes[row])].train(starts.alone(row, self.method), int(rounds[row]))

    def _probe(self, node: int) -> LocalRound:
        """Train one round of a learner that is not ours, to find its number of steps."""
        if node not in self._probed:
            self._probed[node] = self.learners[node].train(RoundStart(self.initial()), 0)
        return self._probed[node]

    def _test_batching(self, nodes: TorchNodes | str) -> Grouped | str:
        """Test the batched data plane and record its verdicts, or say why there is none."""
        if isinstance(nodes, str):
            return nodes
        if isinstance(nodes.pool, str):
            return nodes.pool
        if self.personal:
            return "each node keeps a part of the model to itself"
        if nodes.prototype.plan is not None:
            return "each round has noise of its own"
        if nodes.prototype.training.keep_optimizer:
            return "each node's optimizer remembers"
        if not nodes.shareable:
            return "the model has buffers that are not shared"
        try:
            grouped = Grouped(nodes, nodes.pool, self.method)
            self.verdicts = examine(grouped, self.learners)
        except Exception as error:  # noqa: BLE001 - any model may make torch.func raise anything
            return describe(error)
        return grouped

    def _decide(self, grouped: Grouped | str, *, approximate: bool) -> tuple[Flags, str]:
        """Decide which nodes train together (nodes,), and describe that in words."""
        if isinstance(grouped, str):
            return np.zeros(len(self.learners), dtype=np.bool_), f"one at a time: {grouped}"
        exact = {
            kind
            for kind, verdict in self.verdicts.items()
            if verdict.training and (verdict.losses or not self.method.needs_loss)
        }
        near = {kind for kind, verdict in self.verdicts.items() if verdict.apart <= TOLERANCE} - exact
        batched = exact | near if approximate else exact
        self.batch_stable = batched == exact
        together = np.isin(grouped.kinds, sorted(batched))
        alone = int(np.count_nonzero(~together))
        word = "batched" if self.batch_stable else f"batched to {TOLERANCE:g}"
        if alone == 0:
            return together, word
        apart = max(verdict.apart for verdict in self.verdicts.values())
        reason = (
            f"a group rounds otherwise than a node alone (by {apart:.1e})" if apart else "too many sizes of batches"
        )
        many = (
            "one at a time" if alone == len(together) else f"{word}, but {alone} of {len(together)} nodes one at a time"
        )
        return together, f"{many}: {reason}"

    def _scored_together(self, part: str) -> Flags:
        """Flag (nodes,) the nodes whose score of this part is batched."""
        if self._grouped is None or not self._grouped.can_score(part):
            return np.zeros(len(self.learners), dtype=np.bool_)
        tried = {kind: verdict.test if part == "test" else verdict.local for kind, verdict in self.verdicts.items()}
        fit = [kind for kind, same in tried.items() if same or not self.batch_stable]
        return self._together & np.isin(self._grouped.kinds, fit)

    @staticmethod
    def _train_together(
        grouped: Grouped, rows: slice | Integers, work: tuple[Integers, Integers, RoundStarts], out: Rows, losses: Rows
    ) -> None:
        nodes, rounds, starts = work
        if isinstance(rows, slice):
            losses[:] = grouped.train(nodes, rounds, starts, out)
            return
        part = np.empty((len(rows), out.shape[1]), dtype=out.dtype)
        losses[rows] = grouped.train(nodes[rows], rounds[rows], starts.of(rows), part)
        out[rows] = part


@dataclass(frozen=True, slots=True)
class _Begun:
    start: RoundStart
    index: int


class Ahead:
    """Rounds computed ahead, for learners that are `batch_stable`: bitwise equal to each single learner's."""

    def __init__(self, learners: BatchedLearners) -> None:
        self.learners = learners
        self._begun: dict[int, _Begun] = {}
        self._done: dict[int, LocalRound | LearningError] = {}

    def begin(self, node: int, start: RoundStart, index: int) -> None:
        """Begin a round; its vectors must not be written to before `end` or `drop`."""
        self._begun[node] = _Begun(start, index)

    def drop(self, node: int) -> None:
        """Forget the round, begun or done, of a node that has crashed."""
        self._begun.pop(node, None)
        self._done.pop(node, None)

    def end(self, node: int) -> LocalRound:
        """End the round and return its result. Raises LearningError if the user's code failed."""
        if node in self._begun:
            begun, self._begun = self._begun, {}
            try:
                self._train(begun)
            except LearningError:
                self._train_alone(begun)
        done = self._done.pop(node)
        if isinstance(done, LearningError):
            raise done
        return done

    def _train(self, begun: dict[int, _Begun]) -> None:
        nodes = np.array(sorted(begun))
        rounds = [begun[node] for node in nodes.tolist()]
        models = np.stack([one.start.model for one in rounds])
        by_method = np.array([one.start.method is not None for one in rounds])
        none = np.zeros_like(models[0])
        given = {
            name: np.stack([one.start.given.get(name, none) for one in rounds]) for name in self.learners.method.given
        }
        out = np.empty_like(models)
        elapsed_s = np.array([one.start.elapsed_s for one in rounds])
        starts = RoundStarts(models, by_method, given if by_method.any() else {}, elapsed_s)
        losses = self.learners.train(nodes, np.array([one.index for one in rounds]), starts, out)
        for place, node in enumerate(nodes.tolist()):
            self._done[node] = LocalRound(
                vector=out[place],
                steps=self.learners.steps(node),
                learning_rate=self.learners.rate(rounds[place].index, rounds[place].start.elapsed_s),
                samples=self.learners.samples[node],
                loss=float(losses[place]),
            )

    def _train_alone(self, begun: dict[int, _Begun]) -> None:
        """Train each round alone after a group has failed, which does not say which row caused it."""
        for node, one in begun.items():
            try:
                self._done[node] = self.learners.learners[node].train(one.start, one.index)
            except LearningError as error:
                self._done[node] = error
