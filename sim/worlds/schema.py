"""Which keys a world file has and what each may be. Defaults are those of the classes in `model`.

A reader also takes what it gives, so that the same table checks a world that was built in Python.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from p2pfl.config.kinds import Kind, number, or_none, whole
from sim.attacks import ALLOWED_ATTACKS, parse_attack
from sim.worlds.model import Spread

Kinds = Mapping[str, Kind]

LONGEST_S = 1e9
"""thirty years: nothing takes longer, so that a time in nanoseconds stays within 63 bits."""
FASTEST = 1e6
SHORTEST_S = 1e-6
"""the least duration of a step or a round at speed 1, and the least time between two dials."""


def seconds(least: float = 0.0) -> Kind:
    return Kind(f"seconds, from {least:g} to {LONGEST_S:g}", number(least, LONGEST_S).read)


def probability() -> Kind:
    return Kind("a probability, from 0 to 1", number(0, 1).read)


def flag() -> Kind:
    def read(value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValueError  # noqa: TRY004 - a reader has one way to refuse
        return value

    return Kind("true or false", read)


def file() -> Kind:
    def read(value: Any) -> Path:
        if not isinstance(value, str | Path) or not str(value).strip() or "\0" in str(value):
            raise ValueError
        return Path(value)

    return Kind("the path of a file", read)


def spread(least: float, most: float) -> Kind:
    """A number, or text that says between which two a number is drawn."""
    allowed = f'a number X, "uniform:X,Y" or "log-uniform:X,Y" with X up to Y, each from {least:g} to {most:g}'
    return Kind(allowed, lambda value: _spread(value, least, most))


def _spread(value: Any, least: float, most: float) -> Spread:
    if isinstance(value, Spread):
        found = value
    elif isinstance(value, str):
        found = _spread_in_words(value)
    else:
        number(least, most).read(value)
        found = Spread(low=float(value), high=float(value))
    if found.kind not in ("constant", "uniform", "log-uniform") or not least <= found.low <= found.high <= most:
        raise ValueError
    if found.kind == "log-uniform" and found.low == 0:
        raise ValueError
    return Spread(low=found.low, high=found.low) if found.kind == "constant" or found.low == found.high else found


def _spread_in_words(text: str) -> Spread:
    kind, _, numbers = text.partition(":")
    low, high = (float(part) for part in numbers.split(","))
    if kind not in ("uniform", "log-uniform") or not math.isfinite(low + high):
        raise ValueError
    return Spread(kind=kind, low=low, high=high)


def attack() -> Kind:
    def read(value: Any) -> str:
        parse_attack(value)
        return str(value)

    return Kind(ALLOWED_ATTACKS, read)


COMPUTE: Kinds = {
    "step_s": seconds(SHORTEST_S),
    "round_s": seconds(SHORTEST_S),
    "speed": spread(1 / FASTEST, FASTEST),
    "trace": file(),
    "jitter": number(0, 1000),
    "engine_s": seconds(),
}

LINKS: Kinds = {
    "latency_s": spread(0, LONGEST_S),
    "jitter_s": seconds(),
    "bandwidth": or_none(Kind("bytes per second, from 1", number(1).read)),
    "loss": probability(),
    "duplication": probability(),
    "redial_s": seconds(SHORTEST_S),
}

WHO: Kinds = {"count": whole(0), "fraction": Kind("a share of all nodes, from 0 to 1", number(0, 1).read)}
"""how chance chooses nodes; the key `nodes` beside them is read by `names`."""

SLOW: Kinds = {
    "far_s": seconds(),
    "bandwidth": LINKS["bandwidth"],
    "speed": number(1 / FASTEST, FASTEST),
}

PARTITION: Kinds = {"at_s": seconds(), "until_s": seconds()}

CRASH: Kinds = {"at_s": seconds(), "down_s": or_none(seconds(SHORTEST_S)), "amnesia": flag()}

CHURN: Kinds = {
    "up_s": seconds(SHORTEST_S),
    "down_s": seconds(SHORTEST_S),
    "until_s": seconds(),
    "amnesia": probability(),
}

JOIN: Kinds = {"at_s": seconds(SHORTEST_S)}

LIARS: Kinds = {"attack": attack()}

RUN: Kinds = {"evaluate_every_s": seconds(0.001), "limit_s": seconds(0.001)}

SECTIONS = ("compute", "links", "slow", "partition", "crash", "churn", "join", "liars", "run")
