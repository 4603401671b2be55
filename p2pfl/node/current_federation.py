"""The federation that a node follows, how that is replaced while it runs, and sessions of phases without a core."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, replace

from p2pfl.config.charter import federation_id, keys
from p2pfl.config.model import Edges, FederationConfig
from p2pfl.core.events import Amended
from p2pfl.core.settings import turns_of
from p2pfl.crypto.identity import Identity
from p2pfl.crypto.session import FederationBinding
from p2pfl.engine.engine import codecs_of, recode
from p2pfl.errors import UserError
from p2pfl.limits import MALFORMED_REST_S
from p2pfl.net.address import parse_address
from p2pfl.net.link import MALFORMED
from p2pfl.net.links import Links, Membership, Watcher
from p2pfl.net.session_table import Callbacks
from p2pfl.net.transport import MakeTransport, OnAlarm
from p2pfl.net.websocket import WebSocketTransport
from p2pfl.node import assembly
from p2pfl.node.assembly import Setup, learned_sections, settings_for
from p2pfl.node.driver import Driver
from p2pfl.node.engine_thread import Look, Order
from p2pfl.node.status import Status
from p2pfl.reporting.figures import bearings

FREE = ("path", "members", "edges", "schedule", "topology", "notices", "edge_compressors", "edition", "charter")
"""The fields in which an amended federation may differ; in `training`, its rounds may differ too."""


def check_amended(before: FederationConfig, after: FederationConfig) -> None:
    """Check that a running node can adopt the change.

    Raises UserError, naming the section, if more has changed than a running node can adopt.
    """
    rounds = before.training.rounds
    if rounds is not None and after.training.rounds is not None:
        after = replace(after, training=replace(after.training, rounds=rounds))
    for each in fields(FederationConfig):
        if each.name not in FREE and getattr(before, each.name) != getattr(after, each.name):
            raise _refusal(after, each.name, "cannot change while nodes run", "what it was")
    for edge in set(before.edges).intersection(after.edges):
        if before.compressor_of(*edge) != after.compressor_of(*edge):
            raise _refusal(after, "edge_compressors", "an existing edge has another compressor", "what it was")
    _check_members(before, after)
    lost = sorted({node for edge in after.edges for node in edge} & after.retired)
    if lost:
        raise _refusal(after, "edges", f"{after.members[lost[0]].name} was removed and has edges", "edges of members")


def _check_members(before: FederationConfig, after: FederationConfig) -> None:
    if len(after.members) < len(before.members):
        raise _refusal(after, "members", "a member's row is missing", "every previous row, removed members as retired")
    for known, member in zip(before.members, after.members, strict=False):
        if member.key != known.key or (known.retired and not member.retired):
            text = f"row {known.index} was {known.name}, and now is another member or a removed one"
            raise _refusal(after, "members", text, "new members in new rows")
    for row, member in enumerate(after.members):
        if member.index != row:
            raise _refusal(after, "members", f"{member.name} has the index {member.index}", f"that of its row, {row}")
        if member.address is not None and not member.retired:
            parse_address(member.address, f"address of {member.name}")


def _refusal(federation: FederationConfig, section: str, text: str, allowed: str) -> UserError:
    return UserError(text, file=federation.path, key=section, allowed=allowed)


def amended(setup: Setup) -> Amended:
    """Return the event that gives the node's core its new settings."""
    federation, index = setup.federation, setup.member.index
    return Amended(neighbors=setup.peers, turns=turns_of(index, federation.schedule), settings=settings_for(setup))


def name_of_key(federation: FederationConfig, key: bytes) -> str | None:
    """Return the name of the member with this key, removed members too; None if no member ever had it."""
    return next((member.name for member in federation.members if member.key == key), None)


def keys_with_session(federation: FederationConfig) -> dict[bytes, int]:
    """Return the keys that may have a session (members not removed), with their indices."""
    return {member.key: member.index for member in federation.members if not member.retired}


def without_members(federation: FederationConfig, keys: Collection[bytes]) -> FederationConfig:
    """Return the federation with these members and their edges removed; it is not signed again."""
    members = tuple(replace(each, retired=True) if each.key in keys else each for each in federation.members)
    gone = {member.index for member in members if member.retired}

    def kept(edges: Edges) -> Edges:
        return tuple(edge for edge in edges if gone.isdisjoint(edge))

    return replace(
        federation, members=members, edges=kept(federation.edges), schedule=tuple(map(kept, federation.schedule))
    )


