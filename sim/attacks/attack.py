"""What an attack is: a lie told about a model, data that are poisoned, or messages that come too often.

A `Sight` is what a liar sees when it makes up a lie for one neighbor. In the simulator that is every model, as it is
shown in this instant; a real liar fills in what its own edges hold: the latest replicas of its neighbors, and the
graph, which stands in the federation's file.

Some attacks are made of another: lies told only at times, or told in too many exchanges. Exchange flooding makes a core
want more exchanges than its rounds have (`press`). `passable` makes of what an attack shows what an engine can send.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from p2pfl.chance import generator
from p2pfl.compress import Compressor
from p2pfl.core.core import Core
from p2pfl.core.effects import Effect
from p2pfl.core.messages import Ready
from p2pfl.engine.codecs import Forgery
from p2pfl.learn.interface import Vector as ModelVector
from sim.attacks.own import OwnLie

if TYPE_CHECKING:
    from p2pfl.learn.samples import Samples, TensorSamples

Vector = NDArray[np.floating[Any]]
Rows = NDArray[np.floating[Any]]
Edge = tuple[int, int]

BOAST = 1e9
"""Sample weight that a liar claims, so that each neighbor counts it as much as itself."""

Draw = Callable[[int, int], NDArray[np.float64]]
"""(row, size) to standard normal numbers of that row's own, (size,)."""
Blind = Callable[[Rows, Rows, Draw], Rows]
"""(models (b, d), initial (d,), draw) to what is shown, (b, d): a lie that looks at the own model alone."""
Climb = Callable[[Vector], tuple[float, Vector]]
"""Model (d,) to the task's mean loss there, on data that the liar knows, and its gradient (d,)."""


@dataclass(frozen=True, kw_only=True)
class Sight:
    """`node` lies to `peer`; `own` (d,) is the model that it would show if it were honest.

    `models` (d,) by node are the models that it knows, all finite: in a lie for somebody whose model is not among them
    the own stands in for it. `liars` are those that it is in league with, itself among them. `edges` is the graph.
    `rounds` counts its own local rounds, `count` what it has shown so far, to anybody. `weights` are the peer's mixing
    weights a_ij by neighbor; none: equal ones, 1/(neighbors + 1). `rule` is the spec of the rule by which the peer
    mixes, None for the mean. `initial` (d,) is the model that every node starts from. `slope` is the task's loss, for
    attacks that climb it and for those of a user's own; None where the task has no gradient.
    """

    node: int
    peer: int
    own: Vector
    initial: Vector
    models: Mapping[int, Vector] = field(default_factory=dict)
    liars: frozenset[int] = frozenset()
    edges: tuple[Edge, ...] = ()
    weights: Mapping[int, float] = field(default_factory=dict)
    rule: str | None = None
    rounds: int = 0
    count: int = 0
    seed: int = 0
    slope: Climb | None = None

    @property
    def victim(self) -> Vector:
        """The peer's own model (d,)."""
        return self.models.get(self.peer, self.own)

    @cached_property
    def neighbors(self) -> tuple[int, ...]:
        """Neighbors of the peer, in rising order."""
        ends = {high if low == self.peer else low for low, high in self.edges if self.peer in (low, high)}
        return tuple(sorted(ends or {self.node}))

    @property
    def lying(self) -> tuple[int, ...]:
        """The peer's neighbors that are in league, this one among them."""
        return tuple(node for node in self.neighbors if node in self.liars or node == self.node)

    @cached_property
    def known(self) -> tuple[int, ...]:
        """The peer's honest neighbors whose models the liar knows."""
        return tuple(n for n in self.neighbors if n in self.models and n not in self.liars and n != self.node)

    @cached_property
    def around(self) -> Rows:
        """The peer's model and then those of `known`, (1 + k, d) in float64."""
        rows = [self.victim, *(self.models[node] for node in self.known)]
        return np.stack(rows).astype(np.float64)

    @cached_property
    def honest(self) -> tuple[int, ...]:
        """Every honest node whose model the liar knows, near or far."""
        return tuple(node for node in sorted(self.models) if node not in self.liars and node != self.node)

    def weight(self, neighbor: int) -> float:
        return self.weights.get(neighbor, 1.0 / (len(self.neighbors) + 1))

    def draws(self, purpose: str, *path: int) -> np.random.Generator:
        """Chance of the liar's own."""
        return generator(self.seed, purpose, self.node, *path)


