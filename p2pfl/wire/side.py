"""The session messages outside gossip: the offer of versions and side channels, and the side channels' messages.

No core sees either. `Offer` is the first message of a session in both directions; nodes that agree before there is a
core exchange it too. A body is opaque here: its channel decodes it (`p2pfl.net.side`).
"""

from __future__ import annotations

from msgspec import Struct

MOST_OFFERS = 64
"""The maximum number of side channels at one end."""
MOST_NAME_BYTES = 32
"""The maximum length of a side channel's name, including its version."""
MOST_SIDE_BYTES = 60 * 1024
"""The maximum size of a message on a side channel."""


class Offer(Struct, frozen=True, kw_only=True, gc=False):
    """The sender speaks protocol versions `least` to `most`, and has these side channels, by name."""

    least: int
    most: int
    channels: tuple[str, ...]


class Side(Struct, frozen=True, kw_only=True, gc=False):
    """A message on the side channel of that name."""

    channel: str
    body: bytes


class Unknown(Struct, frozen=True, kw_only=True, gc=False):
    """A message of a type unknown to this version; it is dropped and counted, but not blamed on the sender."""

    code: int
