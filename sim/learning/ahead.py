"""Local rounds of many nodes in one batched call, for engines that do everything else at once.

A round depends on nothing but its start and its number. So when the result of one is needed, all that
are under way are computed, and those of the other nodes wait until their time is over.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from p2pfl.errors import LearningError
from p2pfl.learn.interface import LocalRound, RoundStart
from sim.learning.batched import BatchedLearners
from sim.learning.grouped import RoundStarts


@dataclass(frozen=True, slots=True)
class _Begun:
    start: RoundStart
    index: int


class Ahead:
    """Of learners that are `batch_stable`: the rounds have the bits of each learner alone."""

    def __init__(self, learners: BatchedLearners) -> None:
        self.learners = learners
        self._begun: dict[int, _Begun] = {}
        self._done: dict[int, LocalRound | LearningError] = {}

    def begin(self, node: int, start: RoundStart, index: int) -> None:
        """Nobody writes to its vectors before `end` or `drop`."""
        self._begun[node] = _Begun(start, index)

    def drop(self, node: int) -> None:
        """The round never ends."""
        self._begun.pop(node, None)
        self._done.pop(node, None)

    def end(self, node: int) -> LocalRound:
        """Raises LearningError: the user's code failed."""
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
        starts = RoundStarts(models, by_method, given if by_method.any() else {})
        losses = self.learners.train(nodes, np.array([one.index for one in rounds]), starts, out)
        for place, node in enumerate(nodes.tolist()):
            self._done[node] = LocalRound(
                vector=out[place],
                steps=self.learners.steps(node),
                learning_rate=self.learners.learning_rate,
                samples=self.learners.samples[node],
                loss=float(losses[place]),
            )

    def _train_alone(self, begun: dict[int, _Begun]) -> None:
        """One of them failed, and it does not say which."""
        for node, one in begun.items():
            try:
                self._done[node] = self.learners.learners[node].train(one.start, one.index)
            except LearningError as error:
                self._done[node] = error
