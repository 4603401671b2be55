"""With `local_epochs` and unequal data rounds differ in steps, and may differ in time: what ends at the optimum.

Steps are short, because within a long one each node drifts to its own optimum, which no weight of rounds takes back.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from p2pfl.config import TaskConfig
from p2pfl.learn import NodeContext, QuadraticLearner, QuadraticTask
from sim import ComputeSpec, WorldSpec, describe, simulate

IN_STEP, APART = ComputeSpec(round_s=0.05), ComputeSpec(step_s=0.005)
"""All rounds take as long as each other; or each as long as its steps do."""


def excess(method, compute, correction=1.0):
    """How far the worst of four nodes, with 5 to 40 steps a round, ends above the optimum."""
    plain = describe(nodes=4, topology="ring", rounds=100, rule="mean", compressor="none", seed=1, method=method)
    options = {"size": 8, "condition": 4.0, "samples": [50, 100, 200, 400]}
    keys = {"local_steps": None, "local_epochs": 1, "batch_size": 10, "learning_rate": 0.003, "evaluate_every": 0}
    training = replace(plain.training, **keys, speed_correction=correction)
    federation = replace(plain, task=TaskConfig(name="quadratic", options=options), training=training)
    report = simulate(federation, world=WorldSpec(compute=compute, evaluate_every_s=1e4), references=False)
    learner = QuadraticLearner(
        QuadraticTask(**options), NodeContext(node=0, nodes=4, name="node0", seed=1, base_dir=Path()), training
    )
    return max(row.test_loss for row in report.nodes) - learner.evaluate(learner.optimum(), "test").loss


@pytest.mark.long
@pytest.mark.parametrize("compute", [IN_STEP, APART])
def test_a_correction_by_the_clock_is_right_however_rounds_differ(compute):
    """FedNova, arXiv 2007.07481, counts rounds alike; without a server that is right only where nodes are in step."""
    assert excess("plain", compute, 20.0) < 0.01
    assert excess("variate:beta=0.1", compute) < 0.01


@pytest.mark.long
def test_without_it_a_node_with_more_steps_in_a_round_counts_for_more():
    assert excess("plain", IN_STEP) > 0.03
