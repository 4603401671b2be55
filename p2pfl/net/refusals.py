"""Says once what was refused and why, then only counts: a stranger at the door must not fill the log."""

from __future__ import annotations

import logging

from p2pfl.net.counters import Counters

REMEMBERED = 256


class Refusals:
    def __init__(self, counters: Counters, log: logging.Logger) -> None:
        self._counters = counters
        self._log = log
        self._said: set[tuple[str, str]] = set()

    def note(self, peer: int | None, who: str, reason: str) -> None:
        """`who` may be an address where no peer is known: then the reason alone tells two refusals apart."""
        traffic = self._counters.unknown if peer is None else self._counters.peers[peer]
        traffic.refusals += 1
        case = ("" if peer is None else who, reason)
        if case not in self._said and len(self._said) < REMEMBERED:
            self._said.add(case)
            self._log.warning("refused %s: %s; said once, from now on only counted", who, reason)
        else:
            self._log.debug("refused %s again: %s", who, reason)
