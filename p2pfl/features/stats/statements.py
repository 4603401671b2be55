"""Signed questions and answers about statistics, how they go from neighbor to neighbor, and the sums of each question.

A node passes on what is new to it, until all have it. It keeps the latest question of each member, with all answers to
it, for as long as it may be of use. Each question has sums of its own, whose signatures count nowhere else. Both ends
of a session say which question they are at: only while it is the same are they connected, as far as its sums know.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Struct
from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey

from p2pfl.config.charter import federation_id
from p2pfl.config.model import FederationConfig
from p2pfl.core.limits import TokenBucket
from p2pfl.crypto.identity import Identity
from p2pfl.errors import PeerFault
from p2pfl.features.sums.messages import SumMessage
from p2pfl.features.sums.talk import CHANNEL as SUMS
from p2pfl.features.sums.talk import Carried, SumTalk
from p2pfl.foreign import UNREADABLE, printable
from p2pfl.limits import CHANNEL_AT_ONCE, CHANNEL_PER_S, MOST_LEAST_ROWS, MOST_REASON, STATEMENTS_KEPT_S
from p2pfl.net.extensions import ExtensionChannel

DOMAIN = b"p2pfl statistics 1\0"
"""The prefix of the signed bytes, before the federation's id, so that no other signature can be used in their place."""
ID_BYTES, SIGNATURE_BYTES = 32, 64
MOST_COLUMNS, MOST_NAME = 64, 200
MOST_STATEMENT_BYTES = 4 * MOST_NAME * (MOST_COLUMNS + 1) + 1000

Id = Annotated[bytes, Meta(min_length=ID_BYTES, max_length=ID_BYTES)]
Name = Annotated[str, Meta(min_length=1, max_length=MOST_NAME)]
Count = Annotated[int, Meta(ge=0, lt=2**53)]


