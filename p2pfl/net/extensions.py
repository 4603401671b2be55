"""Extension channels: messages between neighbors outside gossip, in separate named channels.

Two ends use the channels they have in common, by name and version; messages on any other are dropped and counted, so
nodes with different or newer features can learn together. A channel limits the size of a message, how many may come per
second and how many wait to be sent; they are sent when no gossip waits. A channel's handler receives decoded messages.
If it fails on one, that channel is closed on that edge with an alarm, and the session stays open. If the handler
belongs to a feature that guards the node, its failure ends the node.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from p2pfl.core.limits import TokenBucket
from p2pfl.errors import PeerFault
from p2pfl.foreign import UNREADABLE
from p2pfl.limits import MOST_NAME_BYTES, MOST_OFFERS, MOST_SIDE_BYTES
from p2pfl.net.transport import OnAlarm
from p2pfl.wire import Offer, Side, Unknown

FAILED = "feature-failed"
"""The kind of alarm about a handler that failed."""
DROPPED_PER_S, DROPPED_AT_ONCE = 20.0, 1000.0
"""The messages that a neighbor may send on channels that this node lacks: the rate per second and the burst."""


class ExtensionChannel:
    """An extension channel. `messages` are the structs that it carries, each with its own tag. Limits are per neighbor.

    Raises ValueError if the name or a limit is not valid.
    """

    def __init__(
        self,
        name: str,
        *messages: type[msgspec.Struct],
        version: int = 1,
        most_bytes: int,
        per_s: float,
        at_once: float,
        most_waiting: int = 64,
    ) -> None:
        self.name = f"{name}/{version}"
        self.kinds = messages
        self.most_bytes, self.most_waiting = most_bytes, most_waiting
        self.per_s, self.at_once = per_s, at_once
        if re.fullmatch(r"[a-z][a-z0-9-]*", name) is None or len(self.name) > MOST_NAME_BYTES:
            text = f"{self.name!r} is not a valid name of an extension channel: small letters, digits and dashes"
            raise ValueError(f"{text}, at most {MOST_NAME_BYTES}")
        if not 0 < most_bytes <= MOST_SIDE_BYTES:
            raise ValueError(f"messages of {most_bytes} bytes on {self.name}: at most {MOST_SIDE_BYTES}")
        self._encode = msgspec.msgpack.Encoder().encode
        kinds: Any = messages[0]
        for each in messages[1:]:
            kinds |= each
        self._decode = msgspec.msgpack.Decoder(kinds).decode

    def __repr__(self) -> str:
        return self.name

    def pack(self, message: msgspec.Struct) -> Side:
        """Encode a message. Raises ValueError if it holds a value that no peer would accept."""
        body = self._encode(message)
        try:
            self.unpack(body)
        except PeerFault as fault:
            raise ValueError(f"{type(message).__name__} cannot be sent: {fault}") from None
        return Side(channel=self.name, body=body)

    def unpack(self, body: bytes) -> Any:
        """Decode a message. Raises PeerFault if it is not one of the channel's messages."""
        if len(body) > self.most_bytes:
            raise PeerFault(f"{len(body)} bytes on channel {self.name}; limit {self.most_bytes}")
        try:
            return self._decode(body)
        except UNREADABLE as error:
            raise PeerFault(f"a malformed message on channel {self.name}: {error}") from error


class Handler(Protocol):
    """A feature's part in its channel. From `opened` to `closed`, a neighbor is connected that also has the channel.

    `hear` may raise PeerFault for a message that no honest node sends; that ends the session.
    """

    def opened(self, peer: int) -> None: ...
    def closed(self, peer: int) -> None: ...
    def hear(self, peer: int, message: Any) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HandledChannel:
    """A channel and its handler. If it `guards`, a failure of the handler ends the node."""

    channel: ExtensionChannel
    handler: Handler
    guards: bool = False


class ChannelLink(Protocol):
    """The part of a session that extension channels need."""

    @property
    def peer(self) -> int: ...
    def say(self, message: Side, channel: ExtensionChannel, *, if_free: bool = False) -> bool: ...


@dataclass(slots=True)
class OpenChannels:
    """The extension channels of one session, once the other end has offered its own."""

    link: ChannelLink
    open: dict[str, TokenBucket]
    """The channels that both ends have, each with its message limit."""
    vain: TokenBucket = field(
        default_factory=lambda: TokenBucket(DROPPED_PER_S, tokens=DROPPED_AT_ONCE, burst=DROPPED_AT_ONCE)
    )


