"""Side channels: what neighbors say to each other beside gossip, each channel by itself and by its name.

Both ends use the channels that both have, by name and version; what comes on another one is dropped and counted, so
nodes with other features, or newer ones, learn together. A channel bounds the size of a message, how many may come in
a second and how many wait to be sent; they go when no gossip waits. Who handles a channel gets its messages decoded.
If the handler fails on one, that channel is closed on that edge and the user told: the session stays. A handler that
guards something is not left out like that: its failure is the node's.
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
from p2pfl.net.line import OnAlarm
from p2pfl.wire.side import MOST_NAME_BYTES, MOST_OFFERS, MOST_SIDE_BYTES, Offer, Side, Unknown

FAILED = "feature-failed"
"""The kind of the alarm about a handler that failed."""
DROPPED_PER_S, DROPPED_AT_ONCE = 20.0, 1000.0
"""Messages that a neighbor may send in vain: of features that this node does not have."""


class SideChannel:
    """`messages` are the structs that it carries, each with a tag of its own. Bounds hold for one neighbor.

    Raises ValueError: the name or a bound is none that can be.
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
            text = f"{self.name!r} is no name of a side channel: small letters, digits and dashes"
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
        """Raises ValueError: our own message holds a value that no peer would accept."""
        body = self._encode(message)
        try:
            self.unpack(body)
        except PeerFault as fault:
            raise ValueError(f"{type(message).__name__} cannot be sent: {fault}") from None
        return Side(channel=self.name, body=body)

    def unpack(self, body: bytes) -> Any:
        """Raises PeerFault: it is none of the channel's messages."""
        if len(body) > self.most_bytes:
            raise PeerFault(f"{len(body)} bytes on channel {self.name}; limit {self.most_bytes}")
        try:
            return self._decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise PeerFault(f"a malformed message on channel {self.name}: {error}") from error


class Handler(Protocol):
    """What a feature does with its channel. A neighbor is there from `opened` to `closed`, with the channel at its end.

    `hear` may raise PeerFault, for what no honest node sends: that ends the session.
    """

    def opened(self, peer: int) -> None: ...
    def closed(self, peer: int) -> None: ...
    def hear(self, peer: int, message: Any) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Feeding:
    """A channel and who handles it. `guards`: its failure ends the node."""

    channel: SideChannel
    handler: Handler
    guards: bool = False


class SideLink(Protocol):
    """A session, as far as side channels need it."""

    @property
    def peer(self) -> int: ...
    def say(self, message: Side, channel: SideChannel, *, if_free: bool = False) -> bool: ...


@dataclass(slots=True)
class OpenSides:
    """What one session has of side channels, once the other end has offered its own."""

    link: SideLink
    open: dict[str, TokenBucket]
    """The channels that both ends have, and what may still come on each."""
    vain: TokenBucket = field(
        default_factory=lambda: TokenBucket(DROPPED_PER_S, tokens=DROPPED_AT_ONCE, burst=DROPPED_AT_ONCE)
    )


class Sides:
    """All side channels of a node; on the event loop. Raises ValueError: two have one name, or there are too many."""

    def __init__(self, *, name_of: Callable[[int], str], on_alarm: OnAlarm) -> None:
        self._feedings: dict[str, Feeding] = {}
        self._sessions: dict[int, OpenSides] = {}
        self._name_of, self.on_alarm = name_of, on_alarm
        self.dropped: Counter[str] = Counter()
        """Messages on channels that are not open, by channel; of unknown types, by their number."""

    def add(self, feeding: Feeding) -> None:
        name = feeding.channel.name
        if name in self._feedings:
            raise ValueError(f"two features have a side channel named {name}")
        if len(self._feedings) >= MOST_OFFERS:
            raise ValueError(f"more than {MOST_OFFERS} side channels")
        self._feedings[name] = feeding

    def drop(self, feeding: Feeding) -> None:
        """Its feature is off: the channel is closed with all, and offered to nobody any more."""
        name = feeding.channel.name
        for peer in list(self._sessions):
            self._close(peer, name)
        self._feedings.pop(name, None)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._feedings))

    def say(self, peer: int, channel: SideChannel, message: msgspec.Struct, *, if_free: bool = False) -> bool:
        """Whether it will be sent: the channel is open at both ends and not too much waits.

        `if_free`: only where nothing else waits to be sent.
        """
        sides = self._sessions.get(peer)
        return (
            sides is not None
            and channel.name in sides.open
            and sides.link.say(channel.pack(message), channel, if_free=if_free)
        )

    def offered(self, link: SideLink, offer: Offer) -> None:
        """The other end has said what it has."""
        both = [feeding.channel for name, feeding in self._feedings.items() if name in offer.channels]
        self._sessions[link.peer] = OpenSides(
            link, {one.name: TokenBucket(one.per_s, tokens=one.at_once, burst=one.at_once) for one in both}
        )
        for name in [channel.name for channel in both]:
            self._carry(link.peer, name, lambda handler: handler.opened(link.peer))

    def heard(self, link: SideLink, message: Side | Unknown) -> None:
        """Raises PeerFault: the other end does what no honest node does."""
        sides, now = self._sessions.get(link.peer), asyncio.get_running_loop().time()
        if sides is None or sides.link is not link:
            raise PeerFault("a message on a side channel before any was offered")
        name = message.channel if isinstance(message, Side) else f"type {message.code}"
        bucket = sides.open.get(name)
        if bucket is None or isinstance(message, Unknown):
            self.dropped[name if name in self.dropped or len(self.dropped) < MOST_OFFERS else "others"] += 1
            if sides.vain.take(now) > 0.0:
                raise PeerFault("more messages on channels that this node has not than an honest node sends")
            return
        if bucket.take(now) > 0.0:
            raise PeerFault(f"more messages on channel {name} than an honest node sends")
        content = self._feedings[name].channel.unpack(message.body)
        self._carry(link.peer, name, lambda handler: handler.hear(link.peer, content))

    def ended(self, link: SideLink) -> None:
        sides = self._sessions.get(link.peer)
        if sides is not None and sides.link is link:
            del self._sessions[link.peer]
            for name in sides.open:
                self._carry(link.peer, name, lambda handler: handler.closed(link.peer))

    def _carry(self, peer: int, name: str, act: Callable[[Handler], object]) -> None:
        feeding = self._feedings[name]
        try:
            act(feeding.handler)
        except PeerFault:
            raise
        except Exception as error:
            if feeding.guards:
                raise
            self._close(peer, name)
            what = f"{type(error).__name__}: {error}"
            text = f"channel {name} is closed with {self._name_of(peer)}, the session goes on: it failed ({what})"
            self.on_alarm(FAILED, peer, text)

    def _close(self, peer: int, name: str) -> bool:
        """Whether it was open. The handler forgets the neighbor, if it still can."""
        sides = self._sessions.get(peer)
        if sides is None or sides.open.pop(name, None) is None:
            return False
        with suppress(Exception):
            self._feedings[name].handler.closed(peer)
        return True
