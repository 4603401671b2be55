"""One node's rounds with shared noise, each a secure sum of parts that are paid for once.

If a sum is refused its part is given again, unless it may be in a sum that others get: then another one is made, and
paid for.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace

import numpy as np

from p2pfl.core.facts import Phase
from p2pfl.features.shared_noise.doubtful import delta_exceeds
from p2pfl.features.shared_noise.noise_state import NoiseState
from p2pfl.features.summed.in_step import RoundsInStep
from p2pfl.features.summed.standings import Place
from p2pfl.features.summed.summed_rounds import SummedRounds
from p2pfl.features.sums.fixed_point import FixedPoint
from p2pfl.features.sums.node_sums import NodeSums
from p2pfl.features.sums.sum_effects import Refused
from p2pfl.learn.interface import LocalRound, Vector
from p2pfl.learn.privacy.shared import SharedRounds, Words
from p2pfl.node.feature import NodeView

notice = logging.getLogger("p2pfl.notice")

MOST_ROWS = 2**40
"""The most rows of one node."""


@dataclass(frozen=True, slots=True)
class Given:
    """This node's part of the sum of a round from `place`, paid for. `start` and `local` belong to the engine."""

    place: Place
    words: Words
    start: Vector
    local: LocalRound


class SumRounds(RoundsInStep):
    """The rounds of one node."""

    def __init__(self, node: NodeView, course: SummedRounds, shared: SharedRounds) -> None:
        setup = node.setup()
        federation, privacy = setup.federation, setup.federation.privacy
        assert privacy is not None  # noqa: S101 - the learner would have no shared rounds
        self.shared = shared
        self.least = privacy.least_of(len(federation.present))
        sums = NodeSums(
            federation,
            setup.member.index,
            setup.identity,
            node.say,
            node.alarm,
            least=self.least,
            colluders=privacy.colluders,
            folder=setup.node.state_dir,
        )
        self._alike = NoiseState(shared, setup.node.state_dir, setup.learner.size)
        super().__init__(node, course, self._alike, sums, needed=privacy.colluders + 1)
        self._given: Given | None = None

    @property
    def sums_in_all(self) -> int:
        return self._alike.sums_after(self.course.settings.rounds or 0)

    def was_refused(self, ended: Refused) -> None:
        if self.sums.was_signed or ended.is_out:
            self._given = None  # others may have a sum with this part: with other members it could tell of one

    def was_taken_over(self) -> None:
        self._given = None

    async def step(self) -> None:
        if self.shared.counts_rows and self.shared.rows is None:
            await self._count_rows()
        else:
            await self._round()

    async def _count_rows(self) -> None:
        """Learn how many rows all nodes have together, and of none how many it has."""
        self.course.stage = Phase.JOINING
        # A number drawn anew beside them: rows are public, so that what is left of a refused sum may be summed again.
        salt = int.from_bytes(os.urandom(4), "little")
        samples = np.array([self.course.facts.samples, salt], "<u8")
        fixed = FixedPoint(low=0.0, high=float(MOST_ROWS), resolution=1.0, members=self.sums.members)
        done = await self.sum("rows", samples, fixed.terms("rows of all nodes", {"rows": (2,)}))
        if done is None:
            await self.waiting.rest()
            return
        rows = int(done.total[0])
        if not (0 < rows <= len(done.members) * MOST_ROWS and self.shared.fits(rows)):
            await self.refuse_spoiled("rows")
        else:
            self.shared.rows = rows
            self._alike.write_rows()
            notice.info("%d nodes have %d rows together", len(done.members), rows)
            if self.shared.plan.delta * rows > 1.0:
                notice.warning("%s", delta_exceeds(self.shared.plan.delta, rows))
            await self.state.tell()

    async def _round(self) -> None:
        given = self._given
        if given is None or given.place != self.state.place:
            given = self._given = await self._make_part()
        if given is None:
            await self.waiting.rest()
            return
        self.course.stage = Phase.WAITING if self.waiting.has_rested_long else Phase.TRAINING
        label = f"round {self.course.facts.rounds + 1}"
        done = await self.sum(label, given.words, self.terms_from(given.place))
        if done is None:
            await self.waiting.rest()
            return
        self._given = None
        if not self.shared.is_possible(done.total, len(done.members)):
            await self.refuse_spoiled(label)
            return
        self.waiting.rested()
        before = self.shared.common
        model = self.shared.next_model(given.start, done.total, len(done.members), self.course.facts.rounds)
        if not await self.state.commit(given.start, replace(given.local, vector=model)):
            self.shared.common = before
        await self.state.tell()

    async def _make_part(self) -> Given | None:
        """Make this node's part, once it is paid for; None if that is not possible now."""
        place = self.state.place
        outcome = await self.train()
        if outcome is None:
            return None
        if self.shared.part is None:
            self._node.alarm("no-part", None, "its training failed, so that it has no part of this round")
            return None
        words = self.shared.part.view(np.uint64).astype("<u8")
        self.shared.part = None
        return Given(place, words, *outcome)
