"""Rounds of which each is a secure sum of what all nodes have computed: with shared noise, or of hidden models without.

A refused sum's part is given again. With noise, if it may be in a sum that others get, another is made and paid for.
Without noise, sums differ by whole groups of members only, and a part is never rounded anew.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec
import numpy as np

from p2pfl.config.model import FederationConfig
from p2pfl.console.output import size
from p2pfl.core.core import Algorithm
from p2pfl.core.settings import Phase
from p2pfl.engine.state import NodeState
from p2pfl.errors import StorageError, UserError
from p2pfl.features.sums.messages import Refused, SumDone, quorum
from p2pfl.features.sums.rounds import AlikeState, RoundsInStep, SummedRounds, bytes_each
from p2pfl.features.sums.sessions import LIFE_NAME, groups_of
from p2pfl.features.sums.standings import Buffer, Place
from p2pfl.foreign import UNREADABLE
from p2pfl.learn.interface import Learner, LocalRound, Vector
from p2pfl.learn.privacy.plan import planned_rounds
from p2pfl.learn.privacy.rounds import AVERAGED
from p2pfl.limits import MOST_ENTRIES
from p2pfl.node.assembly import Setup, replay
from p2pfl.node.feature import Attached, Check, Feature, Inspected, NodeView
from p2pfl.specs import short
from p2pfl.storage.disk import replace_file
from p2pfl.storage.store import peek
from p2pfl.system import return_free_memory

if TYPE_CHECKING:
    from p2pfl.learn.averaging import AveragedRounds
    from p2pfl.learn.privacy.rounds import SharedRounds, Words

notice = logging.getLogger("p2pfl.notice")


def shared_by(learner: Learner) -> SharedRounds | AveragedRounds | None:
    """Return a learner's rounds with shared noise or of hidden models, or None if it has no such rounds."""
    if (averaged := vars(learner).get("averaged")) is not None:
        return cast("AveragedRounds", averaged)
    from p2pfl.learn.privacy import rounds  # noqa: PLC0415 - torch: who checks files has no learner

    return rounds.shared_by(learner)


def too_large(federation: FederationConfig, shared: SharedRounds | AveragedRounds | None) -> UserError | None:
    """Return the mistake of a model that does not fit in a sum, None if it does."""
    most = MOST_ENTRIES * (1 if federation.hides is None else MOST_SLICES)
    if shared is None or shared.entries <= most:
        return None
    text, allowed = f"the model is too large for {federation.in_step_by}", f"at most {most:,} trained numbers"
    if federation.hides is not None:
        allowed = f"at most {most:,} words of 64 bits: a smaller model, adapters, or fewer privacy.bits"
    return UserError(text, file=federation.path, key="task.name", value=f"{shared.entries:,}", allowed=allowed)


def delta_exceeds(delta: float, rows: int) -> str:
    """Return the warning about a delta that allows one of the rows of all nodes to be revealed entirely."""
    text = "everything about one row might be revealed; better a tenth of one in that many, or less"
    return f"privacy.delta = {delta:g} exceeds one in the {rows:,} rows of all nodes together: {text}"


def learned_otherwise(federation: FederationConfig, state: NodeState, folder: Path) -> UserError | None:
    """Return the mistake of a state that gossip has shown and that is to be hidden, or the other way."""
    is_hidden = any(name.startswith(AVERAGED) for name in state.local)
    if federation.hides is not None and state.rounds and not is_hidden:
        text, allowed = "this node has learned by gossip, and neighbors have seen its model", "no hide"
    elif federation.hides is None and is_hidden:
        text, allowed = "this state was learned with hide = 'models'", 'hide = "models"'
    else:
        return None
    value, allowed = None if federation.hides is None else "models", f"{allowed}, or begin anew: remove {folder}"
    return UserError(text, file=federation.path, key="privacy.hide", value=value, allowed=allowed)


