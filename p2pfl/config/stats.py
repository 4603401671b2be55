"""The table `[stats]` of a node file: which questions about its table the node answers. By default it answers none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from p2pfl.config.tables import Mistakes, name, read_table, text
from p2pfl.specs import Kind, whole

EVERYBODY = "*"
LEAST_ROWS, A_DAY = 10, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsConfig:
    """What a node answers, and to whom."""

    columns: tuple[str, ...] = ()
    """The columns about which it answers; none by default."""
    to: tuple[str, ...] = ()
    """The members that may ask, or EVERYBODY; none by default."""
    by: str | None = None
    """The column by which groups may be formed."""
    a_day: int = A_DAY
    """The questions that it answers to each member within 24 hours."""
    least_rows: int = LEAST_ROWS
    """The fewest rows of whatever is shown."""

    def admits(self, member: str) -> bool:
        return EVERYBODY in self.to or member in self.to


NO_STATS = StatsConfig()


def _names(kind: Kind, allowed: str, *, also: str = "") -> Kind:
    """A kind of value: a list of texts, possibly none, or one text; the result is a tuple."""

    def read(value: Any) -> tuple[str, ...]:
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list):
            raise ValueError  # noqa: TRY004 - as of all kinds
        found = tuple(each if also and each == also else kind.read(each) for each in values)
        if len(set(found)) < len(found):
            raise ValueError("one of them appears twice")
        return found

    return Kind(allowed, read)


STATS: Mapping[str, Kind] = {
    "columns": _names(text(), 'names of columns, such as ["age", "chol"]').key(
        "columns about which this node answers questions of `p2pfl stats`; without it none"
    ),
    "to": _names(name(), f'names of members, or "{EVERYBODY}" for all', also=EVERYBODY).key(
        "members that may ask; without it none but this node"
    ),
    "by": text().key("the one column by which a question may form groups; without it none"),
    "a_day": whole(1).key("questions that are answered to each member within 24 hours"),
    "least_rows": whole(3).key("fewest rows of a group, a count or a bin that is shown; the most of all nodes counts"),
}


def read_stats(table: Any, mistakes: Mistakes) -> StatsConfig:
    """Read the table `[stats]`; defaults where there is none."""
    return StatsConfig(**read_table({} if table is None else table, "stats.", STATS, mistakes))
