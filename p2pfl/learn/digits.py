"""Built-in task `digits`: 1,797 real handwritten digits, 8 x 8 pixels (data/SOURCE.txt), and a small MLP.

The common test set is every fifth image in the order of the labels: 360 images, 36 or nearly so of each digit, the same
for every seed. The other 1,437 are partitioned.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import as_file, files
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from p2pfl.learn.partition import parse_partition
from p2pfl.learn.task import NodeContext, Pair, Task, at_least

PIXELS, CLASSES, BRIGHTEST = 64, 10, 16
_TEST_EVERY = 5


def digits(*, partition: str = "iid", hidden: int = 32) -> Task:
    """`partition` as in `p2pfl.learn.partition`; `hidden` units give an MLP 64-hidden-10 (2,410 parameters)."""
    parse_partition(partition)
    at_least("hidden", hidden, 1)

    def data(node: NodeContext) -> tuple[Pair, Pair]:
        node.check_local()
        (inputs, targets), test = load_digits()
        rows = torch.from_numpy(node.partition(targets.numpy(), partition))
        return (inputs[rows], targets[rows]), test

    return Task(name="digits", model=lambda: mlp(PIXELS, hidden, CLASSES), data=data)


@cache
def load_digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training and test pair: images (n, 64) float32 in [0, 1], labels (n,) int64. Shared: not to be written to."""
    with as_file(files("p2pfl.learn") / "data" / "digits.npz") as path, np.load(path, allow_pickle=False) as table:
        inputs = torch.from_numpy(table["images"]).to(torch.float32) / BRIGHTEST
        targets = torch.from_numpy(table["labels"]).to(torch.int64)
    order = torch.from_numpy(np.argsort(targets.numpy(), kind="stable"))
    test = order[::_TEST_EVERY]
    train = np.setdiff1d(order.numpy(), test.numpy())
    rows = torch.from_numpy(train)
    return (inputs[rows], targets[rows]), (inputs[test], targets[test])


def mlp(*sizes: int) -> nn.Sequential:
    """Fully connected layers with ReLU between them: inputs (b, sizes[0]), flattened, to outputs (b, sizes[-1])."""
    layers: list[nn.Module] = [nn.Flatten()]
    for width, following in pairwise(sizes):
        layers += [nn.Linear(width, following), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
