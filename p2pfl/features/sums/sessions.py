"""One node's sessions for sums alone, without learning: with a binding of their own, so that nobody mistakes them."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from p2pfl.config.federation_id import HASH_BYTES
from p2pfl.config.model import FederationConfig, NodeConfig
from p2pfl.crypto.identity import Identity
from p2pfl.features.lan.announcing import discovery_of
from p2pfl.features.relay.credentials import through_relays
from p2pfl.features.sums.channel import CHANNEL
from p2pfl.features.sums.kept import KeptSums
from p2pfl.features.sums.patience import FIRST_S
from p2pfl.features.sums.protocol import Sums
from p2pfl.features.sums.sum_settings import SumSettings
from p2pfl.features.sums.sum_talk import HELD_UP, SumTalk
from p2pfl.net.links import Links
from p2pfl.net.refusals import DIFFERS
from p2pfl.net.side import Feeding
from p2pfl.net.transport import MakeTransport
from p2pfl.net.websocket import WebSocketTransport, transport_of
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
    transport: MakeTransport | None = None,
    finder: NodeConfig | None = None,
    on_other: Callable[[int], object] = lambda _: None,
) -> AsyncIterator[SumTalk]:
    """This node's part in sums, while its sessions are open. With a folder, what it signs is kept there.

    `first_wait_s` is how long to wait before anything was measured. With `discovery` of `finder`, the node finds the
    others on its LAN; its proxy and certificate are used, and with its `relays` they meet there. `on_other` is called
    with a neighbor that does something else than sums with these settings.

    Raises UserError: an address is not valid or cannot be bound; StorageError: the folder cannot be used.
    """
    name_of = [member.name for member in federation.members]

    def alarm(kind: str, peer: int | None, text: str) -> None:
        if kind == DIFFERS and peer is not None:
            on_other(peer)
        about = f" ({text})" if peer is None else f": {name_of[peer]}: {text}" if kind == HELD_UP else f": {text}"
        log.warning("%s: %s%s", name_of[settings.index], kind, about)

    usual = transport or (WebSocketTransport if finder is None else transport_of(finder))
    links = links_of_phase(
        federation,
        settings.index,
        identity,
        hashlib.blake2b(b"summing" + settings.domain(), digest_size=HASH_BYTES, person=b"p2pfl-sums").digest(),
        listen=listen,
        max_body_bytes=MOST_BODY_BYTES,
        on_alarm=alarm,
        transport=usual if finder is None else through_relays(federation, finder, identity, usual),
    )
    talk = sums_over(links, settings, identity, folder=folder, first_wait_s=first_wait_s, alarm=alarm)
    try:
        async with links, AsyncExitStack() as doors:
            if finder is not None and finder.discovery:
                member = federation.members[settings.index]
                await doors.enter_async_context(discovery_of(member, finder, lambda: federation, links))
            yield talk
    finally:
        talk.close()


def sums_over(
    links: Links,
    settings: SumSettings,
    identity: Identity,
    *,
    folder: Path | None,
    first_wait_s: float = FIRST_S,
    alarm: Callable[[str, int | None, str], object] = lambda *_: None,
) -> SumTalk:
    """This node's part in sums over links that are not open yet. Raises StorageError: the folder cannot be used."""
    kept = KeptSums(folder, settings.members)
    sums = Sums(settings, identity, draw=os.urandom, past=kept.past, first_wait_s=first_wait_s)
    talk = SumTalk(sums, links.sides.say, keep=kept.add, alarm=alarm)
    links.sides.add(Feeding(channel=CHANNEL, handler=talk))
    return talk
