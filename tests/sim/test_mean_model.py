"""What a report tells of the mean of the honest nodes' models: of that mean alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from p2pfl.config import TaskConfig
from sim import (
    NS,
    CrashSpec,
    Figures,
    LiarSpec,
    PreparedRun,
    WorldSpec,
    describe,
    distance,
    final_report,
    make_learners,
    mean_of,
    score_of_mean,
    script,
    settle,
    simulate,
)

BY_HAND = np.array([[1, 2], [3, 6], [100, 100], [5, 1]], np.float32)


def quadratic(nodes=6, *, rule="mean"):
    federation = describe(nodes=nodes, rounds=6, topology="complete", compressor="none", rule=rule, seed=1)
    training = replace(federation.training, local_steps=2, closing_rounds=0, learning_rate=0.1)
    task, gossip = TaskConfig(name="quadratic", options={"condition": 4.0}), replace(federation.gossip, linger_s=1.0)
    return replace(federation, task=task, training=training, gossip=gossip)


def digits(*, rule="mean", share=()):
    federation = describe(nodes=4, rounds=3, topology="complete", partition="classes:5", rule=rule, seed=2)
    training = replace(federation.training, local_steps=3, closing_rounds=0)
    gossip = replace(federation.gossip, share=share or ("*",), linger_s=1.0)
    return replace(federation, training=training, gossip=gossip)


def ended(federation, world):
    """Its report, and the stage with its models."""
    spec = settle(world, len(federation.members), federation.seed)
    liars = frozenset(spec.liars.nodes if spec.liars else ())
    given = script(federation, spec, make_learners(federation, liars=liars))
    figures = Figures(given)
    figures.stage = stage = PreparedRun(given, figures.committed)
    stage.world.run(until_ns=1000 * NS)
    return final_report(stage, figures, references=False), stage


def test_the_mean_is_that_of_the_nodes_asked_for_and_of_nobody_else():
    assert mean_of(BY_HAND, [0, 1, 3]).tolist() == [3.0, 3.0]
    assert mean_of(BY_HAND, [2]).tolist() == [100.0, 100.0]


def test_many_nodes_are_summed_in_parts():
    models = np.arange(2000, dtype=np.float32).reshape(1000, 2)
    assert mean_of(models, list(range(1000))).tolist() == [999.0, 1000.0]
    assert mean_of(models, list(range(0, 1000, 999))).tolist() == [999.0, 1000.0]


def test_the_distance_is_to_that_mean_over_its_length():
    assert distance(BY_HAND, [0, 1, 3]) == pytest.approx(((5 + 9 + 8) / 3) ** 0.5 / 18**0.5)


def test_the_score_is_that_of_the_mean_of_the_models():
    """Nodes 0 and 1 stand on either side of the optimum: each errs, their mean does not."""
    learners = make_learners(quadratic(2))
    optimum = learners.learners[0].optimum()
    models = np.stack([optimum - 1, optimum + 1]).astype(np.float32)
    apart = learners.evaluate(models, "test", np.array([0, 1]))
    found = score_of_mean(models, [0, 1], learners)
    assert found.loss == pytest.approx(learners.learners[0].evaluate(optimum, "test").loss, rel=1e-6)
    assert found.loss < min(score.loss for score in apart) - 0.1


@pytest.mark.long
@pytest.mark.parametrize("federation", [quadratic(), digits()], ids=["quadratic", "digits"])
def test_a_report_scores_the_mean_of_the_honest_who_came_to_their_end(federation):
    world = WorldSpec(crashes=(CrashSpec(nodes=(1,), at_s=0.02),), liars=LiarSpec(attack="constant:0.1", nodes=(3,)))
    report, stage = ended(federation, world)
    assert (report.died, report.byzantine) == (["node1"], ["node3"])
    kept = [node for node in range(stage.nodes) if node not in {1, 3}]
    mean = np.mean([stage.models()[node].astype(np.float64) for node in kept], axis=0).astype(np.float32)
    score = stage.script.learners.learners[0].evaluate(mean, "test")
    found = report.mean_model
    assert (found.accuracy, found.loss) == pytest.approx((score.accuracy, score.loss), nan_ok=True)


def test_a_task_without_accuracy_has_the_loss_alone():
    found = simulate(quadratic(), references=False).mean_model
    assert found.accuracy is None
    assert found.loss > 0


def test_there_is_none_where_nobody_came_to_the_end():
    report = simulate(quadratic(), world=WorldSpec(limit_s=0.01), references=False)
    assert report.mean_model is None


def test_there_is_none_where_each_node_keeps_a_part_of_the_model():
    report = simulate(digits(share=("1.*",)), references=False)
    assert report.mean_model is None
    assert report.accuracy is not None
