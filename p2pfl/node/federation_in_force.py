"""The federation that a node follows, and how it is replaced while the node runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from p2pfl.config.model import FederationConfig
from p2pfl.engine.arithmetic import codecs_of
from p2pfl.engine.engine import recode
from p2pfl.net.links import Links
from p2pfl.node import assembly
from p2pfl.node.amendment import amended, check_amended, in_words, keys_with_session, with_federation
from p2pfl.node.assembly import Setup
from p2pfl.node.driver import Driver
from p2pfl.node.engine_thread import Checkpoint, EngineThread, Look
from p2pfl.node.status import Status
from p2pfl.reporting.mixing import bearings

log = logging.getLogger("p2pfl")
notice = logging.getLogger("p2pfl.notice")


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """Running parts that follow the federation."""

    driver: Driver
    thread: EngineThread
    links: Links
    status: Status
    trusted_members: Callable[[Mapping[bytes, int]], Mapping[bytes, int]]
    """Selects the listed members, by key, that may have sessions."""


class FederationInForce:
    """Keeps core and network on the latest federation, which is in `setup`."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.core_federation = setup.federation
        """The federation that the core follows, or was last given."""
        self.live: Live | None = None

    def note_core_built(self) -> None:
        """Record that the core was built for the current federation."""
        self.core_federation = self.setup.federation

    def begin(self, live: Live) -> None:
        self.live = live
        self._hand_over()
        self._amend_links(live)  # the sockets were already open, and a member may have been removed

    def amend(self, federation: FederationConfig) -> None:
        """Follow a changed federation from the end of the current round.

        Call this on the event loop, at any time; only the newest of several changes counts, and a repeated one changes
        nothing.

        Members keep their rows: rows may be added, or become retired, and names and addresses may change. The edges,
        the schedule, the topology and the number of rounds may change too. A removed member takes part in no exchange
        from now on; a node that was itself removed ends. The caller writes the federation to disk: the state on disk
        fits both the previous federation and the new one.

        Raises UserError if anything else has changed; nothing has happened in that case.
        """
        check_amended(self.setup.federation, federation)
        if federation != self.setup.federation:
            self.setup = with_federation(self.setup, federation)
            self._hand_over()

    def trust_anew(self) -> None:
        """Ask features again which members they let in."""
        live = self.live
        if live is not None and not live.driver.finished.is_set():
            self._amend_links(live)

    def _hand_over(self) -> None:
        """Hand the federation to core and network once they run; after they end, it no longer changes."""
        live, federation = self.live, self.setup.federation
        if live is None or live.driver.finished.is_set() or federation is self.core_federation:
            return
        live.driver.feed.tell(
            "federation-changed", None, in_words(self.core_federation, federation, self.setup.member.index)
        )
        self.core_federation = federation
        live.status.name = self.setup.member.name
        live.driver.amend(amended(self.setup))
        self._amend_links(live)

    def follow_core(self) -> None:
        """Follow the new federation, as the core does from now on."""
        live, setup = self.live, self.setup
        if live is None:
            return
        live.thread.extra = assembly.snapshot_header(setup)
        self._recode(live.thread)
        live.status.rounds = done = live.status.core.settings.rounds
        todo, trained = setup.federation.training.rounds or 0, live.status.core.facts.rounds
        if done is not None and max(done, trained) < todo:
            text = "there are %d rounds to do now, but this node no longer trains: start it again to continue"
            notice.info(text, todo)
        live.status.bearing = bearing = bearings(setup.federation)[setup.member.index]
        if not bearing.mixes:
            log.warning("%s", bearing)
        self._amend_links(live)

    def _recode(self, thread: EngineThread) -> None:
        """Give the engine the compressor for a new edge; a snapshot makes later log records readable with it."""
        codecs = codecs_of(self.setup.federation, self.setup.member.index)
        if codecs.specs != thread.engine.codecs.specs:
            thread.jobs.put(Look(lambda engine: recode(engine, codecs)))
            thread.jobs.put(Checkpoint())

    def _amend_links(self, live: Live) -> None:
        """Allow sessions with current neighbors, future ones, and ones about to leave."""
        setup = self.setup
        members = setup.federation.members
        trusted = live.trusted_members(keys_with_session(setup.federation))
        neighbors = frozenset(live.status.core.peers).union(setup.peers).intersection(trusted.values())
        live.links.amend(
            members=trusted,
            dial={peer: members[peer].address for peer in neighbors},
            neighbors=neighbors,
            binding=assembly.binding(setup),
        )
