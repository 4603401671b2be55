"""What all sessions of a node have in common."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from logging import Logger
from typing import Any

from p2pfl.net.budget import ByteBudget
from p2pfl.net.counters import Counters
from p2pfl.net.limits import Limits

OnAlarm = Callable[[str, int, str], Any]
"""Called with the kind, the peer and a text when the network sees what the user should know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """`executor` seals and opens large chunks; `name_of` a member is its name in our own file."""

    limits: Limits
    budget: ByteBudget
    executor: Executor
    counters: Counters
    log: Logger
    max_body_bytes: int
    name_of: Callable[[int], str]
    on_alarm: OnAlarm
