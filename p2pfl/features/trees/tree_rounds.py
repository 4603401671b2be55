"""One node's part in the growth of trees: a sum for each level, all of the same members.

Parts add up from level to level, so the sum of fewer members than before would tell of those who are missing: each sum
is of exactly the members of the first one, and waits for them. Who comes later follows, and gives no part.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.config.model import FederationConfig
from p2pfl.core.facts import Phase
from p2pfl.errors import UserError
from p2pfl.features.sums.arithmetic import Words
from p2pfl.features.sums.messages import quorum
from p2pfl.features.sums.rounds import ALL_DONE, RoundsInStep, SummedRounds
from p2pfl.features.sums.sessions import NodeSums
from p2pfl.features.trees.grown_state import GrownState, model_of, rounds_of
from p2pfl.features.trees.unsuited import colluders_of
from p2pfl.learn.interface import LocalRound, Vector
from p2pfl.learn.trees.growth import TreePart, WrongSum
from p2pfl.learn.trees.learner import TreeLearner
from p2pfl.node.feature import NodeView

notice = logging.getLogger("p2pfl.notice")

SUMS_OF_A_SETUP = 128


class TreeRounds(RoundsInStep):
    """The trees of one node."""

    def __init__(self, node: NodeView, course: SummedRounds, learner: TreeLearner) -> None:
        setup = node.setup()
        federation, colluders = setup.federation, colluders_of(setup.federation)
        self._own, self.learner = setup.member.index, learner
        learner.is_summed = True
        self._there = frozenset(member.index for member in federation.present)
        self.least = len(self._there)
        keys = tuple(member.key for member in federation.members)
        self.grown = GrownState(learner, setup.node.state_dir, keys, self._own)
        sums = NodeSums(
            federation,
            self._own,
            setup.identity,
            node.say,
            node.alarm,
            least=colluders + 2,
            colluders=colluders,
            folder=setup.node.state_dir,
            sums=SUMS_OF_A_SETUP,
        )
        super().__init__(node, course, self.grown, sums, needed=colluders + 1)
        self._begun: tuple[Vector, LocalRound] | None = None
        """The present round, as the engine began it."""

    # -- hooks ------------------------------------------------------------------------------------------------------

    async def opening(self, until_over: AsyncExitStack) -> None:  # noqa: ARG002 - nothing stays open
        """Raises UserError: this node's rows have changed, a member of these trees is gone or stands in another row,
        or too many have come; StorageError.
        """
        self.grown.read()
        begun = self.grown.members
        if not begun or self.learner.growth.done:
            return
        federation = self._node.setup().federation
        signers = quorum(len(federation.members), colluders_of(federation))
        gone = (begun - self._there) | self.grown.moved
        if gone:
            names = ", ".join(named(federation, member) for member in sorted(gone))
            text = f"these trees have begun with {names}, and can only grow with the same members to the end"
            allowed = "the members of then, in the same order"
        elif signers > len(begun):
            text = f"these trees have begun with {len(begun)} members, and {signers} of now must sign each sum"
            allowed = f"at most {2 * len(begun) - colluders_of(federation) - 1} members, with those removed"
        else:
            return
        allowed += "; or other state folders at all nodes, to begin anew"
        raise UserError(text, file=federation.path, key="node", value=len(federation.members), allowed=allowed)

    def status(self) -> Mapping[str, Any]:
        growth, losses = self.learner.growth, self.learner.growth.state.losses
        sum_of = None if growth.done else growth.label
        latest = losses[-1] if losses else None
        figures = {"grows": sum_of, "loss_of_all": latest and latest.trained, "held_out_loss": latest and latest.held}
        return {**super().status(), **figures, "members_needed": len(self._members)}

    # -- the course -------------------------------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        return self.learner.growth.done

    @property
    def sums_in_all(self) -> int:
        return self.learner.growth.state.step

    @property
    def _members(self) -> frozenset[int]:
        return self.grown.members or self._there

    def was_taken_over(self) -> None:
        self._begun = None

    async def step(self) -> None:
        growth, members = self.learner.growth, self._members
        if self._own not in members:
            await self.waiting.until(self.state.is_behind, lambda: "the others' trees, which began without this node")
            return
        if self._begun is None:
            self._begun = await self.train()
        if self._begun is None:
            await self.waiting.rest()
            return
        self.course.stage = Phase.WAITING if self.waiting.has_rested_long else Phase.TRAINING
        part = await asyncio.to_thread(growth.next_part)
        if not self.grown.is_kept:
            self.grown.write()  # from now on this node's rows may not change
        done = await self.sum(part.label, words_of(part), self._terms(part), data=part.data, only=members)
        if done is None:
            await self.waiting.rest()
            return
        try:
            await asyncio.to_thread(growth.take, arrays_of(done.total, part, len(members)), len(members))
        except WrongSum as error:
            notice.warning("%s", error)
            await self.refuse_spoiled(part.label)
            return
        except UserError as error:
            error.file = error.file or str(self._node.setup().federation.path)
            raise
        self.waiting.rested()
        self.grown.members = members
        await self._keep(*self._begun)
        await self.state.tell()

    def _terms(self, part: TreePart) -> bytes:
        about = repr((part.step, part.label, sorted(self._members))).encode()
        terms = self.terms_from(self.state.place)
        return hashlib.blake2b(terms + about, digest_size=32, person=b"p2pfl-tree-terms").digest()

    async def _keep(self, start: Vector, local: LocalRound) -> None:
        """Make what was decided durable: a round with the node's state, levels in a file of their own."""
        growth = self.learner.growth
        rounds = rounds_of(growth)
        if growth.done:
            await self.state.settle(model_of(growth), rounds)
        elif rounds > self.course.facts.rounds:
            await self.state.commit(start, replace(local, vector=model_of(growth)))
            self._begun = None
        self.grown.write()

    def _has_company(self) -> bool:
        return self._members <= self.state.standings.latest.keys() or self.state.is_behind()

    def _company_in_words(self) -> str:
        missing = self._members - self.state.standings.latest.keys()
        names = self.waiting.names(sorted(missing))
        return f"{len(missing)} more of {names}: all {len(self._members)} must give their parts"

    async def _end(self) -> None:
        if self.is_done:
            self.course.done_by = self._why_done()
        await super()._end()

    def _why_done(self) -> str:
        state, settings = self.learner.growth.state, self.learner.settings
        if len(state.rounds) == settings.rounds:
            return ALL_DONE + (f", of which {state.best} are kept" if state.best < settings.rounds else "")
        if settings.patience and len(state.rounds) - state.best >= settings.patience:
            return f"no smaller loss in {settings.patience} rounds: {state.best} rounds are kept"
        return f"no further split after {len(state.rounds)} rounds"


def named(federation: FederationConfig, member: int) -> str:
    """Return a name also for a member whose row is gone."""
    return federation.members[member].name if member < len(federation.members) else f"member {member}"


def words_of(part: TreePart) -> Words:
    """Return a part as one vector (d,) of whole numbers from 0."""
    arrays = [part.arrays[name].ravel() + part.bound for name in sorted(part.arrays)]
    return np.concatenate(arrays).astype("<u8")


def arrays_of(total: Words, part: TreePart, members: int) -> dict[str, NDArray[np.int64]]:
    """Return the sums by name. Raises WrongSum: no parts of so many members have this sum."""
    sizes = sum(array.size for array in part.arrays.values())
    if total.size != sizes or int(total.max(initial=0)) > 2 * members * part.bound:
        raise WrongSum(f"{part.label}: beyond what {members} members can have")
    exact, found, start = total.astype(np.int64) - members * part.bound, {}, 0
    for name in sorted(part.arrays):
        array = part.arrays[name]
        found[name] = exact[start : start + array.size].reshape(array.shape)
        start += array.size
    return found
