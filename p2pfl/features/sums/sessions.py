"""One node's sessions for sums alone, without learning: with a binding of their own, so that nobody mistakes them."""

from __future__ import annotations

import hashlib
import logging
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from p2pfl.config.federation_id import HASH_BYTES, federation_id, keys
from p2pfl.config.model import FederationConfig
from p2pfl.crypto.handshake import FederationBinding
from p2pfl.crypto.identity import Identity
from p2pfl.features.sums.channel import CHANNEL
from p2pfl.features.sums.kept import KeptSums
from p2pfl.features.sums.patience import FIRST_S
from p2pfl.features.sums.protocol import Sums
from p2pfl.features.sums.sum_settings import SumSettings
from p2pfl.features.sums.sum_talk import SumTalk
from p2pfl.net.link import MALFORMED
from p2pfl.net.links import Links, Membership, Watcher
from p2pfl.net.session_table import Callbacks
from p2pfl.net.side import Feeding
from p2pfl.net.transport import MakeTransport
from p2pfl.net.websocket import WebSocketTransport
from p2pfl.node.amendment import keys_with_session
from p2pfl.node.assembly import learned_sections

log = logging.getLogger("p2pfl")
MOST_BODY_BYTES = 64 * 1024
"""There is no gossip on these sessions."""
REST_S = 30.0
"""After what no honest node sends."""


@asynccontextmanager
async def open_sums(
    federation: FederationConfig,
    settings: SumSettings,
    identity: Identity,
    *,
    listen: str,
    folder: Path | None = None,
    first_wait_s: float = FIRST_S,
    transport: MakeTransport = WebSocketTransport,
) -> AsyncIterator[SumTalk]:
    """This node's part in sums, while its sessions are open. With a folder, what it signs is kept there.

    `first_wait_s` is how long to wait before anything was measured.

    Raises UserError: an address is not valid or cannot be bound; StorageError: the folder cannot be used.
    """
    kept = KeptSums(folder)
    links = _links(federation, settings.index, identity, listen, transport)
    sums = Sums(settings, identity, draw=os.urandom, past=kept.past, first_wait_s=first_wait_s)
    talk = SumTalk(sums, links.sides.say, keep=kept.add)
    links.sides.add(Feeding(channel=CHANNEL, handler=talk))
    try:
        async with links:
            yield talk
    finally:
        talk.close()


def _links(
    federation: FederationConfig, index: int, identity: Identity, listen: str, transport: MakeTransport
) -> Links:
    members, peers = federation.members, federation.neighbors(index)
    phase = hashlib.blake2b(b"summing", digest_size=HASH_BYTES, person=b"p2pfl-sums").digest()

    def ended(peer: int, session: int, reason: str) -> None:
        if reason.startswith(MALFORMED):
            links.close(peer, session, "", REST_S)

    def alarm(kind: str, peer: int | None, text: str) -> None:
        log.warning("%s: %s%s", members[index].name, kind, f" ({text})" if peer is None else f": {text}")

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
        Watcher(
            log=logging.getLogger("p2pfl.net"),
            name_of=lambda peer: members[peer].name,
            on_alarm=alarm,
        ),
        listen=listen,
        max_body_bytes=MOST_BODY_BYTES,
        rng=random.Random(os.urandom(16)),  # jitter of dials
        transport=transport,
    )
    return links
