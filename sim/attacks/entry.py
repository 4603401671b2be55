"""The registry's entries: each is a decorator on the function or the class that implements the attack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from p2pfl.specs import MISSING, Catalog, Entry, Made, Parameter, number
from sim.attacks.attack import Attack, Lie

LARGEST = 1e6
"""The largest parameter: beyond it float32 overflows, for which `nan` is the simpler attack."""
NOTHING, PEER, NEIGHBORS, RULE, GRAPH, LOSS, DATA = (
    "nothing",
    "the model of its victim",
    "the models around its victim",
    "the models around its victim, and its rule",
    "all honest models, and the graph",
    "all honest models, the rule of its victim, and data: everybody's in a simulation, its own as a real node",
    "its own data",
)
"""The knowledge that an attack needs."""
FANG = "Fang et al. 2020, arXiv 1911.11815"


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
        """Return the fields of an `Attack` for these arguments."""
        return {"lie": partial(self.made, **arguments)}


@dataclass(frozen=True, kw_only=True)
class BlindEntry(AttackEntry):
    """Registers a function as `Attack.blind`, as the base class does as `Attack.lie`; parameters are
    further arguments.
    """

    def parts(self, arguments: Mapping[str, float]) -> dict[str, Any]:
        return {"blind": partial(self.made, **arguments)}


@dataclass(frozen=True, kw_only=True)
class PoisonEntry(AttackEntry):
    """Registers a class as `Poison`. With a `lie` the model is shown through it, except for a parameter of 1."""

    knows: str = DATA
    lie: Callable[..., Any] | None = None
    place: int = 2

    def parts(self, arguments: Mapping[str, float]) -> dict[str, Any]:
        lie: Lie | None = partial(self.lie, **arguments) if self.lie and set(arguments.values()) != {1} else None
        return {"poison": self.made(), "lie": lie}


@dataclass(frozen=True, kw_only=True)
class WrapEntry(AttackEntry):
    """Registers a function that makes an attack from another one (None: not given) and from its parameters."""

    knows: str = "what LIE needs"
    place: int = 3

    def wrap(self, lie: Attack | None, *values: float) -> Attack:
        made: Attack = self.made(lie, *values)
        return made


ATTACKS: Catalog[AttackEntry] = Catalog("attack")


def blind(name: str, means: str, source: str, *parameters: Parameter, **more: Any) -> Callable[[Made], Made]:
    """Register a lie that looks at the liar's own model alone."""
    return ATTACKS.add(BlindEntry(name=name, means=means, source=source, parameters=parameters, **more))


def lie(name: str, means: str, source: str, knows: str, *parameters: Parameter, **more: Any) -> Callable[[Made], Made]:
    """Register a lie that looks at what the liar sees."""
    return ATTACKS.add(AttackEntry(name=name, means=means, source=source, knows=knows, parameters=parameters, **more))
