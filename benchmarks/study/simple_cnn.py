"""MNIST with the network from the classic tutorial: two 3 x 3 convolutions of 32 and 64 channels, each with
max-pooling, 128 hidden units, dropout; 421,642 parameters.

A task like any other, in a federation file:

    [task]
    name = "simple_cnn.py:mnist"
    path = "mnist"            # a folder of IDX files; without it `mnist` in the folder that P2PFL_DATA names
    partition = "classes:2"   # two digits for each of five clients

`images` and `test_images` are the numbers of images in each set, evenly spaced, so that the digits keep their
frequencies.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from p2pfl import Task
from p2pfl.errors import UserError
from p2pfl.learn.digits import mnist_idx
from p2pfl.learn.task import NodeContext, Pair, at_least, parse_partition

DATA = "P2PFL_DATA"


def simple_cnn() -> nn.Sequential:
    """Build the network: images (b, 1, 28, 28) to ten outputs (b, 10)."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
    )


def mnist(*, path: str = "", partition: str = "iid", images: int = 60_000, test_images: int = 10_000) -> Task:
    parse_partition(partition)
    at_least("images", images, 10)
    at_least("test_images", test_images, 10)

    def data(node: NodeContext) -> tuple[Pair, Pair]:
        node.check_local("path")
        (inputs, targets), test = _whole(_folder(node, path), images, test_images)
        rows = torch.from_numpy(node.own_rows(targets.numpy(), partition))
        return (inputs[rows], targets[rows]), test

    return Task(name="simple-cnn", model=simple_cnn, data=data)


def _folder(node: NodeContext, path: str) -> Path:
    if path or node.has("path"):
        return node.path()
    if DATA in os.environ:
        return Path(os.environ[DATA]) / "mnist"
    raise UserError("the task needs MNIST", key="task.path", allowed=f"a folder; or {DATA}, which names its parent")


@cache
def _whole(folder: Path, images: int, test_images: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return the training and test pair: images (n, 1, 28, 28) float32 in [0, 1], labels (n,) int64. They are shared,
    so do not write to them.
    """
    every = NodeContext(node=0, nodes=1, name="all", seed=0, base_dir=folder, local={"path": folder})
    train, test = mnist_idx().data(every)
    if test is None:
        raise UserError("there are no test images", key="task.path", value=str(folder), allowed="t10k files too")
    return _spaced(train, images), _spaced(test, test_images)


def _spaced(pair: Pair, count: int) -> tuple[Tensor, Tensor]:
    inputs, targets = pair
    rows = torch.linspace(0, len(targets) - 1, min(count, len(targets))).round().long()
    return inputs[rows], targets[rows]
