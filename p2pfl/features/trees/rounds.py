"""One node's part in the growth of trees: a sum for each level, all of the same members.

Parts add up from level to level, so the sum of fewer members than before would tell of those who are missing: each sum
is of exactly the members of the first one, and waits for them. Who comes later follows, and gives no part.

After each round the whole is in the node's snapshot. What has come since, the levels of the present round, is in a
small file beside it, with a digest of the node's own rows and the keys of the members: to the end its parts must be of
the same rows, and in sums of the same members. It is there before the first part leaves the node.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from p2pfl.config.model import FederationConfig
from p2pfl.console.output import size
from p2pfl.core.core import Algorithm
from p2pfl.core.settings import Phase
from p2pfl.engine.state import NodeState
from p2pfl.errors import StorageError, UserError
from p2pfl.features.sums.arithmetic import SpoiledSum, WholeNumbers
from p2pfl.features.sums.messages import quorum
from p2pfl.features.sums.rounds import ALL_DONE, AlikeState, RoundsInStep, SummedRounds, bytes_each
from p2pfl.features.sums.standings import Buffer
from p2pfl.foreign import UNREADABLE
from p2pfl.learn.interface import Learner, LocalRound, Vector
from p2pfl.learn.trees.growth import TreeGrowth, TreeLearner, TreePart, WrongSum
from p2pfl.learn.trees.state import MOST_KEPT_BYTES
from p2pfl.node.assembly import Setup
from p2pfl.node.feature import Attached, Check, Feature, Inspected, NodeView
from p2pfl.storage.disk import replace_file

notice = logging.getLogger("p2pfl.notice")

COLLUDERS = 1
LEAST, MOST = 3, 2047


def colluders_of(federation: FederationConfig) -> int:
    """Return how many members may work together without learning another's part."""
    given = federation.task.options.get("colluders")
    return given if isinstance(given, int) else COLLUDERS  # the task refuses what is no whole number


def refusals(federation: FederationConfig) -> Iterator[UserError]:
    """Yield the mistakes of a federation whose model is trees."""

    def mistake(text: str, key: str, value: object, allowed: str) -> UserError:
        return UserError(text, file=federation.path, key=key, value=value, allowed=allowed)

    members, colluders = len(federation.present), colluders_of(federation)
    training, gossip = federation.training, federation.gossip
    if members < LEAST:
        text = "too few nodes for trees: of the sum of two, each knows the other's part"
        yield mistake(text, "node", members, f"{LEAST} or more")
    elif not 1 <= colluders <= members - 2:
        text = "impossible: two of the nodes must be honest"
        yield mistake(text, "task.colluders", colluders, f"1 to {members - 2}")
    signers = quorum(len(federation.members), colluders)
    if LEAST <= members < signers:
        text = f"too few nodes for trees: {signers} must sign each sum, as removed members count too"
        yield mistake(text, "node", members, f"{signers} or more, or a federation without those that were removed")
    if len(federation.members) > MOST:
        text = "too many nodes for trees: the sum of so many would not fit in 64 bits"
        yield mistake(text, "node", len(federation.members), f"at most {MOST}, with those that were removed")
    for key, given, usual, instead in (
        ("training.stop", training.stop, None, "task.patience"),
        ("gossip.rule", gossip.rule, "mean", "mean"),
        ("training.method", federation.method, "plain", "no training.method"),
    ):
        if given != usual:
            text = "cannot be combined with trees, which grow in step, from sums in which no node's part is seen alone"
            yield mistake(text, key, given, f"{instead}; or model = linear or mlp")


class TreesCheck(Check):
    def of_learners(self, inspected: Inspected) -> None:
        federation = inspected.federation
        if not federation.grows_trees:
            return

        inspected.mistakes.extend(refusals(federation))
        members = len(federation.present)
        learner = next(filter(None, map(_trees_of, inspected.learners.values())), None)
        entries: list[int] = []
        if learner is not None:
            known = inspected.here.keys() & inspected.learners.keys()
            rows = sum(inspected.learners[index].samples for index in known) if len(known) == members else None
            entries = learner.entries_of_a_round(rows)
        each = sum(bytes_each(count, members) for count in entries) if entries else None
        colluders = colluders_of(federation)
        brief = inspected.brief
        outputs = 1 if learner is None else learner.settings.outputs
        trees = "a tree" if outputs == 1 else f"{outputs} trees, one for each class,"
        brief["a round"] = f"{trees} by a secure sum for each level"
        if each is not None and learner is not None:
            brief["a round"] += f"; estimate: at most {size(each)} sent by each node"
            rounds = learner.settings.rounds
            brief["sent"] = f"estimate: at most {size(each * members * rounds)} by all nodes in {rounds} rounds"
        brief["trees"] = f"of the rows of all {members} nodes; {colluders} may work together against another"
        brief["duration"] = "not estimated: each sum is some messages back and forth between all nodes"
        brief["waits"] = "each sum is of all nodes: without one of them nothing grows until it is back"


