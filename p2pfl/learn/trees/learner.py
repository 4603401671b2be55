"""`model = "trees"` of the task `csv`: one node's share of trees as a learner, and as a stand-alone model. No torch.

The learner's vector is only the number of rounds; the trees are what it keeps beside it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from p2pfl.config.model import TrainingConfig
from p2pfl.errors import LearningError, UserError
from p2pfl.learn.interface import Learner, LocalRound, RoundStart, Score, Vector
from p2pfl.learn.intervals import wilson
from p2pfl.learn.metrics import ACCURACY, BUILT_IN, measured_by
from p2pfl.learn.table.reading import Table
from p2pfl.learn.table.schema import BALANCED, Schema, weights_given
from p2pfl.learn.table.scoring import ScoresTables, reading_of, schema_and_codes, unreadable
from p2pfl.learn.table.task import OF_TREES, TableTask, split_rows
from p2pfl.learn.task import NodeContext
from p2pfl.learn.trees.bins import MOST_ENTRIES, SUMS, Cells, TreeSettings, raw_cells, tree_settings
from p2pfl.learn.trees.forest import Forest
from p2pfl.learn.trees.growth import TreeGrowth
from p2pfl.learn.trees.state import SiteRows

FOREST = "forest"
"""The name of the array with the packed trees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTrees(ScoresTables):
    schema: Schema
    missing: Mapping[str, Sequence[str]]
    forest: Forest

    @classmethod
    def of(cls, preprocessing: Mapping[str, Any], state: Mapping[str, NDArray[Any]]) -> TableTrees:
        """Build a model. Raises UserError: the trees or the preprocessing do not belong to one, or none has grown."""
        try:
            schema, missing = schema_and_codes(preprocessing)
            packed = state[str(preprocessing["trees"])].tobytes()
        except (KeyError, TypeError, AttributeError) as error:
            raise unreadable(error) from None
        if not packed:
            raise UserError("no tree has grown yet: the nodes have not agreed on the bins")
        try:
            forest = Forest.unpack(packed)
        except ValueError as error:
            raise UserError(str(error)) from None
        if not forest.fits(schema):
            raise UserError("the trees do not fit the schema", value=len(forest.grid.edges))
        return cls(schema=schema, missing=missing, forest=forest)

    def outputs_for(self, table: Table) -> NDArray[np.float64]:
        return self.forest.outputs(raw_cells(table.columns, self.schema))


GROWTH = "growth"
"""The name of the array with the packed state of the growth."""
ALONE = "trees grow by sums over all nodes, and are not mixed by gossip"


@dataclass(frozen=True, slots=True)
class RowsOf:
    """Raw cells (columns, n) and targets (n,): classes, or numbers in their own unit."""

    cells: Cells
    targets: NDArray[np.float64]


