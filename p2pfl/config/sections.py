"""The values of `training.schedule` and `training.stop`, and the tables `[privacy]` and `[stats]`.

Schedules: how the learning rate of a node changes with its own rounds, or with time: `time_s=T` may replace `rounds=N`,
and `warmup` is in the same unit. A node counts the rounds that it has trained, and the seconds since it began to train,
including those before restarts.

Stop: no improvement [of FIGURE] [by LEAST] in K rounds | after N s|min|h|d one, or both with " or " between them.
FIGURE is by default `loss`, the loss of the node's own local rounds; it may be `test_loss`, `accuracy` or another
metric of the task on the common test set. `core.settings.Stop` applies the condition.

`[privacy]` bounds what a node's messages reveal about its data (`learn.privacy` keeps the promise), or hides the nodes'
models in sums without such a bound. `[stats]` says which
questions about its table a node answers; by default it answers none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from p2pfl.config import tables
from p2pfl.config.tables import CHANGED, REQUIRED, Mistakes, exclusive, kinds_of, read_table, require, setting, text
from p2pfl.core.settings import Stop
from p2pfl.limits import MOST_LEAST_ROWS
from p2pfl.specs import Catalog, Entry, Kind, Parameter, number, short, spelled, whole

LEAST = 1e-4
"""The smallest factor in any schedule: the change in a round is divided by its learning rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSchedule:
    """A schedule: constant, or after a linear warmup down to the factor `to`: in a half cosine, or, if `last` is above
    0, linearly in this last part. `length` is in rounds, or in seconds if `by_time`; 0 is constant. `str` gives the
    canonical spelling.
    """

    by_time: bool = False
    length: float = 0.0
    warmup: float = 0.0
    last: float = 0.0
    to: float = 1.0

    def factor(self, rounds: int, elapsed_s: float) -> float:
        """Return the factor for a node's next round, after `rounds` rounds in `elapsed_s` seconds."""
        done = elapsed_s if self.by_time else float(rounds)
        if done < self.warmup:  # above 0 from the first round
            return max(LEAST, min(1.0, (done + (0.0 if self.by_time else 1.0)) / self.warmup))
        if self.last:
            return max(self.to, 1.0 - (1.0 - self.to) * max(0.0, 1.0 - (self.length - done) / self.last))
        part = min(1.0, (done - self.warmup) / (self.length - self.warmup)) if self.length else 0.0
        return max(LEAST, self.to + (1.0 - self.to) * 0.5 * (1.0 + math.cos(math.pi * part)))

    @property
    def least(self) -> float:
        """Return the smallest factor that any round uses."""
        return max(LEAST, min(self.to, self.factor(0, 0.0)))

    def stretched(self, factor: float) -> RateSchedule:
        """Return the schedule over `factor` times as many rounds, or seconds."""
        length = self.length * factor
        length = length if self.by_time else max(1, round(length))
        scale = length / self.length if self.length else factor  # as whole rounds allow, so that the parts still fit
        warmup = self.warmup * scale
        return replace(self, length=length, warmup=warmup, last=min(self.last * scale, length - warmup))

    def __str__(self) -> str:
        if not self.length:
            return "constant"
        length = f"time_s={self.length!r}" if self.by_time else f"rounds={int(self.length)}"
        name, last = ("tail", f",last={self.last!r}") if self.last else ("cosine", "")
        return f"{name}:{length}{last}{f',warmup={self.warmup!r}' if self.warmup else ''},to={self.to!r}"


SCHEDULES: Catalog[Entry] = Catalog(
    "schedule", Entry, {"warmup": "cosine:rounds=40,warmup=5,to=1", "step": "cosine:rounds=40"}
)
SCHEDULES.add(name="constant", means="always the same")(RateSchedule)
LENGTHS = (
    Parameter("rounds", whole(1), "its length in rounds", default=None),
    Parameter("time_s", number(0, above=True), "its length in seconds", default=None),
    Parameter("warmup", number(0), "its warmup, in the same unit", default=0.0),
)
SCHEDULES.add(
    name="cosine",
    means="a half cosine down to a fraction, after a warmup",
    parameters=(*LENGTHS, Parameter("to", number(LEAST, 1), "the fraction left at the end", default=0.01)),
    example="cosine:rounds=40,warmup=5,to=0.01",
)(RateSchedule)
SCHEDULES.add(
    name="tail",
    means="constant, after a warmup, then down to a fraction in a straight line (Hägele et al. 2024)",
    source="arXiv 2405.18392",
    parameters=(
        *LENGTHS,
        Parameter("last", number(0, above=True), "the length of the line, in the same unit", default=None),
        Parameter("to", number(LEAST, 1), "the fraction left at the end", default=0.1),
    ),
    example="tail:rounds=40,last=8,to=0.1",
)(RateSchedule)


