"""One node's rounds, each a secure sum: make its part, sum, take the step, tell where it stands, and so on to the end.

All nodes take the same step from the same state, so a sum names the state that it begins from: who has another one is
left out, and fetches that of the others. A part is paid for once. If its sum is refused it is given again, unless it
may be in a sum that others get: then another one is made, and paid for.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from p2pfl.config.federation_id import federation_id
from p2pfl.core.effects import StartRound
from p2pfl.core.events import RoundRefused, RoundTrained
from p2pfl.core.facts import Phase
from p2pfl.features.shared_noise.common_state import CommonState
from p2pfl.features.shared_noise.findings import delta_exceeds
from p2pfl.features.shared_noise.standings import Place, Standings
from p2pfl.features.shared_noise.standings_talk import CHANNEL
from p2pfl.features.shared_noise.summed_rounds import SummedRounds
from p2pfl.features.sums.channel import CHANNEL as SUMS
from p2pfl.features.sums.fixed_point import FixedPoint
from p2pfl.features.sums.node_sums import NodeSums
from p2pfl.features.sums.sum_effects import Refused, SumDone
from p2pfl.learn.interface import LocalRound, Vector
from p2pfl.learn.privacy.shared import SharedRounds, Words
from p2pfl.net.side import Feeding
from p2pfl.node.feature import Attached, NodeView

notice = logging.getLogger("p2pfl.notice")

MOST_ROWS = 2**40
"""The most rows of one node."""
REST_S, MOST_REST_S = 0.5, 30.0
"""The rest after a refused sum: at first, and at most."""
PATIENT_TIMES = 4.0
TELL_S = 15.0
"""How long a wait lasts before it is told, and told again."""


@dataclass(frozen=True, slots=True)
class Given:
    """This node's part of the sum of a round from `place`, paid for. `start` and `local` belong to the engine."""

    place: Place
    words: Words
    start: Vector
    local: LocalRound


