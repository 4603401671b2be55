"""`alie:2`, `sleeper:sign-flip:3@5`: the text that names an attack."""

from __future__ import annotations

import math
import re
from difflib import get_close_matches

from sim.attacks.attack import Attack
from sim.attacks.registry import REGISTRY, Form

LARGEST = 1e6
"""a parameter is at most so large: beyond it float32 overflows, and `nan` says that more plainly."""
PERIOD, LONGEST_PERIOD = 10, 10**6
"""of a sleeper, in its own rounds."""

ALLOWED_ATTACKS = (
    ", ".join(form.usage(name) for name, form in REGISTRY.items())
    + f"; numbers up to {LARGEST:g}; `p2pfl sim attacks` says what they do"
)


def parse_attack(text: object) -> Attack:
    """The attack that `text` names.

    Raises:
        ValueError: it names none; `ALLOWED_ATTACKS` says what would.
    """
    if not isinstance(text, str):
        raise ValueError("an attack is named by text")  # noqa: TRY004 - a reader has one way to refuse
    name, colon, written = text.partition(":")
    form = REGISTRY.get(name)
    if form is None:
        near = get_close_matches(name, REGISTRY, n=1)
        raise ValueError("no such attack" + (f"; did you mean {near[0]}?" if near else ""))
    if colon and form.parameter is None:
        raise ValueError(f"{name} takes no parameter")
    if form.wrap is not None:
        return _wrapped(form, name, written if colon else None)
    parameter = 0.0 if form.parameter is None else _number(written) if colon else form.default
    if not abs(parameter) <= LARGEST or (form.positive and parameter <= 0):
        raise ValueError(f"no {form.parameter} of {name}" + (", it has to be above 0" if parameter <= 0 else ""))
    return Attack(spec=text, **form.make(parameter))


def _number(written: str) -> float:
    """NaN where it is none."""
    try:
        return float(written)
    except ValueError:
        return math.nan


def _wrapped(form: Form, name: str, written: str | None) -> Attack:
    """One attack around another, no deeper."""
    inner, period = None, PERIOD
    if written is not None:
        lie, at, rounds = written.partition("@")
        inner = parse_attack(lie)
        if at and (name != "sleeper" or not re.fullmatch("[0-9]{1,7}", rounds)):
            raise ValueError(f"no number of rounds of {name}: {rounds}")
        period = int(rounds) if at else PERIOD
        nested = REGISTRY[inner.spec.partition(":")[0]].wrap is not None
        if nested or (name == "sleeper" and inner.poison is not None):
            raise ValueError(f"{name} cannot be made of {lie}")
    if form.wrap is None or not 1 <= period <= LONGEST_PERIOD:
        raise ValueError(f"ROUNDS of {name} are from 1 to {LONGEST_PERIOD:,}")
    return form.wrap(inner, period)
