"""Lookups by name: the version of this software, and the user's own code: a task, a rule or a method, whose
failures are reported in one line.

A name is `file.py:object`, where the file is relative to the folder of the federation file, or `package.module:object`.
"""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import sysconfig
import traceback
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from p2pfl.errors import EXTRAS, UserError, needs
from p2pfl.names import DISTRIBUTION

_NOT_THEIRS = (str(Path(__file__).parent), sysconfig.get_paths()["stdlib"])
_LONGEST = 400

FAILURES = (Exception, SystemExit)
"""The exceptions reported as failures of the user's code; else an `exit()` there would end the process silently."""


@cache
def software() -> str:
    """Return the version of this software."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "from source"


def commit() -> str:
    """Return which commit this is, to follow the version, if the code stands in a git checkout."""
    root = Path(__file__).parents[1]
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=8", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - no word of others
    except (OSError, subprocess.CalledProcessError):
        return f", in the checkout {root}, whose commit git does not tell"
    return f", commit {done.stdout.strip()} in {root}"


def describe_failure(error: BaseException) -> str:
    """Describe a failure as in `ValueError: text (task.py, line 12)`, where the line is the deepest one outside
    libraries and this package.
    """
    text = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    if isinstance(error, ModuleNotFoundError) and error.name and error.name in EXTRAS:
        text = needs(error.name)
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


def find_object(name: str, folder: Path, *, what: str, key: str, allowed: str) -> Any:
    """Import the object `name`; errors use `what` ("task") and `key` ("task.name").

    Raises UserError: there is no such file, module or object, or it cannot be imported.
    """
    place, _, attribute = name.rpartition(":")
    if not place or not attribute:
        raise UserError(f"no such {what}", key=key, value=name, allowed=allowed)
    try:
        module = _module_from_file(what, folder / place) if place.endswith(".py") else importlib.import_module(place)
    except UserError as error:
        error.key, error.value, error.allowed = error.key or key, error.value or name, error.allowed or allowed
        raise
    except FAILURES as error:
        raise _failed_import(error, place, folder, what=what, key=key, value=name, allowed=allowed) from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        names = sorted(each for each in vars(module) if not each.startswith("_"))
        text = f"{place} has no {attribute!r}"
        raise UserError(text, key=key, value=name, allowed=", ".join(names) or "nothing") from None


def _failed_import(error: BaseException, place: str, folder: Path, *, what: str, **about: Any) -> UserError:
    if place.endswith(".py"):
        text = f"the {what} could not be imported: {describe_failure(error)}"
        return UserError(text, file=(folder / place).absolute(), key=None if what == "task" else about["key"])
    missing = isinstance(error, ModuleNotFoundError) and error.name and f"{place}.".startswith(f"{error.name}.")
    text = f"there is no module {place}" if missing else f"{place} could not be imported: {describe_failure(error)}"
    return UserError(text, **about)


class PlainLoader(SourceFileLoader):
    """Compiles the current content of the file, and writes no bytecode.

    Cached bytecode is validated by file size and time of change in seconds, so a file changed to the same size within a
    second would run in its old form.
    """

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def _module_from_file(what: str, path: Path) -> ModuleType:
    path = path.absolute()
    name = f"p2pfl_{what}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path, loader=PlainLoader(name, str(path)))
    if spec is None or spec.loader is None or not path.is_file():
        raise UserError(f"there is no file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look up a class's module here
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # last, so that files next to it shadow no library
    spec.loader.exec_module(module)
    return module
