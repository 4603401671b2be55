"""What went over the wire, by peer, and who was refused and why.

Bytes are sealed payload bytes; TCP, WebSocket and ping overhead is not counted. A refusal is said once and then only
counted: a stranger at the door must not fill the log. A member whose federation file differs is an alarm: both ends
would train alone without it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from p2pfl.crypto import FederationMismatch
from p2pfl.errors import PeerFault

OnAlarm = Callable[[str, int, str], Any]
"""Called with the kind, the peer and a text when the network sees what the user should know."""

REMEMBERED = 256
DIFFERS = "federation-differs"
"""The kind of the alarm about a federation file that differs."""


@dataclass(slots=True)
class PeerTraffic:
    bytes_sent: int = 0
    bytes_received: int = 0
    messages_sent: int = 0
    messages_received: int = 0
    sessions: int = 0
    refusals: int = 0
    faults: int = 0

    def add(self, other: PeerTraffic) -> None:
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))


@dataclass(slots=True)
class Counters:
    """`peers` by index; `unknown` is what came before a peer was known, or from none of the federation."""

    peers: dict[int, PeerTraffic]
    unknown: PeerTraffic = field(default_factory=PeerTraffic)

    @classmethod
    def of(cls, peers: Iterable[int]) -> Counters:
        return cls({peer: PeerTraffic() for peer in sorted(peers)})

    @property
    def total(self) -> PeerTraffic:
        total = PeerTraffic()
        for traffic in (*self.peers.values(), self.unknown):
            total.add(traffic)
        return total


@dataclass(slots=True, eq=False)
class Refusals:
    counters: Counters
    log: logging.Logger
    on_alarm: OnAlarm
    _said: set[tuple[str, str]] = field(default_factory=set)

    def note(self, peer: int | None, who: str, fault: PeerFault) -> None:
        """`who` may be an address where no peer is known: then the reason alone tells two refusals apart."""
        traffic = self.counters.unknown if peer is None else self.counters.peers[peer]
        traffic.refusals += 1
        reason = str(fault)
        differs = isinstance(fault, FederationMismatch)
        if peer is not None and differs and self._is_new(f"member {peer}", reason):
            self.on_alarm(DIFFERS, peer, reason)
        if self._is_new("" if peer is None else who, reason):
            level = logging.INFO if differs else logging.WARNING  # the alarm is a warning already
            self.log.log(level, "refused %s: %s; said once, from now on only counted", who, reason)
        else:
            self.log.debug("refused %s again: %s", who, reason)

    def _is_new(self, who: str, reason: str) -> bool:
        new = (who, reason) not in self._said and len(self._said) < REMEMBERED
        if new:
            self._said.add((who, reason))
        return new
