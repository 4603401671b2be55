"""What all nodes have alike while trees grow: the state of the growth, and of which members it is.

After each round the whole is in the node's snapshot. What has come since, the levels of the present round, is in a
small file beside it, with a digest of the node's own rows and the keys of the members: to the end its parts must be of
the same rows, and in sums of the same members. It is there before the first part leaves the node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from p2pfl.errors import StorageError, UserError
from p2pfl.features.sums.rounds import AlikeState
from p2pfl.foreign import UNREADABLE
from p2pfl.learn.interface import Vector
from p2pfl.learn.trees.growth import TreeGrowth
from p2pfl.learn.trees.learner import TreeLearner
from p2pfl.storage.disk import replace_file

FILE_NAME = "growing"
BEGIN = "remove all but the file `sums` from its folder, and the others' state will be fetched"
NODE_BYTES, COLUMN_BYTES, REST_BYTES = 64, 4096, 1 << 20


class GrowingFile(msgspec.Struct, forbid_unknown_fields=True, array_like=True):
    """The state behind `rounds` whole rounds. `data` is the digest of this node's rows; `members` have their keys."""

    rounds: int
    members: dict[int, bytes]
    data: bytes
    state: bytes


class Packed(msgspec.Struct, forbid_unknown_fields=True, array_like=True):
    """What a node hands to one that is behind."""

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
        self.most_bytes = min(trees * NODE_BYTES + columns * COLUMN_BYTES + REST_BYTES, 1 << 31)

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
            found = msgspec.msgpack.decode(raw, type=GrowingFile)
            if found.rounds == len(state.rounds):
                growth = TreeGrowth.resumed(
                    found.state, state.rounds, learner.table.schema, learner.settings, learner.site
                )
                if growth.state.step > state.step:
                    learner.adopt(growth)
        except UNREADABLE as error:
            raise StorageError(f"{self._file} is damaged ({error}): {BEGIN}") from error
        self.is_kept, self.members = True, frozenset(found.members)
        self.moved = frozenset(one for one, key in found.members.items() if self._key_of(one) != key)
        gives = not self.members or self._own in self.members
        if gives and not learner.growth.done and found.data != learner.site.data:
            text = "this node's rows have changed since the trees began: the difference would tell of those rows"
            allowed = "the rows of then; or another state folder at all nodes, to begin anew"
            raise UserError(text, file=self._file.parent, key="data.path", allowed=allowed)

    def _key_of(self, member: int) -> bytes | None:
        return self._keys[member] if 0 <= member < len(self._keys) else None

    def write(self) -> None:
        """Keep what the snapshot has not. Raises StorageError."""
        growth = self._learner.growth
        found = GrowingFile(
            rounds=len(growth.state.rounds),
            members={member: self._keys[member] for member in sorted(self.members)},
            data=self._learner.site.data,
            state=growth.pack_present(),
        )
        replace_file(self._file, [msgspec.msgpack.encode(found)])
        self.is_kept = True

    def sums_after(self, rounds: int) -> int:  # noqa: ARG002 - a round has several sums
        return self._learner.growth.state.step

    def packed(self, model: Vector, rounds: int) -> bytes:  # noqa: ARG002 - both follow from the growth
        return msgspec.msgpack.encode(Packed(sorted(self.members), self._learner.growth.pack()))

    def unpack(self, state: bytes) -> tuple[int, Vector, Callable[[], None]]:
        learner = self._learner
        try:
            found = msgspec.msgpack.decode(state, type=Packed)
        except UNREADABLE as error:
            raise ValueError(f"no state of trees: {error}") from None
        if not all(0 <= member < len(self._keys) for member in found.members):
            raise ValueError("a state of trees of members that are not there")
        growth = TreeGrowth.unpack(found.growth, learner.table.schema, learner.settings, learner.site)

        def adopt() -> None:
            learner.adopt(growth)
            self.members = frozenset(found.members)
            self.write()

        return rounds_of(growth), model_of(growth), adopt


def rounds_of(growth: TreeGrowth) -> int:
    """Return the rounds that count as done; trees that could not be split at all are one."""
    return len(growth.state.rounds) or int(growth.done)


def model_of(growth: TreeGrowth) -> Vector:
    return np.array([rounds_of(growth)], np.float32)
