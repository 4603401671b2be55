"""How colluders forge: lists without the victim, signed by all of them, and what was said once, said again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
from msgspec import MsgspecError
from msgspec.structs import replace

from p2pfl.features.sums.messages import (
    BranchPart,
    Keys,
    MemberList,
    Message,
    Post,
    Reveal,
    SetupOpening,
    SlotVote,
    Statement,
    Total,
    bits_of,
    decode_statement,
    id_of,
    members_of,
    total_digest,
)
from sim.audits.sums.play import Sent, SumPlay
from sim.audits.sums.probes import Ring
from sim.audits.sums.seen_board import board_of


class ListForger:
    """Turns the list of a sum, when it first shows, into one without the victim, for a share of the honest members."""

    def __init__(self, play: SumPlay, victim: int, *, number: int, share: float) -> None:
        self.play, self.victim, self.number, self.share = play, victim, number, share
        self._true: Post | None = None
        self._is_told = False
        self._seen: list[Message] = []

    def install(self) -> None:
        self.play.taps.append(self.tap)

    def tap(self, sent: Sent) -> bool:
        statement, play = statement_of(sent.message), self.play
        self._seen.append(sent.message)
        if isinstance(statement, MemberList) and statement.number == self.number and isinstance(sent.message, Post):
            if self._true is None and self.victim in members_of(statement.members):
                self._true = sent.message
                play.later(0.0, partial(self._forge, statement))
            return self.share < 1.0 or self._is_told
        if isinstance(statement, Reveal) and statement.number == self.number and not self._is_told:
            self._is_told = True
            play.later(0.0, self._tell_true)
        return True

    def _forge(self, proposal: MemberList) -> None:
        play = self.play
        members, total = self._without_victim(frozenset(members_of(proposal.members)))
        honest = [member for member in range(play.cast.count) if member not in play.colluders]
        fooled = honest[len(honest) - round(self.share * len(honest)) :]
        for liar in sorted(play.colluders):
            tell_list(play, liar, proposal, sorted(members), total, fooled)
        if self.share < 1.0:
            self._tell_true()

    def _without_victim(self, everybody: frozenset[int]) -> tuple[frozenset[int], Ring]:
        """The largest set without the victim of whose masked vectors the colluders know the sum; else zeros."""
        parts = {members: np.frombuffer(vector, "<u8") for (_, vector), members in board_of(self._seen).parts.items()}
        known = {members: vector for members, vector in parts.items() if self.victim not in members}
        if everybody in parts:
            for members, vector in parts.items():
                if self.victim in members < everybody:
                    known[everybody - members] = parts[everybody] - vector
        large = [members for members in known if len(members) >= self.play.cast.least]
        if not large:
            return everybody - {self.victim}, zeros(self.play)
        best = max(large, key=lambda members: (len(members), sorted(members)))
        return best, known[best]

    def _tell_true(self) -> None:
        """Show the true list to everybody, with the colluders' signatures."""
        true = self._true
        statement = None if true is None else statement_of(true)
        if true is None or not isinstance(statement, MemberList):
            return
        name = id_of(true.author, true.body)
        vote = SlotVote(setup=statement.setup, number=statement.number, chosen=name)
        for member in range(self.play.cast.count):
            self.play.tell(min(self.play.colluders), member, true)
            for liar in sorted(self.play.colluders):
                self.play.tell(liar, member, self.play.post(liar, vote))


def tell_list(  # noqa: PLR0917 - as in a message
    play: SumPlay,
    liar: int,
    like: MemberList,
    members: Sequence[int],
    vector: Ring,
    to: Iterable[int],
) -> None:
    """Propose a list with its total to some, signed by all colluders."""
    bits, total = bits_of(members), vector.tobytes()
    digest = total_digest(like.setup, like.number, bits, total) if like.total else b""  # a roster has no total
    post = play.post(liar, replace(like, members=bits, total=digest))
    vote = SlotVote(setup=like.setup, number=like.number, chosen=id_of(liar, post.body))
    votes = [play.post(colluder, vote) for colluder in sorted(play.colluders)]
    for member in to:
        for message in (post, *votes):
            play.tell(liar, member, message)
        if like.total:
            play.tell(liar, member, Total(setup=like.setup, number=like.number, members=bits, vector=total))


def say_again(play: SumPlay, seen: Sequence[Message], setup: bytes) -> None:
    honest = [member for member in range(play.cast.count) if member not in play.colluders]
    again = unique(seen)
    for message in list(again):
        statement = statement_of(message)
        if statement is None or isinstance(statement, Keys | SetupOpening):
            continue
        if isinstance(message, Post) and message.author in play.colluders:
            again.append(play.post(message.author, replace(statement, setup=setup)))
    for member in honest:
        for message in again:
            play.tell(min(play.colluders), member, message)


def zeros(play: SumPlay) -> Ring:
    return np.zeros_like(play.data.vector(0, play.data.labels[0]))


def statement_of(message: Message) -> Statement | None:
    try:
        return decode_statement(message.body) if isinstance(message, Post) else None
    except MsgspecError:
        return None


def unique(messages: Iterable[Message]) -> list[Message]:
    """Statements and vectors, each once, in order."""
    found: dict[bytes, Message] = {}
    for message in messages:
        match message:
            case Post():
                found.setdefault(message.body + message.author.to_bytes(2, "little"), message)
            case BranchPart() | Total():
                found.setdefault(message.vector + message.members, message)
            case _:
                pass
    return list(found.values())