class SharedNoiseCheck(Check):
    def of_files(self, inspected: Inspected) -> None:
        self.before_launch(inspected)

    def before_launch(self, inspected: Inspected) -> None:
        for folder in (node.state_dir for node in inspected.here.values()):
            is_begun = folder.is_dir() and (inspected.federation.hides or (folder / LIFE_NAME).exists())
            with suppress(StorageError):  # which the node itself tells of
                if is_begun and (loaded := peek(folder)) is not None:
                    mistake = learned_otherwise(inspected.federation, replay(loaded), folder)
                    inspected.mistakes += [] if mistake is None else [mistake]

    def of_learners(self, inspected: Inspected) -> None:
        federation, privacy = inspected.federation, inspected.federation.privacy
        if federation.hides is None and (privacy is None or not privacy.is_shared):
            return
        shared = next((each for each in map(shared_by, inspected.learners.values()) if each), None)
        if (mistake := too_large(federation, shared)) is not None:
            inspected.mistakes.append(mistake)
        members, rounds = len(federation.present), federation.training.rounds or 0
        each, brief = None if shared is None else bytes_each(shared.entries, members), inspected.brief
        if each is not None:
            brief["sent"] = f"estimate: {size(each * members * rounds)} by all nodes in {rounds} rounds"
        if privacy is None:
            self._of_hidden(inspected, each)
            return
        least = privacy.least_of(members)
        is_record = privacy.unit == "record"
        rows = sum(inspected.learners[index].samples for index in inspected.here.keys() & inspected.learners.keys())
        if is_record and privacy.delta * rows > 1.0:
            inspected.warnings.append(delta_exceeds(privacy.delta, rows))
        what = f"one step: each row of all nodes is in it with probability {privacy.rate:g}" if is_record else "one sum"
        brief["a round"] = what if each is None else f"{what}; estimate: {size(each)} sent by each node"
        brief["shared noise"] = (
            f"of a sum of {least} or more of {members} nodes; {privacy.colluders} may work together "
            f"against another; the budget pays for {planned_rounds(federation)} sums"
        )
        brief["waits"] = f"a round waits for {least} nodes; with fewer nothing is learned until they are back"

    @staticmethod
    def _of_hidden(inspected: Inspected, each: int | None) -> None:
        hides, groups = inspected.federation.hides, groups_of(inspected.federation)
        assert hides is not None  # noqa: S101 - the caller has looked
        brief, numbers = inspected.brief, f"numbers of {hides.bits} bits"
        brief["a round"] = f"one sum, {numbers}" + ("" if each is None else f"; estimate: {size(each)} by each node")
        brief["hidden models"] = (
            f"nobody sees a node's model, only what all have computed; {hides.colluders} may work together against "
            "another. Who may lie can spoil a round unnoticed"
        )
        names = "; ".join(", ".join(inspected.federation.members[m].name for m in sorted(group)) for group in groups)
        members = len(inspected.federation.members)
        if len(groups) == 1:
            brief["waits"] = (
                f"a round waits for all {members} nodes: they are one group, so no two sums differ by a member"
            )
            return
        brief["differences"] = (
            f"two sums differ by whole groups ({short(names)}), and their difference still tells which "
            'labels a group has: only noise ends that (epsilon, noise = "shared")'
        )
        needed = quorum(members, hides.colluders)
        brief["waits"] = (
            f"a round waits for {needed} nodes and for a whole group; who is missing takes its group out of the sum"
        )


ROWS_FILE = "rows-of-all.json"


