"""Plans and learners whose rounds are private, with chance from a seed unless it is to be secret."""

from __future__ import annotations

import pytest
import torch

from p2pfl.config import RECORD, TrainingConfig
from p2pfl.learn import Task, learner_for
from p2pfl.learn.privacy import Plan, Protection, Seeded

torch.set_num_threads(1)
QUIET = 1e-12
"""Noise so little that it is not seen."""


def plan(training, *, unit=RECORD, clip=1.0, noise=1.0, delta=1e-5):
    return Plan(
        unit=unit, epsilon=8.0, delta=delta, clip=clip, noise=noise, accountant="rdp", rounds=40, training=training
    )


@pytest.fixture
def protected(context):
    """Make a learner of a task given by keywords, as `learner` does, that is private; `how` are fields of the plan."""

    def make(*, training=None, seed=0, node=0, chance=None, public_test=False, how=None, share=("*",), **fields):
        training, compute = training or TrainingConfig(), fields.pop("compute", None)
        data = fields.pop("data")
        fields.setdefault("model", lambda: torch.nn.Linear(4, 3))
        protection = Protection(
            plan_for=lambda _: plan(training, **(how or {})), chance=chance or Seeded(seed), public_test=public_test
        )
        task = Task(name="mine", data=data if callable(data) else lambda _: data, **fields)
        place = context(seed=seed, node=node, nodes=8)
        return learner_for(task, place, training, share, compute, protection=protection)

    return make
