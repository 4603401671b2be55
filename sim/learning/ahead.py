"""Local rounds of many nodes in one batched call, for engines that do everything else at once.

A round depends on nothing but its start, its correction and its number. So when the result of one is needed, all that
are under way are computed, and those of the other nodes wait until their time is over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import LearningError
from p2pfl.learn.interface import LocalRound, Vector
from sim.learning.batched import BatchedLearners


@dataclass(frozen=True, slots=True)
class _Begun:
    start: Vector
    correction: Vector | None
    index: int


class Ahead:
    """Of learners that are `batch_stable`: the rounds have the bits of each learner alone."""

    def __init__(self, learners: BatchedLearners) -> None:
        self.learners = learners
        self._begun: dict[int, _Begun] = {}
        self._done: dict[int, LocalRound | LearningError] = {}

    def begin(self, node: int, start: Vector, correction: Vector | None, index: int) -> None:
        """Nobody writes to `start` (d,) and `correction` (d,) before `end` or `drop`."""
        self._begun[node] = _Begun(start, correction, index)

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
        corrected = np.array([one.correction is not None for one in rounds])
        starts = np.stack([one.start for one in rounds])
        corrections: NDArray[np.floating[Any]] | None = None
        if corrected.any():
            none = np.zeros_like(starts[0])
            corrections = np.stack([none if one.correction is None else one.correction for one in rounds])
        out = np.empty_like(starts)
        losses = self.learners.train(
            nodes, np.array([one.index for one in rounds]), starts, corrections, corrected, out
        )
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
                self._done[node] = self.learners.learners[node].train(one.start, one.correction, one.index)
            except LearningError as error:
                self._done[node] = error
