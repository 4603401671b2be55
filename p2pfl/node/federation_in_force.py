"""The federation that a node goes by, and how it becomes another one while the node runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from p2pfl.config.model import FederationConfig
from p2pfl.engine.codecs import codecs_of
from p2pfl.net.links import Links
from p2pfl.node import assembly
from p2pfl.node.amendment import amended, check_amended, in_words, listed, with_federation
from p2pfl.node.assembly import Setup
from p2pfl.node.driver import Driver
from p2pfl.node.engine_thread import Checkpoint, EngineThread, Look
from p2pfl.node.status import Status
from p2pfl.reporting.liars import bearings

log = logging.getLogger("p2pfl")
notice = logging.getLogger("p2pfl.notice")


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """The running parts that follow the federation."""

    driver: Driver
    thread: EngineThread
    links: Links
    status: Status
    trusted: Callable[[Mapping[bytes, int]], Mapping[bytes, int]]
    """Selects the listed members, by key, with whom there may be sessions."""


class FederationInForce:
    """`setup` is with the federation that was heard of last."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.told = setup.federation
        """The federation that the core follows, or was given last."""
        self.live: Live | None = None

    def built(self) -> None:
        """The core was made for the federation of now."""
        self.told = self.setup.federation

    def begin(self, live: Live) -> None:
        self.live = live
        self._hand_over()
        self._amend_links(live)  # the doors were open already: somebody may have been removed

    def amend(self, federation: FederationConfig) -> None:
        """Go by a changed federation from the end of the round under way on. On the event loop, at any time; of several
        the newest counts, and the same once more changes nothing.

        Members keep their rows: rows may be added, or become retired, and names and addresses may change. Besides, the
        edges, the schedule, the topology and the rounds to do may be others. Nothing is exchanged any more with whoever
        was removed, from now on; a node that was removed itself ends. What is written is the caller's business: the
        state on disk fits the federation of before and the new one.

        Raises UserError: something else has changed. Then nothing has happened.
        """
        check_amended(self.setup.federation, federation)
        if federation != self.setup.federation:
            self.setup = with_federation(self.setup, federation)
            self._hand_over()

    def trust_anew(self) -> None:
        """Ask features anew whom they let in."""
        live = self.live
        if live is not None and not live.driver.finished.is_set():
            self._amend_links(live)

    def _hand_over(self) -> None:
        """Hand the federation to core and network, once they run; they end with the federation that they have."""
        live, federation = self.live, self.setup.federation
        if live is None or live.driver.finished.is_set() or federation is self.told:
            return
        live.driver.feed.tell("federation-changed", None, in_words(self.told, federation, self.setup.member.index))
        self.told = federation
        live.status.name = self.setup.member.name
        live.driver.amend(amended(self.setup))
        self._amend_links(live)

    def took_effect(self) -> None:
        """The core goes by the new one from here on."""
        live, setup = self.live, self.setup
        if live is None:
            return
        live.thread.extra = assembly.snapshot_header(setup)
        self._recode(live.thread)
        live.status.rounds = done = live.status.core.settings.rounds
        todo, trained = setup.federation.training.rounds or 0, live.status.core.facts.rounds
        if done is not None and max(done, trained) < todo:
            text = "%d rounds are to be done now, and this node does not train any more: start it again, and it goes on"
            notice.info(text, todo)
        live.status.bearing = bearing = bearings(setup.federation)[setup.member.index]
        if not bearing.mixes:
            log.warning("%s", bearing)
        self._amend_links(live)

    def _recode(self, thread: EngineThread) -> None:
        """The edge to a newcomer may have a compressor of its own; what is logged from here on is read with it."""
        codecs = codecs_of(self.setup.federation, self.setup.member.index)
        if codecs.specs != thread.engine.codecs.specs:
            thread.jobs.put(Look(lambda engine: setattr(engine, "codecs", codecs)))
            thread.jobs.put(Checkpoint())

    def _amend_links(self, live: Live) -> None:
        """Sessions are there for those who are neighbors, for those who will be, and for those who are about to go."""
        setup = self.setup
        members = setup.federation.members
        trusted = live.trusted(listed(setup.federation))
        neighbors = frozenset(live.status.core.edges).union(setup.peers).intersection(trusted.values())
        live.links.amend(
            members=trusted,
            dial={peer: members[peer].address for peer in neighbors},
            neighbors=neighbors,
            binding=assembly.binding(setup),
        )