class ExtensionChannels:
    """All extension channels of a node; on the event loop. Raises ValueError if two have the same name, or if there are
    too many.
    """

    def __init__(self, *, name_of: Callable[[int], str], on_alarm: OnAlarm) -> None:
        self._handled: dict[str, HandledChannel] = {}
        self._sessions: dict[int, OpenChannels] = {}
        self._name_of, self.on_alarm = name_of, on_alarm
        self.dropped: Counter[str] = Counter()
        """Counts dropped messages, by unopened channel or unknown type."""

    def add(self, handled: HandledChannel) -> None:
        name = handled.channel.name
        if name in self._handled:
            raise ValueError(f"two features have an extension channel named {name}")
        if len(self._handled) >= MOST_OFFERS:
            raise ValueError(f"more than {MOST_OFFERS} extension channels")
        self._handled[name] = handled

    def drop(self, handled: HandledChannel) -> None:
        """Close a channel with all neighbors and stop offering it, because its feature is off."""
        name = handled.channel.name
        for peer in list(self._sessions):
            self._close(peer, name)
        self._handled.pop(name, None)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._handled))

    def say(self, peer: int, channel: ExtensionChannel, message: msgspec.Struct, *, if_free: bool = False) -> bool:
        """Send a message; return True if it will be sent: the channel is open at both ends and not too many are
        waiting.

        With `if_free`, send it only if nothing else is waiting.
        """
        channels = self._sessions.get(peer)
        return (
            channels is not None
            and channel.name in channels.open
            and channels.link.say(channel.pack(message), channel, if_free=if_free)
        )

    def handle_offer(self, link: ChannelLink, offer: Offer) -> None:
        """Open the channels that both ends have, after receiving the other end's offer."""
        both = [handled.channel for name, handled in self._handled.items() if name in offer.channels]
        self._sessions[link.peer] = OpenChannels(
            link, {each.name: TokenBucket(each.per_s, tokens=each.at_once, burst=each.at_once) for each in both}
        )
        for name in [channel.name for channel in both]:
            self._carry(link.peer, name, lambda handler: handler.opened(link.peer))

    def handle_message(self, link: ChannelLink, message: Side | Unknown) -> None:
        """Hand a message to its handler. Raises PeerFault if no honest node sends such a message, or so many."""
        channels, now = self._sessions.get(link.peer), asyncio.get_running_loop().time()
        if channels is None or channels.link is not link:
            raise PeerFault("a message on an extension channel before any was offered")
        name = message.channel if isinstance(message, Side) else f"type {message.code}"
        bucket = channels.open.get(name)
        if bucket is None or isinstance(message, Unknown):
            self.dropped[name if name in self.dropped or len(self.dropped) < MOST_OFFERS else "others"] += 1
            if channels.vain.take(now) > 0.0:
                raise PeerFault("more messages on channels that this node does not have than an honest node sends")
            return
        if bucket.take(now) > 0.0:
            raise PeerFault(f"more messages on channel {name} than an honest node sends")
        content = self._handled[name].channel.unpack(message.body)
        self._carry(link.peer, name, lambda handler: handler.hear(link.peer, content))

    def ended(self, link: ChannelLink) -> None:
        channels = self._sessions.get(link.peer)
        if channels is not None and channels.link is link:
            del self._sessions[link.peer]
            for name in channels.open:
                self._carry(link.peer, name, lambda handler: handler.closed(link.peer))

    def _carry(self, peer: int, name: str, act: Callable[[Handler], object]) -> None:
        handled = self._handled[name]
        try:
            act(handled.handler)
        except PeerFault:
            raise
        except Exception as error:
            if handled.guards:
                raise
            self._close(peer, name)
            failure = f"{type(error).__name__}: {error}"
            text = (
                f"its handler failed ({failure}); channel {name} with {self._name_of(peer)} is closed, not the session"
            )
            self.on_alarm(FAILED, peer, text)

    def _close(self, peer: int, name: str) -> None:
        """Close a channel with one neighbor. The handler is told to forget the neighbor, if it still can."""
        channels = self._sessions.get(peer)
        if channels is not None and channels.open.pop(name, None) is not None:
            with suppress(Exception):
                self._handled[name].handler.closed(peer)
