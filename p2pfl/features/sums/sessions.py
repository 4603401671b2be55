"""One node's sessions for sums alone, without learning: with a binding of their own, so that nobody mistakes them."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from p2pfl.config.federation_id import HASH_BYTES
from p2pfl.config.model import FederationConfig
from p2pfl.crypto.identity import Identity
from p2pfl.features.sums.channel import CHANNEL
from p2pfl.features.sums.kept import KeptSums
from p2pfl.features.sums.patience import FIRST_S
from p2pfl.features.sums.protocol import Sums
from p2pfl.features.sums.sum_settings import SumSettings
from p2pfl.features.sums.sum_talk import SumTalk
from p2pfl.net.links import Links
from p2pfl.net.side import Feeding
from p2pfl.net.transport import MakeTransport
from p2pfl.net.websocket import WebSocketTransport
from p2pfl.node.phase_links import links_of_phase

log = logging.getLogger("p2pfl")
MOST_BODY_BYTES = 64 * 1024
"""There is no gossip on these sessions."""


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
    def alarm(kind: str, peer: int | None, text: str) -> None:
        about = f" ({text})" if peer is None else f": {text}"
        log.warning("%s: %s%s", federation.members[index].name, kind, about)

    return links_of_phase(
        federation,
        index,
        identity,
        hashlib.blake2b(b"summing", digest_size=HASH_BYTES, person=b"p2pfl-sums").digest(),
        listen=listen,
        max_body_bytes=MOST_BODY_BYTES,
        on_alarm=alarm,
        transport=transport,
    )
