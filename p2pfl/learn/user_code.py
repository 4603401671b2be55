"""One line about an exception that came out of the user's own code: its text and where it was raised."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

_NOT_THEIRS = (str(Path(__file__).parents[1]), sysconfig.get_paths()["stdlib"])
_LONGEST = 400

FAILURES = (Exception, SystemExit)
"""What is told of as a failure of the user's code: an `exit()` in it would end the process without a word."""


def describe_failure(error: BaseException) -> str:
    """`ValueError: text (task.py, line 12)`: the deepest line that belongs to neither a library nor this package."""
    text = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    if len(text) > _LONGEST:
        text = text[:_LONGEST] + " ..."
    kind = type(error).__name__
    return f"{kind}: {text}{_place(error)}" if text else f"{kind}{_place(error)}"


def _place(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({Path(error.filename).name}, line {error.lineno})"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    theirs = [frame for frame in frames if not _is_library(frame.filename)]
    if not (theirs or frames):
        return ""
    last = (theirs or frames)[-1]
    return f" ({Path(last.filename).name}, line {last.lineno})"


def _is_library(filename: str) -> bool:
    path = Path(filename)
    return filename.startswith(_NOT_THEIRS) or "site-packages" in path.parts or "dist-packages" in path.parts
