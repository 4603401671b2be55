"""The one error of this package: a request that no graph can meet."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable
from pathlib import Path

SHOWN_LIMIT = 200
"""The most characters of a value that an error shows."""

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EROFS)


class TopologyError(ValueError):
    """A wrong request. `key` names the part at fault, `value` what it was, `allowed` what would be right."""

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
            found = repr(self.value)
            text += f" (found {found if len(found) <= SHOWN_LIMIT else found[:SHOWN_LIMIT] + '...'})"
        if self.allowed:
            text += f"; allowed: {self.allowed}"
        return text


class DisconnectedError(TopologyError):
    """The graph has nodes that cannot reach each other, and so never agree."""

    exit_code = 3


class UnwritableError(TopologyError):
    """The disk is full or broken: nobody's mistake."""

    exit_code = 1


def not_written(message: str, error: OSError, *, key: str, path: Path) -> TopologyError:
    """Make the error for a file that could not be written: a mistake in its path, or a disk that cannot take it."""
    kind = UnwritableError if error.errno in _DISK else TopologyError
    return kind(f"{message}: {error.strerror}", key=key, value=str(path), allowed="a file in a folder that exists")


def nearest(word: object, words: Iterable[str]) -> str:
    """List `words` in one line, with the one closest to `word` first, ignoring case, if one is close."""
    known = sorted(words)
    listed = ", ".join(known) or "nothing"
    plain = {other.lower(): other for other in known}
    close = difflib.get_close_matches(word.lower(), plain, n=1, cutoff=0.6) if isinstance(word, str) else []
    return f"did you mean {plain[close[0]]!r}? One of: {listed}" if close else listed
