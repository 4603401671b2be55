"""The answers to whether a local round may begin: it may, it may not, or it may for a cost that is paid first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from p2pfl.core.events import RoundRefused
from p2pfl.engine.ledger import Ledger
from p2pfl.learn.privacy import Spend


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """The local round that is to begin: its number, from 0, on how many samples, and what was paid for before."""

    index: int
    samples: int
    ledger: Ledger | None


@dataclass(frozen=True, slots=True)
class Wait:
    """The round begins a little later: ask again after so many seconds. Meanwhile the node decides nothing."""

    wait_s: float


@dataclass(frozen=True, slots=True)
class Payment:
    """The round may begin once `spend` is on disk. `wrong` is asked once more with the ledger as it is by then.

    A second ledger gets so many rounds at once that are `reserved`.
    """

    spend: Spend
    wrong: Callable[[Ledger | None], RoundRefused | None]
    reserved: int = 1


Answer = RoundRefused | Wait | Payment | None
"""None: it may begin. A refusal that is not `for_good` lets the node look first whether the federation has ended; it
asks again half a second later.
"""


class Gate(Protocol):
    """Asked before each round, in the thread that trains or on the event loop."""

    @property
    def is_kept(self) -> bool:
        """True if anybody wants to be asked."""

    def before_round(self, plan: RoundPlan) -> Answer: ...