def allowed() -> str:
    """Describe all schedules."""
    return ", ".join(entry.shown for entry in SCHEDULES.values()) + "; time_s=600 instead of rounds counts seconds"


def schedule() -> Kind:
    return spelled(allowed, parse_schedule)


@lru_cache(maxsize=16)
def parse_schedule(text: str) -> RateSchedule:
    """Parse a schedule's spec. Raises ValueError: it says which word is wrong, why, and what is allowed."""
    entry, values = SCHEDULES.read(text)
    if not entry.parameters:
        return RateSchedule()
    rounds, time_s, warmup, last = values["rounds"], values["time_s"], values["warmup"], values.get("last", 0.0)
    if (rounds is None) == (time_s is None):
        raise ValueError(f"{entry.name}: give either rounds or time_s")
    length = float(rounds if time_s is None else time_s)
    if warmup >= length:
        raise ValueError(f"{entry.name}: a warmup of {warmup:g} leaves nothing of {length:g}")
    if last is None:
        raise ValueError(f"{entry.name}: give last, the length of the line")
    if warmup + last > length:
        raise ValueError(f"{entry.name}: its last {last:g} are longer than what a length of {length:g} leaves")
    return RateSchedule(by_time=rounds is None, length=length, warmup=warmup, last=last, to=values["to"])


ALLOWED = (
    'such as "no improvement in 20 rounds", "no improvement of accuracy by 0.001 in 20 rounds", "after 2 h", '
    'or both: "no improvement in 20 rounds or after 2 h"'
)
MOST_ROUNDS = 1000
"""The most rounds that a node trains if only its patience, and no key in the file, limits them."""
LONGEST_S = 1e10
UNITS_S = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}

_NUMBER = r"\d{1,15}(?:\.\d{1,15})?(?:e[+-]?\d{1,2})?"
_PATIENCE = re.compile(
    rf"no improvement(?: of (?P<of>[A-Za-z_][\w.-]{{0,63}}))?(?: by (?P<least>{_NUMBER}))?"
    r" in (?P<rounds>\d{1,9}) rounds?"
)
_AFTER = re.compile(rf"after (?P<count>{_NUMBER}) ?(?P<unit>{'|'.join(UNITS_S)})")


def stop() -> Kind:
    return spelled(ALLOWED, parse_stop)


def parse_stop(text: str) -> Stop:
    """Parse the conditions. Raises ValueError, which names the part that is not understood."""
    parsed = Stop()
    for part in " ".join(text.split()).split(" or "):
        parsed = _with_clause(parsed, part)
    return parsed


def _with_clause(stop: Stop, part: str) -> Stop:
    if match := _PATIENCE.fullmatch(part):
        patience, least = int(match["rounds"]), float(match["least"] or 0.0)
        _require(part, stop.patience is None, "the second condition of its kind")
        _require(part, patience > 0, "too short: wait at least 1 round for an improvement")
        return replace(stop, patience=patience, of=match["of"] or stop.of, least=least)
    if match := _AFTER.fullmatch(part):
        after_s = float(match["count"]) * UNITS_S[match["unit"]]
        _require(part, stop.after_s is None, "the second condition of its kind")
        _require(part, 0.0 < after_s <= LONGEST_S, "not a possible time")
        return replace(stop, after_s=after_s)
    raise ValueError(f"{short(part)!r} is not understood")