class Stated(Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A statement."""


class Question(Stated, frozen=True, kw_only=True, tag=1):
    """The author asks for the statistics of these columns. Its serial is greater than all that it has used before."""

    serial: Count
    columns: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=MOST_COLUMNS)]
    by: Name | None


class SiteAnswer(Stated, frozen=True, kw_only=True, tag=2):
    """The author takes part in a question, and shows nothing of fewer than `least_rows`; or says why it does not."""

    question: Id
    least_rows: Count
    refusal: Annotated[str, Meta(max_length=MOST_REASON)]
    """Why the author does not take part; empty if it does."""


Statement: TypeAlias = Question | SiteAnswer
_encode = msgspec.msgpack.Encoder().encode
_decode: Callable[[bytes], Statement] = msgspec.msgpack.Decoder(Question | SiteAnswer).decode


def sign(federation: FederationConfig, identity: Identity, statement: Statement) -> tuple[bytes, bytes]:
    """Return the bytes of a statement, and their signature."""
    body = _encode(statement)
    return body, identity.sign(_domain(federation) + body)


def verified(federation: FederationConfig, author: int, body: bytes, signature: bytes) -> Statement:
    """Return a statement. Raises PeerFault: no such member has signed it, or it is none."""
    if author not in {member.index for member in federation.present}:
        raise PeerFault(f"a statement of member {author}, which is none")
    by = federation.members[author]
    try:
        VerifyKey(by.key).verify(_domain(federation) + body, signature)
        return _decode(body)
    except (BadSignatureError, *UNREADABLE) as error:
        raise PeerFault(f"a statement that {by.name} did not sign, or that is none: {error}") from None


def question_id(author: int, body: bytes) -> bytes:
    return hashlib.blake2b(author.to_bytes(4, "little") + body, digest_size=ID_BYTES, person=b"p2pfl-question").digest()


def in_words(columns: tuple[str, ...], by: str | None) -> str:
    return printable(", ".join(columns) + (f" by {by}" if by else ""))


def _domain(federation: FederationConfig) -> bytes:
    return DOMAIN + federation_id(federation)


Say = Callable[[int, ExtensionChannel, Struct], object]


class MemberStatement(Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True, gc=False, tag=1):
    """A statement of a member, who has signed its bytes."""

    author: Annotated[int, Meta(ge=0, lt=2**31)]
    body: Annotated[bytes, Meta(max_length=MOST_STATEMENT_BYTES)]
    signature: Annotated[bytes, Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]


CHANNEL = ExtensionChannel(
    "stats",
    MemberStatement,
    most_bytes=MOST_STATEMENT_BYTES + SIGNATURE_BYTES + 64,
    per_s=CHANNEL_PER_S["stats"],
    at_once=CHANNEL_AT_ONCE["stats"],
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
    signed_answers: list[MemberStatement] = field(default_factory=list)
    decided: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when all members take part, or one does not."""

    @property
    def lacking(self) -> frozenset[int]:
        return self.expected - self.answers.keys()

    @property
    def refusals(self) -> dict[int, str]:
        """Why members take no part, or are not heard: nobody but a liar asks for so many rows."""
        return {
            member: answer.refusal or f"least_rows {answer.least_rows} is above {MOST_LEAST_ROWS}"
            for member, answer in sorted(self.answers.items())
            if answer.refusal or answer.least_rows > MOST_LEAST_ROWS
        }

    @property
    def least_rows(self) -> int:
        """The largest least number of rows that a member asks for."""
        return max(answer.least_rows for answer in self.answers.values())


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
        for question in self._open.values():
            if self._now() < question.until:
                for statement in (question.signed, *question.signed_answers):
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
        self._open[signed.author] = opened = OpenQuestion(
            asker=signed.author,
            id=question_id(signed.author, signed.body),
            question=question,
            signed=signed,
            expected=self._expected,
            until=self._now() + STATEMENTS_KEPT_S,
        )
        self._pass_on(signed, peer)
        return opened

    def _take_answer(self, signed: MemberStatement, answer: SiteAnswer, peer: int | None) -> None:
        """Keep an answer to an open question; one to any other is of no use any more."""
        question = next((question for question in self._open.values() if question.id == answer.question), None)
        if question is None or signed.author in question.answers:
            return
        question.answers[signed.author] = answer
        question.signed_answers.append(signed)
        if answer.refusal or not question.lacking:
            question.decided.set()
        self._pass_on(signed, peer)

    def _pass_on(self, signed: MemberStatement, but: int | None) -> None:
        for peer in sorted(self._peers):
            if peer != but:
                self._say(peer, CHANNEL, signed)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


class AtQuestion(SumMessage, frozen=True, kw_only=True, tag=40):
    """The sender sums for this question from now on; empty: for none."""

    question: Annotated[bytes, Meta(max_length=32)]


SUMS_CHANNEL = ExtensionChannel(
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
"""The limit on a neighbor's messages about its present question: an honest one sends two for each."""
SaySum = Callable[[int, ExtensionChannel, Carried | AtQuestion], bool]


class QuestionSums:
    """The handler of the channel."""

    def __init__(self, say: SaySum) -> None:
        self._say = say
        self._peers: dict[int, bytes] = {}
        """The question that each neighbor is at."""
        self._moves: dict[int, TokenBucket] = {}
        self._question = NONE
        self._talk: SumTalk | None = None

    def say(self, peer: int, _: ExtensionChannel, message: Carried) -> bool:
        """Send a message of the present sums."""
        return self._say(peer, SUMS_CHANNEL, message)

    def begin(self, question: bytes, talk: SumTalk) -> None:
        self._question, self._talk = question, talk
        for peer in sorted(self._peers):
            self._say(peer, SUMS_CHANNEL, AtQuestion(question=question))
            if self._is_together(peer):
                talk.opened(peer)

    def end(self) -> None:
        if self._talk is not None:
            self._talk.close()
        self._question, self._talk = NONE, None
        for peer in sorted(self._peers):
            self._say(peer, SUMS_CHANNEL, AtQuestion(question=NONE))

    def opened(self, peer: int) -> None:
        self._peers[peer] = NONE
        self._moves[peer] = TokenBucket(MOVES_PER_S, tokens=MOVES_AT_ONCE, burst=MOVES_AT_ONCE)
        if self._question:
            self._say(peer, SUMS_CHANNEL, AtQuestion(question=self._question))

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
