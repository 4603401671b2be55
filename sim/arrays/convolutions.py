"""Local rounds and scores of models with convolutions: one node after the other, by its own learner, channels last.

A convolution fills the processor alone: `torch.func.vmap` takes 1.3 to 3 times as long. Steps are in bfloat16 where the
processor computes it in hardware, and in float32 elsewhere; scores are always in float32.
"""

from __future__ import annotations

from copy import copy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from p2pfl.config.model import Compute
from p2pfl.learn.evaluation import Device
from p2pfl.learn.interface import RoundStart, Score
from p2pfl.learn.torch_model import TorchModel
from p2pfl.methods import Method
from sim.learning.nodes import TorchNodes

Integers = NDArray[np.int64]
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def has_convolutions(module: nn.Module) -> bool:
    return any(isinstance(part, CONVOLUTIONS) for part in module.modules())


class OneByOne:
    """Trains and tests `nodes` one at a time, in a module that they share."""

    def __init__(self, nodes: TorchNodes, method: Method) -> None:
        self.nodes, self.method = nodes, method
        precision = "bf16" if torch.ops.mkldnn._is_mkldnn_bf16_supported() else "float32"  # noqa: SLF001
        self.how = f"one node at a time, channels last, {precision}"
        learner = copy(nodes.prototype)
        learner.device = Device(Compute(precision=precision))
        before = learner.model
        learner.model = TorchModel(before.task, before.training, before.share, learner.device, before.seed)
        learner.model.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        nodes.prototype = learner

    def train(self, nodes: Integers, rounds: Integers, starts: Tensor, given: Tensor | None) -> Tensor:
        """Move each of `starts` (b, d) by the node's round; return the losses (b,)."""
        losses = torch.empty(len(nodes), dtype=torch.float64)
        for row, (node, done) in enumerate(zip(nodes.tolist(), rounds.tolist(), strict=True)):
            vectors = {} if given is None else {self.method.given[0]: given[row].numpy()}
            start = RoundStart(starts[row].numpy(), vectors, self.method)
            learned = self.nodes[node].train(start, done)
            starts[row] = torch.from_numpy(learned.vector)
            losses[row] = learned.loss
        return losses

    def evaluate(self, models: NDArray[np.float32], part: str, nodes: Integers) -> list[Score | None]:
        """Score each of `models` (b, d) on its node's data, `part` "test" or "local"."""
        return [self.nodes[node].evaluate(model, part) for node, model in zip(nodes.tolist(), models, strict=True)]