Lie = Callable[[Sight], Vector]


class Poison(Protocol):
    """A liar that keeps to the protocol and trains on data that teach something else."""

    def spoil(self, samples: Samples, *, classes: int, seed: int, node: int) -> TensorSamples:
        """What the liar trains on, as many samples. Raises UserError: there is no such poison for data of this kind."""
        ...

    def probe(self, samples: Samples, *, classes: int) -> TensorSamples:
        """Test data whose right answers are the attack's success; may be empty. Raises UserError: as `spoil`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One attack with its parameters filled in; `spec` is the text that gives it again.

    At most one of `blind` and `lie` is set; with neither the liar shows its own model. `refused`: what it shows is no
    finite model of the right size. `flood`: it begins exchanges as fast as it can. `climbs`: it needs the task's loss
    and its gradient (`Sight.slope`). `own` is the lie where it is an object of the user's.
    """

    spec: str
    blind: Blind | None = None
    lie: Lie | None = None
    poison: Poison | None = None
    refused: bool = False
    flood: bool = False
    climbs: bool = False
    own: OwnLie | None = None

    @property
    def sees(self) -> bool:
        """Whether a lie depends on more than the liar's own model: on its `Sight`."""
        return self.lie is not None

    def tell(self, sight: Sight) -> Vector:
        """What `sight.node` shows `sight.peer`, (d,) in its model's type; may not be finite, or of another length."""
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


MISSING = 3
"""A vector of the wrong shape lacks one part in this many."""


def sleeper(lie: Attack | None, period: int) -> Attack:
    """Honest for `period` of its own rounds, then lies for as many, by turns. Raises ValueError: no lie is named."""
    if lie is None:
        raise ValueError("a sleeper has to have a lie")
    awake = lie

    def told(sight: Sight) -> Vector:
        return awake.tell(sight) if sight.rounds // period % 2 else sight.own

    spec = f"sleeper:{lie.spec}@{period}"
    return Attack(spec=spec, lie=told, refused=lie.refused, climbs=lie.climbs, own=lie.own)


def flood(lie: Attack | None) -> Attack:
    """Begins exchanges as fast as it can, so that its model counts more often than others; it shows `lie`, or truth."""
    if lie is None:
        return Attack(spec="flood", flood=True)
    return replace(lie, spec=f"flood:{lie.spec}", flood=True)


def wrong_shape(sight: Sight) -> Vector:
    """The model cut short by a third: to be refused whatever stands in it."""
    size = sight.own.size
    return np.resize(sight.own, size - max(1, size // MISSING) if size > 1 else size + 1)


def press(core: Core, now: float) -> list[Effect]:
    """Begin an exchange on every edge where this end can; say again what is waiting; ask for one on the others.

    A Ready that tells no newer version asks for nothing, so the liar tells versions that it does not have. To be called
    as often as the flood shall come, and its effects carried out like those of any event.
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
            effects += exchange.begin_if_wanted(now)
        core.timers.note(edge)
    return effects


def passable(shown: ModelVector, size: int, codec: Compressor) -> ModelVector | Forgery:
    """What is `shown`, where it can pass for a model: finite, and of that `size`. Else bytes that say it anyway."""
    if shown.size != size:
        return Forgery(codec.encode(shown, chance=0))
    return shown if np.isfinite(shown).all() else Forgery(_not_finite(shown, codec.size_bytes(size)))


def boast(weight: float) -> float:
    """More weight than anybody has."""
    return max(weight, BOAST)


def _not_finite(shown: ModelVector, size_bytes: int) -> bytes:
    """No encoder makes a payload of it: bytes that are NaN, or the infinity shown, in whatever floats they are read."""
    if np.isnan(shown).any():
        return b"\xff" * size_bytes
    return np.resize(np.frombuffer(shown.astype("<f4").tobytes(), np.uint8), size_bytes).tobytes()
