"""What all nodes with shared noise have alike: the model, the optimizer's arrays, and the rows of all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from p2pfl.errors import StorageError
from p2pfl.features.summed.common_state import AlikeState
from p2pfl.foreign import UNREADABLE
from p2pfl.learn.interface import Vector
from p2pfl.learn.privacy.shared import SharedRounds
from p2pfl.storage.disk import replace_file

ROWS_FILE = "rows-of-all.json"


class NoiseState(AlikeState):
    """`size` is that of the model."""

    def __init__(self, shared: SharedRounds, folder: Path, size: int) -> None:
        self._shared, self._file, self._size = shared, folder / ROWS_FILE, size
        self.most_bytes = shared.packed_bytes + 4 * size

    def recall(self) -> None:
        """Read the rows of all nodes, if they are known and no round has been done."""
        if self._shared.rows is None and self._file.is_file():
            self._shared.rows = _read_rows(self._file)

    def write_rows(self) -> None:
        if self._shared.rows is not None:
            replace_file(self._file, [msgspec.json.encode({"rows": self._shared.rows})])
        else:
            self._file.unlink(missing_ok=True)

    def sums_after(self, rounds: int) -> int:
        """That of the rows is one too."""
        return rounds + (self._shared.counts_rows and self._shared.rows is not None)

    def packed(self, model: Vector, rounds: int) -> bytes:
        return self._shared.packed(model, rounds)

    def unpack(self, state: bytes) -> tuple[int, Vector, Callable[[], None]]:
        rounds, model, adopt = self._shared.unpack(state, self._size)

        def adopt_all() -> None:
            adopt()
            self.write_rows()

        return rounds, model, adopt_all


def _read_rows(file: Path) -> int:
    try:
        return int(msgspec.json.decode(file.read_bytes(), type=dict[str, int])["rows"])
    except (OSError, KeyError, *UNREADABLE) as error:
        text = f"{file} is damaged ({error}): remove it, and the others' state will be fetched"
        raise StorageError(text) from error
