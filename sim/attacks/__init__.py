"""Attacks by liars: pure functions, for the simulator and real liar processes alike; no node imports them.

`parse_attack("alie:1.5")` gives an `Attack`; a liar sees a `Sight`; `ATTACKS` lists every attack with its source.
"""

from __future__ import annotations

from difflib import get_close_matches

from p2pfl.specs import OBJECT, read_number
from sim.attacks import lies, poison  # noqa: F401 - each adds its entries
from sim.attacks.attack import (
    ATTACKS,
    BOAST,
    LARGEST,
    Attack,
    OwnLie,
    Poison,
    Sight,
    WrapEntry,
    boast,
    file_of,
    passable,
    press,
    with_absolute_path,
)

__all__ = [
    "ALLOWED_ATTACKS",
    "ATTACKS",
    "BOAST",
    "Attack",
    "Poison",
    "Sight",
    "boast",
    "file_of",
    "make_attack",
    "parse_attack",
    "passable",
    "press",
    "with_absolute_path",
]

ALLOWED_ATTACKS = (
    ", ".join(entry.usage for entry in ATTACKS.values())
    + f"; numbers up to {LARGEST:g}; `p2pfl list attacks` says what they do. Or your own: file.py:object, module:object"
)


GONE = {
    "constant": "sign-flip",
    "zero": "sign-flip",
    "replay": "sign-flip",
    "inf": "nan",
    "oscillate": "alie",
    "small-sign": "alie",
    "min-max": "foe",
    "min-sum": "foe",
    "fang": "foe",
    "collude-median": "mimic",
    "two-faced": "noise:SIGMA",
    "semantic": "backdoor",
}
"""Attacks that are gone, and what to use instead."""


def parse_attack(text: object) -> Attack:
    """Parse the attack that `text` names; a user's own is not imported yet.

    Raises ValueError if it names none; `ALLOWED_ATTACKS` says which are allowed.
    """
    if not isinstance(text, str):
        raise ValueError("an attack is named by text")  # noqa: TRY004 - a reader has one way to refuse
    if ATTACKS.own(text) == (text, None):
        own = OwnLie(text)
        return Attack(spec=text, lie=own, own=own)
    name, colon, parameters = text.partition(":")
    if name in GONE:
        raise ValueError(f"{name} is gone: use {GONE[name]}, or your own: docs/how-to/liars.md")
    if name not in ATTACKS:
        near = get_close_matches(name, list(ATTACKS), n=1)
        raise ValueError("no such attack" + (f"; did you mean {near[0]}?" if near else ""))
    entry = ATTACKS[name]
    if isinstance(entry, WrapEntry):
        return _wrap(entry, parameters if colon else None)
    if colon and not entry.parameters:
        raise ValueError(f"{name} takes no parameter")
    return entry.attack(text, ATTACKS.read_by_place(text)[1])


def make_attack(text: object) -> Attack:
    """Parse an attack and prepare it. Raises ValueError as `parse_attack`, UserError if an own one fails to load."""
    attack = parse_attack(text)
    if attack.own is not None:
        attack.own.load()
    return attack


def _wrap(entry: WrapEntry, spec: str | None) -> Attack:
    """Wrap one attack in another, at most once."""
    if spec is None:
        return entry.wrap(None)
    lie, at, number = _lie_and_number(spec)
    inner = parse_attack(lie)
    if inner.own is None and isinstance(ATTACKS[inner.spec.partition(":")[0]], WrapEntry):
        raise ValueError(f"{entry.name} cannot be made of {lie}")
    if at and not entry.parameters:
        raise ValueError(f"{entry.name}: write {entry.usage}")
    values = [
        read_number(f"{parameter.name} of {entry.name}", parameter.kind, number) for parameter in entry.parameters if at
    ]
    return entry.wrap(inner, *values)


def _lie_and_number(text: str) -> tuple[str, str, str]:
    """Split at "@" as `partition` does; the path of a file may also contain an @."""
    if OBJECT.fullmatch(text):
        return text, "", ""
    lie, at, number = text.rpartition("@")
    return (lie, at, number) if OBJECT.fullmatch(lie) else text.partition("@")
