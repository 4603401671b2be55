"""Reads `name` or `name:key=value,...`. Which names and keys there are, `families` says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topologies.errors import TopologyError, nearest
from topologies.families import FAMILIES
from topologies.family import Parameter

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
_FAMILY_HEAD = re.compile(r"\s*[a-z][a-z0-9-]+\s*:")


@dataclass(frozen=True, slots=True)
class Spec:
    """A family's name and a value for each of its parameters."""

    name: str
    parameters: Mapping[str, Any]


def is_file(spec: str) -> bool:
    """A graph file is told from a family by a folder in its name or a suffix: `.json`, `.edges`, ...

    What begins like `name:` is a family, whose parameters may hold paths of their own.
    """
    if _FAMILY_HEAD.match(spec):
        return False
    return "/" in spec or "\\" in spec or Path(spec).suffix.lower() in FILE_SUFFIXES


def parse(text: str) -> Spec:
    """A family, with defaults filled in. Raises TopologyError: an unknown family or key, or a wrong value."""
    name, colon, rest = (part.strip() for part in text.partition(":"))
    if name not in FAMILIES:
        raise TopologyError(
            "unknown topology", key="topology", value=text, allowed=nearest(name, FAMILIES) + ", or a graph file"
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
