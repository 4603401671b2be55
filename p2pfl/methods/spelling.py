"""The grammar of `training.method`: the learning method of a node, for instance `variate:beta=0.1` or `prox:mu=0.01`.

NAME[:key=value,...] | module:object[,key=value,...] | file.py:object[,key=value,...]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from p2pfl.methods.method import METHODS
from p2pfl.specs import read_any_parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedMethod:
    """A parsed spec; `str` gives its canonical spelling."""

    name: str
    """A name in METHODS, or `module:object`, or `file.py:object`."""
    parameters: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def is_object(self) -> bool:
        """True if the method is the user's, and must be imported."""
        return self.name not in METHODS

    def __str__(self) -> str:
        told = ",".join(f"{key}={value!r}" for key, value in self.parameters.items())
        return self.name + ("," if self.is_object else ":") * bool(told) + told


def allowed() -> str:
    """Describe all methods in words."""
    known = ", ".join(entry.shown for entry in METHODS.values())
    return f"{known}; or your own: module:object,key=1 or file.py:object,key=1"


def parse_method(text: str) -> ParsedMethod:
    """Read the method of a spec. Raises ValueError: names the wrong word, what is wrong with it and what is allowed."""
    if own := METHODS.own(text):
        return ParsedMethod(name=own[0], parameters=read_any_parameters(*own))
    entry, values = METHODS.read(text)
    return ParsedMethod(name=entry.name, parameters=values)


def from_here(spec: str) -> str:
    """Make the path of a file in a spec absolute, from the working folder: a federation file may be elsewhere.

    Raises ValueError: as `parse_method`.
    """
    parsed = parse_method(spec)
    return str(replace(parsed, name=str(Path(parsed.name).absolute())) if ".py:" in parsed.name else parsed)
