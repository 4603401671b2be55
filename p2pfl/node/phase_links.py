"""Sessions between neighbors before, or without, learning: with a binding of their own, and without a core."""

from __future__ import annotations

import logging
import os
import random

from p2pfl.config.charter import federation_id, keys
from p2pfl.config.model import FederationConfig
from p2pfl.crypto.identity import Identity
from p2pfl.crypto.session import FederationBinding
from p2pfl.net.link import MALFORMED
from p2pfl.net.links import Links, Membership, Watcher
from p2pfl.net.session_table import Callbacks
from p2pfl.net.transport import MakeTransport, OnAlarm
from p2pfl.net.websocket import WebSocketTransport
from p2pfl.node.amendment import keys_with_session
from p2pfl.node.assembly import learned_sections

REST_S = 30.0
"""The time for which a neighbor that has sent malformed data is refused."""


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
    """Return the links of member `index` for a phase in which only side channels are used.

    `phase` is a digest that stands in the binding in place of schema and model, so that nobody takes these sessions for
    those of learning, or of another phase.
    """
    members, peers = federation.members, federation.neighbors(index)

    def ended(peer: int, session: int, reason: str) -> None:
        if reason.startswith(MALFORMED):
            links.close(peer, session, "", REST_S)

    links = Links(
        Membership(
            identity=identity,
            own_index=index,
            members=keys_with_session(federation),
            neighbors=frozenset(peers),
            dial={peer: members[peer].address for peer in peers},
            binding=FederationBinding(
                federation_id=federation_id(federation), sections=(*keys(federation), *learned_sections(phase, phase))
            ),
        ),
        Callbacks(
            on_open=lambda peer, session: None,  # noqa: ARG005 - there is no core
            on_message=lambda peer, session, message: None,  # noqa: ARG005 - as above
            on_close=ended,
        ),
        Watcher(log=logging.getLogger("p2pfl.net"), name_of=lambda peer: members[peer].name, on_alarm=on_alarm),
        listen=listen,
        max_body_bytes=max_body_bytes,
        rng=random.Random(os.urandom(16)),  # jitter for dialing
        transport=transport,
    )
    return links
