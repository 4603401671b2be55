"""A queue in which each federation has the same share of what passes, however much the others send.

Deficit round robin: Shreedhar and Varghese, "Efficient fair queueing using deficit round robin", SIGCOMM 1995. A
federation that has been idle gets its turn after at most one quantum of each of the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

QUANTUM_BYTES = 1 << 18


@dataclass(slots=True)
class _Turn(Generic[T]):
    items: deque[tuple[T, int]] = field(default_factory=deque)
    deficit_bytes: int = 0
    begun: bool = False
    """True if the current turn has added its quantum."""


class FairQueue(Generic[T]):
    """Items of a known size, first in first out for each owner."""

    def __init__(self, quantum_bytes: int = QUANTUM_BYTES) -> None:
        self._quantum_bytes = quantum_bytes
        self._turns: dict[Hashable, _Turn[T]] = {}
        """Owners with something in the queue; the first one's turn it is."""

    def __bool__(self) -> bool:
        return bool(self._turns)

    def put(self, owner: Hashable, item: T, size_bytes: int) -> None:
        if owner not in self._turns:
            self._turns[owner] = _Turn()
        self._turns[owner].items.append((item, size_bytes))

    def take(self) -> tuple[T, int] | None:
        """Return the next item and its size; None if there is none."""
        while self._turns:
            owner, turn = next(iter(self._turns.items()))
            if not turn.begun:
                turn.begun = True
                turn.deficit_bytes += self._quantum_bytes
            if turn.items[0][1] > turn.deficit_bytes:
                turn.begun = False
                self._turns[owner] = self._turns.pop(owner)
                continue
            item, size_bytes = turn.items.popleft()
            turn.deficit_bytes -= size_bytes
            if not turn.items:
                del self._turns[owner]
            return item, size_bytes
        return None
