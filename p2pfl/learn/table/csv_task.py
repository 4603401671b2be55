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

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from p2pfl.errors import UserError
from p2pfl.learn.digits import mlp
from p2pfl.learn.table import networks, scoring
from p2pfl.learn.table.scoring import ScoresTables, TableModel, preprocessing_of
from p2pfl.learn.table.task import TREES, data_of, table_task
from p2pfl.learn.task import LearnerFactory, Task
from p2pfl.learn.trees.forest import to_xgboost
from p2pfl.learn.trees.growth import TableTrees, TreeTask


def csv_table(*, base_dir: Path = Path(), **options: Any) -> Task | LearnerFactory:
    """Build the task; `options` are the keys of `[task]`, whose files are relative to `base_dir`."""
    given = table_task(options, base_dir)
    if options.get("model") == TREES:
        return TreeTask(given, options.get("partition"))
    layers = (given.schema.width, *given.hidden, given.schema.outputs)
    return Task(
        name="csv",
        model=lambda: mlp(*layers),
        layers=layers,
        data=data_of(given, options.get("partition")),
        loss=networks.make_loss(given.schema, given.weights),
        gradient=None if given.hidden else networks.make_gradient(given.schema, given.weights),
        metrics=given.metrics,
        metric=given.metric,
        preprocessing=preprocessing_of(given.schema, given.layout({}).missing, networks.layer_names(given.hidden)),
        digest=given.schema.digest() if given.is_shared_file else b"",
    )


def table_model(preprocessing: Mapping[str, Any], state: Mapping[str, NDArray[Any]]) -> ScoresTables:
    """Build a model. Raises UserError: the weights or the preprocessing do not belong to one."""
    kind: type[TableTrees | TableModel] = TableTrees if "trees" in preprocessing else TableModel
    return kind.of(preprocessing, state)


def onnx_file(model: ScoresTables, metadata: dict[str, str]) -> bytes:
    """Return the content of the file. Raises UserError: these are trees, or the extra `onnx` is not installed."""
    if not isinstance(model, TableModel):
        allowed = "xgboost (-o trees.json), which other programs convert to ONNX; or safetensors"
        raise UserError("export of trees to ONNX is gone", key="--format", value="onnx", allowed=allowed)
    return scoring.to_onnx(model, metadata)


def xgboost_file(model: ScoresTables) -> bytes:
    """Return the content of the file. Raises UserError: these are no trees."""
    if isinstance(model, TableTrees):
        return to_xgboost(model.forest, model.schema).encode()
    text, allowed = "this format is for trees", 'safetensors or onnx; or a csv task with model = "trees"'
    raise UserError(text, key="--format", value="xgboost", allowed=allowed)
