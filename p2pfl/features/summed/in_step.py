"""One node's rounds in step with all others: sum, take the sum, tell where it stands, and so on to the end.

All nodes take the same step from the same state, so a sum names the state that it begins from: who has another one is
left out, and fetches that of the others. What a part is, and what a sum does to the state, says each course.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from typing import Any

from p2pfl.config.federation_id import federation_id
from p2pfl.core.effects import StartRound
from p2pfl.core.events import RoundRefused, RoundTrained
from p2pfl.core.facts import Phase
from p2pfl.features.summed.common_state import AlikeState, CommonState
from p2pfl.features.summed.standings import Place, Standings
from p2pfl.features.summed.standings_talk import CHANNEL
from p2pfl.features.summed.summed_rounds import SummedRounds
from p2pfl.features.summed.waiting import RoundWaiting
from p2pfl.features.sums.channel import CHANNEL as SUMS
from p2pfl.features.sums.masks import Words
from p2pfl.features.sums.node_sums import NodeSums
from p2pfl.features.sums.sum_effects import Refused, SumDone
from p2pfl.learn.interface import LocalRound, Vector
from p2pfl.net.side import Feeding
from p2pfl.node.feature import Attached, NodeView

PATIENT_TIMES = 4.0


class RoundsInStep(Attached):
    """The rounds of one node. `needed` members must have signed for a state that is taken over."""

    least = 3
    """The members that must be there before the first sum."""

    def __init__(self, node: NodeView, course: SummedRounds, alike: AlikeState, sums: NodeSums, *, needed: int) -> None:
        self._node, self.course, self.sums = node, course, sums
        setup = node.setup()
        self._id = federation_id(setup.federation)
        standings = Standings(setup.federation, self._id, setup.identity, setup.member.index, needed)
        self.state = CommonState(node, course, alike, standings, life=sums.life)
        self.waiting = RoundWaiting(node, course, self.state)
        self._counts = {"sums": 0, "refused": 0}
        self._latest: tuple[int, ...] = ()

    # -- what each course says -------------------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        """True once there is nothing more to sum."""
        return self.course.facts.rounds >= (self.course.settings.rounds or 0)

    @property
    def sums_in_all(self) -> int:
        """The sums after which a member is through."""
        raise NotImplementedError

    async def step(self) -> None:
        """Sum once, and take the sum."""
        raise NotImplementedError

    def was_refused(self, ended: Refused) -> None:
        """Look at a refusal; the node will try again."""

    def was_taken_over(self) -> None:
        """Forget what belongs to the state that others' has replaced."""

    # -- hooks ------------------------------------------------------------------------------------------------------

    def feedings(self) -> tuple[Feeding, ...]:
        return (
            Feeding(channel=SUMS, handler=self.sums.talk, guards=True),
            Feeding(channel=CHANNEL, handler=self.state.talk, guards=True),
        )

    def status(self) -> Mapping[str, Any]:
        figures = {"members_in_the_latest_sum": len(self._latest), "members_needed": self.least}
        return figures | self._counts | {"fetched": self.state.fetched, "waits_for": self.waiting.whom or None}

    async def run(self) -> None:
        await self.state.know()
        if not self.is_done:
            await self.waiting.until(self._has_company, self._company_in_words)
        while not self.course.is_over and not self.is_done:
            place = self.state.next_place()
            if place is not None:
                if await self.state.take_over(place):
                    self.was_taken_over()
            elif self.course.halted_by:
                if not await self.waiting.until(
                    self.state.is_behind, lambda: "the others, as it gives no part", self._patience_s
                ):
                    break
            elif not self.sums.is_member:
                # What it gave now would be given in vain.
                await self.waiting.until(lambda: self.state.is_behind() or self.sums.is_member, self._setup_in_words)
            else:
                await self.step()
        await self._end()

    async def farewell(self, *, hasty: bool) -> None:  # noqa: ARG002 - there is nothing to wait for
        self.sums.talk.close()

    # -- rounds -------------------------------------------------------------------------------------------------------

    async def train(self) -> tuple[Vector, LocalRound] | None:
        """Let the learner begin its round; None if that is not possible now. What it returns belongs to the engine."""
        course = self.course
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
        if not isinstance(event, RoundTrained) or outcome is None:
            self._node.alarm("no-part", None, "its training failed, so that it has no part of this round")
            return None
        return outcome

    def terms_from(self, place: Place) -> bytes:
        """The terms of a sum that begins from this state."""
        return hashlib.blake2b(self._id + place.digest, digest_size=32, person=b"p2pfl-sum-round").digest()

    async def sum(self, label: str, words: Words, terms: bytes, **asked: Any) -> SumDone | None:
        """Sum with the others; None if that was refused. `asked` as of `SumTalk.sum`."""
        self.waiting.whom, self.sums.was_signed = f"the sum of {label}", False
        began = time.monotonic()
        ended = await self.sums.talk.sum(label, words, terms, **asked)
        self.waiting.whom = ""
        if isinstance(ended, Refused):
            self.waiting.tried_s = time.monotonic() - began
            self._counts["refused"] += 1
            self.course.stage = Phase.WAITING
            self.was_refused(ended)
            self.state.following.refused()
            if not self.state.is_behind():
                missing = self.waiting.names(ended.missing)
                text = f"{label}: {ended.reason}; missing: {missing}" if missing else f"{label}: {ended.reason}"
                self._node.alarm("sum-refused", None, text)
            return None
        self._counts["sums"] += 1
        self.course.sums += 1
        self._latest = ended.members
        self._node.feed.settle("sum-done", None)
        return ended

    async def refuse_spoiled(self, label: str) -> None:
        """Leave a sum out that no right parts can have; all who got it do."""
        self._node.alarm("sum-spoiled", None, f"{label}: no right parts have such a sum, so a member's part was wrong")
        await self.waiting.rest()

    # -- waiting and ending -------------------------------------------------------------------------------------------

    def _has_company(self) -> bool:
        return len(self.state.standings.latest) >= self.least

    def _company_in_words(self) -> str:
        missing = self.waiting.names(range(self.sums.members), without=self.state.standings.latest)
        return f"{self.least - len(self.state.standings.latest)} more of {missing}: {self.least} must give their parts"

    def _setup_in_words(self) -> str:
        missing = self.waiting.names(range(self.sums.members), without=self.sums.came)
        return f"a set-up of sums; without keys yet: {missing}" if missing else "a set-up of sums"

    @property
    def _patience_s(self) -> float:
        """How long a node that gives no part waits for the others' next state."""
        return max(self.course.settings.linger_s, PATIENT_TIMES * self.state.slowest_s)

    async def _end(self) -> None:
        """Go on answering until all who are there are through, or have been waited for long enough."""
        course = self.course
        if course.is_over:
            return
        course.facts.done, course.stage = True, Phase.LINGERING
        members = {member.index for member in self._node.setup().federation.present}

        def are_through() -> bool:
            return members <= self.state.standings.who(lambda place: place.sums >= self.sums_in_all)

        await self.waiting.until(are_through, lambda: "the others", course.settings.linger_s)
        self._node.carry_out(course.finish())
