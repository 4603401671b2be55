"""Track which neighbors this node hears: the sessions over which bytes arrive, checked about once a second.

For eyes only. A session over which nothing comes lives on until `Limits.silence_s`, because a slow line may hold one
sealed chunk for that long; bytes of it come all the time, and those are what counts here. Looks are counted and not
seconds: a process that was stopped for a minute has not missed a minute of its neighbors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

UNHEARD_LOOKS = 12
"""Looks without a byte, from which a neighbor with a session counts as not heard: three heartbeats."""
GONE_LOOKS = 2
"""Looks without a session, from which there is none: one that is renewed is back at once."""


class Hearing:
    """`came` gives the number of a neighbor's session and the bytes that came over it, None without a session."""

    def __init__(self, came: Callable[[int], tuple[int, int] | None]) -> None:
        self._came = came
        self._latest: dict[int, tuple[int, int]] = {}
        self._silent: dict[int, int] = {}
        self._away: dict[int, int] = {}

    def look(self, neighbors: Iterable[int]) -> None:
        """Call about once a second."""
        there = set(neighbors)
        for known in (self._latest, self._silent, self._away):
            for peer in known.keys() - there:
                del known[peer]
        for peer in sorted(there):
            now = self._came(peer)
            if now is None:
                self._away[peer] = self._away.get(peer, GONE_LOOKS) + 1
            else:
                self._away[peer] = 0
                self._silent[peer] = self._silent.get(peer, 0) + 1 if now == self._latest.get(peer) else 0
                self._latest[peer] = now

    @property
    def live(self) -> frozenset[int]:
        """Neighbors with a session, heard or not."""
        return frozenset(peer for peer, looks in self._away.items() if looks < GONE_LOOKS)

    @property
    def unheard(self) -> frozenset[int]:
        """The neighbors with a session from which nothing has come for long."""
        return frozenset(peer for peer in self.live if self.silent_s(peer) >= UNHEARD_LOOKS)

    def silent_s(self, peer: int) -> float:
        """The time for which nothing has come over the session with a neighbor, if there is one or was one lately."""
        return float(self._silent.get(peer, 0))
