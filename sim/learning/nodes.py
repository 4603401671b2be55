"""The learners of all nodes of one federation, each made when it is asked for.

Ten thousand `TorchLearner`s would build ten thousand modules. Here there is one, and a node is its data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray

from p2pfl.config.model import Federation, TrainingConfig
from p2pfl.errors import UserError
from p2pfl.learn.interface import Learner
from p2pfl.learn.load import learner_for, load_task
from p2pfl.learn.samples import Samples, read_samples
from p2pfl.learn.task import NodeContext, Task
from p2pfl.learn.trainer import TorchLearner, seeded, try_out
from sim.learning.pool import Distinct, Pool, pooled


class TorchNodes(Sequence[Learner]):
    """`pool` has all training sets, or says why they cannot be put together. `shareable`: the module keeps nothing
    between rounds, so that one does for all nodes; where it keeps something, each node has a module of its own.
    """

    def __init__(self, prototype: TorchLearner, contexts: Sequence[NodeContext], sets: list[Samples]) -> None:
        """`sets` are the nodes' training sets; the test sets are added by `with_tests`."""
        self.prototype = prototype
        self.contexts = contexts
        self.pool: Pool | str = pooled(sets)
        self._sets = sets if isinstance(self.pool, str) else []
        self._own: dict[int, TorchLearner] = {}
        self.shareable = not prototype.personal and _keeps_nothing(prototype.module)
        self.tests: list[Samples] = []
        self.test_of: NDArray[np.int64] = np.full(len(contexts), -1, dtype=np.int64)

    def with_tests(self, tests: Distinct, numbers: Sequence[int]) -> TorchNodes:
        """`numbers[node]` says which of `tests` is the node's, -1 for none."""
        self.tests, self.test_of = tests.sets, np.array(numbers, dtype=np.int64)
        return self

    def __len__(self) -> int:
        return len(self.contexts)

    @overload
    def __getitem__(self, node: int) -> TorchLearner: ...
    @overload
    def __getitem__(self, node: slice) -> list[Learner]: ...
    def __getitem__(self, node: int | slice) -> TorchLearner | list[Learner]:
        if isinstance(node, slice):
            return [self[index] for index in range(len(self))[node]]
        if not 0 <= node < len(self):
            raise IndexError(node)
        if self.shareable:
            return self.prototype.at_node(self.contexts[node], self.train_set(node), self._test_set(node))
        if node not in self._own:
            first = self.prototype
            own = TorchLearner(first.task, self.contexts[node], first.training, first.share)
            own.train_set = self.train_set(node)
            self._own[node] = own
        return self._own[node]

    @property
    def counts(self) -> list[int]:
        return [len(s) for s in self._sets] if isinstance(self.pool, str) else self.pool.counts.tolist()

    def train_set(self, node: int) -> Samples:
        return self._sets[node] if isinstance(self.pool, str) else self.pool.of(node)

    def _test_set(self, node: int) -> Samples | None:
        number = int(self.test_of[node])
        return None if number < 0 else self.tests[number]


def load_learners(federation: Federation, local: Mapping[str, Mapping[str, Any]] | None = None) -> Sequence[Learner]:
    """One learner for each member. `local` has the `[data]` tables by node name, with absolute paths.

    Raises:
        UserError: the task, its options or a node's data are wrong.
    """
    task = load_task(federation.task, federation.path.parent, file=federation.path)
    contexts = [_context(federation, index, local or {}) for index in range(len(federation.members))]
    try:
        if isinstance(task, Task):
            return _torch_nodes(task, contexts, federation.training, federation.gossip.share)
        return [learner_for(task, context, federation.training, federation.gossip.share) for context in contexts]
    except UserError as error:
        if error.file is None:
            error.file = str(federation.path)
        raise


def gathered(learners: Sequence[Learner]) -> TorchNodes | str:
    """Learners that exist already, put together; or why they cannot be."""
    given = [learner for learner in learners if isinstance(learner, TorchLearner)]
    if len(given) < len(learners):
        return "the task has learners of its own"
    first = given[0]
    if any(one.task is not first.task or one.training != first.training or one.share != first.share for one in given):
        return "the learners are not of one task"
    if any(one.context.seed != first.context.seed for one in given):
        return "the learners are not of one federation"
    tests = Distinct()
    numbers = [tests.add(one.test_set) for one in given]
    return TorchNodes(first, [one.context for one in given], [one.train_set for one in given]).with_tests(
        tests, numbers
    )


def _torch_nodes(task: Task, contexts: list[NodeContext], training: TrainingConfig, share: Sequence[str]) -> TorchNodes:
    """The model is tried out once, with the labels of all nodes."""
    sets, tests, numbers = [], Distinct(), []
    for context in contexts:
        train_set, test_set = read_samples(task, context)
        sets.append(train_set)
        numbers.append(tests.add(test_set))
    prototype = TorchLearner(task, contexts[0], training, share)
    nodes = TorchNodes(prototype, contexts, sets).with_tests(tests, numbers)
    if isinstance(nodes.pool, Pool):
        with seeded(0):
            try_out(prototype.module, nodes.pool.rows, task)
    return nodes


def _context(federation: Federation, index: int, local: Mapping[str, Mapping[str, Any]]) -> NodeContext:
    name = federation.members[index].name
    return NodeContext(
        node=index,
        nodes=len(federation.members),
        name=name,
        seed=federation.seed,
        base_dir=federation.path.parent,
        options=federation.task.options,
        local=local.get(name, {}),
    )


def _keeps_nothing(module: torch.nn.Module) -> bool:
    """Whether all that a module holds is in the vector: a buffer that is not might live from round to round."""
    shared = {id(tensor) for tensor in module.state_dict(keep_vars=True).values()}
    return all(id(buffer) in shared and buffer.is_floating_point() for buffer in module.buffers())
