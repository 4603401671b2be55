"""The one error of this package: a graph that cannot be what was asked for."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TopologyError(ValueError):
    """`key` names the part of the request at fault, `value` what it was, `allowed` what would be right."""

    def __init__(
        self, message: str, *, key: str | None = None, value: object = None, allowed: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.key = key
        self.value = value
        self.allowed = allowed

    def __str__(self) -> str:
        text = f"{self.key}: {self.message}" if self.key else self.message
        if self.value is not None:
            text += f" (found {self.value!r})"
        if self.allowed:
            text += f"; allowed: {self.allowed}"
        return text


def nearest(word: str, words: Iterable[str]) -> str:
    """`words` in one line, headed by the one closest to `word` where one is close."""
    known = sorted(words)
    listed = ", ".join(known) or "nothing"
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"{listed} (did you mean {close[0]!r}?)" if close else listed
