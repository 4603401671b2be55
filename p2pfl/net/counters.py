"""What went over the wire, by peer. Bytes are sealed payload bytes; TCP, WebSocket and ping overhead is not counted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from time import monotonic


@dataclass(slots=True)
class Traffic:
    bytes_sent: int = 0
    bytes_received: int = 0
    messages_sent: int = 0
    messages_received: int = 0
    sessions: int = 0
    refusals: int = 0
    faults: int = 0

    def add(self, other: Traffic) -> None:
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))


@dataclass(slots=True)
class Counters:
    """`peers` by index; `unknown` is what came before a peer was known, or from none of the federation."""

    peers: dict[int, Traffic]
    unknown: Traffic = field(default_factory=Traffic)
    started_s: float = field(default_factory=monotonic)

    @classmethod
    def of(cls, peers: Iterable[int]) -> Counters:
        return cls({peer: Traffic() for peer in sorted(peers)})

    @property
    def total(self) -> Traffic:
        total = Traffic()
        for traffic in (*self.peers.values(), self.unknown):
            total.add(traffic)
        return total

    @property
    def faults(self) -> dict[int, int]:
        return {peer: traffic.faults for peer, traffic in self.peers.items()}

    @property
    def elapsed_s(self) -> float:
        return monotonic() - self.started_s

    def as_dict(self) -> dict[str, object]:
        """Plain values for a report or the status page."""
        return {
            "elapsed_s": self.elapsed_s,
            "total": asdict(self.total),
            "unknown": asdict(self.unknown),
            "peers": {str(peer): asdict(traffic) for peer, traffic in self.peers.items()},
        }
