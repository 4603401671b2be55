"""The table `[privacy]` of a federation file: a bound on what a node's messages reveal about its data.

This module has its values, and checks the file for contradictions. `learn.privacy` keeps the promise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from p2pfl.config.tables import Mistakes, choice, exclusive, read_table, require
from p2pfl.specs import Kind, number, whole

RECORD, MEMBER = "record", "member"
UNITS = (RECORD, MEMBER)
PRV, RDP = "prv", "rdp"
PRIVATE, PUBLIC = "private", "public"
SHARED = "shared"
"""The value of `noise` with which all nodes together add the noise of one trusted center."""
MOST_EPSILON = 1000.0
MOST_NOISE = 1000.0
USUAL_RATE = 0.2
MISSING_PART = 8
"""Without `least`, one in this many members may be missing from a sum, and one in any case where there are four."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyConfig:
    """The promised privacy. Exactly one of `epsilon` and a number `noise` is given; the other one follows from the
    rounds and the number of rows of a node.
    """

    unit: str = RECORD
    """The unit of protection: one row of a node's data (`record`), or all its rows together (`member`)."""
    epsilon: float | None = None
    """The budget of each node for the whole run."""
    noise: float | str | None = None
    """The noise multiplier: the standard deviation of the noise, in units of `clip`; or SHARED, beside `epsilon`."""
    delta: float
    """The probability that the epsilon promise does not hold."""
    clip: float = 1.0
    """The largest norm of one row's gradient (`record`), or of one round's change (`member`)."""
    rounds: int | None = None
    """The rounds for which the budget is planned; None means those of `[training]`."""
    accountant: str = PRV
    """The method that bounds epsilon: `prv` (numerical, tighter) or `rdp` (Rényi, older)."""
    test_set: str = PRIVATE
    """The kind of common test set: its scores may be reported only if it is not private (`public`)."""
    rate: float = USUAL_RATE
    """With shared noise and unit `record`, the probability with which each row is in a round."""
    least: int | None = None
    """With shared noise, the fewest members whose sum is revealed; None: see `least_of`."""
    colluders: int = 1
    """With shared noise, the members that may work together against another one, and leave their noise out."""

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


def _noise() -> Kind:
    multiplier = number(0, MOST_NOISE, above=True)

    def read(value: Any) -> float | str:
        return SHARED if value == SHARED else multiplier.read(value)

    return Kind(f'{multiplier.allowed}, or "{SHARED}"', read, multiplier.bounds)


PRIVACY: Mapping[str, Kind] = {
    "unit": choice(*UNITS).key("protects single rows of a node (record), or all its rows together (member)"),
    "epsilon": number(0, MOST_EPSILON, above=True).key(
        "each node's budget for all its rounds: the smaller, the more noise"
    ),
    "noise": _noise().key(
        f'the noise multiplier, instead of epsilon, in units of clip; or with epsilon "{SHARED}": one noise for the sum'
    ),
    "delta": number(0, 1, above=True, below=True).key(
        "the chance that epsilon does not hold: less than 1 / (rows of a node)"
    ),
    "clip": number(0, 1e6, above=True).key(
        "largest norm of one row's gradient (record), or of one round's change (member)"
    ),
    "rounds": whole(1).key("rounds for which the budget is planned; without it those of [training]"),
    "accountant": choice(PRV, RDP).key("which bound on epsilon counts: prv (numerical, tighter) or rdp (Renyi, older)"),
    "test_set": choice(PRIVATE, PUBLIC).key("public: the common test set is not private, and scores on it are shown"),
    "rate": number(0, 1, above=True).key("shared noise, unit record: the chance of each row to be in a round"),
    "least": whole(3).key("shared noise: the fewest members whose sum is revealed; without it all but an eighth"),
    "colluders": whole(1).key("shared noise: as many members may work together against another one"),
}
OF_SHARED = ("rate", "least", "colluders")
"""The keys that say something only with shared noise."""


def keys_of(privacy: PrivacyConfig) -> tuple[str, ...]:
    """Return the keys that say something in this table."""
    return tuple(key for key in PRIVACY if privacy.is_shared or key not in OF_SHARED)


def read_privacy(table: Any, mistakes: Mistakes) -> PrivacyConfig | None:
    """Read the table `[privacy]`; return None if there is none, or if it has mistakes."""
    if table is None:
        return None
    before = len(mistakes.found)
    values = read_table(table, "privacy.", PRIVACY, mistakes)
    require(table, "privacy.", ("delta",), PRIVACY, mistakes)
    shared = values.get("noise") == SHARED
    if not shared:
        exclusive(table, "privacy.", "epsilon", "noise", mistakes)
    if isinstance(table, dict) and ("epsilon" not in table if shared else not {"epsilon", "noise"} & table.keys()):
        allowed = f"epsilon, {PRIVACY['epsilon'].allowed}; or noise, from which it follows"
        mistakes.add("is missing", "privacy.epsilon", None, PRIVACY["epsilon"].allowed if shared else allowed)
    for key in () if shared else OF_SHARED:
        if key in values:
            mistakes.add("says something only with shared noise", f"privacy.{key}", values[key], f'noise = "{SHARED}"')
    return None if len(mistakes.found) > before else PrivacyConfig(**values)
