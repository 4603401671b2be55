from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from p2pfl.config import TaskConfig, TrainingConfig
from p2pfl.errors import UserError
from p2pfl.learn import RoundStart, learner_for, load_task
from p2pfl.learn.table import csv_table

OPTIONS = {
    "target": "state",
    "numeric": ["age", "dose"],
    "categories": {"ward": ["a", "b"]},
    "classes": ["ill", "well"],
    "means": {"age": 60.0},
    "stds": {"age": 10.0},
}
TABLE = """name,age,dose,ward,state
x,70,1.5,a,ill
y,,-2,b,well
z,50,NA,,ill
"""


@pytest.fixture
def table(tmp_path, context):
    """Make a learner from the text of a table."""

    def make(text, test=None, node=0, nodes=1, **changes):
        path = tmp_path / "mine.csv"
        path.write_text(text)
        local = {"path": path}
        if test is not None:
            local["test_path"] = tmp_path / "test.csv"
            local["test_path"].write_text(test)
        place = context(local=local, node=node, nodes=nodes)
        return learner_for(csv_table(**{**OPTIONS, **changes}), place, TrainingConfig(local_steps=50))

    return make


def test_the_order_of_columns_in_a_nodes_own_file_does_not_matter(table):
    turned = "\n".join(",".join(reversed(line.split(","))) for line in TABLE.splitlines())
    np.testing.assert_array_equal(table(turned).train_set.inputs, table(TABLE).train_set.inputs)


def test_the_schema_and_not_the_table_decides_what_may_be_mixed(table):
    digest = table(TABLE).shape_digest
    assert table("\n".join(TABLE.splitlines()[:2])).shape_digest == digest
    assert table(TABLE, numeric=["age"]).shape_digest != digest


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_a_classification_is_learned(table, model):
    rng = np.random.default_rng(0)
    ages = rng.normal(60, 10, 200)
    lines = [f"{age:.3f},0,a,{'ill' if age > 60 else 'well'}" for age in ages]
    text = "\n".join(["age,dose,ward,state", *lines])
    learner = table(text, test=text, model=model)
    vector = learner.initial()
    for round_index in range(4):
        vector = learner.train(RoundStart(vector), round_index).vector
    assert learner.evaluate(vector, "test").accuracy > 0.95


def test_a_regression_is_learned(table):
    rng = np.random.default_rng(0)
    rows = [f"{age:.3f},{dose:.3f},a,{2 * dose + 1:.3f}" for age, dose in rng.normal([60, 0], [10, 1], (100, 2))]
    learner = table("\n".join(["age,dose,ward,state", *rows]), classes=None)
    outcome = learner.train(RoundStart(learner.initial()), 0)
    score = learner.evaluate(outcome.vector, "local")
    assert score.accuracy is None
    assert score.loss < 0.1


def test_a_declared_value_is_a_value_even_if_it_reads_like_a_missing_one(table):
    learner = table("age,dose,ward,state\n1,1,none,ill\n", categories={"ward": ["a", "none"]})
    assert learner.train_set.inputs[0, -2:].tolist() == [0, 1]


def test_values_of_a_federation_file_may_be_numbers():
    options = {"target": "y", "numeric": ["a"], "categories": {"w": [1, 2]}, "classes": [0, 1], "means": {"a": 60}}
    assert load_task(TaskConfig(name="csv", options=options), Path()).name == "csv"


def test_a_table_of_the_nodes_own_is_not_partitioned_unless_asked_for(table):
    assert table(TABLE, nodes=3).samples == 3
    assert table(TABLE, nodes=3, partition="iid").samples == 1


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        (TABLE.replace("b,well", "c,well"), ["line 3", "'ward'", "'c'", "a, b"]),
        (TABLE.replace("a,ill", "a,dead"), ["line 2", "'state'", "'dead'", "ill, well"]),
        (TABLE.replace("dose", "doze"), ["line 1", "lacks this column", "'dose'", "doze"]),
        (TABLE.replace("name", "age"), ["line 1", "twice"]),
        (TABLE.splitlines()[0], ["no rows"]),
    ],
)
def test_a_wrong_table_is_refused_with_file_row_column_and_value(table, text, texts):
    with pytest.raises(UserError) as caught:
        table(text)
    assert caught.value.file.endswith("mine.csv")
    for part in texts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"numeric": [], "categories": {}, "means": {}, "stds": {}}, "task.numeric"),
        ({"numeric": ["age", "age"]}, "task"),
        ({"target": "age"}, "task"),
        ({"categories": {"ward": ["a"]}}, "task.categories.ward"),
        ({"classes": ["ill", "ill"]}, "task.classes"),
        ({"means": {"weight": 1.0}}, "task.means"),
        ({"stds": {"age": 0.0}}, "task.stds.age"),
        ({"hidden": 0}, "task.hidden"),
        ({"partition": "some"}, "task.partition"),
    ],
)
def test_a_schema_that_makes_no_sense_is_refused(changes, key):
    with pytest.raises(UserError) as caught:
        csv_table(**{**OPTIONS, **changes})
    assert caught.value.key == key


