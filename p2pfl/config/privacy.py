"""The table `[privacy]` of a federation file: a bound on what can be learned of a node's data from its messages.

This module has its values, and the contradictions within the file. `learn.privacy` keeps the promise.
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
MOST_EPSILON = 1000.0
MOST_NOISE = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyConfig:
    """The promised privacy. Exactly one of `epsilon` and `noise` is given; the other one follows from the rounds and
    the rows of a node.
    """

    unit: str = RECORD
    """The unit of protection: one row of a node's data (`record`), or all its rows together (`member`)."""
    epsilon: float | None = None
    """The budget of each node for the whole run."""
    noise: float | None = None
    """The noise multiplier: the standard deviation of the noise, in lengths of `clip`."""
    delta: float
    """The probability that the promise of epsilon does not hold."""
    clip: float = 1.0
    """The longest gradient of one row (`record`), or change of one round (`member`)."""
    rounds: int | None = None
    """The rounds for which the budget is planned; None: those of `[training]`."""
    accountant: str = PRV
    """The bound on epsilon: `prv` (numerical, tighter) or `rdp` (Rényi, older)."""
    test_set: str = PRIVATE
    """The kind of common test set: its scores may be reported only if it is not private data (`public`)."""


PRIVACY: Mapping[str, Kind] = {
    "unit": choice(*UNITS).key("protects single rows of a node (record), or all its rows together (member)"),
    "epsilon": number(0, MOST_EPSILON, above=True).key(
        "each node's budget for all its rounds: the smaller, the more noise"
    ),
    "noise": number(0, MOST_NOISE, above=True).key(
        "the noise multiplier, in place of epsilon: the standard deviation of the noise, in lengths of clip"
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
}


def read_privacy(table: Any, mistakes: Mistakes) -> PrivacyConfig | None:
    """Read the table `[privacy]`; None: there is none, or it has mistakes."""
    if table is None:
        return None
    before = len(mistakes.found)
    values = read_table(table, "privacy.", PRIVACY, mistakes)
    require(table, "privacy.", ("delta",), PRIVACY, mistakes)
    exclusive(table, "privacy.", "epsilon", "noise", mistakes)
    if isinstance(table, dict) and not {"epsilon", "noise"} & table.keys():
        allowed = f"epsilon, {PRIVACY['epsilon'].allowed}; or noise, from which it follows"
        mistakes.add("is missing", "privacy.epsilon", None, allowed)
    return None if len(mistakes.found) > before else PrivacyConfig(**values)
