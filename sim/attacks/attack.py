"""An attack is a lie about a model, poisoned data, or messages that come too often.

`Sight` is what a liar sees when it makes up a lie for one neighbor. In the simulator it includes every model, as shown
at this instant; a real liar fills in what its own edges hold: the latest replicas of its neighbors, and the graph,
which the federation's file names. A user's own attack is `file.py:object` or `package.module:object` (`OwnLie`).
Exchange flooding makes a core begin more exchanges than its rounds have (`press`). `passable` turns the vector that an
attack shows into something that an engine can send. An entry of the registry is a decorator on what it registers.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from p2pfl.compress import Compressor
from p2pfl.core.core import Core
from p2pfl.core.events import Effect
from p2pfl.core.messages import Ready
from p2pfl.engine.engine import Forgery
from p2pfl.errors import UserError
from p2pfl.plugins import FAILURES, describe_failure, find_object
from p2pfl.specs import MISSING, Catalog, Entry, Made, Parameter, number

if TYPE_CHECKING:
    from p2pfl.learn.tensors import Samples, TensorSamples


Vector = NDArray[np.floating[Any]]
Rows = NDArray[np.floating[Any]]
Edge = tuple[int, int]
Climb = Callable[[Vector], tuple[float, Vector]]
"""Maps a model (d,) to the task's mean loss there, on data known to the liar, and its gradient (d,)."""


@dataclass(frozen=True, kw_only=True)
class Sight:
    """The facts from which `node` makes a lie for `peer`; `own` (d,) is the model that it would honestly show.

    `models` (d,) by node are the models that it knows, all finite; a peer whose model is not among them is assumed to
    have the liar's own. `liars` are the members of its league, including itself. `edges` is the graph. `rounds` counts
    its own local rounds, `count` the models that it has shown so far, to all peers together. `weights` are the peer's
    mixing weights a_ij by neighbor; if empty, they are equal, 1/(neighbors + 1). `rule` is the spec of the rule by
    which the peer mixes, None for the mean. `initial` (d,) is the model that every node starts from. `slope` is the
    task's loss, for attacks that climb it and for users' own attacks; None if the task has no gradient. `own_slope`
    makes the loss on the peer's own data, which only a simulation knows.
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
    own_slope: Callable[[], Climb | None] = lambda: None

    @property
    def victim(self) -> Vector:
        """The peer's own model (d,)."""
        return self.models.get(self.peer, self.own)

    @cached_property
    def neighbors(self) -> tuple[int, ...]:
        """Neighbors of the peer, in ascending order."""
        ends = {high if low == self.peer else low for low, high in self.edges if self.peer in (low, high)}
        return tuple(sorted(ends or {self.node}))

    @property
    def lying(self) -> tuple[int, ...]:
        """The peer's neighbors in the league, including this liar."""
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
        """All honest nodes whose models the liar knows, near or far."""
        return tuple(node for node in sorted(self.models) if node not in self.liars and node != self.node)

    def weight(self, neighbor: int) -> float:
        return self.weights.get(neighbor, 1.0 / (len(self.neighbors) + 1))


def length(vector: Vector) -> float:
    """Compute the Euclidean norm, summed in a fixed order: a library's result may depend on its number of threads."""
    return float(np.sqrt(np.einsum("i,i->", vector, vector)))


KEY = "attack"
ALLOWED_OBJECT = "a function from a Sight to a vector (d,), or a class of such: file.py:object or module:object"
_FILE = re.compile(r"((?:[a-z]+:)?)([^:,=+\s]+\.py)(:[A-Za-z_]\w*(?:@.*)?)")
"""The path of a file in an attack's spec, which may be nested in another spec."""


class OwnLie:
    """A lie by the user's object. `name` names it; `load` or the first lie imports it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._found: Callable[[Sight], Any] | None = None

    def load(self) -> None:
        """Import the object; files are relative to the working folder. Raises UserError if that or a call fails."""
        loaded = find_object(self.name, Path(), what="attack", key=KEY, allowed="file.py:object or module:object")
        try:
            lie = loaded() if inspect.isclass(loaded) else loaded
        except FAILURES as error:
            raise self._fault(f"the attack failed: {describe_failure(error)}") from error
        if not callable(lie):
            raise self._fault("not an attack: it cannot be called")
        self._found = lie

    def __call__(self, sight: Sight) -> Vector:
        """Return the vector shown (n,), of any length, finite or not. Raises UserError if the object fails to."""
        if self._found is None:
            self.load()
        try:
            shown = np.asarray(self._found(sight))  # type: ignore[misc]
        except FAILURES as error:
            raise self._fault(f"the attack failed: {describe_failure(error)}") from error
        if shown.ndim != 1 or not shown.size or shown.dtype.kind not in "fiu":
            raise self._fault(f"the attack returned {shown.dtype} of shape {shown.shape}, not {sight.own.shape}")
        return shown

    def _fault(self, text: str) -> UserError:
        return UserError(text, key=KEY, value=self.name, allowed=ALLOWED_OBJECT)


def with_absolute_path(spec: str, folder: Path) -> str:
    """Make the path in an attack's spec absolute, if it has one; a relative path starts at `folder`."""
    match = _FILE.fullmatch(spec)
    return f"{match[1]}{(folder / match[2]).absolute()}{match[3]}" if match else spec


