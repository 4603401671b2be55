"""Sessions for sums alone, as those of statistics and of schemas are."""

from __future__ import annotations

import hashlib
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

from p2pfl.config import HASH_BYTES
from p2pfl.features.sums import FIRST_S, MOST_BODY_BYTES, KeptSums, sum_talk
from p2pfl.features.sums.talk import CHANNEL
from p2pfl.net import HandledChannel, WebSocketTransport
from p2pfl.node import links_of_phase


@asynccontextmanager
async def open_talk(
    federation, settings, identity, *, listen, folder=None, transport=WebSocketTransport, first_wait_s=FIRST_S
):
    """A node's part in sums, while its sessions are open; with a folder, what it signs is kept there."""
    phase = hashlib.blake2b(settings.domain(), digest_size=HASH_BYTES).digest()
    links = links_of_phase(
        federation,
        settings.index,
        identity,
        phase,
        listen=listen,
        max_body_bytes=MOST_BODY_BYTES,
        on_alarm=lambda *_: None,
        transport=transport,
    )
    kept = KeptSums(folder or Path(tempfile.mkdtemp()), settings.members)
    talk = sum_talk(settings, identity, kept, links.extensions.say, first_wait_s=first_wait_s, alarm=lambda *_: None)
    links.extensions.add(HandledChannel(channel=CHANNEL, handler=talk))
    try:
        async with links:
            yield talk
    finally:
        talk.close()
