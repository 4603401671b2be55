"""The exchange of signed statements with neighbors: each passes on what is new to it, until all have it.

A node keeps the latest question of each member, with all answers to it, for as long as it may be of use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta, Struct

from p2pfl.config.model import FederationConfig
from p2pfl.crypto.identity import Identity
from p2pfl.features.stats.question import (
    MOST_STATEMENT_BYTES,
    SIGNATURE_BYTES,
    Question,
    SiteAnswer,
    question_id,
    sign,
    verified,
)
from p2pfl.net.side import SideChannel

KEPT_S = 150.0
"""How long statements are told to neighbors that come later."""
Say = Callable[[int, SideChannel, Struct], object]


class MemberStatement(Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True, gc=False, tag=1):
    """A statement of a member, who has signed its bytes."""

    author: Annotated[int, Meta(ge=0, lt=2**31)]
    body: Annotated[bytes, Meta(max_length=MOST_STATEMENT_BYTES)]
    signature: Annotated[bytes, Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]


CHANNEL = SideChannel(
    "stats", MemberStatement, most_bytes=MOST_STATEMENT_BYTES + SIGNATURE_BYTES + 64, per_s=200.0, at_once=4000.0
)


@dataclass(slots=True, kw_only=True, eq=False)
class OpenQuestion:
    """A question, and the answers that are here, by member."""

    asker: int
    id: bytes
    question: Question
    signed: MemberStatement
    expected: frozenset[int]
    """The members that must answer."""
    until: float
    answers: dict[int, SiteAnswer] = field(default_factory=dict)
    told: list[MemberStatement] = field(default_factory=list)
    """The signed answers."""
    decided: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when all members take part, or one does not."""

    @property
    def lacking(self) -> frozenset[int]:
        return self.expected - self.answers.keys()

    @property
    def refusals(self) -> dict[int, str]:
        return {member: one.refusal for member, one in sorted(self.answers.items()) if one.refusal}

    @property
    def least_rows(self) -> int:
        """The most of what members want."""
        return max(one.least_rows for one in self.answers.values())


class Statements:
    """The handler of the channel. `on_question` is called with each new question of others that `is_new` lets pass,
    by its author's index and its serial.
    """

    def __init__(
        self,
        federation: FederationConfig,
        own: int,
        identity: Identity,
        say: Say,
        *,
        is_new: Callable[[int, int], bool],
        on_question: Callable[[OpenQuestion], object],
    ) -> None:
        self._federation, self._own, self._identity, self._say = federation, own, identity, say
        self._is_new, self._on_question = is_new, on_question
        self._expected = frozenset(member.index for member in federation.present)
        self._peers: set[int] = set()
        self._open: dict[int, OpenQuestion] = {}

    def ask(self, question: Question) -> OpenQuestion:
        """State this node's own question."""
        body, signature = sign(self._federation, self._identity, question)
        signed = MemberStatement(author=self._own, body=body, signature=signature)
        return self._take_question(signed, question, None)

    def answer(self, to: OpenQuestion, least_rows: int, refusal: str) -> None:
        """State this node's answer."""
        answer = SiteAnswer(question=to.id, least_rows=least_rows, refusal=refusal)
        body, signature = sign(self._federation, self._identity, answer)
        self._take_answer(MemberStatement(author=self._own, body=body, signature=signature), answer, None)

    def opened(self, peer: int) -> None:
        self._peers.add(peer)
        for one in self._open.values():
            if self._now() < one.until:
                for statement in (one.signed, *one.told):
                    self._say(peer, CHANNEL, statement)

    def closed(self, peer: int) -> None:
        self._peers.discard(peer)

    def hear(self, peer: int, message: MemberStatement) -> None:
        """Raises PeerFault: its author has not signed it."""
        statement = verified(self._federation, message.author, message.body, message.signature)
        if isinstance(statement, Question):
            before = self._open.get(message.author)
            is_later = before is None or statement.serial > before.question.serial
            if message.author != self._own and is_later and self._is_new(message.author, statement.serial):
                self._on_question(self._take_question(message, statement, peer))
        else:
            self._take_answer(message, statement, peer)

    def _take_question(self, signed: MemberStatement, question: Question, peer: int | None) -> OpenQuestion:
        self._open[signed.author] = found = OpenQuestion(
            asker=signed.author,
            id=question_id(signed.author, signed.body),
            question=question,
            signed=signed,
            expected=self._expected,
            until=self._now() + KEPT_S,
        )
        self._pass_on(signed, peer)
        return found

    def _take_answer(self, signed: MemberStatement, answer: SiteAnswer, peer: int | None) -> None:
        """Keep an answer to an open question; one to any other is of no use any more."""
        found = next((one for one in self._open.values() if one.id == answer.question), None)
        if found is None or signed.author in found.answers:
            return
        found.answers[signed.author] = answer
        found.told.append(signed)
        if answer.refusal or not found.lacking:
            found.decided.set()
        self._pass_on(signed, peer)

    def _pass_on(self, signed: MemberStatement, but: int | None) -> None:
        for peer in sorted(self._peers):
            if peer != but:
                self._say(peer, CHANNEL, signed)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
