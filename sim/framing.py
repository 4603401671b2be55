"""A message through the real encoder and decoder, and what a real node would count for it as `bytes_sent`.

A real node counts the sealed bytes of its sessions; TCP, WebSocket frames and pings are not counted. Nothing is sealed
here, the sizes alone are kept:

    message        frame + 17 for each chunk; frame = prefix 18 + header + body
    chunks         1 if the frame has at most CHUNK_BYTES, else 1 (prefix and header) + ceil(body / CHUNK_BYTES)
    session        dialer     m1 48 + m3 1168 + greeting 24 + 25 + 17
                   answerer   m2 1200 + greeting 24 + 25 + 17
                   lower end  its decision 25 + 17
    goodbye        17 from each end, where the connection still carries it

A simulated session is dialed by its lower end, and dials do not cross. `messages_sent` counts messages alone.
"""

from __future__ import annotations

from dataclasses import fields

from nacl.bindings import (
    crypto_secretstream_xchacha20poly1305_ABYTES,
    crypto_secretstream_xchacha20poly1305_HEADERBYTES,
)

from p2pfl.config.model import GossipConfig, TrainingConfig
from p2pfl.core.messages import Message
from p2pfl.crypto.handshake import M1_BYTES, m2_bytes, m3_bytes
from p2pfl.crypto.transcript import FederationBinding
from p2pfl.vocabulary import CHUNK_BYTES
from p2pfl.wire import PREFIX_BYTES, decode, decode_prefix, encode

SEAL_BYTES: int = crypto_secretstream_xchacha20poly1305_ABYTES
NOTICE_BYTES = 25
BINDING_SECTIONS = 7 + len(fields(TrainingConfig)) + len(fields(GossipConfig))
"""Sections of a federation, model shape included, whose hashes the handshake binds."""

_BINDING = FederationBinding(
    federation_id=bytes(32), sections=tuple((str(section), bytes(32)) for section in range(BINDING_SECTIONS))
)
_GREETING_BYTES: int = crypto_secretstream_xchacha20poly1305_HEADERBYTES + NOTICE_BYTES + SEAL_BYTES
LOWER_OPENING_BYTES = M1_BYTES + m3_bytes(_BINDING) + _GREETING_BYTES + NOTICE_BYTES + SEAL_BYTES
"""Bytes that the lower end of a session sends before the first message."""
UPPER_OPENING_BYTES = m2_bytes(_BINDING) + _GREETING_BYTES
GOODBYE_BYTES = SEAL_BYTES

LONGEST_TOKEN_BYTES = 256


def sealed_bytes(head_bytes: int, body_bytes: int) -> int:
    """The size of one message in sealed chunks; `head_bytes` is prefix and header."""
    frame_bytes = head_bytes + body_bytes
    if frame_bytes <= CHUNK_BYTES:
        return frame_bytes + SEAL_BYTES
    return frame_bytes + SEAL_BYTES * (1 - -body_bytes // CHUNK_BYTES)


class Framing:
    """With `payload_bytes`, a body that is not empty is a token for a payload of so many bytes."""

    def __init__(self, max_body_bytes: int, payload_bytes: int | None = None) -> None:
        if payload_bytes is not None and payload_bytes > max_body_bytes:
            raise ValueError(f"a payload of {payload_bytes} bytes; peers accept {max_body_bytes}")
        self._payload_bytes = payload_bytes
        self._limit_bytes = max_body_bytes if payload_bytes is None else LONGEST_TOKEN_BYTES

    def carry(self, message: Message) -> tuple[int, Message]:
        """The bytes counted for it, and the message as its receiver decodes it."""
        head, body = encode(message)
        size = body.nbytes
        if size and self._payload_bytes is not None:
            size = self._payload_bytes
        # Its parts, joined, cut into chunks and put together again, are the same bytes; only their owner must not
        # write over them while they are on the way.
        if type(body.obj) is not bytes:
            body = memoryview(bytes(body))
        prefix = decode_prefix(head[:PREFIX_BYTES], max_body_bytes=self._limit_bytes)
        return sealed_bytes(len(head), size), decode(prefix, head[PREFIX_BYTES:], body)
