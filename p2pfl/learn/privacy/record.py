"""DP-SGD: local steps in which every single row is hidden. Abadi et al., arXiv 1607.00133.

A step takes each row with the same probability, sums the clipped gradients of these rows, adds noise, and divides by
the expected number of rows, because the actual number must stay secret. The learning method and the optimizer see only
this result, so whatever they compute reveals no more. All trained parameters are clipped together and get noise,
personal ones too, because the next step's gradients depend on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from p2pfl.learn.privacy.draws import Draws
from p2pfl.learn.privacy.gradients import RowGradients
from p2pfl.learn.privacy.grid import Grid, Reals
from p2pfl.learn.privacy.plan import Plan

Read = Callable[[Tensor], tuple[Any, Any]]
MOST_ROWS = 256
"""The most rows that torch receives in one batch."""


class PrivateSteps:
    """The steps of one round at a node with `samples` rows. `batches` has the rows (b,) for each step, which may be
    empty.
    """

    def __init__(self, plan: Plan, samples: int, draws: Draws, gradients: RowGradients) -> None:
        self._spend = plan.spend(samples)
        self.batches = [torch.from_numpy(draws.rows(samples, self._spend.rate)) for _ in range(self._spend.steps)]
        self._draws, self._gradients = draws, gradients
        self._clip, self._samples, self._noise = plan.clip, samples, plan.noise * plan.share
        self._shape = shape_of(plan.training.batch_size)

    def backward(self, parameters: Sequence[nn.Parameter], read: Read) -> Callable[[Tensor], Tensor | None]:
        """Make a function that replaces the backward pass: it stores a private gradient in each parameter, and returns
        the mean loss over the rows, or None if there were none.
        """
        sizes = [parameter.numel() for parameter in parameters]
        grid = self.grid(sum(sizes))
        expected = self._spend.rate * self._samples

        def differentiate(rows: Tensor) -> Tensor | None:
            total, losses = self.clipped_total(rows, read, sum(sizes))
            hidden = torch.from_numpy(grid.hidden(total, self._draws) / expected)
            for parameter, part in zip(parameters, torch.split(hidden, sizes), strict=True):
                parameter.grad = part.view(parameter.shape).to(parameter)
            return torch.cat(losses).mean() if losses else None

        return differentiate

    def clipped_total(self, rows: Tensor, read: Read, size: int) -> tuple[Reals, list[Tensor]]:
        """Return the sum (size,) of the rows' clipped gradients, still without noise, and their losses."""
        total, losses = torch.zeros(size, dtype=torch.float64), []
        length = self.grid(size).length
        for piece, among in pieces(rows, self._shape, self._draws):
            sums, found = self._gradients.clipped_sum(*read(piece), length, among)
            total += torch.cat([one.flatten() for one in sums]).cpu()
            losses.append(found)
        return total.numpy(), losses

    def grid(self, size: int) -> Grid:
        """Return the grid for gradients (size,)."""
        in_sequence = 2 * self._shape + self._samples // self._shape + 1
        return Grid.of(noise=self._noise, clip=self._clip, size=size, rows=self._samples, in_sequence=in_sequence)


def shape_of(batch_size: int) -> int:
    """Return the number of places in a piece of a batch, so large that one piece suffices for all but one batch in
    thirty.
    """
    return min(MOST_ROWS, 8 * math.ceil((batch_size + 2 * math.sqrt(batch_size)) / 8))


def pieces(rows: Tensor, shape: int, draws: Draws) -> Iterator[tuple[Tensor, Tensor]]:
    """Split the rows (b,) into pieces (shape,) at random places, with a mask of the places in use (shape,).

    The unused places contain a row that does not count. How torch rounds a row's gradient depends on the row's place
    and the batch's shape, not on the other rows. So an additional row, which takes an unused place, does not change the
    last bits of any other gradient. Only in a batch of several pieces may it move another row to a different place; the
    grid's margin covers that row.
    """
    if not len(rows):
        return
    if len(rows) > shape:
        rows = rows[draws.order(len(rows))]
    for part in torch.split(rows, shape):
        places = draws.order(shape)[: len(part)]
        piece, among = part[:1].repeat(shape), torch.zeros(shape, dtype=torch.bool)
        piece[places], among[places] = part, True
        yield piece, among
