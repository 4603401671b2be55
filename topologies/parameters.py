"""What a family may be asked for: its parameters, and how the text of a value is read."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WHOLE_LIMIT = 10**9
"""No parameter counts beyond it, and sums and products of a few of them still fit into 64 bits."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """`read` turns the text of a value into the value and raises ValueError where it cannot.

    A default of None means that the family chooses: `meaning` says how.
    """

    default: Any
    allowed: str
    read: Callable[[str], Any]
    meaning: str = ""


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
