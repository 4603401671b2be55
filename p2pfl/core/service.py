"""Whether the own version of now has been through an exchange on one edge, and how long that takes."""

from __future__ import annotations

from dataclasses import dataclass, field

from p2pfl.core.facts import Facts
from p2pfl.core.limits import Patience, UsualTime
from p2pfl.core.turns import ALWAYS, Turns, place


@dataclass(slots=True, kw_only=True)
class Service:
    """Of one edge; an edge is *served* in a round once the version of that round was exchanged."""

    peer: int
    facts: Facts = field(repr=False, compare=False)
    turns: Turns
    """The own rounds that use this edge; both ends answer in any."""
    usual: UsualTime = field(repr=False, compare=False)
    """How long an exchange takes on each live edge of the node."""
    patience: Patience
    exchanged: int | None = None
    """The own version in the last completed exchange."""
    exchanges: int = 0
    served_at: float = float("-inf")
    """When the latest exchange was through that the own version of then had waited for."""
    asked_at: float | None = None
    """When this end began to wait for the exchange under way: at the freeze, or with its Ready."""

    @property
    def has_turn(self) -> bool:
        """Whether the own round of now uses this edge."""
        turns = self.turns
        return turns is ALWAYS or turns.active(place(self.facts.version, self.facts.closing))

    @property
    def served(self) -> bool:
        """Whether the own version of now has taken part in a completed exchange, or need not."""
        exchanged, facts, turns = self.exchanged, self.facts, self.turns
        if exchanged is not None and exchanged >= facts.version:
            return True
        # As `has_turn`, which would be a call more for every late edge after every event.
        return turns is not ALWAYS and not turns.active(place(facts.version, facts.closing))

    def complete(self, version: int, now: float, *, live: bool) -> None:
        """An exchange in which the own `version` took part is through; `live`: in a session that is still there."""
        self.served_at = self.served_at if self.served else now
        self.exchanged = version
        self.exchanges += 1
        self.patience.exchanged(None if self.asked_at is None else now - self.asked_at)
        self.asked_at = None
        if live:
            self.usual.note(self.peer, self.patience.exchange_s)

    def begin(self) -> None:
        """The edge is open."""
        self.usual.note(self.peer, self.patience.exchange_s)

    def pause(self) -> None:
        """The session has ended."""
        self.usual.note(self.peer, None)
        self.asked_at = None
