"""Hidden models: in each round all nodes train from the common model, and a sum of their parts moves it.

Parts and the common step are those of real nodes (`p2pfl.learn.averaging`). The sum is computed in the open: masks
cancel, and change none of its bits. All members are in every sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from p2pfl.errors import UserError
from p2pfl.features.shared_noise.rounds import too_large
from p2pfl.learn.averaging import AveragedRounds
from sim.arrays.vectors import CHUNK_FLOATS, Integers, Train
from sim.learning.batching import rate_of

if TYPE_CHECKING:
    from sim.arrays.setting import Setting

Words = NDArray[np.uint64]


class Sums:
    """The model (d,) that all nodes have."""

    def __init__(self, setting: Setting, train: Train) -> None:
        """Prepare the rounds. Raises UserError: the model or the rows do not fit in a sum."""
        federation = setting.federation
        assert federation.hides is not None  # noqa: S101 - the caller has looked
        how: dict[str, Any] = {"size": setting.size, "members": setting.nodes, "seed": federation.seed}
        how["method"] = setting.method
        self.averaged = [AveragedRounds(federation.hides, **how, node=node) for node in range(setting.nodes)]
        self.entries, rows = self.averaged[0].entries, int(setting.samples.sum())
        if (mistake := too_large(federation, self.averaged[0])) is not None:
            raise mistake
        if not self.averaged[0].fits(rows):
            raise UserError("too many rows for a sum", file=federation.path, key="task", value=rows)
        for averaged in self.averaged:
            averaged.rows = rows
        self.samples, self.steps, self.train = setting.samples, setting.steps, train
        self.training, self.model = federation.training, setting.initial

    @property
    def x(self) -> Tensor:
        """The models of all nodes (n, d), which are views of one."""
        return self.model.expand(len(self.averaged), -1)

    def run(self, rounds: int) -> Iterator[int]:
        """Yield the number of each round that is done."""
        first, nodes = self.averaged[0], len(self.averaged)
        for number in range(rounds):
            total, start = self.sum_of(np.arange(nodes), number), self.model.cpu().numpy()
            for averaged in self.averaged if first.given else (first,):
                self.model = self.model.new_tensor(averaged.next_model(start, total, nodes, number))
            for averaged in self.averaged:
                averaged.common, averaged.part = first.common, None
            yield number + 1

    def sum_of(self, nodes: Integers, number: int) -> Words:
        """Train a round of these nodes, and return the sum of their parts (entries,)."""
        start, total = self.model.cpu().numpy(), np.zeros(self.entries, np.uint64)
        chunk = max(1, CHUNK_FLOATS // len(start))
        for some in np.split(nodes, range(chunk, len(nodes), chunk)):
            models = self.model.repeat(len(some), 1)
            variates = [variate for node in some if (variate := self.averaged[node].variate) is not None]
            given = models.new_tensor(np.stack(variates)) if variates else None
            self.train(some, np.full(len(some), number), models, given)
            for node, ended in zip(some.tolist(), models.cpu().numpy(), strict=True):
                averaged = self.averaged[node]
                about, rate = (start, ended, int(self.samples[node]), number), rate_of(self.training, number)
                averaged.give_change(*about, steps=int(self.steps[node]), rate=rate)
                assert averaged.part is not None  # noqa: S101 - this is what it has given
                total += averaged.part.view(np.uint64)
                averaged.part = averaged.part if averaged.given else None
        return total