class NoiseState(AlikeState):
    """`size` is that of the model."""

    def __init__(self, shared: SharedRounds | AveragedRounds, folder: Path, size: int) -> None:
        self._shared, self._file, self._size = shared, folder / ROWS_FILE, size
        self.most_bytes = shared.packed_bytes + 4 * size

    def recall(self) -> None:
        """Read the rows of all nodes, if they are known and no round has been done."""
        if self._shared.rows is not None or not self._file.is_file():
            return
        try:
            self._shared.rows = int(msgspec.json.decode(self._file.read_bytes(), type=dict[str, int])["rows"])
        except (OSError, KeyError, *UNREADABLE) as error:
            text = f"{self._file} is damaged ({error}): remove it, and the others' state will be fetched"
            raise StorageError(text) from error

    def write_rows(self) -> None:
        if self._shared.rows is not None:
            replace_file(self._file, [msgspec.json.encode({"rows": self._shared.rows})])
        else:
            self._file.unlink(missing_ok=True)

    def sums_after(self, rounds: int) -> int:
        """That of the rows is one too."""
        return rounds + (self._shared.counts_rows and self._shared.rows is not None)

    def packed(self, model: Vector, rounds: int) -> Sequence[Buffer]:
        return self._shared.packed(model, rounds)

    def unpack(self, state: Buffer) -> tuple[int, Vector, Callable[[], None]]:
        rounds, model, adopt = self._shared.unpack(state, self._size)

        def adopt_all() -> None:
            adopt()
            self.write_rows()

        return rounds, model, adopt_all


MOSTLY = 0.5
"""A node that clips more of its change says so."""
MOST_SLICES = 8
"""A round of a large model is so many sums at most, one after the other, of the same members."""
MOST_ROWS = 2**40
"""The most rows of one node."""


@dataclass(frozen=True, slots=True)
class PaidPart:
    """This node's part of the sum of a round from `place`, paid for, and the round without its result."""

    place: Place
    words: Words
    local: LocalRound


