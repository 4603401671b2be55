"""What methods remember, for all nodes: flows of `variate`, and the vectors that other methods keep at a node."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from p2pfl.methods import MODEL, Array, Method, Number, Round, Vectors, overrides

if TYPE_CHECKING:
    from sim.arrays.setting import Setting

Integers = NDArray[np.int64]


def is_simulated(method: Method) -> bool:
    """Return True if arrays know the method: it exchanges the model alone, and keeps nothing at edges but flows."""
    if method.channels != (MODEL,) or method.needs_loss or len(method.given) > 1:
        return False
    return method.code == "variate" or not (method.kept_edges or method.no_terms)


class Memory:
    """What a method remembers that remembers nothing."""

    changes = False
    """True if `commit` changes what rounds add."""

    def given(self, nodes: Integers) -> Tensor | None:
        """Return the vectors that the method gives to these nodes' rounds (b, d); None if it gives none."""
        del nodes
        return None

    def commit(self, nodes: Integers, rounds: Integers, models: Tensor, change: Tensor) -> Tensor:
        """Return what these rounds add to `models` (b, d), given what training changed (b, d)."""
        del nodes, rounds, models
        return change


class Flows(Memory):
    """Control variates: `sums` (n, d) is what mixing has moved n times each model by, over the drift of a round.

    One vector a node does for one an edge: where nobody leaves and no edge is reset, a node's flows sum to that. The
    drift (n,) is learning rate times steps.
    """

    def __init__(self, setting: Setting, beta: float) -> None:
        self.sums = setting.initial.new_zeros(setting.nodes, setting.size)
        self.drift = setting.federation.training.learning_rate * setting.steps.astype(np.float64)
        self.factor = self.sums.new_tensor(-beta / setting.samples)

    def of_edges(self, ends: Integers) -> NDArray[np.float64]:
        """Return the larger drift of each edge's ends (m,)."""
        return np.maximum(self.drift[ends[:, 0]], self.drift[ends[:, 1]])

    def given(self, nodes: Integers) -> Tensor:
        rows = torch.as_tensor(nodes, device=self.sums.device)
        return self.sums.index_select(0, rows).mul_(self.factor[rows, None])


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """Some nodes as their method sees them: rows (b, d), and numbers as columns (b, 1)."""

    samples: Number
    channels: Vectors
    kept: Vectors
    given: Vectors = field(default_factory=dict)

    def sum_of_edges(self, name: str, channel: str = MODEL) -> Array:
        raise NotImplementedError(f"arrays keep no vectors of edges, and none called {name} for {channel}")


class Kept(Memory):
    """The vectors that a method keeps at each node, moved by its own functions on rows."""

    changes = True

    def __init__(self, setting: Setting) -> None:
        self.method, self.steps, self.samples = setting.method, setting.steps[:, None], setting.samples[:, None]
        self.training, self.device = setting.federation.training, setting.device
        models = np.tile(setting.initial.cpu().numpy(), (setting.nodes, 1))
        self.vectors = {name: np.array(self.method.first(name, models)) for name in self.method.kept}

    def given(self, nodes: Integers) -> Tensor | None:
        found = self.method.begin(self._seen(nodes, {}))
        return torch.from_numpy(found[self.method.given[0]]).to(self.device) if self.method.given else None

    def commit(self, nodes: Integers, rounds: Integers, models: Tensor, change: Tensor) -> Tensor:
        rate = np.array([[self.training.rate(done, 0.0)] for done in rounds.tolist()])
        ended = Round(steps=self.steps[nodes], learning_rate=rate, samples=self.samples[nodes], rho=1.0)
        seen = self._seen(nodes, {MODEL: models.cpu().numpy()})
        new = self.method.trained(change.cpu().numpy(), seen, ended)
        for name, vectors in new.kept.items():
            self.vectors[name][nodes] = vectors
        return torch.from_numpy(new.change[MODEL]).to(change.device)

    def _seen(self, nodes: Integers, channels: Vectors) -> Nodes:
        kept = {name: vectors[nodes] for name, vectors in self.vectors.items()}
        return Nodes(samples=self.samples[nodes], channels=channels, kept=kept)


def memory_of(setting: Setting) -> Memory:
    """Return what the method remembers before the first round."""
    method = setting.method
    if method.code == "variate":
        return Flows(setting, method.beta)  # type: ignore[attr-defined]
    return Kept(setting) if method.kept or overrides(method, "trained") else Memory()
