"""Which stored pair of replicas each end of an edge sees.

Both ends of an edge see one pair for as long as they are in the same incarnation: it is as the responder has it, and
the initiator is never more than half a transaction behind. An end that begins a new incarnation turns to a blank pair,
and the other end follows to the same one. Records are those of the engines: what is done, not what the cores have
heard of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from p2pfl.core.records import EdgeRecord
from p2pfl.learn.interface import Vector
from sim.lazy.plane import Plane
from sim.lazy.rows import MisjudgedError

Records = Callable[[int, int], EdgeRecord]
"""From (node, peer) to the record at that node's end of the edge."""


class Pairs:
    """`ends` are the edges as (initiator, responder), by number."""

    def __init__(self, ends: Sequence[tuple[int, int]], plane: Plane) -> None:
        self.ends = ends
        self.plane = plane
        self.rows = plane.rows
        self.records: Records
        self.remembered: Callable[[], Iterable[int]]
        """Pairs that a crash may bring back."""
        self._initiators = list(range(len(ends)))
        self._responders = list(range(len(ends)))
        self._issued = [0] * len(ends)
        self._applied = [0] * len(ends)
        """Per edge, the latest ticket issued and (this) the latest whose application was noted."""

    # -- tickets ------------------------------------------------------------------------------------------------------

    def freeze(self, edge: int) -> tuple[int, int]:
        """A new ticket, and which one must be applied before this request may take the last one's place."""
        self._issued[edge] += 1
        return self._issued[edge], self._applied[edge]

    def apply(self, edge: int, ticket: int) -> None:
        if ticket != self._issued[edge]:
            raise MisjudgedError("a request was applied whose place another has taken")
        self._applied[edge] = ticket

    # -- who sees what ------------------------------------------------------------------------------------------------

    def of(self, edge: int, node: int) -> int:
        return self._initiators[edge] if node == self.ends[edge][0] else self._responders[edge]

    def put_back(self, edge: int, node: int, pair: int) -> None:
        (self._initiators if node == self.ends[edge][0] else self._responders)[edge] = pair

    def enter(self, edge: int, node: int, incarnation: int) -> None:
        """A new incarnation begins at this end: both replicas are zero. If the other end is there, it has done nothing
        in it yet. (The same number may come again, after both ends have lost their disks.)
        """
        first, second = self.ends[edge]
        other = second if node == first else first
        follows = self.records(other, node).incarnation == incarnation
        self.put_back(edge, node, self.of(edge, other) if follows else self._blank_pair())

    def leave(self, edge: int, node: int) -> None:
        """This end has lost its replicas."""
        self.put_back(edge, node, self._blank_pair())
        self.compare(edge)

    def compare(self, edge: int) -> None:
        """Ends that have done nothing together, as far as either remembers, go on without a new incarnation."""
        first, second = self.ends[edge]
        one, other = self.records(first, second), self.records(second, first)
        unknown = (0, 0)
        if (one.incarnation, one.seq) == (other.incarnation, other.seq) == unknown:
            self._initiators[edge] = self._responders[edge] = self._blank_pair()
            self._applied[edge] = 0
            self.plane.begin_edge_anew(edge)

    def _blank_pair(self) -> int:
        """Churn that takes disks would else fill the memory with pairs that nobody sees."""
        blanks = self.rows.blanks
        if not blanks:
            self.plane.drain()
            seen = {*self._initiators, *self._responders, *self.remembered()}
            self.rows.blank([pair for pair in range(len(self.rows.own)) if pair not in seen])
        return blanks.pop()

    def peer_replica(self, edge: int, node: int, record: EdgeRecord) -> Vector:
        """What this end holds of its neighbor, once everything noted is done."""
        if node != self.ends[edge][0]:
            replica: Vector = self.rows.own[self._responders[edge]]
        elif record.pending is not None and self._applied[edge] == self._issued[edge]:
            replica = self.rows.before[edge]
        else:
            replica = self.rows.peer[self._initiators[edge]]
        return replica
