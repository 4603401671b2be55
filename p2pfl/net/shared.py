"""What all sessions of a node have in common."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass
from logging import Logger

from p2pfl.net.budget import ByteBudget
from p2pfl.net.counters import Counters
from p2pfl.net.limits import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """`executor` seals and opens large chunks."""

    limits: Limits
    budget: ByteBudget
    executor: Executor
    counters: Counters
    log: Logger
    max_body_bytes: int
