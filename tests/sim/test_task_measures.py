"""A simulated run is measured by its task's own metrics: at each node, over time, and beside its references."""

from __future__ import annotations

import pytest
import torch

from p2pfl import Federation, Task
from p2pfl.learn import named
from sim import simulate


def rows(count, seed):
    x = torch.randn(count, 3, generator=torch.Generator().manual_seed(seed))
    return x, (x @ torch.tensor([1.0, -2.0, 3.0])).sign().clamp(0).long()


def classified(node):
    """Node 0 has one class alone, for which no AUC is defined."""
    x, y = rows(30, node.node)
    mine = y == 0 if node.node == 0 else torch.ones(len(y), dtype=torch.bool)
    return (x[mine], y[mine]), rows(50, 99)


def simulated(*, references=True, **task):
    task = {"model": lambda: torch.nn.Linear(3, 2), "data": classified} | task
    return simulate(Federation(task=Task(**task), nodes=3, rounds=3, learning_rate=0.1), references=references)


@pytest.fixture(scope="module")
def report():
    return simulated(metrics=named(["auc", "brier"]), metric="auc")


@pytest.mark.long
def test_a_task_of_two_classes_is_measured_by_its_auc(report):
    assert [one.name for one in report.measures] == ["auc", "accuracy", "brier", "loss"]
    assert report.metrics["auc"].min == min(node.metrics["auc"] for node in report.nodes) > 0.5
    assert report.history[-1].metrics["auc"].is_finite
    assert report.mean_model.metrics["auc"] > 0.5
    assert report.reference.fedavg.metrics["auc"] > 0.5
    assert report.reference.centralized.one_node.metrics["auc"] > 0.5


def test_a_local_metric_is_over_the_nodes_for_whom_it_is_defined(report):
    assert report.nodes[0].local_metrics["auc"] is None
    assert report.local_metrics["auc"].is_finite


@pytest.mark.long
def test_one_odds_of_class_one_has_an_accuracy_where_that_is_asked_for():
    def loss(outputs, targets):
        return torch.nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], targets.float())

    report = simulated(model=lambda: torch.nn.Linear(3, 1), loss=loss, metrics=named(["accuracy"]), references=False)
    assert report.main_measure.name == "accuracy"
    assert report.accuracy.min == pytest.approx(min(node.metrics["accuracy"] for node in report.nodes))