SCHEMA_FILE = """
target = "state"
numeric = ["age", "dose"]
classes = ["ill", "well"]
[categories]
ward = ["a", "b"]
[means]
age = 60.0
[stds]
age = 10.0
[missing]
dose = [-2]
"""


@pytest.fixture
def by_file(tmp_path, context):
    """The learner of a node whose schema is in a file."""

    def make(text=SCHEMA_FILE, **options):
        (tmp_path / "schema.toml").write_text(text, encoding="utf-8")
        (tmp_path / "mine.csv").write_text(TABLE)
        config = TaskConfig(name="csv", options={"schema": "schema.toml"} | options)
        task = load_task(config, tmp_path, file=tmp_path / "federation.toml")
        return learner_for(task, context(local={"path": tmp_path / "mine.csv"}), TrainingConfig())

    return make


def test_a_schema_in_a_file_says_the_same_and_nodes_compare_its_digest(by_file, table):
    learner = by_file()
    np.testing.assert_array_equal(learner.train_set.inputs[0], table(TABLE).train_set.inputs[0])
    assert learner.train_set.inputs[1].tolist() == [0, 1, 0, 1, 0, 1]
    assert table(TABLE).digest == b""
    assert len(learner.digest) == 32
    assert learner.digest == by_file(SCHEMA_FILE + "# a comment\n").digest
    assert learner.digest != by_file(SCHEMA_FILE.replace("60.0", "61.0")).digest


def test_the_rows_that_are_held_out_are_the_nodes_own_test(by_file):
    learner = by_file(holdout=0.5)
    assert learner.samples + len(learner.test_set.targets) == 3
    assert by_file().test_set is None


def test_balanced_weights_count_a_rare_class_as_much_as_a_common_one(by_file):
    counts = SCHEMA_FILE + "[class_counts]\nill = 10\nwell = 90\n"
    loss = by_file(counts, class_weights="balanced").task.loss
    outputs = torch.zeros(1, 2)
    ill, well = (float(loss(outputs, torch.tensor([place]))) for place in (0, 1))
    assert ill == pytest.approx(9 * well)
    told = by_file(class_weights={"ill": 3.0}).task.loss
    assert float(told(outputs, torch.tensor([0]))) == pytest.approx(3 * np.log(2))


def test_a_tables_metrics_are_those_of_its_target(by_file, table):
    assert by_file().task.metric == "auc"
    assert by_file(metrics=["f1"], metric="brier").task.metrics.keys() == {"f1", "brier"}
    several = table(TABLE, classes=["ill", "well", "dead"]).task
    assert several.metric == "balanced_accuracy"


def test_a_regressions_metrics_are_in_the_targets_unit(table):
    text = "age,dose,ward,state\n60,1,a,120\n61,2,b,80\n"
    learner = table(text, classes=None, means={"state": 100.0}, stds={"state": 10.0})
    vector = np.zeros(learner.size, dtype=np.float32)
    assert learner.task.metric == "rmse"
    assert learner.evaluate(vector, "local").metrics["mae"] == pytest.approx(20)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"target": "other"}, "task.target"),
        ({"schema": "none.toml"}, "task.schema"),
        ({"schema": "agreed"}, "task.schema"),
        ({"holdout": 1.0}, "task.holdout"),
        ({"holdout": 0.2, "test_path": "t.csv"}, "task.holdout"),
        ({"class_weights": "balanced"}, "task.class_weights"),
        ({"class_weights": {"dead": 2.0}}, "task.class_weights.dead"),
        ({"metrics": ["rmse"]}, "task.metrics"),
        ({"metrics": ["auk"]}, "task.metrics"),
        ({"metric": "r2"}, "task.metrics"),
        ({"hidden": [4, 0]}, "task.hidden"),
        ({"hiden": 4}, "task.hiden"),
        ({"model": "tree"}, "task.model"),
        ({"base_dir": "x"}, "task.base_dir"),
        ({"positive": ["ill"]}, "task.classes"),
    ],
)
def test_options_that_do_not_fit_are_refused(by_file, changes, key):
    with pytest.raises(UserError) as caught:
        by_file(**changes)
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("numeric", "numerics", "numerics"),
        ('["ill", "well"]', '["ill"]', "classes"),
        ('["ill", "well"]', '["1", "1.0"]', "classes"),
        ('"dose"]', '"dose", "ward"]', ""),
    ],
)
def test_a_schema_file_that_makes_no_sense_is_named(by_file, old, new, key):
    with pytest.raises(UserError) as caught:
        by_file(SCHEMA_FILE.replace(old, new))
    assert caught.value.file.endswith("schema.toml")
    assert (caught.value.key or "") == key
