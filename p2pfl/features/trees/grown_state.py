"""What all nodes have alike while trees grow: the state of the growth, and of which members it is.

After each round the whole is in the node's snapshot. What has come since, the levels of the present round, is in a
small file beside it, with a digest of the node's own rows: its parts must be of the same rows to the end.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from p2pfl.errors import StorageError, UserError
from p2pfl.features.summed.common_state import AlikeState
from p2pfl.learn.interface import Vector
from p2pfl.learn.trees.growth import TreeGrowth
from p2pfl.learn.trees.learner import TreeLearner
from p2pfl.storage.disk import replace_file

FILE_NAME = "growing"
NODE_BYTES, COLUMN_BYTES, REST_BYTES = 64, 4096, 1 << 20


class GrowingFile(msgspec.Struct, forbid_unknown_fields=True, array_like=True):
    """The state behind `rounds` whole rounds. `data` is the digest of this node's rows."""

    rounds: int
    members: list[int]
    data: bytes
    state: bytes


class Packed(msgspec.Struct, forbid_unknown_fields=True, array_like=True):
    """What a node hands to one that is behind."""

    members: list[int]
    growth: bytes


class GrownState(AlikeState):
    """`members` are those whose rows the trees are of; none before the first sum."""

    def __init__(self, learner: TreeLearner, folder: Path) -> None:
        self._learner, self._file = learner, folder / FILE_NAME
        self.members: frozenset[int] = frozenset()
        settings, columns = learner.settings, len(learner.preprocessing["inputs"]) + 1
        trees = settings.rounds * settings.outputs * (2 << settings.max_depth)
        self.most_bytes = min(trees * NODE_BYTES + columns * COLUMN_BYTES + REST_BYTES, 1 << 31)

    def read(self) -> None:
        """Go on where this node was. Raises UserError: it has other rows now; StorageError: the file is damaged."""
        try:
            raw = self._file.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageError(f"cannot read {self._file}: {error.strerror or error}") from error
        learner, state = self._learner, self._learner.growth.state
        try:
            found = msgspec.msgpack.decode(raw, type=GrowingFile)
            growth = TreeGrowth.resumed(found.state, state.rounds, learner.table.schema, learner.settings, learner.site)
        except (msgspec.MsgspecError, ValueError) as error:
            text = f"{self._file} is damaged ({error}): remove it, and the others' state will be fetched"
            raise StorageError(text) from error
        if found.data != learner.site.data:
            text = "this node's rows have changed since the trees began: the difference would tell of those rows"
            allowed = "the rows of then; or another state folder at all nodes, to begin anew"
            raise UserError(text, file=self._file.parent, key="data.path", allowed=allowed)
        self.members = frozenset(found.members)
        if found.rounds == len(state.rounds) and growth.state.step > state.step:
            learner.adopt(growth)

    def write(self) -> None:
        """Keep what the snapshot has not. Raises StorageError."""
        growth = self._learner.growth
        found = GrowingFile(
            rounds=len(growth.state.rounds),
            members=sorted(self.members),
            data=self._learner.site.data,
            state=growth.pack_present(),
        )
        replace_file(self._file, [msgspec.msgpack.encode(found)])

    def sums_after(self, rounds: int) -> int:  # noqa: ARG002 - a round has several sums
        return self._learner.growth.state.step

    def packed(self, model: Vector, rounds: int) -> bytes:  # noqa: ARG002 - both follow from the growth
        return msgspec.msgpack.encode(Packed(sorted(self.members), self._learner.growth.pack()))

    def unpack(self, state: bytes) -> tuple[int, Vector, Callable[[], None]]:
        learner = self._learner
        try:
            found = msgspec.msgpack.decode(state, type=Packed)
        except msgspec.MsgspecError as error:
            raise ValueError(f"no state of trees: {error}") from None
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
