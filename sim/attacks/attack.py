"""What an attack is: a lie told about a model, data that are poisoned, or messages that come too often."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from p2pfl.learn.chance import generator
from sim.attacks.sight import Sight

if TYPE_CHECKING:
    from p2pfl.learn.samples import Samples, TensorSamples

Rows = NDArray[np.floating[Any]]
Vector = NDArray[np.floating[Any]]
Draw = Callable[[int, int], NDArray[np.float64]]
"""(row, size) to standard normal numbers of that row's own, (size,)."""
Blind = Callable[[Rows, Rows, Draw], Rows]
"""(models (b, d), initial (d,), draw) to what is shown, (b, d): a lie that looks at the own model alone."""
Lie = Callable[[Sight], Vector]


class Poison(Protocol):
    """A liar that keeps to the protocol and trains on data that teach something else."""

    def spoil(self, samples: Samples, *, classes: int, seed: int, node: int) -> TensorSamples:
        """What the liar trains on, as many samples.

        Raises:
            UserError: there is no such poison for data of this kind.
        """
        ...

    def probe(self, samples: Samples, *, classes: int) -> TensorSamples:
        """The test data on which the share of right answers is the attack's success rate; perhaps empty.

        Raises:
            UserError: as `spoil`.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One attack with its parameters filled in; `spec` is the text that gives it again.

    At most one of `blind` and `lie` is set; with neither the liar shows its own model. `refused`: what it shows is no
    finite model of the right size. `flood`: it begins exchanges as fast as it can.
    """

    spec: str
    blind: Blind | None = None
    lie: Lie | None = None
    poison: Poison | None = None
    refused: bool = False
    flood: bool = False

    @property
    def sees(self) -> bool:
        """Whether a lie depends on more than the liar's own model: on its `Sight`."""
        return self.lie is not None

    def tell(self, sight: Sight) -> Vector:
        """What `sight.node` shows `sight.peer`: (d,) in the type of its own model, not always finite; of another
        length where the attack is one of shape.
        """
        own = sight.own
        if self.blind is not None:
            shown: Vector = self.show(
                own[None], sight.initial, seed=sight.seed, nodes=[sight.node], counts=[sight.count]
            )[0]
            return shown
        if self.lie is None or sight.peer in sight.liars:
            return own.copy()
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(self.lie(sight)).astype(own.dtype)

    def show(self, models: Rows, initial: Rows, *, seed: int, nodes: Sequence[int], counts: Sequence[int]) -> Rows:
        """What the liars `nodes` show for the `counts`-th time, (b, d) in the type of `models` (b, d): not `sees`.

        `initial` (d,) is the model that every node starts from.
        """

        def draw(row: int, size: int) -> NDArray[np.float64]:
            return generator(seed, "attack", int(nodes[row]), int(counts[row])).standard_normal(size)

        shown = models.copy() if self.blind is None else self.blind(models, initial, draw)
        return shown.astype(models.dtype, copy=False)


def length(vector: Vector) -> float:
    """Euclidean, summed in one order: a library's own may depend on the number of its threads."""
    return float(np.sqrt(np.einsum("i,i->", vector, vector)))
