"""What colluders do besides looking: each deed is put into a play, whose colluders run the real protocol otherwise."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from p2pfl.features.sums.messages import MemberList, Message, Post, Reveal, SetupOpening, id_of
from sim.audits.sums.disruptions import empty_parcels, hollow, last_wave, misplaced, other_keys
from sim.audits.sums.forger import ListForger, say_again, statement_of, tell_list, unique, zeros
from sim.audits.sums.play import Sent, SumPlay

FORGED_EVERY, DROPPED_EVERY, REPEATED_EVERY = 12, 8, 3

Install = Callable[[SumPlay, int], None]
"""Puts a deed against a victim into a play."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """`data` are the data sets of the sums, `sums` those of one set-up."""

    install: Install
    data: tuple[str, ...] = ("a", "b")
    sums: int = 3

    @property
    def text(self) -> str:
        return " ".join((self.install.__doc__ or "").split())


def two_lists(play: SumPlay, victim: int) -> None:
    """Tell half of the others that the victim is there and half that it is gone, and sign both."""
    ListForger(play, victim, number=0, share=0.5).install()


def claimed_death(play: SumPlay, victim: int) -> None:
    """Tell all that the victim is gone, and sign it; once that is certified, that it is there."""
    ListForger(play, victim, number=0, share=1.0).install()


def difference(play: SumPlay, victim: int) -> None:
    """Sum the same data twice, and say the second time that the victim is gone."""
    ListForger(play, victim, number=1, share=1.0).install()


def silence(play: SumPlay, victim: int) -> None:
    """Keep what the victim reveals from everybody, so that shares of its seed are told, and claim that it is dead, so
    that shares of its mask key are.
    """
    ListForger(play, victim, number=0, share=0.5).install()

    def tap(sent: Sent) -> bool:
        statement = statement_of(sent.message)
        is_about = isinstance(sent.message, Post) and sent.message.author == victim
        return not (is_about and isinstance(statement, Reveal)) and sent.receiver != victim

    play.taps.append(tap)


def replay(play: SumPlay, victim: int) -> None:
    """In each new set-up say again all that was ever said, and one's own statements under the new set-up's id."""
    del victim
    seen: list[Message] = []
    told: set[bytes] = set()

    def tap(sent: Sent) -> bool:
        statement = statement_of(sent.message)
        seen.append(sent.message)
        if isinstance(statement, SetupOpening) and isinstance(sent.message, Post):
            name = id_of(sent.message.author, sent.message.body)
            if name not in told:
                told.add(name)
                play.later(0.3, partial(say_again, play, list(seen), name))
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
        tell_list(play, liar, proposal, members, zeros(play), at)

    def tap(sent: Sent) -> bool:
        statement = statement_of(sent.message)
        seen.append(sent.message)
        if not chance.randrange(REPEATED_EVERY):
            play.tell(chance.choice(sorted(play.colluders)), chance.choice(honest), chance.choice(seen))
        if isinstance(statement, MemberList) and not chance.randrange(FORGED_EVERY):
            play.later(0.0, partial(forge, statement))
        return bool(chance.randrange(DROPPED_EVERY))

    play.taps.append(tap)


DEEDS: Mapping[str, Deed] = {
    "two lists": Deed(install=two_lists),
    "claimed death": Deed(install=claimed_death),
    "same data again": Deed(install=difference, data=("a", "a")),
    "silenced": Deed(install=silence),
    "replay": Deed(install=replay, data=("a", "b", "c"), sums=1),
    "restart": Deed(install=restart, data=("a", "b", "a"), sums=1),
    "chaos": Deed(install=chaos, data=("a", "b", "a"), sums=2),
    "misplaced": Deed(install=misplaced),
    "last wave": Deed(install=last_wave),
    "hollow": Deed(install=hollow),
    "other keys": Deed(install=other_keys),
    "empty parcels": Deed(install=empty_parcels),
}
