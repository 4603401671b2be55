"""Built-in task `csv`: a table with a target column; a linear model, an MLP or boosted trees, for classes or a number.

All nodes must have the same schema, so `[task]` declares it, or names a file beside the federation file that does:

    [task]
    name = "csv"
    target = "outcome"
    numeric = ["age", "dose"]
    categories = { ward = ["a", "b"] }
    classes = ["ill", "well"]               # or positive = [1, 2]; without either: regression
    means = { age = 61.0 }                  # optional, with `stds`: standardize
    stds = { age = 17.5 }

`path`, and `test_path` if there is a common test set, are in a node's `[data]` or, for all nodes, in `[task]`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from p2pfl.learn.table.scoring import preprocessing_of
from p2pfl.learn.table.task import TREES, data_of, files_of_node, table_task
from p2pfl.learn.task import LearnerFactory, Task
from p2pfl.learn.trees.learner import TreeTask


def csv_table(*, base_dir: Path = Path(), **options: Any) -> Task | LearnerFactory:
    """Build the task; `options` are the keys of `[task]`, whose files are relative to `base_dir`."""
    given = table_task(options, base_dir)
    if options.get("model") == TREES:
        return TreeTask(given, options.get("partition"))
    from p2pfl.learn.table import networks  # noqa: PLC0415 - imports torch, which trees do not need

    return Task(
        name="csv",
        model=networks.make_model(given.schema, given.hidden),
        data=data_of(given, options.get("partition")),
        loss=networks.make_loss(given.schema, given.weights),
        metrics=given.metrics,
        metric=given.metric,
        preprocessing=preprocessing_of(given.schema, given.layout({}).missing, networks.layer_names(given.hidden)),
        digest=given.schema.digest() if given.is_shared_file else b"",
        files=files_of_node(options.get("partition")),
    )
