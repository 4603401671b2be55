from __future__ import annotations

import numpy as np
import pytest

from p2pfl.learn.table.encoding import encode_inputs, encode_targets, held_out
from p2pfl.learn.table.schema import make_schema

NAN = float("nan")


def test_an_input_for_each_number_each_gap_and_each_value():
    schema = make_schema(
        {"target": "y", "numeric": ["a"], "categories": {"w": ["x", "z"]}, "means": {"a": 1.0}, "stds": {"a": 2.0}}
    )
    columns = {"a": np.array([3.0, NAN]), "w": np.array([1.0, NAN]), "y": np.array([5.0, 6.0])}
    assert schema.inputs == ("a", "a is missing", "w = x", "w = z")
    assert encode_inputs(columns, schema).tolist() == [[1, 0, 0, 1], [0, 1, 0, 0]]
    assert encode_targets(columns, schema).tolist() == [[5], [6]]
    without = make_schema(schema.contents() | {"indicators": False})
    assert encode_inputs(columns, without).tolist() == [[1, 0, 1], [0, 0, 0]]


@pytest.mark.parametrize("share", [0.1, 0.2, 0.3, 0.5, 0.75])
def test_of_each_class_the_share_is_held_out_and_rows_that_are_appended_move_none(share):
    labels = np.random.default_rng(0).integers(0, 3, 400)
    kept = held_out(labels, share, seed=1, node=2)
    for label in range(3):
        of_class = kept[labels == label]
        assert abs(of_class.sum() - share * len(of_class)) <= 1
    np.testing.assert_array_equal(held_out(labels[:250], share, seed=1, node=2), kept[:250])
    assert not np.array_equal(held_out(labels, share, seed=1, node=3), kept)
