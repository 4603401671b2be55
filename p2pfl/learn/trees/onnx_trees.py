"""A model of trees as an ONNX graph that takes raw rows: inputs and outputs are those of `table.onnx_graph`."""

from __future__ import annotations

from typing import Any

import numpy as np

from p2pfl.learn.table.cells import all_numbers
from p2pfl.learn.table.onnx_graph import OnnxGraph, finished, needs_onnx
from p2pfl.learn.table.schema import Schema
from p2pfl.learn.trees.forest import LEAF, Forest
from p2pfl.learn.trees.xgboost_json import with_base


def to_onnx(forest: Forest, schema: Schema, metadata: dict[str, str]) -> bytes:
    """Return the content of the file. Raises UserError: the extra `onnx` is not installed."""
    needs_onnx()
    graph = OnnxGraph()
    cells = [graph.input(column, is_text=False) for column in schema.numeric]
    cells += [_place(graph, column, values) for column, values in schema.categories.items()]
    margins = graph.add(
        "TreeEnsembleRegressor",
        [graph.add("Concat", cells, axis=1)],
        domain="ai.onnx.ml",
        n_targets=len(forest.base),
        aggregate_function="SUM",
        **_ensemble(forest),
    )
    if forest.objective == "logistic":
        margins = graph.add("Concat", [graph.add("Sub", [margins, margins]), margins], axis=1)
    graph.finish(margins, schema.classes, 0.0, 1.0)
    return finished(graph, metadata)


def _place(graph: OnnxGraph, column: str, values: tuple[str, ...]) -> str:
    """Add a category, as the place of its value (n, 1); NaN if it has none of them."""
    places = [float(place) for place in range(len(values))]
    known: dict[str, Any] = {"values_floats": places, "default_float": float("nan")}
    if all_numbers(values):
        known["keys_floats"] = np.array(values, np.float32).tolist()
    else:
        known["keys_strings"] = [value.encode() for value in values]
    name = graph.input(column, is_text=not all_numbers(values))
    return graph.add("LabelEncoder", [name], domain="ai.onnx.ml", **known)


def _ensemble(forest: Forest) -> dict[str, Any]:
    """Return the attributes of all trees."""
    rows = list[tuple[Any, ...]]()
    targets = list[tuple[int, int, int, float]]()
    trees = [(output, *each) for trees in with_base(forest) for output, each in enumerate(trees)]
    for place, (output, tree, values) in enumerate(trees):
        for node, column in enumerate(tree.columns):
            if column == LEAF:
                rows.append((place, node, 0, "LEAF", 0.0, 0, 0, 0))
                targets.append((place, node, output, values[node]))
                continue
            left, missing_left = tree.lefts[node], int(tree.missing_left[node])
            if column < len(forest.grid.edges):
                edge = forest.grid.edges[column][tree.bins[node]]
                rows.append((place, node, column, "BRANCH_LT", edge, left, left + 1, missing_left))
            else:
                value = float(tree.bins[node])
                rows.append((place, node, column, "BRANCH_EQ", value, left + 1, left, 1 - missing_left))
    keys = ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids")
    names = [f"nodes_{key}" for key in (*keys, "missing_value_tracks_true")]
    found: dict[str, Any] = {name: list(each) for name, each in zip(names, zip(*rows, strict=True), strict=True)}
    names = [f"target_{key}" for key in ("treeids", "nodeids", "ids", "weights")]
    return found | {name: list(each) for name, each in zip(names, zip(*targets, strict=True), strict=True)}
