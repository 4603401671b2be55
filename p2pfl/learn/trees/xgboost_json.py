"""A model in XGBoost's own JSON format, which XGBoost 1.7 and newer load (its doc/model.schema).

XGBoost takes the columns in the schema's order, numeric ones first, and for a category the place of its value in the
schema. The outputs without trees are part of the first trees' leaves, because `base_score` has changed its meaning
between versions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from p2pfl.learn.table.schema import Schema
from p2pfl.learn.trees.bins import BinGrid
from p2pfl.learn.trees.forest import LEAF, DecisionTree, Forest
from p2pfl.learn.trees.tree_settings import Objective

OBJECTIVES: Mapping[Objective, tuple[str, str]] = {
    "logistic": ("binary:logistic", "reg_loss_param"),
    "softmax": ("multi:softprob", "softmax_multiclass_param"),
    "squared": ("reg:squarederror", "reg_loss_param"),
}
NO_PARENT = 2**31 - 1
VERSION = [1, 7, 0]


def with_base(forest: Forest) -> list[list[tuple[DecisionTree, list[float]]]]:
    """Return each tree with its nodes' values as float32, in the target's unit; the first have the base in them."""
    outputs = len(forest.base)
    rounds = forest.rounds or (tuple(DecisionTree.root() for _ in range(outputs)),)
    return [
        _valued(trees, forest.scale, [0.0] * outputs if place else forest.base) for place, trees in enumerate(rounds)
    ]


def _valued(
    trees: Sequence[DecisionTree], scale: float, bases: Sequence[float]
) -> list[tuple[DecisionTree, list[float]]]:
    return [
        (tree, (np.array(tree.values) * scale + base).astype(np.float32).tolist())
        for tree, base in zip(trees, bases, strict=True)
    ]


def to_xgboost(forest: Forest, schema: Schema) -> str:
    """Return the content of the file."""
    name, parameters = OBJECTIVES[forest.objective]
    softmax = forest.objective == "softmax"
    classes = str(len(forest.base) if softmax else 0)
    trees = [tree for trees in with_base(forest) for tree in trees]
    outputs, columns = len(forest.base), len(forest.grid.widths)
    model = {
        "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(len(trees))},
        "iteration_indptr": list(range(0, len(trees) + 1, outputs)),
        "tree_info": [place % outputs for place in range(len(trees))],
        "trees": [_tree(place, *each, forest.grid) for place, each in enumerate(trees)],
    }
    learner = {
        "attributes": {},
        "feature_names": [*schema.numeric, *schema.categories],
        "feature_types": ["float"] * len(schema.numeric) + ["c"] * len(schema.categories),
        "gradient_booster": {"model": model, "name": "gbtree"},
        "learner_model_param": {
            "base_score": "5E-1" if forest.objective == "logistic" else "0E0",
            "boost_from_average": "1",
            "num_class": classes,
            "num_feature": str(columns),
            "num_target": "1",
        },
        "objective": {"name": name, parameters: {"num_class": classes} if softmax else {"scale_pos_weight": "1"}},
    }
    return json.dumps({"learner": learner, "version": VERSION})


def _tree(place: int, tree: DecisionTree, values: list[float], grid: BinGrid) -> dict[str, Any]:
    numeric, nodes = len(grid.edges), range(len(tree))
    inner = [node for node in nodes if tree.columns[node] != LEAF]
    of_categories = [node for node in inner if tree.columns[node] >= numeric]
    conditions = list(values)
    parents = [NO_PARENT] * len(tree)
    for node in inner:
        column = tree.columns[node]
        conditions[node] = 0.0 if column >= numeric else grid.edges[column][tree.bins[node]]
        parents[tree.lefts[node]] = parents[tree.lefts[node] + 1] = node
    is_inner = [node in set(inner) for node in nodes]
    return {
        "base_weights": values,
        "categories": [tree.bins[node] for node in of_categories],
        "categories_nodes": of_categories,
        "categories_segments": list(range(len(of_categories))),
        "categories_sizes": [1] * len(of_categories),
        "default_left": [int(tree.missing_left[node] and is_inner[node]) for node in nodes],
        "id": place,
        "left_children": [tree.lefts[node] if is_inner[node] else -1 for node in nodes],
        "loss_changes": tree.gains,
        "parents": parents,
        "right_children": [tree.lefts[node] + 1 if is_inner[node] else -1 for node in nodes],
        "split_conditions": conditions,
        "split_indices": [max(0, column) for column in tree.columns],
        "split_type": [int(node in set(of_categories)) for node in nodes],
        "sum_hessian": tree.weights,
        "tree_param": {
            "num_deleted": "0",
            "num_feature": str(len(grid.widths)),
            "num_nodes": str(len(tree)),
            "size_leaf_vector": "1",
        },
    }
