"""Other people's rules: any callable in byzfl's convention, as a rule of ours and, by its name, of a node."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np

from p2pfl.aggregate.batch import Rows
from p2pfl.aggregate.interface import Vector
from p2pfl.aggregate.rules import Aggregator
from p2pfl.errors import UserError

KEY, LONGEST = "gossip.rule", 300


class Adapted(Aggregator):
    """Calls `rule` with an array (n, d) of its own and takes no answer but a finite one of (d,).

    Raises:
        UserError: when called, that the rule failed, or gave something else.
    """

    def __init__(self, rule: Callable[[Any], Any], f: int = 0, name: str = "") -> None:
        super().__init__(f)
        self.rule, self.name = rule, name or getattr(rule, "__name__", type(rule).__name__)

    def of(self, rows: Rows) -> Vector:
        try:
            found = np.asarray(self.rule(np.stack(rows)))
        except (Exception, SystemExit) as error:
            raise self._fault(f"the rule failed: {_told(error)}") from error
        if found.shape != rows[0].shape or found.dtype.kind != "f":
            raise self._fault(f"the rule gave {found.dtype} of shape {found.shape}, where {rows[0].shape} was due")
        with np.errstate(over="ignore"):
            found = found.astype(rows[0].dtype)
        if not np.isfinite(found).all():
            raise self._fault("the rule gave NaN or infinity")
        return found

    def _fault(self, text: str) -> UserError:
        return UserError(text, key=KEY, value=self.name, allowed="a rule of finite vectors (n, d) to one (d,)")


def adapted(name: str, liars: int, folder: Path | None) -> Adapted:
    """The rule `module:object` or `file.py:object`, the file looked up from `folder`; a class is made with f=liars.

    Raises:
        UserError: it cannot be imported, or cannot be called.
    """
    place, _, attribute = name.rpartition(":")
    try:
        module = _from_file((folder or Path()) / place) if place.endswith(".py") else importlib.import_module(place)
        found: Any = getattr(module, attribute)
        rule = cast("Any", found)(f=liars) if inspect.isclass(found) else found
    except (Exception, SystemExit) as error:
        text = f"the rule could not be imported: {_told(error)}"
        raise UserError(text, key=KEY, value=name, allowed="module:object or file.py:object") from error
    if not callable(rule):
        raise UserError("no rule, for it cannot be called", key=KEY, value=name, allowed="a function or a class")
    return Adapted(rule, liars, name)


def _told(error: BaseException) -> str:
    """In one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:LONGEST]}"


def _from_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"p2pfl_rule_{path.stem}", path.absolute())
    if spec is None or spec.loader is None:
        raise ImportError(f"no file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
