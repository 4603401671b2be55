"""Checks TOML tables against their keys' allowed values. Collects every mistake of a file, in the file's order."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from p2pfl.config.kinds import Kind
from p2pfl.errors import UserError


@dataclass(frozen=True, slots=True)
class Mistakes:
    """The mistakes in one file."""

    file: Path
    found: list[UserError] = field(default_factory=list)

    def add(self, message: str, key: str, value: object = None, allowed: str | None = None) -> None:
        self.found.append(UserError(message, file=self.file, key=key, value=value, allowed=allowed))


def read_document(path: Path) -> dict[str, Any]:
    """Parse a TOML file. Raises UserError: it cannot be read, or is not TOML; then its file is `path:line`."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", file=path) from None
    except UnicodeDecodeError:
        raise UserError("is not UTF-8 text", file=path) from None
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        raise UserError(f"not TOML: {error}", file=f"{path}:{line[1]}" if line else path) from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets in brackets without end
        raise UserError(f"not TOML that can be read: {error}", file=path) from None


def unknown_keys(table: Mapping[str, Any], prefix: str, known: Iterable[str], mistakes: Mistakes) -> None:
    words = list(known)
    for key, value in table.items():
        if key not in words:
            close = difflib.get_close_matches(key, words, n=1, cutoff=0.6)
            meant = f"; did you mean {close[0]!r}?" if close else ""
            mistakes.add(f"unknown key{meant}", prefix + key, _brief(value), ", ".join(words))


def read_table(table: Any, prefix: str, kinds: Mapping[str, Kind], mistakes: Mistakes) -> dict[str, Any]:
    """The valid values of a table. `prefix` ends in a dot."""
    if not isinstance(table, dict):
        mistakes.add("must be a table", prefix.rstrip("."), _brief(table), f"[{prefix.rstrip('.')}]")
        return {}
    unknown_keys(table, prefix, kinds, mistakes)
    values = {}
    for key, kind in kinds.items():
        if key in table:
            try:
                values[key] = kind.read(table[key])
            except ValueError as reason:
                mistakes.add(str(reason) or _complaint(table[key]), prefix + key, _brief(table[key]), kind.allowed)
    return values


def exclusive(table: Any, prefix: str, first: str, second: str, mistakes: Mistakes) -> None:
    """Refuse a table that has both keys."""
    if isinstance(table, dict) and first in table and second in table:
        mistakes.add(f"stands beside {prefix}{first}", prefix + second, _brief(table[second]), "one of the two")


def require(table: Any, prefix: str, keys: Iterable[str], kinds: Mapping[str, Kind], mistakes: Mistakes) -> None:
    for key in keys:
        if isinstance(table, dict) and key not in table:
            mistakes.add("is missing", prefix + key, None, kinds[key].allowed)


def _complaint(value: Any) -> str:
    return "impossible value" if isinstance(value, str | int | float) and not isinstance(value, bool) else "wrong type"


def _brief(value: Any) -> Any:
    """A value fit for one line of an error."""
    if isinstance(value, list) and value and len(str(value)) <= 100 and all(isinstance(one, str) for one in value):
        return value
    if isinstance(value, dict | list):
        return f"a {'table' if isinstance(value, dict) else 'list'} of {len(value)}"
    if isinstance(value, int) and value.bit_length() > 300:  # Python refuses to write out the longest
        return f"a whole number of {value.bit_length()} bits"
    return value if len(str(value)) <= 100 else str(value)[:100] + "..."
