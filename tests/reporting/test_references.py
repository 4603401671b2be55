"""What nodes learn without each other: alone, or with all data in one place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from p2pfl.config import TrainingConfig
from p2pfl.console.output import node_rows, reference_facts
from p2pfl.learn import ACCURACY, LOSS, NodeContext, QuadraticTask, RoundStart, Score, Task, learner_for, named
from p2pfl.reporting import (
    ModelScore,
    NodeReport,
    Point,
    References,
    Report,
    Statistic,
    alone,
    centralized,
    mean_score,
    of_alone,
    round_seconds,
)

TRAINING = TrainingConfig(rounds=4, local_steps=5, batch_size=8, learning_rate=0.5)


def halves(node):
    """Each node has one of two classes, so that alone it cannot tell them apart."""
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    mine = y == node.node
    return (x[mine], y[mine]), (x, y)


TASK = Task(model=lambda: torch.nn.Linear(2, 2), data=halves, metrics=named(["brier"]))


def learners(task=TASK, training=TRAINING):
    contexts = [NodeContext(node=node, nodes=2, name=f"n{node}", seed=0, base_dir=Path()) for node in range(2)]
    return [learner_for(task, context, training) for context in contexts]


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
    assert reference_facts(report)["each node alone, with its own data"] == "accuracy 0.6, worst 0.5"
    report.measures = [LOSS]
    assert reference_facts(report)["each node alone, with its own data"] == "loss 1.5, worst 2"
    assert "alone" not in node_rows([NodeReport(name="a")], report.measures)[0]
    assert of_alone([None]) is None


def own_tests(node):
    """Each node is tested on rows of its own class."""
    train, _ = halves(node)
    return train, train


def test_pooled_data_are_tested_on_the_test_sets_of_all_nodes():
    found = centralized(learners(Task(model=TASK.model, data=own_tests)), 4).one_node
    x, y = halves(NodeContext(node=0, nodes=2, name="", seed=0, base_dir=Path()))[1]
    losses = []
    for node in range(2):
        one = Task(model=TASK.model, data=lambda context, node=node: (halves(context)[0], (x[y == node], y[y == node])))
        losses.append(centralized(learners(one), 4).one_node.loss)
    assert losses[0] != losses[1]
    assert found.loss == pytest.approx(sum(losses) / 2)


def test_a_mean_over_test_sets_counts_nodes_and_leaves_out_what_is_not_defined():
    first = Score(accuracy=1.0, loss=0.0, samples=5, metrics={"auc": 0.5})
    second = Score(accuracy=0.0, loss=4.0, samples=9, metrics={"auc": float("nan")})
    found = mean_score([(first, 3), (None, 1), (second, 1)])
    assert (found.accuracy, found.loss, found.samples, found.metrics) == (0.75, 1.0, 14, {"auc": 0.5})
    assert mean_score([(second, 2)]) is second
    assert mean_score([]) is None


def test_a_schedule_by_time_sees_rounds_as_long_as_they_were():
    training = replace(TRAINING, schedule="cosine:time_s=9.0,warmup=8.0,to=1.0")
    still, warmed = (alone(learners(training=training)[0], 4, round_s) for round_s in (0.0, 2.0))
    assert abs(still.loss - learners()[0].evaluate(learners()[0].initial(), "test").loss) < 1e-3
    assert abs(still.loss - warmed.loss) > 5e-3
    one, other = (centralized(learners(training=training), 4, round_s=round_s).one_node for round_s in (0.0, 2.0))
    assert other.loss < one.loss


def test_a_schedule_is_stretched_over_as_many_steps_as_all_nodes_take():
    training = replace(TRAINING, schedule="cosine:rounds=1,to=0.1")
    found = centralized(learners(training=training), 4)
    losses = [point.loss for point in found.all_nodes.history]
    assert losses[0] - losses[1] > 3 * (found.one_node.history[0].loss - found.one_node.history[1].loss)


def test_a_round_took_what_the_history_says():
    def at(time_s, rounds):
        return Point(time_s=time_s, rounds=Statistic(mean=rounds, min=rounds, max=rounds))

    assert round_seconds([Point(time_s=0), at(2, 0), at(3, 0), at(7, 2), at(11, 4), at(20, 4)]) == 2
    assert round_seconds([]) == round_seconds([at(1, 0)]) == 0


def test_a_site_of_one_class_has_no_auc_and_the_mean_is_that_of_the_others():
    task = Task(model=TASK.model, data=own_tests, metrics=named(["auc"]))
    scores = [alone(one, 1) for one in learners(task)]
    assert [one.metrics for one in scores] == [{"auc": None}, {"auc": None}]
    scores[0].metrics = {"auc": 0.5}
    assert of_alone(scores).metrics["auc"].mean == 0.5
