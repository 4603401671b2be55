"""Attacks by liars: pure functions, for the simulator and real liar processes alike; no node imports them.

`parse_attack("alie:1.5")` gives an `Attack`; a liar sees a `Sight`; `ATTACKS` lists every attack with its source.
"""

from sim.attacks.attack import (
    ATTACKS,
    BOAST,
    Attack,
    Poison,
    Sight,
    boast,
    file_of,
    passable,
    press,
    with_absolute_path,
)
from sim.attacks.registry import ALLOWED_ATTACKS, make_attack, parse_attack

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
