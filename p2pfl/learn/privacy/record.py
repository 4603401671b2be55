"""DP-SGD: steps of a local round that each hide every single row. Abadi et al., arXiv 1607.00133.

A step takes each row with the same probability, sums the clipped gradients of the rows taken, adds noise, and divides
by the expected number of rows: the actual number stays secret. Learning method and optimizer see nothing else, so
whatever they compute reveals no more. All trained parameters are clipped together and get noise, those that stay with
the node too: the next step's gradients depend on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from p2pfl.learn.privacy.draws import Draws
from p2pfl.learn.privacy.gradients import RowGradients
from p2pfl.learn.privacy.grid import Grid
from p2pfl.learn.privacy.plan import Plan

Read = Callable[[Tensor], tuple[Any, Any]]
MOST_ROWS = 256
"""The most rows that torch gets in one batch."""


class PrivateSteps:
    """The steps of one round at a node with `samples` rows. `batches` are the rows (b,) of each step, possibly none."""

    def __init__(self, plan: Plan, samples: int, draws: Draws, gradients: RowGradients) -> None:
        self._spend = plan.spend(samples)
        self.batches = [torch.from_numpy(draws.rows(samples, self._spend.rate)) for _ in range(self._spend.steps)]
        self._draws, self._gradients = draws, gradients
        self._clip, self._samples = plan.clip, samples
        self._shape = shape_of(plan.training.batch_size)

    def backward(self, parameters: Sequence[nn.Parameter], read: Read) -> Callable[[Tensor], Tensor | None]:
        """Replace a backward pass: the returned function leaves a private gradient at each of the parameters. It
        returns the mean loss of the rows; None: there were none.
        """
        sizes = [parameter.numel() for parameter in parameters]
        grid = self._grid(sum(sizes))
        expected = self._spend.rate * self._samples

        def differentiate(rows: Tensor) -> Tensor | None:
            total, losses = torch.zeros(sum(sizes), dtype=torch.float64), []
            for piece, among in pieces(rows, self._shape, self._draws):
                sums, found = self._gradients.clipped_sum(*read(piece), grid.length, among)
                total += torch.cat([one.flatten() for one in sums]).cpu()
                losses.append(found)
            hidden = torch.from_numpy(grid.hidden(total.numpy(), self._draws) / expected)
            for parameter, part in zip(parameters, torch.split(hidden, sizes), strict=True):
                parameter.grad = part.view(parameter.shape).to(parameter)
            return torch.cat(losses).mean() if losses else None

        return differentiate

    def _grid(self, size: int) -> Grid:
        in_sequence = 2 * self._shape + self._samples // self._shape + 1
        return Grid.of(noise=self._spend.noise, clip=self._clip, size=size, rows=self._samples, in_sequence=in_sequence)


def shape_of(batch_size: int) -> int:
    """The number of places in a piece of a batch: large enough that one piece suffices for all but one
    batch in thirty.
    """
    return min(MOST_ROWS, 8 * math.ceil((batch_size + 2 * math.sqrt(batch_size)) / 8))


def pieces(rows: Tensor, shape: int, draws: Draws) -> Iterator[tuple[Tensor, Tensor]]:
    """Split the rows (b,) into pieces (shape,) at random places, with a mask of the places in use (shape,).

    The other places have a row that does not count. Torch rounds the gradient of a row by its place and the shape of
    its batch, not by the other rows. So one row more, which takes an empty place, changes no other gradient in its last
    bits; in a batch of more than one piece it may put another row in another place. The grid's margin is for that row.
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
