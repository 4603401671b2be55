"""Local rounds and scores of all nodes of a simulation: batched where that has the bits of the shipped learner.

A self-test at the start decides. Where batching is impossible, or rounds otherwise, each node goes through its own
`Learner`, and `how` says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.config.model import Federation
from p2pfl.learn.batches import batch_sizes
from p2pfl.learn.interface import Learner, LocalRound, Score, Vector
from sim.learning.grouped import Flags, Grouped, Integers
from sim.learning.nodes import TorchNodes, gathered, load_learners
from sim.learning.selftest import Verdict, examine
from sim.learning.stacked import describe

Rows = NDArray[np.floating[Any]]

TOLERANCE = 1e-5


def make_learners(
    federation: Federation, *, local: Mapping[str, Mapping[str, Any]] | None = None, approximate: bool = False
) -> BatchedLearners:
    """All members' learners, from one task. `local` has the `[data]` tables by node name, with absolute paths.

    Raises:
        UserError: the task, its options or a node's data are wrong.
    """
    return BatchedLearners(load_learners(federation, local), approximate=approximate)


class BatchedLearners:
    """`how` is "batched", "batched to 1e-05" or "one at a time: REASON".

    `batch_stable`: every vector has the bits of the learner alone, whatever the grouping. `verdict` is what the
    self-test found.
    """

    def __init__(self, learners: Sequence[Learner], *, approximate: bool = False) -> None:
        """`approximate` batches also where rows agree with the learner alone only to 1e-5 (relative)."""
        self.learners = learners
        self.size = learners[0].size
        nodes = learners if isinstance(learners, TorchNodes) else gathered(learners)
        self.nodes = nodes if isinstance(nodes, TorchNodes) else None
        self.samples: list[int] = [one.samples for one in learners] if self.nodes is None else self.nodes.counts
        self._probed: dict[int, LocalRound] = {}
        self._grouped, self.verdict, reason = _batch(nodes, learners, approximate=approximate)
        self.batch_stable = self._grouped is None or self.verdict.training
        batched = "batched" if self.batch_stable else f"batched to {TOLERANCE:g}"
        self.how = batched if reason is None else f"one at a time: {reason}"

    def __len__(self) -> int:
        return len(self.learners)

    def initial(self) -> Vector:
        """The model that every node starts from, (d,)."""
        return self.learners[0].initial()

    def steps(self, node: int) -> int:
        """How many steps this node's next local round has."""
        if self.nodes is not None:
            return len(batch_sizes(self.nodes.prototype.training, self.samples[node]))
        return self._probe(node).steps

    @property
    def learning_rate(self) -> float:
        if self.nodes is not None:
            return self.nodes.prototype.training.learning_rate
        return self._probe(0).learning_rate

    def train(  # noqa: PLR0917 - arrays side by side, in the order of `Learner.train`
        self,
        nodes: Integers,
        rounds: Integers,
        starts: Rows,
        corrections: Rows | None,
        corrected: Flags | None,
        out: Rows,
    ) -> Rows:
        """One local round of each (node, round) from `starts` (b, d); the models go to `out` (b, d).

        `corrections` (b, d) are added to the gradients of the rows that `corrected` (b,) marks; None: of all. `out` may
        be `starts`. Returns the mean losses (b,). No pair may stand there twice where rounds go one at a time.

        Raises:
            LearningError: the user's code failed.
        """
        if corrections is None:
            corrected = np.zeros(len(nodes), dtype=np.bool_)
        elif corrected is None:
            corrected = np.ones(len(nodes), dtype=np.bool_)
        if self._grouped is not None:
            return self._grouped.train(nodes, rounds, starts, corrections, corrected, out)
        losses = np.empty(len(nodes))
        for row, (node, index) in enumerate(zip(nodes.tolist(), rounds.tolist(), strict=True)):
            correction = corrections[row] if corrections is not None and corrected[row] else None
            local = self.learners[node].train(starts[row], correction, index)
            out[row], losses[row] = local.vector, local.loss
        return losses

    def evaluate(self, models: Rows, part: str, nodes: Integers) -> list[Score | None]:
        """Score each of `models` (b, d) on the `part`, "test" or "local", of its node; None: there are no such data."""
        if self._grouped is not None and self._scores_batched(part):
            return self._grouped.evaluate(models, part, nodes)
        return [self.learners[node].evaluate(model, part) for model, node in zip(models, nodes.tolist(), strict=True)]

    def _scores_batched(self, part: str) -> bool:
        exact = self.verdict.scores or not self.batch_stable
        return exact and self._grouped is not None and self._grouped.can_score(part)

    def _probe(self, node: int) -> LocalRound:
        """A learner that is not ours tells its steps by taking them."""
        if node not in self._probed:
            self._probed[node] = self.learners[node].train(self.initial(), None, 0)
        return self._probed[node]


def _batch(
    nodes: TorchNodes | str, learners: Sequence[Learner], *, approximate: bool
) -> tuple[Grouped | None, Verdict, str | None]:
    """The batched data plane, or none and why; what the self-test found."""
    verdict = Verdict()
    if isinstance(nodes, str) or isinstance(nodes.pool, str):
        return None, verdict, nodes if isinstance(nodes, str) else str(nodes.pool)
    if not nodes.shareable:
        return None, verdict, "the model has buffers that are not shared"
    try:
        grouped = Grouped(nodes, nodes.pool)
        verdict = examine(grouped, learners)
    except Exception as error:  # noqa: BLE001 - whatever a model of any kind makes torch.func say
        return None, verdict, describe(error)
    if not verdict.training and not (approximate and verdict.apart <= TOLERANCE):
        return None, verdict, f"a group rounds otherwise than a node alone (by {verdict.apart:.1e})"
    return grouped, verdict, None
