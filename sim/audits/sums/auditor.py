"""The audit of sums: plays with deaths and deeds, and what coalitions of each size learn of them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import comb

import numpy as np

from sim.audits.sums.combinations import (
    Coalition,
    KnownCombinations,
    TooManyVectorsError,
    certified,
    coalition_of,
    learned,
)
from sim.audits.sums.deeds import DEEDS
from sim.audits.sums.game import play_game, surprise, unmasked
from sim.audits.sums.outcome import CoalitionRow, DeedRow, SumsFound
from sim.audits.sums.play import SumCast, SumPlay, SumRecord
from sim.audits.sums.probes import Probes, zeros_needed
from sim.audits.sums.seen_board import SumBoard, board_of

MOST_MEMBERS = 32
"""One processor plays no more of them in minutes."""
UNEVEN = 5.5
"""In standard deviations: bytes that are farther from chance are not random."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SumsEffort:
    """How much an audit tries: coalitions of each size up to the promised one and beyond, plays with deaths, coalitions
    for each deed, and tosses of the game's coin.
    """

    coalitions: int = 24
    beyond: int = 2
    deaths: int = 6
    casts: int = 3
    tosses: int = 2000
    budget_s: float = 300.0


QUICK_SUMS = SumsEffort(coalitions=6, beyond=1, deaths=2, casts=1, tosses=500, budget_s=60.0)


