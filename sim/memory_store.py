"""A disk in memory: what was flushed survives a crash, what was not may not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from p2pfl.compress import Payload
from p2pfl.engine.changes import redo
from p2pfl.engine.codecs import Codecs
from p2pfl.engine.durable import Entry, Image, change, image, restore
from p2pfl.engine.state import NodeState
from p2pfl.learn.methods import Method


class MemoryStore:
    """One node's snapshot and log, in exchange durability."""

    def __init__(self) -> None:
        self._image: Image | None = None
        self._flushed: list[Entry] = []
        self._buffered: list[Entry] = []

    def append(self, kind: str, header: dict[str, Any], blobs: Sequence[Payload]) -> None:
        self._buffered.append((kind, header, list(blobs)))

    def flush(self) -> None:
        self._flushed += self._buffered
        self._buffered.clear()

    def checkpoint(self, state: NodeState) -> None:
        self._image = image(state, with_replicas=True)
        self._flushed.clear()
        self._buffered.clear()

    def crash(self, kept: int) -> None:
        """Lose what was not flushed, apart from the first `kept` entries, which reached the disk by luck."""
        self._flushed += self._buffered[:kept]
        self._buffered.clear()

    @property
    def logged(self) -> int:
        """Flushed entries since the last checkpoint."""
        return len(self._flushed)

    @property
    def buffered(self) -> int:
        return len(self._buffered)

    def recover(self, codecs: Codecs, method: Method) -> NodeState | None:
        """The state as the disk has it: snapshot, then log."""
        if self._image is None:
            return None
        state = restore(self._image.header, self._image.arrays, self._image.blobs)
        for kind, header, blobs in self._flushed:
            step = change(kind, header, blobs, np.dtype(state.model.dtype))
            redo(state, step, codecs=codecs, method=method)
        return state
