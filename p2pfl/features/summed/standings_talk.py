"""The channel on which neighbors tell where members stand, and hand a state to who is behind."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable

from p2pfl.core.limits import TokenBucket
from p2pfl.features.summed.fetching import StateFetching
from p2pfl.features.summed.standings import (
    PIECE_BYTES,
    Place,
    Standings,
    StandingTold,
    StatePiece,
    StateWanted,
    SumStanding,
)
from p2pfl.net.side import SideChannel

CHANNEL = SideChannel(
    "standings",
    SumStanding,
    StateWanted,
    StatePiece,
    most_bytes=PIECE_BYTES + 256,
    per_s=2000.0,
    at_once=20_000.0,
    most_waiting=4096,
)


SPREAD_PER_S, SPREAD_AT_ONCE = 20.0, 400.0
"""How often a member's standings are passed on: it states one after each sum."""


class StandingsTalk:
    """The handler of the channel. `news` is set when a standing has come."""

    def __init__(
        self, standings: Standings, say: Callable[[int, SideChannel, StandingTold], bool], most_bytes: int
    ) -> None:
        self._standings, self._say = standings, say
        self.fetching = StateFetching(lambda peer, message: say(peer, CHANNEL, message), most_bytes)
        self.news = asyncio.Event()
        self._peers: list[int] = []
        self._spread: defaultdict[int, TokenBucket] = defaultdict(
            lambda: TokenBucket(SPREAD_PER_S, tokens=SPREAD_AT_ONCE, burst=SPREAD_AT_ONCE)
        )
        """By member."""

    @property
    def has_peers(self) -> bool:
        return bool(self._peers)

    def opened(self, peer: int) -> None:
        self._peers.append(peer)
        for standing in self._standings.latest.values():
            self._say(peer, CHANNEL, standing)

    def closed(self, peer: int) -> None:
        if peer in self._peers:
            self._peers.remove(peer)

    def hear(self, peer: int, message: StandingTold) -> None:
        """Raises PeerFault."""
        if isinstance(message, StateWanted):
            self.fetching.hear_wanted(peer, message)
        elif isinstance(message, StatePiece):
            self.fetching.hear_piece(peer, message)
        elif isinstance(message, SumStanding) and self._standings.hear(message):
            if self._spread[message.member].take(asyncio.get_running_loop().time()) == 0.0:
                self.spread(message, but=peer)
            self.news.set()
        if self._standings.is_outdated:
            self.spread(self._standings.restated())

    def spread(self, standing: SumStanding, but: int | None = None) -> None:
        for peer in self._peers:
            if peer != but:
                self._say(peer, CHANNEL, standing)

    async def fetch(self, place: Place) -> bytes | None:
        """Return the state of that place from a neighbor, None if none gives it; those that say to have it first."""
        peers = sorted(self._peers, key=lambda peer: self._standings.place_of(peer) != place)
        return await self.fetching.fetch(place.digest, peers)
