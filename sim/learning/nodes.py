"""The learners of all nodes in one federation, each made on demand, and their scores.

Ten thousand `TorchLearner`s would build ten thousand modules. Here there is one module, and a node is just its data.

The data of many nodes are stored in one pair of tensors, and a node's rows are a range in it. Sets that are the same
tensors, or that the task made equal for every node, are stored once. Liars may train on poisoned data of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from p2pfl.chance import generator
from p2pfl.config.model import FederationConfig, TrainingConfig
from p2pfl.config.sections import SHARED
from p2pfl.errors import UserError
from p2pfl.learn.evaluation import seeded
from p2pfl.learn.interface import Learner, LocalRound, RoundStart, Score, Vector, draw_rows
from p2pfl.learn.load import learner_for, load_task
from p2pfl.learn.privacy.noise import Seeded
from p2pfl.learn.privacy.plan import Protection, protection_of
from p2pfl.learn.task import NodeContext, Task
from p2pfl.learn.tensors import Distinct, Samples, TensorSamples, place_in_memory, read_samples
from p2pfl.learn.trainer import TorchLearner, try_out
from p2pfl.methods import Method
from p2pfl.reporting.measures import mean_score
from sim.attacks import Poison
from sim.attacks.poison import LABELED, classes_of
from sim.federations import refuse_data

Begun = tuple[int, RoundStart, int]
"""A round: the node, its start, and its number."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The rows of many nodes as one set. `first` and `counts` (nodes,) int64: each node's range, maybe a shared one."""

    rows: TensorSamples
    first: NDArray[np.int64]
    counts: NDArray[np.int64]

    def of(self, node: int) -> TensorSamples:
        """Return the rows of a node, as views."""
        part = slice(int(self.first[node]), int(self.first[node] + self.counts[node]))
        return TensorSamples(self.rows.inputs[part], self.rows.targets[part])

    def gather(self, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return inputs and targets (c, n, ...) of the pool's `rows` (c, n)."""
        inputs, targets = self.rows.rows(torch.from_numpy(rows.reshape(-1)))
        return inputs.view(*rows.shape, *inputs.shape[1:]), targets.view(*rows.shape, *targets.shape[1:])


def pooled(sets: Sequence[Samples]) -> Pool | str:
    """Join all sets into one pool, or say why that is impossible. Raises UserError if the memory is too small."""
    tensors = [samples for samples in sets if isinstance(samples, TensorSamples)]
    if len(tensors) < len(sets):
        return "a node reads its data row by row"
    if len({(s.inputs.shape[1:], s.inputs.dtype, s.targets.shape[1:], s.targets.dtype) for s in tensors}) > 1:
        return "the nodes' data differ in shape or type"
    distinct: dict[tuple[object, ...], TensorSamples] = {}
    for samples in tensors:
        distinct.setdefault(place_in_memory(samples), samples)
    starts = dict(zip(distinct, np.cumsum([0, *map(len, distinct.values())]).tolist(), strict=False))
    return Pool(
        rows=_joined(list(distinct.values())),
        first=np.array([starts[place_in_memory(samples)] for samples in tensors], dtype=np.int64),
        counts=np.array([len(samples) for samples in tensors], dtype=np.int64),
    )


def _joined(sets: list[TensorSamples]) -> TensorSamples:
    if len(sets) == 1:
        return sets[0]
    refuse_data(sum(samples.inputs.nbytes + samples.targets.nbytes for samples in sets))
    return TensorSamples(torch.cat([s.inputs for s in sets]), torch.cat([s.targets for s in sets]))


class TorchNodes(Sequence[Learner]):
    """The learners of all nodes. `pool` has all training sets, or says why they cannot be joined.

    `shareable`: the module keeps nothing between rounds, so one serves all nodes; otherwise each node has its own.
    """

    def __init__(self, prototype: TorchLearner, contexts: Sequence[NodeContext], sets: list[Samples]) -> None:
        """Build learners; `sets` are the nodes' training sets, and `with_tests` adds the test sets."""
        self.prototype = prototype
        self.contexts = contexts
        self.pool: Pool | str = pooled(sets)
        self._sets = sets if isinstance(self.pool, str) else []
        self._own: dict[int, TorchLearner] = {}
        self.shareable = (
            not prototype.personal and not prototype.training.keep_optimizer and _keeps_nothing(prototype.model.module)
        )
        self.tests: list[Samples] = []
        self.test_of: NDArray[np.int64] = np.full(len(contexts), -1, dtype=np.int64)

    def with_tests(self, tests: Distinct, numbers: Sequence[int]) -> TorchNodes:
        """Add the test sets; `numbers[node]` is the index of the node's set in `tests`, -1 for none."""
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
            context, private = self.contexts[node], first.private
            protection = None if private is None else private.protection
            own = TorchLearner(first.task, context, first.training, first.model.share, protection=protection)
            own.train_set = self.train_set(node)
            self._own[node] = own
        return self._own[node]

    @property
    def counts(self) -> list[int]:
        return [len(s) for s in self._sets] if isinstance(self.pool, str) else self.pool.counts.tolist()

    def train_set(self, node: int) -> Samples:
        return self._sets[node] if isinstance(self.pool, str) else self.pool.of(node)

    def batches(
        self, pool: Pool, nodes: NDArray[np.int64], rounds: NDArray[np.int64], sizes: Sequence[int]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield what these nodes see in each step of a round, as their learners draw it; `sizes` are those of steps."""
        seed, drawn = self.prototype.context.seed, []
        for node, index in zip(nodes.tolist(), rounds.tolist(), strict=True):
            rng = generator(seed, "batches", self.contexts[node].node, index)
            drawn.append(draw_rows(int(pool.counts[node]), sum(sizes), rng))
        for rows in np.split(pool.first[nodes, None] + np.array(drawn), np.cumsum(sizes)[:-1], axis=1):
            yield pool.gather(rows)

    def data_of(self, pool: Pool, part: str, nodes: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return inputs and targets (c, n, ...) of the sets, "test" or "local", of nodes whose sets are of one size."""
        if part == "local":
            return pool.gather(pool.first[nodes, None] + np.arange(pool.counts[nodes[0]]))
        test = self.tests[self.test_of[nodes[0]]]
        inputs, targets = test.rows(torch.arange(len(test)))
        return inputs.expand(len(nodes), *inputs.shape), targets.expand(len(nodes), *targets.shape)

    def _test_set(self, node: int) -> Samples | None:
        number = int(self.test_of[node])
        return None if number < 0 else self.tests[number]


class Learners:
    """The learners of all nodes, which learn by one `method`.

    Nodes share `size` values, have `personal` ones beside them, and exchange `exchanged_size` (one model a channel).
    `how` says how rounds are computed, "batched" or "one at a time", and why.
    """

    how = "one at a time: few rounds in all, or parts of sums"

    def __init__(self, learners: Sequence[Learner], method: Method) -> None:
        self.learners, self.method = learners, method
        self.size, self.personal = learners[0].size, learners[0].personal
        self.exchanged_size = self.size * len(method.channels)
        self.nodes = learners if isinstance(learners, TorchNodes) else None
        self.samples: list[int] = [learner.samples for learner in learners] if self.nodes is None else self.nodes.counts
        self._begun: dict[int, Begun] = {}

    def initial(self) -> Vector:
        """Return the model that every node starts from, (d,)."""
        return self.learners[0].initial()

    def steps(self, node: int) -> int:
        """Return the number of steps in this node's local rounds; a user's own learner trains one to tell."""
        learner = self.learners[node]
        if isinstance(learner, TorchLearner):
            return learner.steps_with(self.samples[node])
        return learner.train(RoundStart(self.initial()), 0).steps

    def begin(self, node: int, start: RoundStart, index: int) -> None:
        """Begin a round; its vectors must not be written to before `end` or `drop`."""
        self._begun[node] = node, start, index

    def drop(self, node: int) -> None:
        """Forget the round, begun or done, of a node that has crashed."""
        self._begun.pop(node, None)

    def end(self, node: int) -> LocalRound:
        """End the round and return its result. Raises LearningError if the user's code failed."""
        return self.train([self._begun.pop(node)])[0]

    def train(self, work: Sequence[Begun]) -> list[LocalRound]:
        """Train these rounds. Raises LearningError if the user's code failed."""
        return [self.learners[node].train(start, index) for node, start, index in work]

    def evaluate(self, models: NDArray[Any], part: str, nodes: NDArray[np.int64]) -> list[Score | None]:
        """Score each of `models` (b, d) on the `part`, "test" or "local", of its node; None without such data."""
        return [self.learners[node].evaluate(model, part) for model, node in zip(models, nodes.tolist(), strict=True)]

    def score_everywhere(self, model: Vector, nodes: Sequence[int]) -> Score | None:
        """Score one model (d,) on the test sets of these nodes; for a user's own learners, on the first node's."""
        first, counts = np.array(nodes[:1], dtype=np.int64), np.array([1])
        if self.nodes is not None:
            _, places, counts = np.unique(self.nodes.test_of[list(nodes)], return_index=True, return_counts=True)
            first = np.array(nodes, dtype=np.int64)[places]
        rows = np.repeat(np.asarray(model)[None], len(first), axis=0)
        return mean_score(zip(self.evaluate(rows, "test", first), counts.tolist(), strict=True))


def load_learners(
    federation: FederationConfig,
    local: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    poison: Poison | None = None,
    liars: frozenset[int] = frozenset(),
) -> Sequence[Learner]:
    """Load one learner per member; `local` has the `[data]` tables by node, with absolute paths.

    With `[privacy]` rounds are private, with randomness from the federation's seed. `liars` train on what `poison`
    makes of their data. Raises UserError if the task or its data are wrong, if the data cannot be poisoned, or if a
    promise cannot be kept.
    """
    if federation.hides is None:  # of hidden models arrays make the sums
        refuse_sums(federation, "is not simulated, where nodes gossip: its rounds are secure sums, in step")
    task = load_task(federation.task, federation.path.parent, file=federation.path)
    contexts = [_context(federation, index, local or {}) for index in range(len(federation.members))]
    training, share, protection = (
        federation.training,
        federation.gossip.patterns,
        protection_of(federation, Seeded(federation.seed)),
    )
    try:
        if isinstance(task, Task):
            learners: Sequence[Learner] = _torch_nodes(task, contexts, training, share, protection)
        else:
            learners = [learner_for(task, context, training, share, protection=protection) for context in contexts]
    except UserError as error:
        if error.file is None:
            error.file = str(federation.path)
        raise
    return learners if poison is None else poisoned(learners, poison, liars)


def refuse_sums(federation: FederationConfig, text: str, instead: str = "") -> None:
    """Refuse a federation whose rounds are sums; `instead` is what may be done. Raises UserError."""
    if federation.in_step_by == "trees":
        allowed = instead or "real nodes (p2pfl launch, Federation.run); or model = linear or mlp"
        raise UserError(text, file=federation.path, key="task.model", value="trees", allowed=allowed)
    if federation.hides is not None:
        allowed = instead or "real nodes (p2pfl launch, Federation.run); or no privacy.hide, by which nodes gossip"
        raise UserError(text, file=federation.path, key="privacy.hide", value=federation.hides.hide, allowed=allowed)
    if federation.in_step_by:
        allowed = instead or "real nodes (p2pfl launch, Federation.run); or noise of each node's own: no privacy.noise"
        raise UserError(text, file=federation.path, key="privacy.noise", value=SHARED, allowed=allowed)


def _torch_nodes(
    task: Task,
    contexts: list[NodeContext],
    training: TrainingConfig,
    share: Sequence[str],
    protection: Protection | None,
) -> TorchNodes:
    """Build the learners. The model is tried once with the labels of all nodes; with privacy, each has its own plan."""
    sets, tests, numbers = [], Distinct(), []
    for context in contexts:
        train_set, test_set = read_samples(task, context)
        sets.append(train_set)
        numbers.append(tests.add(test_set))
    if protection is not None:
        for count in sorted({len(rows) for rows in sets}):
            protection.plan_for(count)
    prototype = TorchLearner(task, contexts[0], training, share, protection=protection)
    nodes = TorchNodes(prototype, contexts, sets).with_tests(tests, numbers)
    if isinstance(nodes.pool, Pool):
        with seeded(0):
            try_out(prototype.model.module, nodes.pool.rows, task)
    return nodes


def _context(federation: FederationConfig, index: int, local: Mapping[str, Mapping[str, Any]]) -> NodeContext:
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
    """Return True if the vector holds all of the module: a buffer outside it might persist from round to round."""
    shared = {id(tensor) for tensor in module.state_dict(keep_vars=True).values()}
    return all(id(buffer) in shared and buffer.is_floating_point() for buffer in module.buffers())


def poisoned(learners: Sequence[Learner], poison: Poison, liars: frozenset[int]) -> TorchNodes:
    """Return the learners, with poisoned data for `liars`. Raises UserError if the data cannot be poisoned."""
    if not isinstance(learners, TorchNodes):
        raise UserError("learners of the task's own cannot be poisoned", key="attack", allowed=LABELED)
    classes, seed = classes_of(learners.prototype), learners.prototype.context.seed
    for test in learners.tests:
        poison.probe(test, classes=classes)
    sets = [
        poison.spoil(learners.train_set(node), classes=classes, seed=seed, node=node)
        if node in liars
        else learners.train_set(node)
        for node in range(len(learners))
    ]
    spoiled = TorchNodes(learners.prototype, learners.contexts, sets)
    spoiled.tests, spoiled.test_of = learners.tests, learners.test_of
    return spoiled


def success(
    learners: Sequence[Learner], poison: Poison, models: NDArray[np.floating], nodes: Sequence[int]
) -> list[float | None]:
    """Return the share of each node's probe that its model (row) labels as the poison intends."""
    return [_success(learners[node], poison, models[row]) for row, node in enumerate(nodes)]


def _success(learner: Learner, poison: Poison, model: Vector) -> float | None:
    if not isinstance(learner, TorchLearner) or learner.test_set is None:
        return None
    probe = poison.probe(learner.test_set, classes=classes_of(learner))
    if not len(probe):
        return None
    probed = copy(learner)
    probed.test_set = probe
    score = probed.evaluate(model, "test")
    return None if score is None else score.accuracy
