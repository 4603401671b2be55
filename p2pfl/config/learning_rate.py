"""The words of `training.schedule`: how the learning rate of a node changes with its own rounds, or with time.

    constant | warmup:rounds=N | cosine:rounds=N[,warmup=N][,to=X] | step:rounds=N[,by=X]

In all of them `time_s=T` may stand in place of `rounds=N`; `warmup` is in the same unit. A node counts the rounds that
it has trained, and the seconds since it began to train, also across restarts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from p2pfl.config.tables import Kind, ParameterKinds, number, read_parameters, short, whole

LEAST = 1e-4
"""No schedule goes below this part of the learning rate: what a round changed is divided by its rate."""
_ROUNDS, _TIME, _PART = whole(1), number(0, above=True), number(LEAST, 1)
_LENGTH: ParameterKinds = {"rounds": (_ROUNDS, None), "time_s": (_TIME, None)}
_PARAMETERS: Mapping[str, ParameterKinds] = {
    "constant": {},
    "warmup": _LENGTH,
    "cosine": {**_LENGTH, "warmup": (number(0), 0.0), "to": (_PART, 0.01)},
    "step": {**_LENGTH, "by": (_PART, 0.1)},
}
NAMES = tuple(_PARAMETERS)
ALLOWED = (
    "constant, warmup:rounds=5, cosine:rounds=40,warmup=5,to=0.01, or step:rounds=20,by=0.1; "
    "time_s=600 in place of rounds counts seconds"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSchedule:
    """`length` is in rounds, or in seconds if `by_time`; `str` gives the canonical spelling."""

    name: str
    by_time: bool = False
    length: float = 1.0
    warmup: float = 0.0
    to: float = 1.0
    """What is left at the end, or of each step the next."""

    def factor(self, rounds: int, elapsed_s: float) -> float:
        """The part of the learning rate for a round before which the node had trained `rounds`, for `elapsed_s`."""
        done = elapsed_s if self.by_time else float(rounds)
        return max(LEAST, _SHAPES[self.name](self, done))

    @property
    def least(self) -> float:
        """The smallest part of the learning rate that any round takes."""
        lowest = {"constant": 1.0, "warmup": self._first, "cosine": min(self.to, self._first), "step": LEAST}
        return max(LEAST, lowest[self.name])

    @property
    def _first(self) -> float:
        return self.warmed(0.0) if self.warmup else 1.0

    def warmed(self, done: float) -> float:
        """A straight line up to 1; the first round does not stand still."""
        first = 0.0 if self.by_time else 1.0
        return min(1.0, (done + first) / self.warmup) if self.warmup else 1.0

    def stretched(self, factor: float) -> RateSchedule:
        """The same over so many times as many rounds, or seconds."""
        length = self.length * factor
        return replace(self, length=length if self.by_time else max(1, round(length)), warmup=self.warmup * factor)

    def __str__(self) -> str:
        if self.name == "constant":
            return self.name
        told = [f"time_s={self.length!r}" if self.by_time else f"rounds={int(self.length)}"]
        if self.name == "cosine":
            told += [f"warmup={self.warmup!r}"] * bool(self.warmup) + [f"to={self.to!r}"]
        if self.name == "step":
            told.append(f"by={self.to!r}")
        return f"{self.name}:{','.join(told)}"


def schedule() -> Kind:
    """Its values are specs in their canonical spelling; `read` gives the reason with which it refuses."""

    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError("not a text")  # noqa: TRY004 - a reader has one way to refuse
        return str(parse_schedule(value))

    return Kind(ALLOWED, read)


@lru_cache(maxsize=16)
def parse_schedule(text: str) -> RateSchedule:
    """The schedule of a spec. Raises ValueError: with the word, what is wrong with it and what would be right."""
    name, colon, told = text.partition(":")
    if name not in NAMES:
        near = next(iter(get_close_matches(name.lower()[:60], NAMES, n=1, cutoff=0.6)), "")
        hint = f"did you mean {near}?" if near else f"there are {', '.join(NAMES)}"
        raise ValueError(f"unknown schedule {short(name)!r}: {hint}")
    example = ALLOWED if name == "constant" else next(part for part in ALLOWED.split(", ") if name in part)
    found = read_parameters(name, told if colon else None, _PARAMETERS[name], example=example.removeprefix("or "))
    if name == "constant":
        return RateSchedule(name=name)
    rounds, time_s = found["rounds"], found["time_s"]
    if (rounds is None) == (time_s is None):
        raise ValueError(f"{name}: give either rounds or time_s")
    length = float(rounds if time_s is None else time_s)  # type: ignore[arg-type]
    warmup = length if name == "warmup" else found.get("warmup") or 0.0
    if name == "cosine" and warmup >= length:
        raise ValueError(f"cosine: a warmup of {warmup:g} leaves nothing of {length:g}")
    to = found.get("to") or found.get("by") or 1.0
    return RateSchedule(name=name, by_time=rounds is None, length=length, warmup=warmup, to=to)


def _cosine(schedule: RateSchedule, done: float) -> float:
    if done < schedule.warmup:
        return schedule.warmed(done)
    part = min(1.0, (done - schedule.warmup) / (schedule.length - schedule.warmup))
    return schedule.to + (1.0 - schedule.to) * 0.5 * (1.0 + math.cos(math.pi * part))


def _step(schedule: RateSchedule, done: float) -> float:
    return float(schedule.to ** min(1000.0, done // schedule.length))


_SHAPES: Mapping[str, Callable[[RateSchedule, float], float]] = {
    "constant": lambda _schedule, _done: 1.0,
    "warmup": RateSchedule.warmed,
    "cosine": _cosine,
    "step": _step,
}
