"""What colluders do besides looking: each deed is put into a play, whose colluders run the real protocol otherwise."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from msgspec import MsgspecError
from msgspec.structs import replace

from p2pfl.features.sums.sum_messages import (
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
    VectorReady,
    Wave,
    bits_of,
    decode_statement,
    id_of,
    members_of,
    total_digest,
)
from sim.audits.sums.board import board_of
from sim.audits.sums.play import Sent, SumPlay
from sim.audits.sums.probes import Ring

FORGED_EVERY, DROPPED_EVERY, REPEATED_EVERY = 12, 8, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """`install` puts it into a play. `data` are the data sets of the sums, `sums` those of one set-up."""

    text: str
    install: Callable[[SumPlay, int], None]
    data: tuple[str, ...] = ("a", "b")
    sums: int = 3


def two_lists(play: SumPlay, victim: int) -> None:
    """Tell half of the others that the victim is there and half that it is gone, and sign both."""
    _Forger(play, victim, number=0, share=0.5).install()


def claimed_death(play: SumPlay, victim: int) -> None:
    """Tell all that the victim is gone, and sign it; once that is certified, that it is there."""
    _Forger(play, victim, number=0, share=1.0).install()


def difference(play: SumPlay, victim: int) -> None:
    """Sum the same data twice, and say the second time that the victim is gone."""
    _Forger(play, victim, number=1, share=1.0).install()


def silence(play: SumPlay, victim: int) -> None:
    """Keep what the victim reveals from everybody, so that shares of its seed are told, and claim that it is dead, so
    that shares of its mask key are.
    """
    _Forger(play, victim, number=0, share=0.5).install()

    def tap(sent: Sent) -> bool:
        statement = statement_of(sent.message)
        is_about = isinstance(sent.message, Post) and sent.message.author == victim
        return not (is_about and isinstance(statement, Reveal)) and sent.receiver != victim

    play.taps.append(tap)


def replay(play: SumPlay, victim: int) -> None:
    """In each new set-up say again all that was ever said, and one's own statements under the new set-up's id."""
    seen: list[Message] = []
    told: set[bytes] = set()

    def tap(sent: Sent) -> bool:
        statement = statement_of(sent.message)
        seen.append(sent.message)
        if isinstance(statement, SetupOpening) and isinstance(sent.message, Post):
            name = id_of(sent.message.author, sent.message.body)
            if name not in told:
                told.add(name)
                play.later(0.3, partial(_say_again, play, list(seen), name))
        return True

    play.taps.append(tap)


def restart(play: SumPlay, victim: int) -> None:
    """Begin again with one's old keys, and say to a victim that was killed and started again all that it has said."""
    seen, state = list[Message](), {"is over": False}

    def back() -> None:
        play.start(victim)
        play.ask_on(victim)
        for colluder in sorted(play.colluders):
            play.kill(colluder)
            play.start(colluder, is_forgetful=True)
            play.later(0.1, partial(play.ask_on, colluder))
        for message in unique(seen):
            play.tell(min(play.colluders), victim, message)

    def tap(sent: Sent) -> bool:
        statement = statement_of(sent.message)
        seen.append(sent.message)
        is_victims = isinstance(sent.message, Post) and sent.message.author == victim
        if is_victims and isinstance(statement, Reveal) and not state["is over"]:
            state["is over"] = True
            play.later(0.0, partial(play.kill, victim))
            play.later(1.0, back)
        return True

    play.taps.append(tap)


