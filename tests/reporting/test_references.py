"""What nodes learn without each other: alone, or with all data in one place."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from p2pfl.cli.output import node_rows, reference_facts
from p2pfl.config.model import TrainingConfig
from p2pfl.learn.interface import RoundStart
from p2pfl.learn.load import learner_for
from p2pfl.learn.metrics import ACCURACY, LOSS, named
from p2pfl.learn.quadratic import QuadraticTask
from p2pfl.learn.task import NodeContext, Task
from p2pfl.reporting.history import ModelScore, References
from p2pfl.reporting.references import alone, centralized, of_alone
from p2pfl.reporting.report import NodeReport, Report

TRAINING = TrainingConfig(rounds=4, local_steps=5, batch_size=8, learning_rate=0.5)


def halves(node):
    """Each node has one of two classes, so that alone it cannot tell them apart."""
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    mine = y == node.node
    return (x[mine], y[mine]), (x, y)


TASK = Task(model=lambda: torch.nn.Linear(2, 2), data=halves, metrics=named(["brier"]))


def learners(task=TASK):
    contexts = [NodeContext(node=node, nodes=2, name=f"n{node}", seed=0, base_dir=Path()) for node in range(2)]
    return [learner_for(task, context, TRAINING) for context in contexts]


def test_a_node_alone_goes_on_from_its_own_model():
    learner, same = learners()[0], learners()[0]
    model = same.initial()
    for index in range(3):
        model = same.train(RoundStart(model), index).vector
    found, expected = alone(learner, 3), same.evaluate(model, "test")
    assert (found.accuracy, found.loss, found.metrics) == (expected.accuracy, expected.loss, expected.metrics)


def test_pooled_data_teach_what_no_node_can_know():
    both = learners()
    found = centralized(both, 4)
    assert (found.one_node.steps, found.all_nodes.steps) == (20, 40)
    single = alone(both[0], 4)
    assert found.all_nodes.accuracy > 0.9
    assert single.accuracy < 0.7
    assert found.all_nodes.metrics["brier"] < single.metrics["brier"]


def test_a_task_without_torch_is_alone_too():
    context = NodeContext(node=1, nodes=2, name="n1", seed=0, base_dir=Path())
    assert alone(learner_for(QuadraticTask(), context, TRAINING), 3).loss > 0


def test_the_end_of_a_run_shows_them_beside_what_the_nodes_have_learned():
    scores = [ModelScore(accuracy=0.5, loss=2.0), ModelScore(accuracy=0.7, loss=1.0), None]
    nodes = [NodeReport(name=str(place), accuracy=0.9, alone=one) for place, one in enumerate(scores)]
    report = Report(nodes=nodes, measures=[ACCURACY, LOSS], reference=References(alone=of_alone(scores)))
    assert [row["alone"] for row in node_rows(nodes, report.measures)] == [0.5, 0.7, None]
    assert list(node_rows(nodes, report.measures)[0])[4:6] == ["accuracy", "alone"]
    assert reference_facts(report) == {"each node alone, with its own data": "accuracy 0.6, worst 0.5"}
    report.measures = [LOSS]
    assert reference_facts(report) == {"each node alone, with its own data": "loss 1.5, worst 2"}
    assert "alone" not in node_rows([NodeReport(name="a")], report.measures)[0]
    assert of_alone([None]) is None


def test_each_node_alone_in_a_simulation_is_as_its_learner_alone():
    from sim.learning.batched import BatchedLearners  # noqa: PLC0415 - slow
    from sim.learning.references import alone as all_alone  # noqa: PLC0415 - slow

    class Said:
        training = TRAINING

    found = all_alone(Said, BatchedLearners(learners(), batching=False))
    assert [one.accuracy for one in found] == pytest.approx([alone(one, 4).accuracy for one in learners()])