class SumRounds(RoundsInStep):
    """The rounds of one node."""

    def __init__(self, node: NodeView, algorithm: SummedRounds, shared: SharedRounds | AveragedRounds) -> None:
        setup = node.setup()
        federation, promise = setup.federation, setup.federation.privacy or setup.federation.hides
        assert promise is not None  # noqa: S101 - the learner would have no such rounds
        self.shared = shared
        self._groups = groups_of(federation)
        self.least = promise.least_of(len(federation.present))
        self._alike = NoiseState(shared, setup.node.state_dir, setup.learner.size)
        super().__init__(
            node, algorithm, self._alike, colluders=promise.colluders, least=self.least, groups=self._groups
        )
        named = repr([sorted(group) for group in self._groups]).encode()
        self._data = hashlib.blake2b(self._id + named, digest_size=32, person=b"p2pfl-hidden").digest()
        """A round's data differ little from those of the round before: all sums count as sums of the same data."""
        self._given: PaidPart | None = None

    @property
    def sums_in_all(self) -> int:
        return self._alike.sums_after(self.algorithm.settings.rounds or 0)

    def was_refused(self, ended: Refused) -> None:
        if not self._groups and (self.talk.was_signed or ended.is_out):
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
        self.algorithm.phase = Phase.JOINING
        # A number drawn anew beside them: rows are public, so that what is left of a refused sum may be summed again.
        salt = int.from_bytes(self._node.draw(4), "little")
        samples = np.array([self.algorithm.facts.samples, salt], "<u8")
        # The terms of all versions: these numbers are not packed.
        about = ("rows of all nodes", [("rows", (2,))], ("0.0", repr(float(MOST_ROWS)), "1.0", repr(self.members)))
        terms = hashlib.blake2b(repr(about).encode(), digest_size=32, person=b"p2pfl-sums-terms").digest()
        done = await self.sum("rows", samples, terms, **self._as_data)
        if done is None:
            await self.state.rest()
            return
        rows = int(done.total[0])
        if not (0 < rows <= len(done.members) * MOST_ROWS and self.shared.fits(rows)):
            await self.refuse_spoiled("rows")
        else:
            self.shared.take_rows(rows, len(done.members))
            self._alike.write_rows()
            notice.info("%d nodes have %d rows together", len(done.members), rows)
            if self.shared.delta * rows > 1.0:
                notice.warning("%s", delta_exceeds(self.shared.delta, rows))
            await self.state.tell()

    async def _round(self) -> None:
        given = self._given
        if given is None or given.place != self.state.place:
            given = self._given = await self._make_part()
        if given is None:
            await self.state.rest()
            return
        self.algorithm.phase = Phase.WAITING if self.state.has_rested_long else Phase.TRAINING
        label = f"round {self.algorithm.facts.rounds + 1}"
        done = await self._sum_slices(label, given)
        if done is None:
            await self.state.rest()
            return
        if not self.shared.is_possible(done.total, len(done.members)):
            if not self._groups:
                self._given = None
            await self.refuse_spoiled(label)
            return
        self._given = None
        self.state.rested()
        before, total, count, local = (
            (self.shared.common, self.shared.variate),
            done.total,
            len(done.members),
            given.local,
        )
        is_in = self.shared.variate is not None and self._node.setup().member.index in done.members
        own = given.words if is_in else None
        del given, done

        def make(start: Vector) -> LocalRound:
            self.shared.part = own
            model = self.shared.next_model(start, total, count, self.algorithm.facts.rounds, in_place=True)
            self.shared.part = None
            return replace(local, vector=model)

        if not await self.state.commit(make):
            self.shared.common, self.shared.variate = before
        await self.state.tell()

    async def _sum_slices(self, label: str, given: PaidPart) -> SumDone | None:
        """Sum the part; None if a slice of it was refused."""
        only: dict[str, frozenset[int]] = {}
        total, done = np.empty_like(given.words), None
        for start in range(0, given.words.size, MOST_ENTRIES):
            words, terms = given.words[start : start + MOST_ENTRIES], self.terms_from(given.place, start)
            done = await self.sum(label, words, terms, **self._as_data, **only)
            if done is None:
                return None
            only["only"] = frozenset(done.members)
            total[start : start + MOST_ENTRIES] = done.total
            self._return_free_memory()
        return None if done is None else replace(done, total=total)

    def _return_free_memory(self) -> None:
        if self.shared.entries > MOST_ENTRIES:
            return_free_memory()

    @property
    def _as_data(self) -> dict[str, bytes]:
        return {"data": self._data} if self._groups else {}

    async def _make_part(self) -> PaidPart | None:
        """Make this node's part, once it is paid for; None if that is not possible now."""
        place = self.state.place
        self._return_free_memory()
        outcome = await self.train()
        if outcome is None:
            return None
        if self.shared.part is None:
            self._node.alarm("no-part", None, "its training failed, so that it has no part of this round")
            return None
        if self.shared.clipped > MOSTLY:
            self._node.alarm("change-clipped", None, f"{self.shared.clipped:.0%} of its change was clipped")
        words = self.shared.part.view(np.uint64).astype("<u8", copy=False)
        self.shared.part = None
        return PaidPart(place, words, outcome)


class SharedNoiseFeature(Feature):
    name = "shared_noise"
    needs = ("privacy", "sums")

    def guards(self, setup: Setup) -> bool:
        return shared_by(setup.learner) is not None

    def check(self, setup: Setup) -> None:
        """Check that the model fits in a sum. Raises UserError: it is too large."""
        if (mistake := too_large(setup.federation, shared_by(setup.learner))) is not None:
            raise mistake

    def algorithm(self, setup: Setup, state: NodeState) -> Algorithm | None:
        """Raises UserError: the state was learned by gossip and is to be hidden, or the other way."""
        if (mistake := learned_otherwise(setup.federation, state, setup.node.state_dir)) is not None:
            raise mistake
        if shared_by(setup.learner) is None:
            return None
        return SummedRounds.of(setup, state)

    def attach(self, node: NodeView) -> Attached | None:
        shared = shared_by(node.setup().learner)
        if shared is None or not isinstance(node.core, SummedRounds):
            return None
        return SumRounds(node, node.core, shared)
