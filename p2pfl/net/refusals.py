"""Says once what was refused and why, then only counts: a stranger at the door must not fill the log.

A member whose federation file differs is an alarm: both ends would train alone without it.
"""

from __future__ import annotations

import logging

from p2pfl.crypto.faults import FederationMismatch
from p2pfl.errors import PeerFault
from p2pfl.net.counters import Counters
from p2pfl.net.shared import OnAlarm

REMEMBERED = 256
DIFFERS = "federation-differs"
"""the kind of the alarm."""


class Refusals:
    def __init__(self, counters: Counters, log: logging.Logger, on_alarm: OnAlarm) -> None:
        self._counters = counters
        self._log = log
        self._on_alarm = on_alarm
        self._said: set[tuple[str, str]] = set()

    def note(self, peer: int | None, who: str, fault: PeerFault) -> None:
        """`who` may be an address where no peer is known: then the reason alone tells two refusals apart."""
        traffic = self._counters.unknown if peer is None else self._counters.peers[peer]
        traffic.refusals += 1
        reason = str(fault)
        differs = isinstance(fault, FederationMismatch)
        if peer is not None and differs and self._is_new(f"member {peer}", reason):
            self._on_alarm(DIFFERS, peer, reason)
        if self._is_new("" if peer is None else who, reason):
            level = logging.INFO if differs else logging.WARNING  # the alarm is a warning already
            self._log.log(level, "refused %s: %s; said once, from now on only counted", who, reason)
        else:
            self._log.debug("refused %s again: %s", who, reason)

    def _is_new(self, who: str, reason: str) -> bool:
        new = (who, reason) not in self._said and len(self._said) < REMEMBERED
        if new:
            self._said.add((who, reason))
        return new