class TreeLearner:
    """`growth` is this node's share of the trees; `parts` has the rows that are tested, by name."""

    size, personal = 1, 0
    is_summed = False
    """Set by the course that carries the sums: without one, no tree would grow."""

    def __init__(
        self,
        task: TableTask,
        settings: TreeSettings,
        site: SiteRows,
        parts: Mapping[str, RowsOf],
        *,
        missing: Mapping[str, Iterable[str]],
        context: NodeContext,
    ) -> None:
        self.table, self.settings, self.site, self.context = task, settings, site, context
        self.samples = site.trained
        self.digest = task.schema.digest() if task.is_shared_file else b""
        self.metrics = {name: BUILT_IN[name] for name in task.metrics}
        self.measures = measured_by(self.metrics, task.metric, labels=task.schema.classes is not None)
        columns = [*task.schema.numeric, *task.schema.categories]
        self.preprocessing = reading_of(task.schema, missing) | {"trees": FOREST, "inputs": columns}
        # Nodes with other settings or columns cannot grow trees together.
        about = msgspec.json.encode((settings, task.schema.contents()))
        self.shape_digest = hashlib.blake2b(about, digest_size=16, person=b"p2pfl-trees").digest()
        self._parts = {name: _Tested(rows) for name, rows in parts.items()}
        self._forest: Forest | None = None
        """A model that was read from a file, in place of the grown one."""
        self.growth = TreeGrowth.begin(task.schema, settings, site)

    @property
    def labels(self) -> bool:
        """True if the targets are classes."""
        return self.table.schema.classes is not None

    def entries_of_a_round(self, rows: int | None) -> list[int]:
        """Return the most entries of each sum of a round: a level's leaves, in all bins of all columns. `rows` are
        those of all nodes, if they are known: a leaf with too few is not split.
        """
        schema, settings = self.table.schema, self.settings
        bins = len(schema.numeric) * (settings.bins + 1) + sum(len(each) + 1 for each in schema.categories.values())
        most = 2**settings.max_depth if rows is None else max(1, rows // (2 * settings.least_rows))
        leaves = (min(2**level, most) for level in range(settings.max_depth))
        return [min(SUMS * bins * settings.outputs * each, MOST_ENTRIES) for each in leaves]

    def initial(self) -> Vector:
        return np.zeros(1, np.float32)

    def train(self, start: RoundStart, round_index: int) -> LocalRound:  # noqa: ARG002 - the trees are beside the model
        """Make this node's part of the round's first sum. Raises LearningError: no course of sums is there."""
        if not self.is_summed:
            raise LearningError(ALONE)
        if not self.growth.done:
            self.growth.next_part()
        losses = self.growth.state.losses
        loss = losses[-1].trained if losses else None
        return LocalRound(
            vector=np.array([round_index + 1], np.float32),
            steps=1,
            learning_rate=self.settings.eta,
            samples=self.samples,
            loss=math.nan if loss is None else loss,
        )

    def evaluate(self, vector: Vector, part: str) -> Score | None:  # noqa: ARG002 - the trees are beside it
        forest, tested = self.forest, self._parts[part]
        if forest is None or not len(tested.rows.targets):
            return None
        outputs, targets = tested.outputs(forest), self._targets(tested.rows)
        hits = float((outputs.argmax(axis=1) == targets).mean()) if self.table.schema.classes else None
        own = {name: metric(outputs, targets) for name, metric in self.metrics.items()}
        ends = {ACCURACY.name: None if hits is None else wilson(hits, len(targets))}
        ends |= {name: one.interval(outputs, targets) for name, one in self.metrics.items() if one.interval}
        loss = BUILT_IN["log_loss"](outputs, targets) if hits is not None else BUILT_IN["rmse"](outputs, targets) ** 2
        return Score(
            accuracy=hits if hits is not None else own.get(ACCURACY.name),
            loss=loss,
            samples=len(targets),
            metrics=own,
            intervals={name: one for name, one in ends.items() if one is not None and all(map(math.isfinite, one))},
        )

    def predictions(self, vector: Vector) -> tuple[Any, Any] | None:  # noqa: ARG002 - as above
        """Return outputs and targets of the test rows; None without trees or such rows."""
        forest, tested = self.forest, self._parts["test"]
        if forest is None or not len(tested.rows.targets):
            return None
        return tested.outputs(forest), self._targets(tested.rows)

    def _targets(self, rows: RowsOf) -> NDArray[Any]:
        return rows.targets.reshape(-1, 1) if self.table.schema.classes is None else rows.targets.astype(np.int64)

    @property
    def forest(self) -> Forest | None:
        """The model so far; None before the bins are agreed on."""
        if self._forest is not None:
            return self._forest
        return None if self.growth.state.grid is None else self.growth.forest()

    def local_state(self) -> dict[str, NDArray[np.generic]]:
        return {GROWTH: _bytes(self.growth.pack())}

    def load_local_state(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Raises UserError: it is the state of trees with other settings or columns."""
        if GROWTH not in state:
            text, allowed = "this state was learned by another kind of model", "another folder, to begin anew"
            raise UserError(text, key="task.model", value="trees", allowed=allowed)
        try:
            self.adopt(TreeGrowth.unpack(state[GROWTH].tobytes(), self.table.schema, self.settings, self.site))
        except ValueError as error:
            text, allowed = f"the state in this folder is of other trees: {error}", "another folder, to begin anew"
            raise UserError(text, key="task", allowed=allowed) from None

    def adopt(self, growth: TreeGrowth) -> None:
        """Go on with another state of the trees."""
        self.growth = growth
        for tested in self._parts.values():
            tested.forget()

    def state_dict(self, vector: Vector) -> dict[str, NDArray[np.generic]]:  # noqa: ARG002 - as above
        forest = self.forest
        return {FOREST: _bytes(b"" if forest is None else forest.pack())}

    def load_tensors(self, state: Mapping[str, NDArray[Any]]) -> Vector:
        """Take the trees of a file, and return the vector. Raises UserError: they are trees of other columns."""
        try:
            forest = Forest.unpack(state[FOREST].tobytes())
        except (KeyError, ValueError) as error:
            raise UserError(f"this file contains a different model: {error}", allowed="trees") from None
        if not forest.fits(self.table.schema):
            raise UserError("this file contains trees of other columns", allowed="those of the federation's task")
        self._forest = forest
        return np.array([len(forest.rounds)], np.float32)


class _Tested:
    """Rows, and the outputs of the trees so far, so that only new trees are added."""

    def __init__(self, rows: RowsOf) -> None:
        self.rows = rows
        self.forget()

    def forget(self) -> None:
        self._known: Forest | None = None
        self._codes: Any = None
        self._margins: NDArray[np.float64] = np.zeros((0, 0))

    def outputs(self, forest: Forest) -> NDArray[np.float64]:
        """Return the outputs (n, k), as of `Forest.outputs`."""
        known = self._known
        if known is None or len(known.rounds) > len(forest.rounds):
            self._codes = forest.grid.codes(self.rows.cells)
            self._margins = forest.margins_without_trees(len(self.rows.targets))
            first = 0
        else:
            first = len(known.rounds)
        forest.add_trees(self._margins, self._codes, first)
        self._known = forest
        return forest.as_outputs(self._margins)


def _bytes(content: bytes) -> NDArray[np.generic]:
    return np.frombuffer(content, np.uint8)


COLLUDERS = "colluders"
"""The key that says nothing about the trees themselves."""


@dataclass(frozen=True, slots=True)
class TreeTask:
    """A task with a learner of its own. `partition` divides a common table, for demos."""

    given: TableTask
    partition: str | None

    def settings(self, training: TrainingConfig) -> TreeSettings:
        """Return the settings of the trees. Raises UserError."""
        if training.rounds is None:
            text = "is missing: trees grow by rounds, one for each, and not for a time"
            raise UserError(text, key="training.rounds", allowed="a number of rounds")
        options, weights, schema = self.given.options, self.given.weights, self.given.schema
        own: dict[str, Any] = {key: options[key] for key in OF_TREES if options.get(key) is not None}
        own.pop(COLLUDERS, None)
        if weights is not None:
            if schema.classes is None:
                raise UserError("a regression has no classes", key="task.class_weights", value=weights, allowed="none")
            own["class_weights"] = BALANCED
            if isinstance(weights, Mapping):
                own["class_weights"] = weights_given(schema, schema.classes, weights)
        if "patience" in own and not self.given.holdout:
            text = "needs rows held out at the nodes, over which the loss is summed"
            raise UserError(text, key="task.patience", value=own["patience"], allowed="with task.holdout")
        return tree_settings(schema, {"rounds": training.rounds, **own})

    def learner(self, context: NodeContext, training: TrainingConfig) -> Learner:
        """Make the learner of one node. Raises UserError: settings or rows are wrong."""
        settings = self.settings(training)
        own = split_rows(self.given, context, self.partition)
        rows = self._rows(own.table)
        test = RowsOf(rows.cells[:, own.held], rows.targets[own.held]) if own.tests is None else self._rows(own.tests)
        both = np.concatenate([own.train, own.held])
        site = SiteRows(rows.cells[:, both], rows.targets[both], np.arange(len(both)) >= len(own.train))
        parts = {"local": RowsOf(rows.cells[:, own.train], rows.targets[own.train]), "test": test}
        return TreeLearner(self.given, settings, site, parts, missing=self.given.layout({}).missing, context=context)

    def _rows(self, table: Table) -> RowsOf:
        schema = self.given.schema
        return RowsOf(raw_cells(table.columns, schema), table.columns[schema.target])
