from __future__ import annotations

import numpy as np

from p2pfl.learn.table import encode_inputs, encode_targets, make_schema

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
