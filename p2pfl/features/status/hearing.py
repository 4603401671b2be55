"""Track which neighbors this node hears: the sessions over which bytes arrive, checked about once a second.

This is only for people. A session over which nothing comes lives on until `Limits.silence_s`, because a slow line may
take that long for one sealed chunk; its bytes arrive all the time, and those count here. Checks are counted, not
seconds: a process that was stopped for a minute has not missed a minute of its neighbors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

UNHEARD_LOOKS = 12
"""The number of checks without a byte after which a neighbor with a session counts as not heard: three heartbeats."""
GONE_LOOKS = 2
"""The number of checks without a session after which there is none: a renewed session is back at once."""


class Hearing:
    """The neighbors from which bytes arrive.

    `came` returns the number of a neighbor's session and the bytes that came over it, None without a session.
    """

    def __init__(self, came: Callable[[int], tuple[int, int] | None]) -> None:
        self._came = came
        self._latest: dict[int, tuple[int, int]] = {}
        self._silent: dict[int, int] = {}
        self._away: dict[int, int] = {}

    def look(self, neighbors: Iterable[int]) -> None:
        """Check all sessions; call this about once a second."""
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
        """The neighbors with a session, heard or not."""
        return frozenset(peer for peer, looks in self._away.items() if looks < GONE_LOOKS)

    @property
    def unheard(self) -> frozenset[int]:
        """The neighbors with a session from which nothing has come for long."""
        return frozenset(peer for peer in self.live if self.silent_s(peer) >= UNHEARD_LOOKS)

    def silent_s(self, peer: int) -> float:
        """Return the seconds since data came over the session with a neighbor, if there is one or was one lately."""
        return float(self._silent.get(peer, 0))
