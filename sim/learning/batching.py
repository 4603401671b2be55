"""All nodes' learners; and many of their models at once, for arrays: gradients, steps and scores by `torch.func`.

Torch may round otherwise for several models than for one, so simulated nodes that are to have the bits of real ones are
trained one at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call, grad, vmap

from p2pfl.config.model import FederationConfig
from p2pfl.learn.evaluation import loss_of, score_of
from p2pfl.learn.interface import Score, batch_sizes
from p2pfl.learn.methods import method_of
from p2pfl.learn.torch_model import make_optimizer
from p2pfl.methods import Method
from sim.learning.nodes import Learners, Pool, TorchNodes, load_learners

Integers = NDArray[np.int64]
Named = Mapping[str, Tensor]
Batch = tuple[Tensor, Tensor]
"""Inputs and targets (c, n, ...) of c models."""

MOST = 256
"""Nodes in a group."""
GROUP_FLOATS, BATCH_FLOATS = 640_000, 2_500_000
"""Parameters and input values of a group: they, gradients and activations should stay in the cache."""


def make_learners(federation: FederationConfig, **how: Any) -> Learners:
    """Build all members' learners, from one task; `how` is for `load_learners`, which raises UserError."""
    return Learners(load_learners(federation, **how), method_of(federation))


class ManyModels:
    """One module for many vectors (c, d). `kinds` (nodes,) number `sizes`, the rows in each batch of a round."""

    def __init__(self, nodes: TorchNodes, pool: Pool, method: Method) -> None:
        self.nodes, self.pool, self.method = nodes, pool, method
        learner = nodes.prototype
        self.task, self.training, self.places = learner.task, learner.training, learner.model.flat.places
        counts, of = np.unique(pool.counts, return_inverse=True)
        sizes = [tuple(batch_sizes(self.training, count)) for count in counts.tolist()]
        self.sizes = sorted(set(sizes))
        self.kinds: Integers = np.array([self.sizes.index(one) for one in sizes], dtype=np.int64)[of]
        self._module, self._loss = learner.model.module, loss_of(self.task)
        self._gradients = vmap(grad(self._loss_of_one, has_aux=True))
        self._outputs = vmap(partial(functional_call, self._module))

    def parts(self, rows: Sequence[int] | Integers, count: int) -> list[list[int]]:
        """Split rows equally, into groups of nodes that fit into the cache with `count` rows of data each."""
        inputs = count * self.pool.rows.inputs[0].numel()
        most = max(1, min(MOST, GROUP_FLOATS // self.nodes.prototype.size, BATCH_FLOATS // max(1, inputs)))
        return [part.tolist() for part in np.array_split(rows, -(-len(rows) // most))]

    def learn(self, models: Tensor, batches: Iterable[Batch], given: Named | None, rate: float) -> Tensor:
        """Move each of `models` (c, d) by a step for each of `batches`, by gradients of the loss, or by the method's
        with the vectors `given` (c, d) to it. Returns the mean losses (c,).
        """
        tensors = self._tensors(models)
        parts = {} if given is None else {of: self._tensors(one) for of, one in {"anchor": models, **given}.items()}
        trained = {place.name: tensors.pop(place.name) for place in self.places if place.trained}
        step = make_optimizer(list(trained.values()), self.training, self.task.name).begin(rate)  # type: ignore[arg-type]
        losses = []
        self._module.train()
        for batch in batches:
            inputs, targets = (one.to(models.device) for one in batch)
            gradients, outputs = self._gradients(trained, tensors, inputs, targets)
            for name, tensor in trained.items():
                own = {of: part[name] for of, part in parts.items()}
                tensor.grad = self.method.gradient(gradients[name], tensor, own) if own else gradients[name]
            step()
            # vmap takes a mean in another order than torch does for one model.
            losses.append([self._loss(*row) for row in zip(outputs, targets, strict=True)])
        for place in self.places:
            models[:, place.part] = (trained if place.trained else tensors)[place.name].flatten(1)
        return torch.stack([torch.stack(row).float().mean() for row in zip(*losses, strict=True)])

    @torch.no_grad()
    def evaluate(self, models: NDArray[Any], part: str, nodes: Integers) -> list[Score | None]:
        """Score `models` (b, d), each with all rows of its node's set at once; None where there is none."""
        found: list[Score | None] = [None] * len(nodes)
        sets, kinds = self.nodes.test_of[nodes] if part == "test" else self.pool.counts[nodes], self.kinds[nodes]
        self._module.eval()
        for number, kind in sorted({one for one in zip(sets.tolist(), kinds.tolist(), strict=True) if one[0] >= 0}):
            count = len(self.nodes.tests[number]) if part == "test" else number
            alike = np.flatnonzero((sets == number) & (kinds == kind))
            for rows in self.parts(alike, count):
                inputs, targets = self.nodes.data_of(self.pool, part, nodes[rows])
                outputs = self._outputs(self._tensors(torch.from_numpy(models[rows].astype(np.float32))), inputs)
                for row, *pair in zip(rows, outputs, targets, strict=True):
                    found[row] = score_of([(*pair, count)], count, self.task)
        return found

    def _loss_of_one(self, trained: Any, fixed: Any, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        outputs = functional_call(self._module, trained | fixed, inputs)
        return self._loss(outputs, targets).reshape(()), outputs

    def _tensors(self, models: Tensor) -> dict[str, Tensor]:
        """Return new tensors (c, shape) by name."""
        parts = {one.name: models[:, one.part].reshape(len(models), *one.shape).to(one.dtype) for one in self.places}
        return {name: part.clone(memory_format=torch.contiguous_format) for name, part in parts.items()}