FILE_NAME = "growing"
BEGIN = "remove all but the file `sums` from its folder, and the others' state will be fetched"
NODE_BYTES, COLUMN_BYTES, REST_BYTES = 64, 4096, 1 << 20


class GrowingFile(msgspec.Struct, forbid_unknown_fields=True, array_like=True):
    """The state behind `rounds` whole rounds. `data` is the digest of this node's rows; `members` have their keys."""

    rounds: int
    members: dict[int, bytes]
    data: bytes
    state: bytes


class PackedTrees(msgspec.Struct, forbid_unknown_fields=True, array_like=True):
    """The state that a node hands to one that is behind."""

    members: list[int]
    growth: bytes


class GrownState(AlikeState):
    """`members` are those whose rows the trees are of; none before the first sum. `keys` are those of all members of
    the federation, in order, and `own` is the place of this node.
    """

    def __init__(self, learner: TreeLearner, folder: Path, keys: Sequence[bytes], own: int) -> None:
        self._learner, self._file, self._keys, self._own = learner, folder / FILE_NAME, keys, own
        self.members: frozenset[int] = frozenset()
        self.moved: frozenset[int] = frozenset()
        """Those of them whose place in the federation has another key now, or none."""
        self.is_kept = False
        """True once the file is there."""
        settings, columns = learner.settings, len(learner.preprocessing["inputs"]) + 1
        trees = settings.rounds * settings.outputs * (2 << settings.max_depth)
        self.most_bytes = min(trees * NODE_BYTES + columns * COLUMN_BYTES + REST_BYTES, 1 << 31) + 2 * MOST_KEPT_BYTES

    def read(self) -> None:
        """Go on where this node was. Raises UserError: it has other rows now; StorageError: the file is damaged, or
        lost while the trees grow.
        """
        learner, state = self._learner, self._learner.growth.state
        try:
            raw = self._file.read_bytes()
        except FileNotFoundError:
            if state.step and not state.done:
                raise StorageError(f"{self._file} is missing: {BEGIN}") from None
            return
        except OSError as error:
            raise StorageError(f"cannot read {self._file}: {error.strerror or error}") from error
        try:
            content = msgspec.msgpack.decode(raw, type=GrowingFile)
            if content.rounds == len(state.rounds):
                schema, settings = learner.table.schema, learner.settings
                growth = TreeGrowth.unpack(content.state, schema, settings, learner.site, state.rounds)
                if growth.state.step > state.step:
                    learner.adopt(growth)
        except UNREADABLE as error:
            raise StorageError(f"{self._file} is damaged ({error}): {BEGIN}") from error
        self.is_kept, self.members = True, frozenset(content.members)
        self.moved = frozenset(member for member, _ in content.members.items() - set(enumerate(self._keys)))
        gives = not self.members or self._own in self.members
        if gives and not learner.growth.done and content.data != learner.site.data:
            text = "this node's rows have changed since the trees began: the difference would tell of those rows"
            allowed = "the rows of then; or another state folder at all nodes, to begin anew"
            raise UserError(text, file=self._file.parent, key="data.path", allowed=allowed)

    def write(self) -> None:
        """Keep what the snapshot has not. Raises StorageError."""
        growth = self._learner.growth
        content = GrowingFile(
            rounds=len(growth.state.rounds),
            members={member: self._keys[member] for member in sorted(self.members)},
            data=self._learner.site.data,
            state=growth.pack_present(),
        )
        replace_file(self._file, [msgspec.msgpack.encode(content)])
        self.is_kept = True

    def sums_after(self, rounds: int) -> int:  # noqa: ARG002 - a round has several sums
        return self._learner.growth.state.step

    def packed(self, model: Vector, rounds: int) -> Sequence[Buffer]:  # noqa: ARG002 - both follow from the growth
        return [msgspec.msgpack.encode(PackedTrees(sorted(self.members), self._learner.growth.pack()))]

    def unpack(self, state: Buffer) -> tuple[int, Vector, Callable[[], None]]:
        learner = self._learner
        try:
            packed = msgspec.msgpack.decode(state, type=PackedTrees)
        except UNREADABLE as error:
            raise ValueError(f"no state of trees: {error}") from None
        if not all(0 <= member < len(self._keys) for member in packed.members):
            raise ValueError("a state of trees of members that are not there")
        growth = TreeGrowth.unpack(packed.growth, learner.table.schema, learner.settings, learner.site)

        def adopt() -> None:
            learner.adopt(growth)
            self.members = frozenset(packed.members)
            self.write()

        return rounds_of(growth), model_of(growth), adopt


def rounds_of(growth: TreeGrowth) -> int:
    """Return the rounds that count as done; trees that could not be split at all are one."""
    return len(growth.state.rounds) or int(growth.done)


def model_of(growth: TreeGrowth) -> Vector:
    return np.array([rounds_of(growth)], np.float32)


