"""Other people's rules: any callable in byzfl's convention, as a rule of ours and, by its name, of a node."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np

from p2pfl.aggregate.batch import Rows
from p2pfl.aggregate.interface import Vector
from p2pfl.aggregate.rules import Aggregator
from p2pfl.config.plugins import FAILURES, describe_failure, find_object
from p2pfl.errors import UserError

KEY, ALLOWED = "gossip.rule", "module:object or file.py:object"


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
        except FAILURES as error:
            raise self._fault(f"the rule failed: {describe_failure(error)}") from error
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
    found = find_object(name, folder or Path(), what="rule", key=KEY, allowed=ALLOWED)
    try:
        rule = cast("Any", found)(f=liars) if inspect.isclass(found) else found
    except FAILURES as error:
        raise UserError(f"the rule failed: {describe_failure(error)}", key=KEY, value=name) from error
    if not callable(rule):
        raise UserError("no rule, for it cannot be called", key=KEY, value=name, allowed="a function or a class")
    return Adapted(rule, liars, name)
