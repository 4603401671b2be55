"""The built-in digits, and a few images that every node has besides its own: `shared_images.py:digits` in `[task]`.

The `shared` training images are evenly spaced in the order of their labels, so that each digit occurs equally often.
They stand for a small public set, with which nodes that know two classes each have something in common.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from p2pfl import Task
from p2pfl.learn.digits import digits as built_in
from p2pfl.learn.digits import load_digits
from p2pfl.learn.task import NodeContext, Pair, at_least


def digits(*, partition: str = "iid", shared: int = 50) -> Task:
    at_least("shared", shared, 0)
    task = built_in(partition=partition)

    def data(node: NodeContext) -> tuple[Pair, Pair]:
        (inputs, targets), test = task.data(node)
        (all_inputs, all_targets), _ = load_digits()
        rows = torch.linspace(0, len(all_targets) - 1, shared).round().long()
        rows = all_targets.argsort(stable=True)[rows]
        return (torch.cat([inputs, all_inputs[rows]]), torch.cat([targets, all_targets[rows]])), test

    return replace(task, name="shared-images", data=data)