class SumsAuditor:
    """Plays sums of `cast`, and attacks the vector of `victim`."""

    def __init__(
        self,
        cast: SumCast,
        victim: int,
        *,
        seed: int = 0,
        effort: SumsEffort | None = None,
        deeds: Collection[str] | None = None,
        on_progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.cast, self.victim, self.seed, self.effort = cast, victim, seed, effort or SumsEffort()
        self.deeds = tuple(DEEDS if deeds is None else deeds)
        self.on_progress = on_progress
        self.chance = random.Random(f"sums audit {seed}")
        self._began = time.monotonic()
        self.found = SumsFound(cast=cast, victim=victim)

    @property
    def left_s(self) -> float:
        return self.effort.budget_s - (time.monotonic() - self._began)

    @property
    def _may_look(self) -> bool:
        """Half of the time is for deeds."""
        return self.left_s > (self.effort.budget_s / 2 if self.deeds else 0.0)

    def run(self) -> SumsFound:
        quiet = self._quiet()
        for number in range(self.effort.deaths):
            if self._may_look:
                self._dying(number, quiet)
        for name in self.deeds:
            self._deed(name)
        if self.left_s <= 0:
            self.found.notes.append(f"the {self.effort.budget_s:g} s ran out before all was tried")
        self.found.seconds = time.monotonic() - self._began
        return self.found

    # -- who only looks -----------------------------------------------------------------------------------------------

    def _quiet(self) -> float:
        """Play without any trouble, and let coalitions of all sizes look at it. Returns how long it took."""
        self.on_progress("sums that nothing disturbs")
        probes = self._probes(("a", "b"))
        play = SumPlay(self.cast, probes, seed=self.seed)
        record = play.run()
        self._check_honest(record, probes, "undisturbed")
        self._look_at(record, probes, range(1, self.cast.count))
        return play.now

    def _dying(self, number: int, quiet_s: float) -> None:
        """Play with members that die at drawn moments, of whom some come back; the third sum is of the first one's
        data.
        """
        self.on_progress(f"sums in which members die, {number + 1}")
        probes = self._probes(("a", "b", "a"))
        play = SumPlay(self.cast, probes, seed=self.seed + 1 + number)
        spare = self.cast.count - play.cast.settings(0, 1, play.identities).quorum
        doomed = self.chance.sample(range(self.cast.count), max(1, self.chance.randint(0, spare)))
        for member in doomed:
            at_s = self.chance.random() * quiet_s * 1.5
            play.later(at_s, lambda member=member: play.kill(member))  # type: ignore[misc]
            if self.chance.random() < 0.5:
                back_s = at_s + self.chance.random() * quiet_s
                play.later(back_s, lambda member=member: self._bring_back(play, member))  # type: ignore[misc]
        record = play.run()
        self._check_honest(record, probes, f"deaths {number + 1}")
        self._look_at(record, probes, range(1, self.cast.colluders + 1))

    @staticmethod
    def _bring_back(play: SumPlay, member: int) -> None:
        if play.members[member] is None:
            play.start(member)
            play.ask_on(member)

    def _look_at(self, record: SumRecord, probes: Probes, sizes: Sequence[int]) -> None:
        everything = board_of(each.message for each in record.sent)
        for size in sizes:
            is_promised = size <= self.cast.colluders
            for members in self._coalitions(size, self.effort.coalitions if is_promised else self.effort.beyond):
                if not self._may_look:
                    return
                self._look(members, record, probes, everything, self.found.of_size(size))

    def _look(
        self, members: Collection[int], record: SumRecord, probes: Probes, everything: SumBoard, row: CoalitionRow
    ) -> None:
        coalition = coalition_of(members, self.cast, record)
        try:
            found = learned(coalition, self.cast, probes, everything, self._quorum)
        except TooManyVectorsError as error:
            self.found.notes.append(f"what {self.found.named(members)} saw was not worked out: {error}")
            return
        guesses = play_game(coalition, found, probes)
        row.take(coalition, found, found.smallest(probes), guesses, self._surprises(coalition, probes, everything))
        if len(members) <= self.cast.colluders:
            self._judge(coalition, found, row, probes)

    def _surprises(self, coalition: Coalition, probes: Probes, everything: SumBoard) -> list[float]:
        """How far from chance the bytes of each vector that should stay masked are."""
        sums = {frozenset(members) for members, _ in certified(everything, probes, self._quorum)}
        masked = unmasked(coalition, probes)
        return [surprise(row) for members, row in masked if not _is_told(members, sums, coalition.members)]

    def _judge(self, coalition: Coalition, found: KnownCombinations, row: CoalitionRow, probes: Probes) -> None:
        """Note what no coalition of the promised size may learn."""
        who, mistake = self.found.named(coalition.members), self.found.mistake
        smallest = found.smallest(probes)
        if found.excess or 0 < len(smallest) < self.cast.least - len(coalition.members):
            mistake(f"{who} can work out a combination of the vectors of {self.found.named(smallest)} alone")
        for _, number, member in sorted(coalition.known.both()):
            if member not in coalition.members:
                mistake(f"{who} can tell both secrets of {self.found.named([member])} in one sum (number {number})")
        for member in sorted(coalition.reused - coalition.members):
            mistake(f"one secret of {self.found.named([member])} serves more than one sum, as {who} can see")
        if row.guesses is not None and row.guesses.is_sure:
            mistake(f"{who} tell which of two values {self.found.named([self.victim])} has")
        if row.surprise > UNEVEN:
            mistake(f"what {who} see of {self.found.named([self.victim])} is not as good as random")

    # -- who cheats ---------------------------------------------------------------------------------------------------

    def _deed(self, name: str) -> None:
        deed = DEEDS[name]
        cast = replace(self.cast, sums=deed.sums)
        row = DeedRow(name=name, text=deed.text)
        for members in list(self._casts())[: self.effort.casts]:
            if self.left_s <= 0:
                break
            self.on_progress(f"{name}: {self.found.named(members)}")
            probes = self._probes(deed.data)
            play = SumPlay(cast, probes, seed=self.seed, colluders=members)
            deed.install(play, self.victim)
            record = play.run()
            self._check_broken(record, name)
            everything = board_of(each.message for each in record.sent)
            self._check_signed(everything, members, name)
            learner = CoalitionRow(size=len(members))
            self._look(members, record, probes, everything, learner)
            honest = [done for at, done in record.done if at not in members]
            if any(done.total.size != probes.size for done in honest):
                self.found.mistake(f"{name}: a sum has another number of entries than its summands")
            row.take(learner, sums=len(honest), of=(cast.count - len(members)) * len(deed.data))
        if row.plays:
            self.found.deeds.append(row)

    def _casts(self) -> Iterator[tuple[int, ...]]:
        """Who colludes in a deed: the lowest ones, who lead; neighbors of the victim, who see its vector; others."""
        size, others = self.cast.colluders, [m for m in range(self.cast.count) if m != self.victim]
        near = self.cast.neighbors(self.victim)
        seen = set[tuple[int, ...]]()
        for order in (
            others,
            near + others,
            others[::-1],
            *(self.chance.sample(others, len(others)) for _ in range(9)),
        ):
            members = tuple(sorted(list(dict.fromkeys(order))[:size]))
            if members not in seen:
                seen.add(members)
                yield members

    # -- what must hold in any case -----------------------------------------------------------------------------------

    def _check_honest(self, record: SumRecord, probes: Probes, where: str) -> None:
        """Where nobody cheats, sums are those of the members who are named."""
        for at, done in record.done:
            if not np.array_equal(done.total, probes.total(done.members, done.label)):
                named = self.found.named(done.members)
                self.found.mistake(f"{where}: {self.found.named([at])} has a sum that is not that of {named}")
        self._check_signed(board_of(each.message for each in record.sent), (), where)
        if not record.done and not record.died:
            self.found.mistake(f"{where}: nobody has a sum")

    def _check_signed(self, everything: SumBoard, colluders: Collection[int], where: str) -> None:
        for member in sorted(everything.signed_twice() - set(colluders)):
            self.found.mistake(f"{where}: {self.found.named([member])} signs two lists of one sum")
        for lists in everything.certified(self._quorum).values():
            if len(lists) > 1:
                self.found.mistake(f"{where}: two lists of one sum are certified")

    def _check_broken(self, record: SumRecord, where: str) -> None:
        for error in sorted(set(record.broken.values())):
            whom = self.found.named([member for member, each in record.broken.items() if each == error])
            self.found.mistake(f"{where}: a message breaks {whom} ({error})")
        if record.wronged:
            whom = self.found.named(record.wronged)
            self.found.mistake(f"{where}: {whom} is made to say what others take for a lie")

    @property
    def _quorum(self) -> int:
        return (self.cast.count + self.cast.colluders) // 2 + 1

    def _probes(self, data: Sequence[str]) -> Probes:
        zeros = zeros_needed(self.cast.count, len(self.cast.edges), len(data))
        return Probes(self.cast.count, data, zeros=zeros, tosses=self.effort.tosses, victim=self.victim, seed=self.seed)

    def _coalitions(self, size: int, most: int) -> list[tuple[int, ...]]:
        """Coalitions without the victim: all if there are few, else its neighbors first, the lowest, and drawn ones."""
        others = [member for member in range(self.cast.count) if member != self.victim]
        if comb(len(others), size) <= most:
            return list(combinations(others, size))
        near = list(dict.fromkeys([*self.cast.neighbors(self.victim), *others]))
        found = {tuple(sorted(near[:size])), tuple(others[:size])}
        while len(found) < most:
            found.add(tuple(sorted(self.chance.sample(others, size))))
        return sorted(found)[:most] if most > 1 else [tuple(sorted(near[:size]))]


def _is_told(members: Collection[int], sums: Collection[Collection[int]], colluders: Collection[int]) -> bool:
    """True if the sum of these is one that the coalition is meant to learn."""
    return any(set(members) - set(colluders) == set(each) - set(colluders) for each in sums)
