"""Small federations to attack, and their neighbors' view."""

from __future__ import annotations

from pathlib import Path

import torch

from p2pfl import Federation
from p2pfl.config import FederationConfig
from p2pfl.learn import NodeContext, Task, TorchLearner, load_digits, mlp

FEW = 24


def small_digits(node: NodeContext):
    """A few digits for each node, and few to test."""
    (inputs, targets), (test, labels) = load_digits()
    first = 100 * node.node
    return (inputs[first : first + FEW], targets[first : first + FEW]), (test[:60], labels[:60])


def digits_task(model=lambda: mlp(64, 16, 10), data=small_digits) -> Task:
    return Task(name="small", model=model, data=data)


def pictures(node: NodeContext):
    (inputs, targets), test = small_digits(node)
    return (inputs.view(-1, 1, 8, 8), targets), (test[0].view(-1, 1, 8, 8), test[1])


def small_cnn() -> torch.nn.Module:
    """Two convolutions on 8 x 8 pixels."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 8, 3, padding=1, stride=2),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * 4 * 4, 10),
    )


def federation_of(task: Task, nodes: int = 3, **changed) -> FederationConfig:
    """As audits run it, without rounds beyond: before those a node mixes more than once with each neighbor."""
    keys = {"rounds": 3, "local_steps": 1, "batch_size": 1, "compressor": "none", "closing_rounds": 1}
    return Federation(task=task, nodes=nodes, topology="complete", **keys | {"when_through": "mix"} | changed).config


def learners_of(federation: FederationConfig, protection=None) -> list[TorchLearner]:
    task = federation.task.given
    return [
        TorchLearner(
            task,
            NodeContext(
                node=index, nodes=len(federation.members), name=member.name, seed=federation.seed, base_dir=Path()
            ),
            federation.training,
            protection=protection,
        )
        for index, member in enumerate(federation.members)
    ]
