"""What storage keeps and gives back. It knows names, arrays and bytes, and nothing of what they mean."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """One consistent cut. `header` is JSON; arrays keep their shape and dtype (booleans, integers, floats).

    Arrays that were read cannot be written to, and share the memory of the whole snapshot.
    """

    header: dict[str, Any]
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    blobs: dict[str, bytes | memoryview] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One entry of the log, in the order in which it was appended. Its blobs share the memory of the whole log."""

    kind: str
    header: dict[str, Any]
    blobs: list[memoryview]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The state to start from and the records to replay on it, oldest first.

    `complete` is False when something that had been durable is known to be missing, so that the result is older
    than the last message that left; `warnings` says why, for the log and the operator.
    """

    state: State
    records: list[Record]
    warnings: list[str]
    complete: bool