SUMS_OF_A_SETUP = 128


class TreeRounds(RoundsInStep):
    """The trees of one node."""

    def __init__(self, node: NodeView, algorithm: SummedRounds, learner: TreeLearner) -> None:
        setup = node.setup()
        federation, colluders = setup.federation, colluders_of(setup.federation)
        self._own, self.learner = setup.member.index, learner
        learner.is_summed = True
        self._there = frozenset(member.index for member in federation.present)
        self.least = len(self._there)
        keys = tuple(member.key for member in federation.members)
        self.grown = GrownState(learner, setup.node.state_dir, keys, self._own)
        super().__init__(node, algorithm, self.grown, colluders=colluders, least=colluders + 2, sums=SUMS_OF_A_SETUP)
        self._begun: LocalRound | None = None
        """The present round, as the engine began it."""

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
            known = dict(enumerate(member.name for member in federation.members))
            names = ", ".join(known.get(member, f"member {member}") for member in sorted(gone))
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

    # -- the algorithm ----------------------------------------------------------------------------------------------

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
            await self.state.until(self.state.is_behind, lambda: "the others' trees, which began without this node")
            return
        if self._begun is None:
            self._begun = await self.train()
        if self._begun is None:
            await self.state.rest()
            return
        self.algorithm.phase = Phase.WAITING if self.state.has_rested_long else Phase.TRAINING
        part, most = await asyncio.to_thread(lambda: (growth.next_part(), growth.most(len(members))))
        if not self.grown.is_kept:
            self.grown.write()  # from now on this node's rows may not change
        numbers = WholeNumbers(members=len(members), most=most)
        done = await self.sum(part.label, numbers.encode(part.arrays), self._terms(part), data=part.data, only=members)
        if done is None:
            await self.state.rest()
            return
        try:
            await asyncio.to_thread(growth.take, numbers.decode(done.total, len(members)), len(members))
        except (WrongSum, SpoiledSum) as error:
            notice.warning("%s", error)
            growth.ask_in_full()
            self.grown.write()
            await self.state.tell()
            await self.refuse_spoiled(part.label)
            return
        except UserError as error:
            error.file = error.file or str(self._node.setup().federation.path)
            raise
        self.state.rested()
        self.grown.members = members
        await self._keep(self._begun)
        await self.state.tell()

    def _terms(self, part: TreePart) -> bytes:
        about = repr((part.step, part.label, sorted(self._members))).encode()
        terms = self.terms_from(self.state.place)
        return hashlib.blake2b(terms + about, digest_size=32, person=b"p2pfl-tree-terms").digest()

    async def _keep(self, local: LocalRound) -> None:
        """Make what was decided durable: a round with the node's state, levels in a file of their own."""
        growth = self.learner.growth
        rounds = rounds_of(growth)
        if growth.done:
            await self.state.settle(model_of(growth), rounds)
        elif rounds > self.algorithm.facts.rounds:
            await self.state.commit(lambda _: replace(local, vector=model_of(growth)))
            self._begun = None
        self.grown.write()

    def _are_enough(self) -> bool:
        return self._members <= self.state.standings.latest.keys() or self.state.is_behind()

    def _missing_in_words(self) -> str:
        missing = self._members - self.state.standings.latest.keys()
        names = self.state.names(sorted(missing))
        return f"{len(missing)} more of {names}: all {len(self._members)} must give their parts"

    async def _end(self) -> None:
        if self.is_done:
            self.algorithm.done_by = self._why_done()
        await super()._end()

    def _why_done(self) -> str:
        state, settings = self.learner.growth.state, self.learner.settings
        if len(state.rounds) == settings.rounds:
            return ALL_DONE + (f", of which {state.best} are kept" if state.best < settings.rounds else "")
        if settings.patience and len(state.rounds) - state.best >= settings.patience:
            return f"no smaller loss in {settings.patience} rounds: {state.best} rounds are kept"
        return f"no further split after {len(state.rounds)} rounds"


class TreesFeature(Feature):
    name = "trees"
    needs = ("sums",)

    def guards(self, setup: Setup) -> bool:
        return _trees_of(setup.learner) is not None

    def check(self, setup: Setup) -> None:
        """Raises UserError: something cannot be combined with trees."""
        if _trees_of(setup.learner) is not None:
            mistake: UserError | None = next(refusals(setup.federation), None)
            if mistake is not None:
                raise mistake

    def algorithm(self, setup: Setup, state: NodeState) -> Algorithm | None:
        return None if _trees_of(setup.learner) is None else SummedRounds.of(setup, state)

    def attach(self, node: NodeView) -> Attached | None:
        learner = _trees_of(node.setup().learner)
        if learner is None or not isinstance(node.core, SummedRounds):
            return None
        return TreeRounds(node, node.core, learner)


def _trees_of(learner: Learner) -> TreeLearner | None:
    candidate: object = learner
    return candidate if isinstance(candidate, TreeLearner) else None
