"""An attack is a lie about a model, poisoned data, or messages that come too often.

Exchange flooding makes a core begin more exchanges than its rounds have (`press`). `passable` turns the vector that an
attack shows into something that an engine can send.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from p2pfl.compress import Compressor
from p2pfl.core.core import Core
from p2pfl.core.effects import Effect
from p2pfl.core.messages import Ready
from p2pfl.engine.codecs import Forgery
from p2pfl.learn.interface import Vector as ModelVector
from sim.attacks.own import OwnLie
from sim.attacks.sight import Sight, Vector

if TYPE_CHECKING:
    from p2pfl.learn.samples import Samples, TensorSamples

BOAST = 1e9
"""The sample weight that a liar claims, so that each neighbor counts it as much as itself."""

Lie = Callable[[Sight], Vector]


class Poison(Protocol):
    """A liar that follows the protocol but trains on data that teach something else."""

    def spoil(self, samples: Samples, *, classes: int, seed: int, node: int) -> TensorSamples:
        """Return the samples that the liar trains on, as many as before. Raises UserError if such poison does not exist
        for this kind of data.
        """
        ...

    def probe(self, samples: Samples, *, classes: int) -> TensorSamples:
        """Return test data whose right answers measure the attack's success; may be empty. Raises UserError as `spoil`
        does.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One attack with its parameters filled in; `spec` is the text that parses to it.

    At most one of `lie` and `blind`, which looks only at the liar's own model, is set; with neither, the liar shows its
    own model. `refused`: what it shows is not a finite model of the right size. `flood`: it begins exchanges as fast as
    it can. `climbs`: it needs the task's loss and its gradient (`Sight.slope`). `own` is the lie if it is a user's
    object.
    """

    spec: str
    blind: Lie | None = None
    lie: Lie | None = None
    poison: Poison | None = None
    refused: bool = False
    flood: bool = False
    climbs: bool = False
    own: OwnLie | None = None

    @property
    def sees(self) -> bool:
        """True if a lie depends on more than the liar's own model, that is, on its `Sight`."""
        return self.lie is not None

    def tell(self, sight: Sight) -> Vector:
        """Return the vector that `sight.node` shows `sight.peer`, (d,) in the dtype of its model.

        It may be infinite or NaN, or have another length.
        """
        own = sight.own
        if self.blind is not None:
            return self.blind(sight).astype(own.dtype, copy=False)
        if self.lie is None or sight.peer in sight.liars:
            return own.copy()
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(self.lie(sight)).astype(own.dtype)


def press(core: Core, now: float) -> list[Effect]:
    """Begin an exchange on every edge where this end can, repeat what is waiting, and ask for one on the others.

    A Ready without a newer version asks for nothing, so the liar claims versions that it does not have. Call this as
    often as the flood should arrive, and carry out its effects like those of any event.
    """
    effects: list[Effect] = []
    for edge in core.edges.values():
        if not edge.is_open or core.facts.done:
            continue
        exchange = edge.exchange
        if not exchange.initiates:
            version = exchange.record.seq + core.facts.version + 1
            effects += edge.line.send(Ready(version=version, closing=core.facts.closing))
        elif exchange.record.pending is not None:
            effects += edge.line.send(exchange.record.pending)
        else:
            edge.service.exchanged = None
            effects += exchange.begin_if_due(now)
        core.timers.note(edge)
    return effects


def passable(shown: ModelVector, size: int, codec: Compressor) -> ModelVector | Forgery:
    """Return `shown` if it can pass for a model, finite and of that `size`; otherwise bytes that encode it anyway."""
    if shown.size != size:
        return Forgery(codec.encode(shown, chance=0))
    return shown if np.isfinite(shown).all() else Forgery(_not_finite(shown, codec.size_bytes(size)))


def boast(weight: float) -> float:
    """Claim more weight than any other node has."""
    return max(weight, BOAST)


def _not_finite(shown: ModelVector, size_bytes: int) -> bytes:
    """Write bytes that are NaN, or the infinity shown, whichever float type reads them: no encoder makes such a
    payload.
    """
    if np.isnan(shown).any():
        return b"\xff" * size_bytes
    return np.resize(np.frombuffer(shown.astype("<f4").tobytes(), np.uint8), size_bytes).tobytes()