class SumRounds(Attached):
    """The rounds of one node."""

    def __init__(self, node: NodeView, course: SummedRounds, shared: SharedRounds) -> None:
        self._node, self.course, self.shared = node, course, shared
        setup = node.setup()
        federation, privacy = setup.federation, setup.federation.privacy
        assert privacy is not None  # noqa: S101 - the learner would have no shared rounds
        self.least = privacy.least_of(len(federation.present))
        identity = federation_id(federation)
        own, needed = setup.member.index, privacy.colluders + 1
        self.sums = NodeSums(
            federation,
            setup.member.index,
            setup.identity,
            node.say,
            least=self.least,
            colluders=privacy.colluders,
            folder=setup.node.state_dir,
        )
        standings = Standings(federation, identity, setup.identity, own, needed)
        self.state = CommonState(node, course, shared, standings, life=self.sums.life)
        self._id = identity
        self._given: Given | None = None
        self._rest_s = REST_S
        self._waits_for = ""
        self._counts = {"sums": 0, "refused": 0}
        self._latest: tuple[int, ...] = ()

    # -- hooks ------------------------------------------------------------------------------------------------------

    def feedings(self) -> tuple[Feeding, ...]:
        return (
            Feeding(channel=SUMS, handler=self.sums.talk, guards=True),
            Feeding(channel=CHANNEL, handler=self.state.talk, guards=True),
        )

    def status(self) -> Mapping[str, Any]:
        figures = {"members_in_the_latest_sum": len(self._latest), "members_needed": self.least}
        return figures | self._counts | {"fetched": self.state.fetched, "waits_for": self._waits_for or None}

    async def run(self) -> None:
        await self.state.know()
        if self.course.facts.rounds < self._rounds_to_do:
            await self._until(self._has_company, self._company_in_words)
        while not self.course.is_over and self.course.facts.rounds < self._rounds_to_do:
            place = self.state.next_place()
            if place is not None:
                if await self.state.take_over(place):
                    self._given = None
            elif self.course.halted_by:
                if not await self._until(
                    self.state.is_behind, lambda: "the others, as it gives no part", self._patience_s
                ):
                    break
            elif not self.sums.is_member:
                # What it gave now would be paid for in vain.
                await self._until(lambda: self.state.is_behind() or self.sums.is_member, self._setup_in_words)
            elif self.shared.counts_rows and self.shared.rows is None:
                await self._count_rows()
            else:
                await self._round()
        await self._end()

    async def farewell(self, *, hasty: bool) -> None:  # noqa: ARG002 - there is nothing to wait for
        self.sums.talk.close()

    # -- rounds -------------------------------------------------------------------------------------------------------

    async def _count_rows(self) -> None:
        """Learn how many rows all nodes have together, and of none how many it has."""
        self.course.stage = Phase.JOINING
        # A number drawn anew beside them: rows are public, so that what is left of a refused sum may be summed again.
        salt = int.from_bytes(os.urandom(4), "little")
        samples = np.array([self.course.facts.samples, salt], "<u8")
        fixed = FixedPoint(low=0.0, high=float(MOST_ROWS), resolution=1.0, members=self.sums.members)
        done = await self._sum("rows", samples, fixed.terms("rows of all nodes", {"rows": (2,)}))
        if done is None:
            await self._rest()
            return
        rows = int(done.total[0])
        if not (0 < rows <= len(done.members) * MOST_ROWS and self.shared.fits(rows)):
            await self._refuse_spoiled("rows")
        else:
            self.shared.rows = rows
            self.state.write_rows()
            notice.info("%d nodes have %d rows together", len(done.members), rows)
            if self.shared.plan.delta * rows > 1.0:
                notice.warning("%s", delta_exceeds(self.shared.plan.delta, rows))
            await self.state.tell()

    async def _round(self) -> None:
        given = self._given
        if given is None or given.place != self.state.place:
            given = self._given = await self._make_part()
        if given is None:
            await self._rest()
            return
        self.course.stage = Phase.WAITING if self._rest_s > REST_S else Phase.TRAINING
        terms = hashlib.blake2b(self._id + given.place.digest, digest_size=32, person=b"p2pfl-sum-round").digest()
        label = f"round {self.course.facts.rounds + 1}"
        done = await self._sum(label, given.words, terms)
        if done is None:
            await self._rest()
            return
        self._given = None
        if not self.shared.is_possible(done.total, len(done.members)):
            await self._refuse_spoiled(label)
            return
        self._rest_s, before = REST_S, self.shared.common
        model = self.shared.next_model(given.start, done.total, len(done.members), self.course.facts.rounds)
        if not await self.state.commit(given.start, replace(given.local, vector=model)):
            self.shared.common = before
        await self.state.tell()

    async def _refuse_spoiled(self, label: str) -> None:
        """Leave a sum out that no right parts can have; all who got it do."""
        self._node.alarm("sum-spoiled", None, f"{label}: no right parts have such a sum, so a member's part was wrong")
        await self._rest()

    async def _make_part(self) -> Given | None:
        """Make this node's part, once it is paid for; None if that is not possible now."""
        course, place = self.course, self.state.place
        course.stage = Phase.TRAINING
        answer = course.answer()
        self._node.carry_out([StartRound(index=course.facts.rounds, accompanied=True)])
        event = await answer
        if isinstance(event, RoundRefused):
            if event.for_good:
                course.halted_by = event.why
                self._node.alarm("budget-spent" if event.planned else "no-part", None, event.why)
            return None
        outcome = await self.state.look(lambda engine: engine.outcomes.get_nowait())
        if not isinstance(event, RoundTrained) or outcome is None or self.shared.part is None:
            self._node.alarm("no-part", None, "its training failed, so that it has no part of this round")
            return None
        words = self.shared.part.view(np.uint64).astype("<u8")
        self.shared.part = None
        return Given(place, words, *outcome)

    async def _sum(self, label: str, words: Words, terms: bytes) -> SumDone | None:
        """Sum with the others; None if that was refused."""
        self._waits_for, self.sums.was_signed = f"the sum of {label}", False
        ended = await self.sums.talk.sum(label, words, terms)
        self._waits_for = ""
        if isinstance(ended, Refused):
            self._counts["refused"] += 1
            self.course.stage = Phase.WAITING
            if self.sums.was_signed or ended.is_out:
                self._given = None  # others may have a sum with this part: with other members it could tell of one
            self.state.following.refused()
            if not self.state.is_behind():
                missing = self._names(ended.missing)
                text = f"{label}: {ended.reason}; missing: {missing}" if missing else f"{label}: {ended.reason}"
                self._node.alarm("sum-refused", None, text)
            return None
        self._counts["sums"] += 1
        self.course.sums += 1
        self._latest = ended.members
        self._node.feed.settle("sum-done", None)
        return ended

    # -- waiting and ending -------------------------------------------------------------------------------------------

    def _has_company(self) -> bool:
        return len(self.state.standings.latest) >= self.least

    def _company_in_words(self) -> str:
        missing = self._names(range(self.sums.members), without=self.state.standings.latest)
        return f"{self.least - len(self.state.standings.latest)} more of {missing}: {self.least} must give their parts"

    def _setup_in_words(self) -> str:
        missing = self._names(range(self.sums.members), without=self.sums.came)
        return f"a set-up of sums; without keys yet: {missing}" if missing else "a set-up of sums"

    def _names(self, members: Iterable[int], without: Container[int] = ()) -> str:
        there = {member.index: member.name for member in self._node.setup().federation.present}
        return ", ".join(there[member] for member in members if member in there and member not in without)

    @property
    def _rounds_to_do(self) -> int:
        return self.course.settings.rounds or 0

    @property
    def _linger_s(self) -> float:
        return self.course.settings.linger_s

    @property
    def _patience_s(self) -> float:
        """How long a node that gives no part waits for the others' next state."""
        return max(self._linger_s, PATIENT_TIMES * self.state.slowest_s)

    async def _rest(self) -> None:
        """Wait a little, longer each time; not once the others are ahead."""
        rest_s, self._rest_s = self._rest_s, min(2 * self._rest_s, MOST_REST_S)
        await self._until(self.state.is_behind, lambda: "others", rest_s)

    async def _until(
        self, holds: Callable[[], bool], for_whom: Callable[[], str], limit_s: float | None = None
    ) -> bool:
        """Wait for news until something holds; tell now and then for whom. False: it did not within `limit_s`."""
        began = told = time.monotonic()
        while not holds():
            now = time.monotonic()
            left = TELL_S if limit_s is None else began + limit_s - now
            if left <= 0:
                return False
            if limit_s is None:
                self.course.stage, self._waits_for = Phase.WAITING, for_whom()
                if now >= told + TELL_S:
                    told = now
                    notice.info("waiting for %s", self._waits_for)
            self.state.talk.news.clear()
            try:
                await asyncio.wait_for(self.state.talk.news.wait(), min(left, 1.0))
            except TimeoutError:
                continue
        self._waits_for = ""
        return True

    async def _end(self) -> None:
        """Go on answering until all who are there have done all rounds, or have been waited for long enough."""
        course = self.course
        if course.is_over:
            return
        course.facts.done, course.stage = True, Phase.LINGERING
        members = {member.index for member in self._node.setup().federation.present}

        def are_through() -> bool:
            return members <= self.state.standings.who(
                lambda place: place.sums >= self.state.sums_after(self._rounds_to_do)
            )

        await self._until(are_through, lambda: "the others", self._linger_s)
        self._node.carry_out(course.finish())