def chaos(play: SumPlay, victim: int) -> None:
    """Drop, repeat and forge at random: lists with random members, and signatures for them."""
    chance, seen = random.Random(f"chaos {victim} {sorted(play.colluders)}"), list[Message]()
    honest = [member for member in range(play.cast.count) if member not in play.colluders]

    def forge(proposal: MemberList) -> None:
        members = [m for m in range(play.cast.count) if chance.random() < 0.8]
        liar, at = chance.choice(sorted(play.colluders)), chance.sample(honest, len(honest) // 2 + 1)
        _tell_list(play, liar, proposal, members, _zeros(play), at)

    def tap(sent: Sent) -> bool:
        statement = statement_of(sent.message)
        seen.append(sent.message)
        if not chance.randrange(REPEATED_EVERY):
            play.tell(chance.choice(sorted(play.colluders)), chance.choice(honest), chance.choice(seen))
        if isinstance(statement, MemberList) and not chance.randrange(FORGED_EVERY):
            play.later(0.0, partial(forge, statement))
        return bool(chance.randrange(DROPPED_EVERY))

    play.taps.append(tap)


def misfits(play: SumPlay, victim: int) -> None:
    """Say what no honest member says, in messages that are well formed: a total of the roster, the last of all
    waves.
    """
    told: set[bytes] = set()

    def tap(sent: Sent) -> bool:
        ready = statement_of(sent.message)
        if isinstance(ready, VectorReady) and ready.setup not in told:
            told.add(ready.setup)
            liar, roster = min(play.colluders), bits_of(range(play.cast.count))
            strange = Total(setup=ready.setup, number=-1, members=roster, vector=_zeros(play).tobytes())
            last = Wave(setup=ready.setup, number=ready.number, epoch=2**53 - 1, terms=ready.terms)
            for member in range(play.cast.count):
                play.tell(liar, member, play.post(liar, last))
                play.tell(liar, member, strange)
        return True

    del victim
    play.taps.append(tap)


def hollow(play: SumPlay, victim: int) -> None:
    """Propose a list of all whose total has no entries."""
    told: set[bytes] = set()

    def tap(sent: Sent) -> bool:
        true = statement_of(sent.message)
        if isinstance(true, MemberList) and true.total and true.setup not in told:
            told.add(true.setup)
            honest = [member for member in range(play.cast.count) if member not in play.colluders]
            _tell_list(play, min(play.colluders), true, members_of(true.members), np.zeros(0, "<u8"), honest)
        return not isinstance(true, MemberList) or not true.total

    del victim
    play.taps.append(tap)


def other_keys(play: SumPlay, victim: int) -> None:
    """Publish keys for another number of sums than was agreed."""

    def tap(sent: Sent) -> bool:
        keys, message = statement_of(sent.message), sent.message
        if not isinstance(keys, Keys) or not isinstance(message, Post) or message.author not in play.colluders:
            return True
        if sent.sender == message.author:
            short = replace(keys, masks=keys.masks[:32], seeds=keys.seeds[:16])
            play.tell(sent.sender, sent.receiver, play.post(message.author, short))
        return False

    del victim
    play.taps.append(tap)


class _Forger:
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
            _tell_list(play, liar, proposal, sorted(members), total, fooled)
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
            return everybody - {self.victim}, _zeros(self.play)
        best = max(large, key=lambda members: (len(members), sorted(members)))
        return best, known[best]

    def _tell_true(self) -> None:
        """Show the true list to everybody, with the colluders' signatures."""
        if self._true is None:
            return
        statement, name = statement_of(self._true), id_of(self._true.author, self._true.body)
        for member in range(self.play.cast.count):
            self.play.tell(min(self.play.colluders), member, self._true)
            for liar in sorted(self.play.colluders) if isinstance(statement, MemberList) else ():
                vote = SlotVote(setup=statement.setup, number=statement.number, chosen=name)
                self.play.tell(liar, member, self.play.post(liar, vote))


def _tell_list(
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


def _say_again(play: SumPlay, seen: Sequence[Message], setup: bytes) -> None:
    honest = [member for member in range(play.cast.count) if member not in play.colluders]
    again = unique(seen)
    for message in list(again):
        statement = statement_of(message)
        if isinstance(message, Post) and message.author in play.colluders and hasattr(statement, "setup"):
            again.append(play.post(message.author, replace(statement, setup=setup)))  # type: ignore[type-var]
    for member in honest:
        for message in again:
            play.tell(min(play.colluders), member, message)


def _zeros(play: SumPlay) -> Ring:
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


DEEDS: Mapping[str, Deed] = {
    "two lists": Deed(text=two_lists.__doc__ or "", install=two_lists),
    "claimed death": Deed(text=claimed_death.__doc__ or "", install=claimed_death),
    "same data again": Deed(text=difference.__doc__ or "", install=difference, data=("a", "a")),
    "silenced": Deed(text=silence.__doc__ or "", install=silence),
    "replay": Deed(text=replay.__doc__ or "", install=replay, data=("a", "b", "c"), sums=1),
    "restart": Deed(text=restart.__doc__ or "", install=restart, data=("a", "b", "a"), sums=1),
    "misfits": Deed(text=misfits.__doc__ or "", install=misfits),
    "hollow": Deed(text=hollow.__doc__ or "", install=hollow),
    "other keys": Deed(text=other_keys.__doc__ or "", install=other_keys),
    "chaos": Deed(text=chaos.__doc__ or "", install=chaos, data=("a", "b", "a"), sums=2),
}
