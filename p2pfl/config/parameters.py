"""What stands behind the name in a spec such as `trimmed-mean:b=1` or `variate:beta=0.1`: keys and numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping

from p2pfl.config.kinds import Kind, number

Kinds = Mapping[str, tuple[Kind, float | None]]
"""What each key may be, and what it is where it is not said."""

OBJECT = re.compile(r"(?:[^:,=+\s]+\.py|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):[A-Za-z_]\w*")
"""`file.py:object` or `package.module:object`."""
ANY_NUMBER = number(-1e30, 1e30)
_KEY = re.compile(r"[A-Za-z_]\w{0,60}")
_WHOLE = re.compile(r"-?[0-9]{1,20}")
_NUMBER = re.compile(r"-?[0-9]{1,20}(?:\.[0-9]{1,20})?(?:e[+-]?[0-9]{1,3})?")
_LONGEST = 60


def read_parameters(name: str, told: str | None, kinds: Kinds, *, example: str) -> dict[str, float | None]:
    """All parameters, from the text behind the colon; `told` is None where there is no colon.

    Raises:
        ValueError: with the word, what is wrong with it and what would be right.
    """
    found: dict[str, float | None] = {}
    for part, key, value in _pairs(told):
        if key not in kinds or value is None:
            known = f"none of its parameters {', '.join(kinds)}, as in {example}" if kinds else "there: it takes none"
            raise ValueError(f"{short(name)}: {short(part)!r} is {known}")
        _require_once(name, key, found)
        found[key] = _value(f"{short(name)}: {short(part)}", kinds[key][0], value)
    return {key: found.get(key, default) for key, (_, default) in kinds.items()}


def read_any_parameters(name: str, told: str | None) -> dict[str, float | None]:
    """The same where the parameters are not known yet: those of an object that has not been imported.

    Raises:
        ValueError: something is no `key=number`, or a key is there twice.
    """
    found: dict[str, float | None] = {}
    for part, key, value in _pairs(told):
        if value is None or not _KEY.fullmatch(key):
            raise ValueError(f"{short(name)}: {short(part)!r} is no parameter: write key=number")
        _require_once(name, key, found)
        found[key] = _value(f"{short(name)}: {short(part)}", ANY_NUMBER, value)
    return found


def short(text: str) -> str:
    """For a message of one line."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in text[: _LONGEST + 1])
    return plain if len(plain) <= _LONGEST else plain[: _LONGEST - 3] + "..."


def _pairs(told: str | None) -> list[tuple[str, str, str | None]]:
    """Each part whole, its key and its value; None: it has no equals sign."""
    found: list[tuple[str, str, str | None]] = []
    for part in [] if told is None else told.split(","):
        key, equals, value = part.partition("=")
        found.append((part, key, value if equals else None))
    return found


def _require_once(name: str, key: str, found: Mapping[str, object]) -> None:
    if key in found:
        raise ValueError(f"{short(name)}: {key} is there twice")


def _value(part: str, kind: Kind, text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{part}: write {kind.allowed}")
    try:
        return kind.read(int(text) if _WHOLE.fullmatch(text) else float(text))  # type: ignore[no-any-return]
    except ValueError:
        raise ValueError(f"{part}: write {kind.allowed}") from None
