"""The words of `training.method`: what a node learns by, for instance `variate:beta=0.1` or `prox:mu=0.01`.

    plain | variate[:beta=X] | prox[:mu=X] | normalized[:steps=X] | tracking[:gain=X] | momentum[:mu=X]
    outer[:momentum=X,rate=X] | fair[:q=X] | module:object[,key=X] | file.py:object[,key=X]

What methods do is for `learn.methods`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from p2pfl.config.tables import OBJECT, Kind, ParameterKinds, number, read_any_parameters, read_parameters, short

_PARAMETERS: Mapping[str, ParameterKinds] = {
    "plain": {},
    "variate": {"beta": (number(0, 1e30, above=True), 0.1)},
    "prox": {"mu": (number(0, 1e30), 0.01)},
    "normalized": {"steps": (number(0, 1e30, above=True), 20.0)},
    "tracking": {"gain": (number(0, 1, above=True), 0.5)},
    "momentum": {"mu": (number(0, 1, below=True), 0.9)},
    "outer": {"momentum": (number(0, 1, below=True), 0.5), "rate": (number(0, 1e30, above=True), 0.7)},
    "fair": {"q": (number(0, 100), 1.0)},
}
NAMES = tuple(_PARAMETERS)
ALLOWED = (
    "plain, variate:beta=0.1, prox:mu=0.01, normalized:steps=20, tracking:gain=0.5, momentum:mu=0.9, "
    "outer:momentum=0.5,rate=0.7, fair:q=1; or your own: module:object,key=1 or file.py:object,key=1"
)
_KNOWN_AS = {
    "fedavg": "plain",
    "sgd": "plain",
    "none": "plain",
    "dsgd": "plain",
    "scaffold": "variate",
    "controlvariate": "variate",
    "fedprox": "prox",
    "fednova": "normalized",
    "kgt": "tracking",
    "gradienttracking": "tracking",
    "qgm": "momentum",
    "qgdsgdm": "momentum",
    "diloco": "outer",
    "noloco": "outer",
    "qffl": "fair",
    "qfedavg": "fair",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedMethod:
    """What a spec says; `str` gives its canonical spelling."""

    name: str
    """One of NAMES, or `module:object`, or `file.py:object`."""
    parameters: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def is_object(self) -> bool:
        """It is no method of ours, but one to import."""
        return self.name not in NAMES

    def __str__(self) -> str:
        told = ",".join(f"{key}={value!r}" for key, value in self.parameters.items())
        return self.name + ("," if self.is_object else ":") * bool(told) + told


def method() -> Kind:
    """Its values are specs in their canonical spelling; `read` gives the reason with which it refuses."""

    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError("not a text")  # noqa: TRY004 - a reader has one way to refuse
        return str(parse_method(value))

    return Kind(ALLOWED, read)


def parse_method(text: str) -> ParsedMethod:
    """The method of a spec. Raises ValueError: with the word, what is wrong with it and what would be right."""
    name, comma, told = text.partition(",")
    if OBJECT.fullmatch(name) and name.partition(":")[0] not in NAMES:
        return ParsedMethod(name=name, parameters=read_any_parameters(name, told if comma else None))
    name, colon, told = text.partition(":")
    if name not in NAMES:
        plain = "".join(filter(str.isalnum, name.lower()))
        near = _KNOWN_AS.get(plain) or next(iter(get_close_matches(name.lower()[:60], NAMES, n=1, cutoff=0.6)), "")
        hint = f"did you mean {near}?" if near else f"there are {', '.join(NAMES)}"
        raise ValueError(f"unknown method {short(name)!r}: {hint}")
    kinds = _PARAMETERS[name]
    example = ", ".join(f"{key}={default:g}" for key, (_, default) in kinds.items())
    return ParsedMethod(name=name, parameters=read_parameters(name, told if colon else None, kinds, example=example))


def from_here(spec: str) -> str:
    """The same, with the path of a file from the working folder made absolute: a federation file may be elsewhere.

    Raises ValueError: as `parse_method`.
    """
    parsed = parse_method(spec)
    return str(replace(parsed, name=str(Path(parsed.name).absolute())) if ".py:" in parsed.name else parsed)


def of_control_variate(beta: float) -> str:
    """The spec of what used to be written `control_variate = beta`."""
    return str(ParsedMethod(name="variate", parameters={"beta": beta})) if beta else "plain"