def file_of(spec: str) -> Path | None:
    """Return the file that defines the attack, if a file does."""
    match = _FILE.fullmatch(spec)
    return Path(match[2]) if match else None


BOAST = 1e9
"""The sample weight that a liar claims, so that each neighbor counts it as much as itself."""

Lie = Callable[[Sight], Vector]


class Poison(Protocol):
    """A liar that follows the protocol but trains on data that teach something else."""

    def spoil(self, samples: Samples, *, classes: int, seed: int, node: int) -> TensorSamples:
        """Return as many samples as before, to train on. Raises UserError if this kind of data has no such poison."""
        ...

    def probe(self, samples: Samples, *, classes: int) -> TensorSamples:
        """Return test data whose right answers measure success; may be empty. Raises UserError as `spoil` does."""
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


def passable(shown: Vector, size: int, codec: Compressor) -> Vector | Forgery:
    """Return `shown` if it can pass for a model, finite and of that `size`; otherwise bytes that encode it anyway."""
    if shown.size != size:
        return Forgery(codec.encode(shown, chance=0))
    return shown if np.isfinite(shown).all() else Forgery(_not_finite(shown, codec.size_bytes(size)))


def boast(weight: float) -> float:
    """Claim more weight than any other node has."""
    return max(weight, BOAST)


def _not_finite(shown: Vector, size_bytes: int) -> bytes:
    """Write bytes that any float type reads as NaN, or as the infinity shown: no encoder makes such a payload."""
    if np.isnan(shown).any():
        return b"\xff" * size_bytes
    return np.resize(np.frombuffer(shown.astype("<f4").tobytes(), np.uint8), size_bytes).tobytes()


LARGEST = 1e6
"""The largest parameter; beyond it float32 overflows, for which `nan` is the simpler attack."""
NOTHING, PEER, NEIGHBORS, RULE, GRAPH, LOSS, VICTIMS, DATA = (
    "nothing",
    "the model of its victim",
    "the models around its victim",
    "the models around its victim, and its rule",
    "all honest models, and the graph",
    "all honest models, the rule of its victim, and data: everybody's in a simulation, its own as a real node",
    "as `ascent`, and in a simulation which data are its victim's, and the graph",
    "its own data",
)
"""The knowledge that an attack needs."""


def signed(name: str, means: str, **more: Any) -> Parameter:
    return Parameter(name, number(-LARGEST, LARGEST), means, **more)


def positive(name: str, means: str, **more: Any) -> Parameter:
    return Parameter(name, number(0, LARGEST, above=True), means, **more)


@dataclass(frozen=True, kw_only=True)
class AttackEntry(Entry):
    """One attack in the registry; `means` describes it, with its parameters in braces."""

    knows: str = NOTHING
    refused: bool = False
    climbs: bool = False

    @property
    def usage(self) -> str:
        return self.written or super().usage

    @property
    def shows(self) -> str:
        """Describe the attack, with the defaults of its parameters."""
        usual = {each.name: "" if each.default is MISSING else f" ({each.default:g})" for each in self.parameters}
        return self.means.format_map({name: name + default for name, default in usual.items()})

    def attack(self, spec: str, values: list[float]) -> Attack:
        """Return the attack with the values of its parameters, in their order."""
        arguments = {each.argument: value for each, value in zip(self.parameters, values, strict=True)}
        return Attack(spec=spec, refused=self.refused, climbs=self.climbs, **self.parts(arguments))

    def parts(self, arguments: Mapping[str, float]) -> dict[str, Any]:
        """Return the fields of an `Attack` with these arguments."""
        return {"lie": partial(self.made, **arguments)}


@dataclass(frozen=True, kw_only=True)
class BlindEntry(AttackEntry):
    """Registers a function as `Attack.blind`, as the base class as `Attack.lie`; parameters are further arguments."""

    def parts(self, arguments: Mapping[str, float]) -> dict[str, Any]:
        return {"blind": partial(self.made, **arguments)}


@dataclass(frozen=True, kw_only=True)
class PoisonEntry(AttackEntry):
    """Registers a class as `Poison`. If there is a `lie`, the model is shown through it unless the parameter is 1."""

    knows: str = DATA
    lie: Callable[..., Any] | None = None
    place: int = 2

    def parts(self, arguments: Mapping[str, float]) -> dict[str, Any]:
        lie: Lie | None = partial(self.lie, **arguments) if self.lie and set(arguments.values()) != {1} else None
        return {"poison": self.made(), "lie": lie}


@dataclass(frozen=True, kw_only=True)
class WrapEntry(AttackEntry):
    """Registers a function that makes an attack from another one (None if not given) and its own parameters."""

    knows: str = "what LIE needs"
    place: int = 3

    def wrap(self, lie: Attack | None, *values: float) -> Attack:
        made: Attack = self.made(lie, *values)
        return made


ATTACKS: Catalog[AttackEntry] = Catalog("attack", AttackEntry)


def blind(name: str, means: str, source: str, *parameters: Parameter, **more: Any) -> Callable[[Made], Made]:
    """Register a lie that looks only at the liar's own model."""
    return ATTACKS.add(BlindEntry, name=name, means=means, source=source, parameters=parameters, **more)


def lie(name: str, means: str, source: str, knows: str, *parameters: Parameter, **more: Any) -> Callable[[Made], Made]:
    """Register a lie that looks at what the liar sees."""
    return ATTACKS.add(name=name, means=means, source=source, knows=knows, parameters=parameters, **more)