def in_words(before: FederationConfig, after: FederationConfig, index: int) -> str:
    """Describe what has changed from that member's point of view, for its log and its page."""
    here, there = ({member.index: member for member in federation.present} for federation in (before, after))
    was, now = set(before.neighbors(index)), set(after.neighbors(index))
    both = sorted(here.keys() & there.keys())
    moved = [there[each] for each in both if here[each].address != there[each].address]
    lists = (
        ("joined:", [there[each].name for each in sorted(there.keys() - here.keys())]),
        ("removed:", [here[each].name for each in sorted(here.keys() - there.keys())]),
        ("another key:", [there[each].name for each in both if here[each].key != there[each].key]),
        ("another address:", [f"{member.name} ({member.address or 'none'})" for member in moved]),
        ("new neighbors:", [after.members[peer].name for peer in sorted(now - was)]),
        ("no longer neighbors:", [after.members[peer].name for peer in sorted(was - now)]),
    )
    parts = [f"{what} {', '.join(names)}" for what, names in lists if names]
    if before.training.rounds != after.training.rounds:
        parts.append(f"{after.training.rounds} rounds to do instead of {before.training.rounds}")
    if before.topology != after.topology:
        parts.append(f"the graph is {after.topology}")
    return "; ".join([f"{len(there)} members", *parts])


log = logging.getLogger("p2pfl")
notice = logging.getLogger("p2pfl.notice")


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """Running parts that follow the federation."""

    driver: Driver
    status: Status
    trusted_members: Callable[[Mapping[bytes, int]], Mapping[bytes, int]]
    """Selects the listed members, by key, that may have sessions."""


class CurrentFederation:
    """Keeps core and network on the latest federation, which is in `setup`."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.core_federation = setup.federation
        """The federation that the core follows, or was last given."""
        self.live: Live | None = None

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
            member = federation.members[self.setup.member.index]
            self.setup = replace(self.setup, federation=federation, member=member)
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
        live.driver.take(amended(self.setup))  # the core decides when it takes effect
        self._amend_links(live)

    def follow_core(self) -> None:
        """Follow the new federation, as the core does from now on."""
        live, setup = self.live, self.setup
        if live is None:
            return
        thread, codecs = live.driver.engine_thread, codecs_of(setup.federation, setup.member.index)
        thread.extra = assembly.snapshot_header(setup)
        if codecs.specs != thread.engine.codecs.specs:  # a snapshot makes later log records readable with them
            thread.jobs.put(Look(lambda engine: recode(engine, codecs)))
            thread.jobs.put(Order.CHECKPOINT)
        live.status.rounds = done = live.status.core.settings.rounds
        todo, trained = setup.federation.training.rounds or 0, live.status.core.facts.rounds
        if done is not None and max(done, trained) < todo:
            text = "there are %d rounds to do now, but this node no longer trains: start it again to continue"
            notice.info(text, todo)
        live.status.bearing = bearing = bearings(setup.federation)[setup.member.index]
        if not bearing.mixes:
            log.warning("%s", bearing)
        self._amend_links(live)

    def _amend_links(self, live: Live) -> None:
        """Allow sessions with current neighbors, future ones, and ones about to leave."""
        setup = self.setup
        members = setup.federation.members
        trusted = live.trusted_members(keys_with_session(setup.federation))
        neighbors = frozenset(live.status.core.peers).union(setup.peers).intersection(trusted.values())
        live.driver.links.amend(
            members=trusted,
            dial={peer: members[peer].address for peer in neighbors},
            neighbors=neighbors,
            binding=assembly.binding(setup),
        )


def membership_of(
    federation: FederationConfig, index: int, identity: Identity, binding: FederationBinding
) -> Membership:
    """Return the identity and the peers of member `index`, whose sessions have that binding."""
    members, peers = federation.members, federation.neighbors(index)
    return Membership(
        identity=identity,
        own_index=index,
        members=keys_with_session(federation),
        neighbors=frozenset(peers),
        dial={peer: members[peer].address for peer in peers},
        binding=binding,
    )


def links_of_phase(
    federation: FederationConfig,
    index: int,
    identity: Identity,
    phase: bytes,
    *,
    listen: str,
    max_body_bytes: int,
    on_alarm: OnAlarm,
    transport: MakeTransport = WebSocketTransport,
) -> Links:
    """Return the links of member `index` for a phase in which only extension channels are used.

    `phase` is a digest that stands in the binding in place of schema and model, so that nobody takes these sessions for
    those of learning, or of another phase.
    """
    sections = (*keys(federation), *learned_sections(phase, phase))
    binding = FederationBinding(federation_id=federation_id(federation), sections=sections)

    def ended(peer: int, session: int, reason: str) -> None:
        if reason.startswith(MALFORMED):
            links.close(peer, session, "", MALFORMED_REST_S)

    links = Links(
        membership_of(federation, index, identity, binding),
        Callbacks(
            on_open=lambda peer, session: None,  # noqa: ARG005 - there is no core
            on_message=lambda peer, session, message: None,  # noqa: ARG005 - as above
            on_close=ended,
        ),
        Watcher(
            log=logging.getLogger("p2pfl.net"), name_of=lambda peer: federation.members[peer].name, on_alarm=on_alarm
        ),
        listen=listen,
        max_body_bytes=max_body_bytes,
        rng=random.Random(os.urandom(16)),  # jitter for dialing
        transport=transport,
    )
    return links
