"""What nodes hold against their neighbors, put together for reports and readers. The core decides what counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from p2pfl.reporting.liars import count

Line = Mapping[str, Any]


def held_against(rows: Iterable[Line]) -> list[dict[str, Any]]:
    """One entry for each neighbor of which a node has proven a fault: who, against whom, what, and what followed.

    `rows` are nodes with `name` and, where they left a result, `neighbors`.
    """
    return [
        {
            "node": row["name"],
            "neighbor": neighbor["name"],
            "standing": neighbor["standing"],
            "faults": neighbor["faults"],
            "quarantines": neighbor["quarantines"],
        }
        for row in rows
        for neighbor in row.get("neighbors") or []
        if neighbor.get("faults")
    ]


def in_words(held: Sequence[Line]) -> str | None:
    """`node3: payload 40, flood 2, told by 4 neighbors, quarantined by 3`; None where nobody has proven anything."""
    told = []
    for name in sorted({one["neighbor"] for one in held}):
        against = [one for one in held if one["neighbor"] == name]
        kinds: Counter[str] = Counter()
        for one in against:
            kinds.update(one["faults"])
        faults = ", ".join(f"{kind} {number}" for kind, number in sorted(kinds.items()))
        away = sum(one["quarantines"] > 0 for one in against)
        quarantined = f", quarantined by {away}" if away else ""
        told.append(f"{name}: {faults}, told by {count(len(against), 'neighbor')}{quarantined}")
    return "; ".join(told) or None
