"""`p2pfl score`: what a model is worth on a labelled table, and what cannot be scored."""

from __future__ import annotations

import csv
import io
import json
import os

import numpy as np
import pytest
from safetensors.numpy import save_file

from p2pfl.learn import area, wilson
from p2pfl.learn.table import make_schema, preprocessing_of

PAIR = {"target": "num", "numeric": ["age"], "positive": ["1", "2"], "negative": ["0"], "indicators": False}
THREE = {"target": "num", "numeric": ["age"], "classes": ["a", "b", "c"], "indicators": False}
NUMBER = {
    "target": "num",
    "numeric": ["age"],
    "indicators": False,
    "means": {"num": 10.0},
    "stds": {"num": 2.0},
}


@pytest.fixture
def model(tmp_path):
    """Writes the file of a linear model of `age`, as `p2pfl export` would."""

    def write(schema, weight, name="model.safetensors"):
        found = make_schema(schema, prefix="")
        said = json.dumps(preprocessing_of(found, {"*": ["n.d."]}, ["1"]))
        state = {"1.weight": np.array(weight, np.float32), "1.bias": np.zeros(len(weight), np.float32)}
        save_file(state, tmp_path / name, {"preprocessing": said})
        return name

    return write


def write(path, rows, head="age,num"):
    path.write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")
    return path.name


@pytest.fixture
def pair(model):
    return model(PAIR, [[-1.0], [1.0]])


def test_a_table_kept_for_testing_is_scored_with_intervals(p2pfl, pair, tmp_path):
    table = write(tmp_path / "test.csv", ["3,1", "2,2", "1,1", "-1,1", "-2,0", "-3,0", "-4,0", "5,0", "6,"])
    outcome = p2pfl("score", pair, table, "--format", "json")
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    assert (found["rows"], found["classes"]) == (8, {"negative": 4, "positive": 4})
    assert "1 row without a target is left out" in outcome.err
    by_name = {row["metric"]: row for row in found["metrics"]}
    assert by_name["accuracy"]["value"] == pytest.approx(6 / 8)
    assert (by_name["accuracy"]["low"], by_name["accuracy"]["high"]) == pytest.approx(wilson(6 / 8, 8))
    assert by_name["auc"]["value"] == pytest.approx(12 / 16)
    assert (by_name["auc"]["low"], by_name["auc"]["high"]) == pytest.approx(area(12 / 16, 4, 4))
    assert next(iter(by_name)) == "auc", "the main one first"


def test_it_prints_as_a_table_and_as_csv(p2pfl, pair, tmp_path):
    table = write(tmp_path / "test.csv", ["3,1", "2,2", "-2,0", "-3,0"])
    shown = p2pfl("score", pair, table).out
    assert "negative 2, positive 2" in shown
    assert "accuracy" in shown
    rows = list(csv.DictReader(io.StringIO(p2pfl("score", pair, table, "--format", "csv").out)))
    assert {"metric", "value", "low", "high", "rows"} <= rows[0].keys()
    assert all(float(row["low"]) <= float(row["value"]) <= float(row["high"]) for row in rows)


def test_several_classes_and_numbers_are_scored_too(p2pfl, model, tmp_path):
    three = model(THREE, [[-1.0], [0.0], [1.0]])
    table = write(tmp_path / "three.csv", ["-2,a", "-1,a", "2,c", "3,c", "-1,b", "1,b"])
    found = json.loads(p2pfl("score", three, table, "--format", "json").out)
    assert found["classes"] == {"a": 2, "b": 2, "c": 2}
    number = model(NUMBER, [[1.0]], "number.safetensors")
    table = write(tmp_path / "number.csv", ["1,12", "2,15", "0,10", "-1,7"])
    found = json.loads(p2pfl("score", number, table, "--format", "json").out)
    assert found["classes"] is None
    by_name = {row["metric"]: row["value"] for row in found["metrics"]}
    assert by_name["mae"] == pytest.approx(0.5), "in the target's unit"


def test_of_one_class_the_area_is_not_defined_and_that_is_said(p2pfl, pair, tmp_path):
    outcome = p2pfl("score", pair, write(tmp_path / "one.csv", ["3,1", "-2,1"]), "--format", "json")
    assert outcome.code == 0
    assert "every row has the class 'positive'" in outcome.err
    assert "AUC" in outcome.err
    by_name = {row["metric"]: row for row in json.loads(outcome.out)["metrics"]}
    assert by_name["auc"]["value"] is by_name["auc"]["low"] is None
    assert by_name["accuracy"]["value"] == 0.5
    assert p2pfl("score", pair, "one.csv").code == 0


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["age", "3"], ["line 1", "'num'", "age"]),
        (["age,num", "3,1", "2,7"], ["line 3", "num", "'7'", "1, 2, 0"]),
        (["age,num"], ["no rows"]),
        (["age,num", "3,", "2,n.d."], ["no row of the table has a target"]),
        (["num", "1"], ["no column of the schema"]),
    ],
)
def test_a_table_that_cannot_be_scored_is_one_error(p2pfl, pair, tmp_path, lines, said):
    outcome = p2pfl("score", pair, write(tmp_path / "bad.csv", lines[1:], lines[0]))
    assert outcome.code == 2
    assert "bad.csv" in outcome.err
    for words in said:
        assert words in outcome.err
    assert outcome.out == ""


def test_what_is_no_model_of_tables_is_one_error(p2pfl, pair, learned, tmp_path):
    table = write(tmp_path / "test.csv", ["3,1", "-3,0"])
    (tmp_path / "model.onnx").write_bytes(b"any")
    (tmp_path / "junk.safetensors").write_bytes(b"any")
    for model, said in (
        (learned / "node0", "is not of a csv task"),
        ("model.onnx", "onnxruntime"),
        ("junk.safetensors", "not a safetensors file"),
        ("nothing", "nothing"),
    ):
        outcome = p2pfl("score", model, table)
        assert outcome.code == 2, outcome.err
        assert said in outcome.err
    assert p2pfl("score", pair, "none.csv").code == 2


@pytest.mark.parametrize("said", ["[" * 100_000, '{"\x1b[2J": 1}', "[]", "\x1b[2J"])
def test_whatever_a_model_s_metadata_say_it_is_read_or_refused_in_a_sentence(p2pfl, tmp_path, said):
    """A model may come from others."""
    save_file({"1.bias": np.zeros(2, np.float32)}, tmp_path / "other.safetensors", {"preprocessing": said})
    outcome = p2pfl("predict", "other.safetensors", write(tmp_path / "test.csv", ["3,1"]))
    assert outcome.code == 2
    assert all(line.isprintable() for line in outcome.err.splitlines())


@pytest.mark.parametrize("command", ["predict", "score", "evaluate"])
def test_a_pipe_a_device_or_a_folder_is_refused_at_once(p2pfl, pair, tmp_path, command):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    table = [] if command == "evaluate" else [write(tmp_path / "test.csv", ["3,1", "-3,0"])]
    for path in ("pipe", "/dev/zero", "folder"):
        outcome = p2pfl(command, path, *table)
        assert (outcome.code, outcome.err.count("\n")) == (2, 1), outcome.err
        if table:
            assert p2pfl(command, pair, path).code == 2
