"""Each mistake in the settings is one clear error."""

from __future__ import annotations

import pytest
from tree_world import schema_of

from p2pfl.errors import UserError
from p2pfl.learn.trees import tree_settings


@pytest.mark.parametrize(
    ("options", "classes", "text"),
    [
        ({"depth": 3}, 2, "depth"),
        ({"bins": 1}, 2, "task.bins"),
        ({"bins": 256}, 2, "task.bins"),
        ({"rounds": 0}, 2, "training.rounds"),
        ({"eta": float("nan")}, 2, "task.eta"),
        ({"max_depth": "six"}, 2, "max_depth"),
        ({"least_rows": 0}, 2, "task.least_rows"),
        ({"class_weights": "equal"}, 2, "class_weights"),
        ({"class_weights": [1.0]}, 2, "a weight for each class"),
        ({"class_weights": [1.0, float("inf")]}, 2, "a weight for each class"),
        ({"class_weights": "balanced"}, 0, "no classes"),
    ],
)
def test_a_mistake_is_named(options, classes, text):
    with pytest.raises(UserError, match=text):
        tree_settings(schema_of(2, classes=classes), options)


def test_too_many_columns_or_values_for_one_sum_are_refused():
    tree_settings(schema_of(408), {})
    for schema in (schema_of(409), schema_of(300, categories=(3000,))):
        with pytest.raises(UserError, match="do not fit in one sum"):
            tree_settings(schema, {})
    with pytest.raises(UserError, match="at most 119 numeric"):
        tree_settings(schema_of(408), {"bins": 255})


@pytest.mark.parametrize(
    ("classes", "objective", "outputs"), [(0, "squared", 1), (2, "logistic", 1), (3, "softmax", 3)]
)
def test_the_target_decides_what_is_learned(classes, objective, outputs):
    found = tree_settings(schema_of(2, classes=classes), {})
    assert (found.objective, found.outputs) == (objective, outputs)
