"""Nodes that test on few rows of their own: their figures have intervals, and references say that they tell nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from p2pfl import Federation, Task
from p2pfl.console.output import node_rows, reference_facts
from p2pfl.learn import named

TEST_ROWS = 14


def data(node):
    """The same question at each node; `TEST_ROWS` rows for its own test."""
    rng = np.random.default_rng(node.node)
    x = torch.tensor(rng.normal(size=(60 + TEST_ROWS, 3)), dtype=torch.float32)
    y = (x[:, 0] + 0.3 * torch.tensor(rng.normal(size=len(x))) > 0).long()
    return (x[TEST_ROWS:], y[TEST_ROWS:]), (x[:TEST_ROWS], y[:TEST_ROWS])


def linear():
    return torch.nn.Linear(3, 2)


TASK = Task(model=linear, data=data, metrics=named(["auc", "brier"]), metric="auc")


@pytest.fixture(scope="module")
def report():
    return Federation(task=TASK, nodes=3, rounds=5, start_wait_s=20.0).run(references=True)


@pytest.mark.long
def test_each_node_has_the_intervals_of_its_own_test_rows(report):
    for node in report.nodes:
        assert node.test_samples == TEST_ROWS
        assert node.intervals.keys() == {"accuracy", "auc", "brier"}
        for name, value in {"accuracy": node.accuracy, **node.metrics}.items():
            low, high = node.intervals[name]
            assert low <= value <= high
        low, high = node.intervals["auc"]
        assert high - low > 0.1, "14 rows tell little"
    low, high = report.intervals["auc"]
    assert low <= report.metrics["auc"].mean <= high
    (row,) = [row for row in node_rows(report.nodes, report.measures) if row["node"] == report.nodes[0].name]
    assert " to " in row["95% interval"]


@pytest.mark.long
def test_references_say_that_few_rows_do_not_show_which_is_better(report):
    facts = reference_facts(report)
    assert "does not show which is better" in facts["together beside alone"]
    assert "does not show which is better" in facts["together beside all data in one place"]


@pytest.mark.long
def test_a_private_node_tells_neither_intervals_nor_how_many_rows_it_tests_on():
    pytest.importorskip("opacus", reason="the extra privacy")
    privacy = {"epsilon": 50, "delta": 1e-3}
    report = Federation(task=TASK, nodes=2, rounds=2, start_wait_s=20.0, privacy=privacy).run()
    assert all(node.intervals == {} and node.test_samples is None for node in report.nodes)
    assert report.intervals == {}
    assert "95% interval" not in node_rows(report.nodes, report.measures)[0]
    public = Federation(task=TASK, nodes=2, rounds=2, start_wait_s=20.0, privacy=privacy | {"test_set": "public"}).run()
    assert all(node.intervals.keys() == {"accuracy", "auc", "brier"} for node in public.nodes)
