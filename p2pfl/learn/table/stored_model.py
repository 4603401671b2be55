"""A model for tables from what is stored of it, of whatever kind, and the files that other programs read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from p2pfl.errors import UserError
from p2pfl.learn.table import onnx_graph
from p2pfl.learn.table.scoring import ScoresTables, TableModel
from p2pfl.learn.trees.forest import to_onnx, to_xgboost
from p2pfl.learn.trees.learner import TableTrees


def table_model(preprocessing: Mapping[str, Any], state: Mapping[str, NDArray[Any]]) -> ScoresTables:
    """Build a model. Raises UserError: the weights or the preprocessing do not belong to one."""
    kind: type[TableTrees | TableModel] = TableTrees if "trees" in preprocessing else TableModel
    return kind.of(preprocessing, state)


def onnx_file(model: ScoresTables, metadata: dict[str, str]) -> bytes:
    """Return the content of the file. Raises UserError: the extra `onnx` is not installed."""
    if isinstance(model, TableTrees):
        return to_onnx(model.forest, model.schema, metadata)
    assert isinstance(model, TableModel)  # noqa: S101 - there is no other kind
    return onnx_graph.to_onnx(model, metadata)


def xgboost_file(model: ScoresTables) -> bytes:
    """Return the content of the file. Raises UserError: these are no trees."""
    if isinstance(model, TableTrees):
        return to_xgboost(model.forest, model.schema).encode()
    text, allowed = "this format is for trees", 'safetensors or onnx; or a csv task with model = "trees"'
    raise UserError(text, key="--format", value="xgboost", allowed=allowed)
