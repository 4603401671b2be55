"""What one value of a file may be: a reader and the words for what it accepts.

A reader returns the value as the model wants it and raises ValueError where it cannot, with the reason where `allowed`
does not tell it; who asked adds file and key.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_][A-Za-z0-9_.-]*):(\d{1,5})")
LARGEST = 2**63 - 1
SAFE = 1e300


@dataclass(frozen=True, slots=True)
class Kind:
    allowed: str
    read: Callable[[Any], Any]


def text() -> Kind:
    """Any text but an empty one."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or not value.strip():
            raise ValueError
        return value

    return Kind("text", read)


def matching(pattern: re.Pattern[str], allowed: str) -> Kind:
    def read(value: Any) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise ValueError
        return value

    return Kind(allowed, read)


def name() -> Kind:
    """It names a folder, so no separator and no leading dot."""
    return matching(NAME, "1 to 64 of A-Z a-z 0-9 . _ -, not starting with a dot")


def choice(*words: str) -> Kind:
    return matching(re.compile("|".join(map(re.escape, words))), ", ".join(words))


def texts() -> Kind:
    """One text or several of them, none empty: always a tuple afterwards."""
    one = text()

    def read(value: Any) -> tuple[str, ...]:
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not values:
            raise ValueError
        if any(isinstance(each, str) and not each.strip() for each in values):
            raise ValueError("an empty text")
        return tuple(one.read(each) for each in values)

    return Kind("text, or a list of texts", read)


def pair() -> Kind:
    """Two different names."""
    one = name()

    def read(value: Any) -> tuple[str, str]:
        if not isinstance(value, list) or len(value) != 2:
            raise ValueError
        first, second = (one.read(each) for each in value)
        if first == second:
            raise ValueError(f"{first} twice: an edge joins two nodes")
        return first, second

    return Kind('the names of two neighbors, such as ["node0", "node1"]', read)


def whole(least: int, most: int = LARGEST) -> Kind:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError
        return value

    return Kind(f"a whole number from {least}" + (f" to {most}" if most < LARGEST else ""), read)


def number(least: float, most: float = math.inf, *, above: bool = False, below: bool = False) -> Kind:
    """A finite number from `least` to `most`; `above` and `below` leave out the ends. Always a float afterwards."""

    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > SAFE:
            raise ValueError
        if math.isnan(value) or not least <= value <= most or (above and value == least) or (below and value == most):
            raise ValueError
        return float(value)

    low = f"a number above {least:g}" if above else f"a number from {least:g}"
    high = "" if math.isinf(most) else f", below {most:g}" if below else f" up to {most:g}"
    return Kind(low + high, read)


def address(least_port: int) -> Kind:
    def read(value: Any) -> str:
        found = ADDRESS.fullmatch(value) if isinstance(value, str) else None
        if not found or not least_port <= int(found[1]) <= 65535:
            raise ValueError
        return str(value)

    return Kind(f'"host:port" with a port from {least_port} to 65535', read)


def or_none(kind: Kind) -> Kind:
    """The word "none" turns it off."""
    return Kind(f'{kind.allowed}, or "none"', lambda value: None if value == "none" else kind.read(value))
