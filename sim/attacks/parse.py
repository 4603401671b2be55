"""`alie:2`, `sleeper:sign-flip:3@5`: the text that names an attack."""

from __future__ import annotations

import re

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
    if form is None or (colon and form.parameter is None):
        raise ValueError(f"no such attack: {text}")
    if form.wrap is not None:
        return _wrapped(form, name, written if colon else None)
    parameter = 0.0 if form.parameter is None else float(written) if colon else form.default
    if not abs(parameter) <= LARGEST or (form.positive and parameter <= 0):
        raise ValueError(f"no parameter of {name}: {written}")
    return Attack(spec=text, **form.make(parameter))


def _wrapped(form: Form, name: str, written: str | None) -> Attack:
    """One attack around another, no deeper."""
    inner, period = None, PERIOD
    if written is not None:
        lie, at, rounds = written.partition("@")
        inner = parse_attack(lie)
        if at and (name != "sleeper" or not re.fullmatch("[0-9]{1,7}", rounds)):
            raise ValueError(f"no number of rounds: {rounds}")
        period = int(rounds) if at else PERIOD
    if form.wrap is None or not 1 <= period <= LONGEST_PERIOD:
        raise ValueError(f"no such attack: {name}:{written}")
    nested = inner is not None and REGISTRY[inner.spec.partition(":")[0]].wrap is not None
    if nested or (name == "sleeper" and inner is not None and inner.poison is not None):
        raise ValueError(f"{name} around an attack that cannot be part of it: {written}")
    return form.wrap(inner, period)
