"""Answers to whether a local round may begin: yes, no, or at a cost to be paid first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from p2pfl.core.events import RoundRefused
from p2pfl.learn.privacy import Spend
from p2pfl.learn.privacy.accounting import Ledger


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """A planned local round: its number, from 0, its number of samples, and the ledger of earlier payments."""

    index: int
    samples: int
    ledger: Ledger | None


@dataclass(frozen=True, slots=True)
class Wait:
    """The round begins a little later: ask again after `wait_s` seconds. Until then the node decides nothing."""

    wait_s: float


@dataclass(frozen=True, slots=True)
class Payment:
    """The round may begin once `spend` is on disk. `wrong` is asked once more with the ledger at that point.

    A second ledger gets `reserved` rounds at once.
    """

    spend: Spend
    wrong: Callable[[Ledger | None], RoundRefused | None]
    reserved: int = 1


Answer = RoundRefused | Wait | Payment | None
"""None means that the round may begin.

After a refusal that is not `for_good`, the node first checks whether the federation has ended; half a second later it
asks again.
"""


class Gate(Protocol):
    """Asked before each round, in the thread that trains or on the event loop."""

    @property
    def is_kept(self) -> bool:
        """True if a feature must be asked."""

    def before_round(self, plan: RoundPlan) -> Answer: ...
