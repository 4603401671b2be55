"""An attack of the user's own: `file.py:object` or `package.module:object`, called with what a liar sees.

The object is a function from a `Sight` to the vector that the neighbor `sight.peer` is shown, (d,), or a class, which
is made without arguments before its first lie. In a simulation one object lies for all liars; a real liar has its own.
It is not called for what liars show each other, which is the truth.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from p2pfl.errors import UserError
from p2pfl.plugins import FAILURES, describe_failure, find_object
from sim.attacks.sight import Sight, Vector

KEY = "attack"
ALLOWED_OBJECT = "a function from a Sight to a vector (d,), or a class of such: file.py:object or module:object"
_FILE = re.compile(r"((?:[a-z]+:)?)([^:,=+\s]+\.py)(:[A-Za-z_]\w*(?:@.*)?)")
"""The path of a file in the spec of an attack, which may stand within another."""


class OwnLie:
    """A lie by the user's object. `name` names it; `load` or the first lie imports it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._found: Callable[[Sight], Any] | None = None

    def load(self) -> None:
        """Import the object; a file is relative to the working folder. Raises UserError: it cannot be imported, or
        cannot be called.
        """
        found = find_object(self.name, Path(), what="attack", key=KEY, allowed="file.py:object or module:object")
        try:
            lie = found() if inspect.isclass(found) else found
        except FAILURES as error:
            raise self._fault(f"the attack failed: {describe_failure(error)}") from error
        if not callable(lie):
            raise self._fault("not an attack: it cannot be called")
        self._found = lie

    def __call__(self, sight: Sight) -> Vector:
        """Return the vector that is shown: one-dimensional, of any length, finite or not. Raises UserError: the object
        failed, or returned no vector.
        """
        if self._found is None:
            self.load()
        try:
            shown = np.asarray(self._found(sight))  # type: ignore[misc]
        except FAILURES as error:
            raise self._fault(f"the attack failed: {describe_failure(error)}") from error
        if shown.ndim != 1 or not shown.size or shown.dtype.kind not in "fiu":
            raise self._fault(f"the attack returned {shown.dtype} of shape {shown.shape}, not {sight.own.shape}")
        return shown

    def _fault(self, text: str) -> UserError:
        return UserError(text, key=KEY, value=self.name, allowed=ALLOWED_OBJECT)


def with_absolute_path(spec: str, folder: Path) -> str:
    """Make the path in an attack's spec absolute, if it has one: a relative one begins at `folder`."""
    found = _FILE.fullmatch(spec)
    return f"{found[1]}{(folder / found[2]).absolute()}{found[3]}" if found else spec


def file_of(spec: str) -> Path | None:
    """Return the file that defines the attack, if a file does."""
    found = _FILE.fullmatch(spec)
    return Path(found[2]) if found else None
