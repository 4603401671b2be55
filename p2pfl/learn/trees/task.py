"""`model = "trees"` of the task `csv`: each node's share of trees that all nodes grow together. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from p2pfl.config.model import TrainingConfig
from p2pfl.errors import UserError
from p2pfl.learn.interface import Learner
from p2pfl.learn.table.reading import Table
from p2pfl.learn.table.task import OF_TREES, TableTask, split_rows
from p2pfl.learn.table.weights import BALANCED, weights_given
from p2pfl.learn.task import NodeContext
from p2pfl.learn.trees.bins import raw_cells
from p2pfl.learn.trees.learner import RowsOf, TreeLearner
from p2pfl.learn.trees.site_rows import SiteRows
from p2pfl.learn.trees.tree_settings import TreeSettings, tree_settings

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
