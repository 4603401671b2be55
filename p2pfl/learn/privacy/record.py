"""DP-SGD: the steps of a local round of which each hides every single row. Abadi et al., arXiv 1607.00133.

A step takes each row with the same probability, sums the clipped gradients of those that it took, adds noise, and
divides by the number of rows that it expected: how many there were is not told. Learning method and optimizer see
nothing else, so whatever they make of it tells no more. All trained parameters are clipped together and get noise,
those that stay with the node too: the next step's gradients depend on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from p2pfl.learn.privacy.chance import Draws
from p2pfl.learn.privacy.gradients import RowGradients
from p2pfl.learn.privacy.plan import Plan

Read = Callable[[Tensor], tuple[Any, Any]]


class PrivateSteps:
    """The steps of one round at a node with `samples` rows. `batches` are the rows (b,) of each, of some steps none."""

    def __init__(self, plan: Plan, samples: int, draws: Draws, gradients: RowGradients) -> None:
        spend = plan.spend(samples)
        self.batches = [torch.from_numpy(draws.rows(samples, spend.rate)) for _ in range(spend.steps)]
        self._draws, self._gradients = draws, gradients
        self._expected = spend.rate * samples
        self._clip = plan.clip
        self._std = spend.noise * plan.clip

    def backward(self, parameters: Sequence[nn.Parameter], read: Read) -> Callable[[Tensor], Tensor | None]:
        """What takes the place of a backward pass: leaves a private gradient at each of the parameters. It returns the
        mean loss of the rows; None: there were none.
        """

        def differentiate(rows: Tensor) -> Tensor | None:
            losses = None
            if len(rows):
                sums, losses = self._gradients.clipped_sum(*read(rows), self._clip)
            else:
                sums = [torch.zeros_like(parameter) for parameter in parameters]
            for parameter, total, noise in zip(parameters, sums, self._noise(parameters), strict=True):
                parameter.grad = (total + noise) / self._expected
            return None if losses is None else losses.mean()

        return differentiate

    def _noise(self, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
        sizes = [parameter.numel() for parameter in parameters]
        noise = torch.from_numpy(self._draws.normal(sum(sizes)) * self._std)
        parts = zip(parameters, torch.split(noise, sizes), strict=True)
        return [part.view(parameter.shape).to(parameter) for parameter, part in parts]
