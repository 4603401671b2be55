"""Reads `name` or `name:key=value,...`. Which names and keys there are, `families` says."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topologies.errors import TopologyError, nearest

FILE_SUFFIXES = (
    ".json",
    ".edges",
    ".edgelist",
    ".txt",
    ".adjlist",
    ".graphml",
    ".gexf",
    ".gml",
    ".metis",
    ".graph",
    ".mtx",
    ".npz",
)
WHOLE_LIMIT = 10**9
"""No parameter counts beyond it, and sums and products of a few of them still fit into 64 bits."""
_FAMILY_HEAD = re.compile(r"\s*[a-z][a-z0-9-]+\s*:")


@dataclass(frozen=True, slots=True)
class Parameter:
    """`read` turns the text of a value into the value and raises ValueError where it cannot.

    A default of None means that the family chooses: `meaning` says how.
    """

    default: Any
    allowed: str
    read: Callable[[str], Any]
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class Spec:
    """A family's name and a value for each of its parameters."""

    name: str
    parameters: Mapping[str, Any]


def counted(text: str, minimum: int, maximum: int = WHOLE_LIMIT) -> int:
    """Digits and nothing else: `int` also takes `1_0` and the digits of other scripts. Raises ValueError."""
    if not (text.isascii() and text.isdigit()) or not minimum <= (value := int(text)) <= maximum:
        raise ValueError(text)
    return value


def whole(default: int | None, minimum: int, meaning: str = "", *, maximum: int = WHOLE_LIMIT) -> Parameter:
    def read(text: str) -> int:
        return counted(text, minimum, maximum)

    return Parameter(default, f"a whole number from {minimum} to {maximum}", read, meaning)


def fraction(default: float, meaning: str = "") -> Parameter:
    def read(text: str) -> float:
        if not 0.0 <= (value := float(text)) <= 1.0:
            raise ValueError(text)
        return value

    return Parameter(default, "a number from 0 to 1", read, meaning)


def positive(default: float | None, meaning: str = "") -> Parameter:
    def read(text: str) -> float:
        if not 0.0 < (value := float(text)) < math.inf:
            raise ValueError(text)
        return value

    return Parameter(default, "a number above 0", read, meaning)


def offsets(default: tuple[int, ...], meaning: str = "") -> Parameter:
    def read(text: str) -> tuple[int, ...]:
        return tuple(sorted({counted(part, 1) for part in text.split("-")}))

    return Parameter(default, "whole numbers from 1 joined by '-', such as 1-2", read, meaning)


def lengths(meaning: str = "") -> Parameter:
    """The sides of a box, in order; none by default."""

    def read(text: str) -> tuple[int, ...]:
        return tuple(counted(part, 2) for part in text.split("x"))

    return Parameter(None, "whole numbers from 2 joined by 'x', such as 4x5x6", read, meaning)


def choice(default: str, *others: str, meaning: str = "") -> Parameter:
    words = (default, *others)

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(text)
        return text

    return Parameter(default, " or ".join(words), read, meaning)


def file(meaning: str = "") -> Parameter:
    """The path of a file, without commas; none by default. Relative ones start at the request's folder."""

    def read(text: str) -> Path:
        if not text:
            raise ValueError(text)
        return Path(text)

    return Parameter(None, "the path of a file, without commas", read, meaning)


def is_file(spec: str) -> bool:
    """A graph file is told from a family by a folder in its name or a suffix: `.json`, `.edges`, ...

    What begins like `name:` is a family, whose parameters may hold paths of their own.
    """
    if _FAMILY_HEAD.match(spec):
        return False
    return "/" in spec or "\\" in spec or Path(spec).suffix.lower() in FILE_SUFFIXES


def parse(text: str) -> Spec:
    """A family and its parameters, defaults filled in.

    Raises:
        TopologyError: an unknown family or parameter (the nearest is suggested), or a value it cannot have.
    """
    from topologies.families import FAMILIES  # noqa: PLC0415 - the families are written with the parameters above

    name, colon, rest = (part.strip() for part in text.partition(":"))
    if name not in FAMILIES:
        raise TopologyError(
            "unknown topology",
            key="topology",
            value=text,
            allowed=nearest(name, FAMILIES) + ", or a graph file",
        )
    known = FAMILIES[name].parameters
    values = {key: parameter.default for key, parameter in known.items()}
    values.update(_settings(name, rest, known) if colon else {})
    return Spec(name, values)


def _settings(name: str, text: str, known: Mapping[str, Parameter]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if key not in known:
            raise TopologyError(f"unknown parameter of {name}", key=name, value=key, allowed=nearest(key, known))
        if not equals or key in settings:
            raise TopologyError("needs key=value, each key once", key=f"{name}:{key}", value=part)
        settings[key] = _value(name, key, value, known[key])
    return settings


def _value(name: str, key: str, text: str, parameter: Parameter) -> Any:
    try:
        return parameter.read(text)
    except ValueError:
        raise TopologyError("impossible value", key=f"{name}:{key}", value=text, allowed=parameter.allowed) from None
