"""Track from which neighbors bytes arrive, by checking their sessions about once a second.

This is only for people. A silent session stays open until `Limits.silence_s`, because a slow line may take that long
for one encrypted chunk. Meanwhile the chunk's bytes keep arriving, and they count here. Checks are counted instead of
seconds, so that a process that was stopped for a minute does not count a minute of silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from p2pfl.node.status import SILENT_S

UNHEARD_LOOKS = round(SILENT_S)
"""A neighbor with a session counts as silent after this many checks without a byte."""
GONE_LOOKS = 2
"""A session counts as closed after this many checks without one: a renewed session is back at once."""


class Hearing:
    """The neighbors from which bytes arrive.

    `came` returns the number of a neighbor's session and the bytes received over it, or None if there is no session.
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
        """Return the neighbors with a session, silent or not."""
        return frozenset(peer for peer, looks in self._away.items() if looks < GONE_LOOKS)

    @property
    def unheard(self) -> frozenset[int]:
        """Return the neighbors with a session over which nothing has arrived for long."""
        return frozenset(peer for peer in self.live if self.silent_s(peer) >= UNHEARD_LOOKS)

    def silent_s(self, peer: int) -> float:
        """Return the seconds since data arrived over the session with a neighbor, if there is one or was one
        recently.
        """
        now = self._came(peer)
        if now is not None and now[0] != self._latest.get(peer, now)[0]:
            return 0.0  # it has a new session since the last check
        return float(self._silent.get(peer, 0))
