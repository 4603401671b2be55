"""When each node is up: born at its join, down between a crash and the restart. Integer nanoseconds."""

from __future__ import annotations

from collections.abc import Iterable

from sim.worlds.model import CrashSpec, JoinSpec

NANOSECONDS = 1_000_000_000


def nanoseconds(time_s: float) -> int:
    return round(time_s * NANOSECONDS)


class Lives:
    """The known part of all nodes' histories; nothing in it contradicts itself."""

    def __init__(self, joins: Iterable[JoinSpec] = ()) -> None:
        self.born = {node: nanoseconds(join.at_s) for join in joins for node in join.nodes}
        self._down: dict[int, list[tuple[int, int | None]]] = {}

    def objection(self, node: int, begin_ns: int, end_ns: int | None) -> str | None:
        """Why the node cannot be down from `begin_ns` to `end_ns` (None: for good), or None if it can."""
        if begin_ns <= self.born.get(node, 0):
            return "would crash before it has started"
        for begin, end in self._down.get(node, ()):
            if (end_ns is None or begin <= end_ns) and (end is None or begin_ns <= end):
                return "would crash while it is down" if end is not None else "would crash though it never comes back"
        return None

    def add(self, node: int, begin_ns: int, end_ns: int | None) -> None:
        self._down.setdefault(node, []).append((begin_ns, end_ns))


def ends(crash: CrashSpec) -> tuple[int, int | None]:
    """When the nodes of a crash go down and when they are up again."""
    begin = nanoseconds(crash.at_s)
    return begin, None if crash.down_s is None else begin + max(1, nanoseconds(crash.down_s))
