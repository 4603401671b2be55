from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import softmax

from p2pfl.config import TrainingConfig
from p2pfl.errors import UserError
from p2pfl.learn import learner_for, with_torch
from p2pfl.learn.table import TableModel, csv_table, make_layout, read_preprocessing, read_table, to_onnx

OPTIONS = {
    "target": "state",
    "numeric": ["age", "dose"],
    "categories": {"ward": ["a", "b"], "cp": [1, 2, 3]},
    "classes": ["ill", "well", "dead"],
    "means": {"age": 60.0},
    "stds": {"age": 10.0},
}
ROWS = "age,dose,ward,cp,state\n70,1.5,a,1,ill\n,-2,b,2.0,well\n50,NA,,3,ill\n41,3,new,9,dead\n"


@pytest.fixture
def trained(tmp_path, context):
    """A learner of such a table and its model outside."""

    def make(**changes):
        given = {key: value for key, value in (OPTIONS | {"unseen": "missing"} | changes).items() if value is not None}
        text = ROWS
        for number, name in enumerate(OPTIONS["classes"]):
            text = text if "classes" in given else text.replace(name, str(number))
        (tmp_path / "mine.csv").write_text(text)
        place = context(local={"path": tmp_path / "mine.csv"})
        learner = with_torch(learner_for(csv_table(**given), place, TrainingConfig()))
        vector = np.random.default_rng(0).standard_normal(learner.size).astype(np.float32)
        model = TableModel.of(learner.task.preprocessing, learner.state_dict(vector))
        table = read_table(tmp_path / "mine.csv", model.schema, make_layout({}, {}), scoring=True)
        with torch.no_grad():
            outputs = learner.model.module(learner.train_set.inputs).numpy()
        return learner, model, table, outputs

    return make


@pytest.mark.parametrize("changes", [{}, {"model": "mlp", "hidden": [5, 4]}, {"indicators": False}])
def test_rows_are_scored_outside_as_the_learner_would(trained, changes):
    _, model, table, outputs = trained(**changes)
    scores = model.scores(table)
    np.testing.assert_allclose(
        np.transpose([scores[f"p({name})"] for name in model.schema.classes]), softmax(outputs, axis=1), rtol=1e-4
    )
    assert scores["prediction"] == [model.schema.classes[place] for place in outputs.argmax(axis=1)]


def test_a_regression_is_scored_in_the_targets_unit(trained):
    _, model, table, outputs = trained(classes=None, means={"state": 100.0}, stds={"state": 10.0})
    np.testing.assert_allclose(model.scores(table)["prediction"], outputs[:, 0] * 10 + 100, rtol=1e-5)


@pytest.mark.parametrize("changes", [{}, {"model": "mlp", "hidden": 5}, {"indicators": False}, {"classes": None}])
def test_the_onnx_graph_takes_raw_rows_and_says_the_same(trained, changes):
    runtime = pytest.importorskip("onnxruntime")
    _, model, table, _ = trained(**changes)
    session = runtime.InferenceSession(to_onnx(model, {"software": "test"}), providers=["CPUExecutionProvider"])
    rows = {
        "age": np.array([[70], [np.nan], [50], [41]], np.float32),
        "dose": np.array([[1.5], [-2], [np.nan], [3]], np.float32),
        "ward": np.array([["a"], ["b"], [""], ["new"]], dtype=object),
        "cp": np.array([[1], [2], [3], [9]], np.float32),
    }
    found = session.run(None, rows)
    scores = model.scores(table)
    if model.schema.classes is None:
        np.testing.assert_allclose(found[0][:, 0], scores["prediction"], rtol=1e-4)
    else:
        assert found[0].tolist() == scores["prediction"]
        np.testing.assert_allclose(found[1][:, 1], scores["p(well)"], rtol=1e-4)


def test_words_and_weights_that_do_not_belong_together_are_refused(trained):
    learner, model, _, _ = trained()
    state = learner.state_dict(learner.initial())
    given = dict(learner.task.preprocessing)
    for wrong in ({}, given | {"layers": ["7"]}, given | {"layers": []}, given | {"schema": []}):
        with pytest.raises(UserError):
            TableModel.of(wrong, state)
    narrower = given | {"schema": model.schema.contents() | {"numeric": ["age"]}}
    with pytest.raises(UserError, match="do not fit"):
        TableModel.of(narrower, state)
    assert read_preprocessing("no json") is None
    assert read_preprocessing('{"kind": "table", "format": 2}') is None
