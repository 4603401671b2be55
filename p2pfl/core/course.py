"""A course is how a node learns, from its first session to its end. Gossip is one course: `core.Core`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from p2pfl.core.edge import Edge
from p2pfl.core.effects import Effect
from p2pfl.core.events import Event
from p2pfl.core.facts import Facts, Phase
from p2pfl.core.lives import NO_START, Life
from p2pfl.core.settings import Settings
from p2pfl.core.standing import View
from p2pfl.core.tick import Mixing


class Course:
    """Handles events and returns effects; it has no I/O and no clock of its own.

    The driver carries out the effects: it answers `StartRound` with RoundTrained or RoundRefused, and `CommitRound`
    with RoundCommitted; `Finish` ends the node. The other methods serve the status, the page and the result. `facts`
    holds what the node has done so far.
    """

    facts: Facts
    settings: Settings
    edges: Mapping[int, Edge] = MappingProxyType({})
    """The edges on which models are mixed, by neighbor."""
    mixes = True
    """False if rounds are sums, and no model is mixed with a neighbor's."""
    resigned = False
    """True if this node has stopped because another process has its key."""
    retired = False
    """True if this node has stopped because it was removed."""

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Handle one event; `now` is monotonic, in seconds."""
        raise NotImplementedError

    def wake(self, now: float) -> list[Effect]:  # noqa: ARG002 - most need no clock
        """Run the timers that are due. The driver calls this at `deadline()` at the latest."""
        return []

    def deadline(self) -> float | None:
        """Return when `wake` must be called next; None for never."""
        return None

    @property
    def phase(self) -> Phase:
        raise NotImplementedError

    @property
    def life(self) -> Life:
        """The node's life, which says how far back its memory reaches."""
        return NO_START.life

    @property
    def mixing(self) -> Mixing | None:
        """The state of mixing by a rule; None if no rule mixes."""
        return None

    @property
    def peers(self) -> Collection[int]:
        """Return the neighbors that this node has sessions with, or should have."""
        return self.edges.keys()

    @property
    def connected(self) -> Collection[int]:
        """Return the neighbors with a session."""
        return [peer for peer, edge in self.edges.items() if edge.is_open]

    def may_miss(self, peer: int) -> bool:
        """Return True if the absence of a neighbor is nothing to report."""
        edge = self.edges[peer]
        return edge.progress.done or edge.line.standing.is_out or edge.line.barred or self.facts.halted

    @property
    def exchanges(self) -> int:
        """Return the number of exchanges with neighbors, or of whatever takes their place."""
        return sum(edge.service.exchanges for edge in self.edges.values())

    @property
    def failed_rounds(self) -> int:
        return 0

    @property
    def is_through(self) -> bool:
        """True if this node has done all its own training."""
        return self.facts.done

    @property
    def ended_by(self) -> str | None:
        """The reason why training has ended; None if it has not."""
        return None

    @property
    def unfinished(self) -> list[int]:
        """The other members that were not through when training ended; empty until then."""
        return []

    def through_by(self, now: float) -> str | None:  # noqa: ARG002 - as above
        """Return the reason why this node has trained enough; None if it has not."""
        return None

    def standings(self, now: float) -> Mapping[int, View]:  # noqa: ARG002 - as above
        """Return the standing of each neighbor: its proven faults and its quarantine."""
        return {}
