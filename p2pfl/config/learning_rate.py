"""The values of `training.schedule`: how the learning rate of a node changes with its own rounds, or with time.

    NAME[:rounds=N][,key=value,...]

In all of them `time_s=T` may stand in place of `rounds=N`; `warmup` is in the same unit. A node counts the rounds that
it has trained, and the seconds since it began to train, also across restarts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from p2pfl.specs import Catalog, Entry, Kind, Parameter, number, spelled, whole

LEAST = 1e-4
"""The least part of the learning rate in any schedule: what a round changed is divided by its rate."""
PART = number(LEAST, 1)
LENGTH = (
    Parameter("rounds", whole(1), "its length in rounds", default=None),
    Parameter("time_s", number(0, above=True), "its length in seconds", default=None),
)
SCHEDULES: Catalog[Entry] = Catalog("schedule")


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSchedule:
    """A schedule. `length` is in rounds, or in seconds if `by_time`; `str` gives the canonical spelling."""

    name: str
    by_time: bool = False
    length: float = 1.0
    warmup: float = 0.0
    to: float = 1.0
    """The part left at the end; for steps, the factor from each to the next."""

    def factor(self, rounds: int, elapsed_s: float) -> float:
        """The part of the learning rate for a node's next round, after `rounds` rounds in `elapsed_s` seconds."""
        done = elapsed_s if self.by_time else float(rounds)
        return float(max(LEAST, SCHEDULES[self.name].made(self, done)))

    @property
    def least(self) -> float:
        """The smallest part of the learning rate that any round takes."""
        lowest = {"constant": 1.0, "warmup": self._first, "cosine": min(self.to, self._first), "step": LEAST}
        return max(LEAST, lowest[self.name])

    @property
    def _first(self) -> float:
        return self.warmup_factor(0.0) if self.warmup else 1.0

    def warmup_factor(self, done: float) -> float:
        """Rise in a straight line to 1; the first round already has a rate above 0."""
        first = 0.0 if self.by_time else 1.0
        return min(1.0, (done + first) / self.warmup) if self.warmup else 1.0

    def stretched(self, factor: float) -> RateSchedule:
        """The schedule over `factor` times as many rounds, or seconds."""
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


def allowed() -> str:
    """All schedules in words."""
    return ", ".join(entry.shown for entry in SCHEDULES.values()) + "; time_s=600 in place of rounds counts seconds"


def schedule() -> Kind:
    return spelled(allowed, parse_schedule)


@lru_cache(maxsize=16)
def parse_schedule(text: str) -> RateSchedule:
    """Read the schedule of a spec. Raises ValueError: names the wrong word, what is wrong with it and
    what is allowed.
    """
    entry, found = SCHEDULES.read(text)
    name = entry.name
    if not entry.parameters:
        return RateSchedule(name=name)
    rounds, time_s = found["rounds"], found["time_s"]
    if (rounds is None) == (time_s is None):
        raise ValueError(f"{name}: give either rounds or time_s")
    length = float(rounds if time_s is None else time_s)
    warmup = length if name == "warmup" else found.get("warmup") or 0.0
    if name == "cosine" and warmup >= length:
        raise ValueError(f"cosine: a warmup of {warmup:g} leaves nothing of {length:g}")
    to = found.get("to") or found.get("by") or 1.0
    return RateSchedule(name=name, by_time=rounds is None, length=length, warmup=warmup, to=to)


@SCHEDULES.add(Entry(name="constant", means="always the same"))
def _constant(_schedule: RateSchedule, _done: float) -> float:
    return 1.0


@SCHEDULES.add(Entry(name="warmup", means="a straight line up", parameters=LENGTH, example="warmup:rounds=5"))
def _warmup(schedule: RateSchedule, done: float) -> float:
    return schedule.warmup_factor(done)


@SCHEDULES.add(
    Entry(
        name="cosine",
        means="half a wave down to a part of it, after a warmup",
        parameters=(
            *LENGTH,
            Parameter("warmup", number(0), "its warmup, in the same unit", default=0.0),
            Parameter("to", PART, "the part that is left at the end", default=0.01),
        ),
        example="cosine:rounds=40,warmup=5,to=0.01",
    )
)
def _cosine(schedule: RateSchedule, done: float) -> float:
    if done < schedule.warmup:
        return schedule.warmup_factor(done)
    part = min(1.0, (done - schedule.warmup) / (schedule.length - schedule.warmup))
    return schedule.to + (1.0 - schedule.to) * 0.5 * (1.0 + math.cos(math.pi * part))


@SCHEDULES.add(
    Entry(
        name="step",
        means="again and again by a factor",
        parameters=(*LENGTH, Parameter("by", PART, "what each step leaves of the one before", default=0.1)),
        example="step:rounds=20,by=0.1",
    )
)
def _step(schedule: RateSchedule, done: float) -> float:
    return float(schedule.to ** min(1000.0, done // schedule.length))
