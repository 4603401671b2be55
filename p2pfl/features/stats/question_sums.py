"""The secure sums of one question after the other, over the same sessions.

Each question has sums of its own, whose signatures count nowhere else. Both ends of a session say which question they
are at: only while it is the same are they connected, as far as its sums know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated

from msgspec import Meta

from p2pfl.core.limits import TokenBucket
from p2pfl.errors import PeerFault
from p2pfl.features.sums.messages import Told
from p2pfl.features.sums.talk import CHANNEL as SUMS
from p2pfl.features.sums.talk import Carried, SumTalk
from p2pfl.net.side import SideChannel


class AtQuestion(Told, frozen=True, kw_only=True, tag=40):
    """The sender sums for this question from now on; empty: for none."""

    question: Annotated[bytes, Meta(max_length=32)]


CHANNEL = SideChannel(
    "stats-sums",
    *SUMS.kinds,
    AtQuestion,
    most_bytes=SUMS.most_bytes,
    per_s=SUMS.per_s,
    at_once=SUMS.at_once,
    most_waiting=SUMS.most_waiting + 8,
)
NONE = b""
MOVES_PER_S, MOVES_AT_ONCE = 2.0, 64.0
"""How often a neighbor may say at which question it is: an honest one does so twice for each."""
Say = Callable[[int, SideChannel, Carried | AtQuestion], bool]


class QuestionSums:
    """The handler of the channel."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._peers: dict[int, bytes] = {}
        """The question that each neighbor is at."""
        self._moves: dict[int, TokenBucket] = {}
        self._question = NONE
        self._talk: SumTalk | None = None

    def say(self, peer: int, _: SideChannel, message: Carried) -> bool:
        """Send a message of the present sums."""
        return self._say(peer, CHANNEL, message)

    def begin(self, question: bytes, talk: SumTalk) -> None:
        self._question, self._talk = question, talk
        for peer in sorted(self._peers):
            self._say(peer, CHANNEL, AtQuestion(question=question))
            if self._is_together(peer):
                talk.opened(peer)

    def end(self) -> None:
        if self._talk is not None:
            self._talk.close()
        self._question, self._talk = NONE, None
        for peer in sorted(self._peers):
            self._say(peer, CHANNEL, AtQuestion(question=NONE))

    def opened(self, peer: int) -> None:
        self._peers[peer] = NONE
        self._moves[peer] = TokenBucket(MOVES_PER_S, tokens=MOVES_AT_ONCE, burst=MOVES_AT_ONCE)
        if self._question:
            self._say(peer, CHANNEL, AtQuestion(question=self._question))

    def closed(self, peer: int) -> None:
        self._move(peer, NONE)
        self._peers.pop(peer, None)

    def hear(self, peer: int, message: Carried | AtQuestion) -> None:
        """Raises PeerFault. What belongs to other sums than the present ones is dropped."""
        if isinstance(message, AtQuestion):
            if self._moves[peer].take(asyncio.get_running_loop().time()) > 0.0:
                raise PeerFault("it moves from question to question more often than an honest node does")
            self._move(peer, message.question)
        elif self._talk is not None and self._is_together(peer):
            self._talk.hear(peer, message)

    def _move(self, peer: int, question: bytes) -> None:
        before = self._is_together(peer)
        self._peers[peer] = question
        if self._talk is None or before == self._is_together(peer):
            return
        if before:
            self._talk.closed(peer)
        else:
            self._talk.opened(peer)

    def _is_together(self, peer: int) -> bool:
        return self._question != NONE and self._peers.get(peer) == self._question
