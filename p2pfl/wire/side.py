"""The messages of a session beside gossip: the offer of versions and side channels, and the side channels' messages.

No core sees either. `Offer` is the first message of a session, in both directions, so that nodes that agree before
there is a core exchange it too. A body is opaque here: its channel decodes it (`p2pfl.net.side`).
"""

from __future__ import annotations

from msgspec import Struct

MOST_OFFERS = 64
"""The most side channels of one end."""
MOST_NAME_BYTES = 32
"""The longest name of a side channel, with its version."""
MOST_SIDE_BYTES = 60 * 1024
"""The longest message on a side channel."""


class Offer(Struct, frozen=True, kw_only=True, gc=False):
    """The sender speaks the protocol's versions from `least` to `most`, and has these side channels, by name."""

    least: int
    most: int
    channels: tuple[str, ...]


class Side(Struct, frozen=True, kw_only=True, gc=False):
    """A message on the side channel of that name."""

    channel: str
    body: bytes


class Unknown(Struct, frozen=True, kw_only=True, gc=False):
    """A message of a type that this version does not know; it is dropped and counted, and no fault of the sender."""

    code: int