def _require(part: str, holds: bool, what: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not holds:
        raise ValueError(f"{short(part)!r} is {what}")


RECORD, MEMBER = "record", "member"
PRV, RDP = "prv", "rdp"
PRIVATE, PUBLIC = "private", "public"
SHARED = "shared"
"""The value of `noise` with which all nodes together add the noise of one trusted center."""
MODELS = "models"
"""The value of `hide` with which each round is a secure sum."""
ADAM, MEAN, MOMENTUM = "adam", "mean", "momentum"
BITS = (4, 8, 12, 16, 24)
MOST_EPSILON = 1000.0
MOST_NOISE = 1000.0
MISSING_PART = 8
"""Without `least`, one in this many members may be missing from a sum, and one in any case where there are four."""


def _noise() -> Kind:
    multiplier = number(0, MOST_NOISE, above=True)

    def read(value: Any) -> float | str:
        return SHARED if value == SHARED else multiplier.read(value)

    return Kind(f'{multiplier.allowed}, or "{SHARED}"', read, tables.or_word(multiplier, SHARED))


def _bits() -> Kind:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value not in BITS:
            raise ValueError
        return value

    return Kind(", ".join(map(str, BITS)), read, {"type": "integer", "enum": [*BITS]})


def _colluders() -> Any:
    text = "shared noise, hidden models: as many members may work together against another one"
    return setting(1, whole(1), text, counts=CHANGED)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyConfig:
    """The promise. One of `epsilon` and a number `noise` is given; the other follows from rounds and rows."""

    unit: str = setting(
        RECORD,
        tables.choice(RECORD, MEMBER),
        "protects single rows of a node (record), or all its rows together (member)",
    )
    epsilon: float | None = setting(
        None,
        number(0, MOST_EPSILON, above=True),
        "each node's budget for all its rounds: the smaller, the more noise",
    )
    noise: float | str | None = setting(
        None,
        _noise(),
        "the noise multiplier, instead of epsilon, in units of clip; or with epsilon "
        f'"{SHARED}": one noise for the sum',
    )
    delta: float = setting(
        REQUIRED,
        number(0, 1, above=True, below=True),
        "the chance that epsilon does not hold: less than 1 / (rows of a node)",
    )
    clip: float = setting(
        1.0,
        number(0, 1e6, above=True),
        "largest norm of one row's gradient (record), or of one round's change (member)",
    )
    rounds: int | None = setting(
        None, whole(1), "rounds for which the budget is planned; without it those of [training]"
    )
    accountant: str = setting(
        PRV, tables.choice(PRV, RDP), "which bound on epsilon counts: prv (numerical, tighter) or rdp (Renyi, older)"
    )
    test_set: str = setting(
        PRIVATE,
        tables.choice(PRIVATE, PUBLIC),
        "public: the common test set is not private, and scores on it are shown",
    )
    rate: float = setting(
        0.2,
        number(0, 1, above=True),
        "shared noise, unit record: the chance of each row to be in a round",
        counts=CHANGED,
    )
    least: int | None = setting(
        None,
        whole(3),
        "shared noise: the fewest members whose sum is revealed; without it all but an eighth",
        counts=CHANGED,
    )
    """None: see `least_of`."""
    colluders: int = _colluders()

    @property
    def is_shared(self) -> bool:
        """True if the noise is added to a secure sum over all nodes, in shares."""
        return self.noise == SHARED

    @property
    def multiplier(self) -> float | None:
        """The noise multiplier that the file gives, if any."""
        return self.noise if isinstance(self.noise, float) else None

    def least_of(self, members: int) -> int:
        """Return the fewest of so many members whose sum may be revealed."""
        usual = members - max(members // MISSING_PART, int(members > 3))
        return self.least if self.least is not None else min(members, max(usual, self.colluders + 2, 3))


@dataclass(frozen=True, slots=True, kw_only=True)
class HideConfig:
    """Each round is one secure sum of what all nodes have computed, without noise: nothing bounds what sums reveal."""

    hide: str = setting(
        MODELS,
        tables.choice(MODELS),
        "models: rounds are secure sums, so that no neighbor sees a node's model; without epsilon no noise is added",
    )
    bits: int = setting(8, _bits(), "hidden models: bits of each number of a node's change in a sum", counts=CHANGED)
    colluders: int = _colluders()
    outer: str = setting(
        ADAM,
        tables.choice(ADAM, MEAN, MOMENTUM),
        "hidden models: the step that all nodes take by the mean of their changes",
        counts=CHANGED,
    )
    """`adam` is FedAdam (Reddi et al. 2021, arXiv 2003.00295), `mean` the mean itself."""
    outer_rate: float | None = setting(
        None,
        number(0, above=True),
        "hidden models: the size of that step; without it `outer` decides",
        counts=CHANGED,
    )

    def least_of(self, members: int) -> int:  # noqa: ARG002 - as with a budget
        """Return the fewest of so many members whose sum may be revealed."""
        return self.colluders + 2


HIDE: Mapping[str, Kind] = kinds_of(HideConfig)
PRIVACY: Mapping[str, Kind] = {**kinds_of(PrivacyConfig), **HIDE}
OF_SHARED = ("rate", "least", "colluders")
"""The keys that say something only with shared noise, of those beside a budget."""
OF_HIDDEN = ("bits", "outer", "outer_rate")
"""The keys that say something only with hidden models, without a budget."""


def keys_of(table: PrivacyConfig | HideConfig) -> tuple[str, ...]:
    """Return the keys that say something in this table."""
    has_own_noise = isinstance(table, PrivacyConfig) and not table.is_shared
    return tuple(key for key in kinds_of(type(table)) if not (has_own_noise and key in OF_SHARED))


def read_privacy(table: Any, mistakes: Mistakes) -> tuple[PrivacyConfig | None, HideConfig | None]:
    """Read the table `[privacy]`, which is one of the two. Both are None if there is no table, or mistakes in it.

    Beside a budget with shared noise, in which rounds are sums anyway, `hide` says nothing new.
    """
    if table is None:
        return None, None
    before = len(mistakes.errors)
    values = read_table(table, "privacy.", PRIVACY, mistakes)
    if not isinstance(table, dict):
        return None, None
    given = table.keys()
    hidden, bounded = "hide" in given, bool(given & {"epsilon", "noise"})
    for key in OF_HIDDEN:
        if key in values and not hidden:
            mistakes.add("says something only with hidden models", f"privacy.{key}", values[key], f'hide = "{MODELS}"')
        elif key in values and bounded:
            text = "says something only without a budget"
            mistakes.add(text, f"privacy.{key}", values[key], f'hide = "{MODELS}" without epsilon and noise')
    if bounded or not (hidden or given & set(OF_HIDDEN)):
        _check_budget(table, values, mistakes)
    else:
        for key in [key for key in values if hidden and key not in HIDE]:
            allowed = f'epsilon and noise = "{SHARED}" beside it; or only {", ".join(HIDE)}'
            mistakes.add("says something only with a budget (epsilon)", f"privacy.{key}", values[key], allowed)
    if len(mistakes.errors) > before:
        return None, None
    if bounded:
        return PrivacyConfig(**{key: value for key, value in values.items() if key != "hide"}), None
    return None, HideConfig(**values)


def _check_budget(table: dict[str, Any], values: Mapping[str, Any], mistakes: Mistakes) -> None:
    """Report what is missing in a table that promises a budget, or cannot be there."""
    require(table, "privacy.", ("delta",), PRIVACY, mistakes)
    shared, hidden = values.get("noise") == SHARED, "hide" in table
    if hidden and not shared:
        text = "with epsilon, hidden models need shared noise"
        allowed = f'"{SHARED}"; or hide without epsilon and noise, or these without hide'
        mistakes.add(text, "privacy.noise", values.get("noise"), allowed)
    elif not shared:
        exclusive(table, "privacy.", "epsilon", "noise", mistakes)
    if "epsilon" not in table if shared else not {"epsilon", "noise"} & table.keys():
        allowed = f"epsilon, {PRIVACY['epsilon'].allowed}; or noise, from which it follows; or no budget but hide"
        mistakes.add("is missing", "privacy.epsilon", None, PRIVACY["epsilon"].allowed if shared else allowed)
    for key in () if shared or hidden else OF_SHARED:
        if key in values:
            mistakes.add("says something only with shared noise", f"privacy.{key}", values[key], f'noise = "{SHARED}"')


EVERYBODY = "*"
LEAST_ROWS, A_DAY = 10, 5
TWICE = "one of them appears twice"


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsConfig:
    """The questions that a node answers, and the members who may ask."""

    columns: tuple[str, ...] = setting(
        (),
        tables.several(text(), 'names of columns, such as ["age", "chol"]', twice=TWICE),
        "columns about which this node answers questions of `p2pfl stats`; without it none",
    )
    to: tuple[str, ...] = setting(
        (),
        tables.several(
            Kind("", lambda value: EVERYBODY if value == EVERYBODY else tables.name().read(value)),
            f'names of members, or "{EVERYBODY}" for all',
            twice=TWICE,
        ),
        "members that may ask; without it none but this node",
    )
    by: str | None = setting(None, text(), "the one column by which a question may form groups; without it none")
    a_day: int = setting(A_DAY, whole(1), "questions that are answered to each member within 24 hours")
    least_rows: int = setting(
        LEAST_ROWS,
        whole(3, MOST_LEAST_ROWS),
        "fewest rows of a group, a count or a bin that is shown; the most of all nodes counts",
    )

    def admits(self, member: str) -> bool:
        return EVERYBODY in self.to or member in self.to


NO_STATS = StatsConfig()


STATS: Mapping[str, Kind] = kinds_of(StatsConfig)


def read_stats(table: Any, mistakes: Mistakes) -> StatsConfig:
    """Read the table `[stats]`; defaults where there is none."""
    return StatsConfig(**read_table({} if table is None else table, "stats.", STATS, mistakes))
