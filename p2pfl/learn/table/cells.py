"""Read the text of one cell: a number, a value of a category, missing, or a date."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from datetime import date

MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})
"""Texts that count as missing, in any case, unless the schema declares them as values."""
PLAIN = re.compile(r"[+-]?(?:0|[1-9]\d*)(?:\.\d*)?", re.ASCII)
"""Numbers with more than one spelling. `007` and `1E5` are not among them: they may be codes."""
NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
DATES = (
    re.compile(r"(?P<y>\d{4})[-/.](?P<m>\d{1,2})[-/.](?P<d>\d{1,2})(?:[T ].*)?", re.ASCII),
    re.compile(r"(?P<d>\d{1,2})[-/.](?P<m>\d{1,2})[-/.](?P<y>\d{4})(?:[T ].*)?", re.ASCII),
    re.compile(r"(?P<m>\d{1,2})[-/.](?P<d>\d{1,2})[-/.](?P<y>\d{4})(?:[T ].*)?", re.ASCII),
)


def spelled(text: str, *, decimal: str = ".", ignore_case: bool = False) -> str:
    """Spell a value in one way: `1.0`, `+1` and `1` are the same, and `a` and `A` where case does not count."""
    text = text.strip()
    plain = text.replace(decimal, ".") if decimal != "." else text
    if PLAIN.fullmatch(plain):
        whole, _, fraction = plain.lstrip("+").partition(".")
        fraction = fraction.rstrip("0")
        return f"{whole}.{fraction}" if fraction else "0" if whole == "-0" else whole
    return text.casefold() if ignore_case else text


def number(text: str, decimal: str = ".") -> float | None:
    """The finite number that a cell holds; None where it holds none."""
    if decimal != ".":
        text = text.replace(decimal, ".")
    try:
        value = float(text)
    except ValueError:
        return None
    # Python accepts more numbers than a table means: 1_000, and the digits of all scripts.
    return value if math.isfinite(value) and "_" not in text and text.isascii() else None


def is_missing(text: str, codes: Collection[str], decimal: str = ".") -> bool:
    """True if a cell counts as missing. `codes`, spelled, are further values that mean missing in this column."""
    text = text.strip()
    return text.lower() in MISSING or (bool(codes) and spelled(text, decimal=decimal) in codes)


def all_numbers(values: Sequence[str]) -> bool:
    """True if all of these values are numbers."""
    return all(NUMBER.fullmatch(value) for value in values)


def is_date(text: str) -> bool:
    """True if a cell looks like a calendar date, in one of the usual orders."""
    for form in DATES:
        found = form.fullmatch(text.strip())
        if found:
            try:
                date(int(found["y"]), int(found["m"]), int(found["d"]))
            except ValueError:
                continue
            return True
    return False
