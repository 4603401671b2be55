"""Who masks with whom, and who holds whose shares: a circulant graph over an order that nobody can choose freely.

Each member's partners are the `degree / 2` next on both sides of a circle. That is Harary's graph: no `degree - 1`
members cut it. Bell et al. 2020 (eprint 2020/704) draw the graph at random and bound the chance of a bad one; here all
see who is left before they sign, and `withstands` is exact for whichever members collude. So the order, which the
members' fresh keys decide, matters for how many deaths a sum survives and not for privacy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from itertools import combinations
from math import ceil, log2


def order(members: Sequence[int], setup: bytes) -> tuple[int, ...]:
    """The members in the circle's order, the same for all who know the set-up's id."""

    def place(member: int) -> bytes:
        return hashlib.blake2b(setup + member.to_bytes(4, "little"), digest_size=16, person=b"sums order").digest()

    return tuple(sorted(members, key=place))


def degree(members: int, colluders: int) -> int:
    """The number of each one's partners: 2 t + 2, and two more for each doubling of the members, so that some may die.

    All others, where that is as many.
    """
    wanted = 2 * colluders + 2 + 2 * ceil(log2(max(members, 2)))
    return min(wanted, members - 1)


def partners(circle: Sequence[int], reach: int) -> dict[int, tuple[int, ...]]:
    """Each member's partners in ascending order, `reach` of them: an even number, or all others."""
    if reach >= len(circle) - 1:
        return {member: tuple(sorted(set(circle) - {member})) for member in circle}
    count, half = len(circle), reach // 2
    return {
        member: tuple(sorted(circle[(place + step) % count] for step in range(-half, half + 1) if step))
        for place, member in enumerate(circle)
    }


def withstands(circle: Sequence[int], reach: int, left: Collection[int], colluders: int) -> bool:
    """True if the partners among `left` stay connected whichever `colluders` of them are taken out.

    Then the masks among the others hide everything but their sum. A circle falls apart where two gaps as wide as half
    the reach part it; so the cheapest two gaps with somebody left on both sides are looked for.
    """
    if reach >= len(circle) - 1:
        return True
    half, count = reach // 2, len(circle)
    kept = [member in left for member in circle]
    cost = [sum(kept[(start + step) % count] for step in range(half)) for start in range(count)]
    before = [0]
    for each in kept + kept:
        before.append(before[-1] + each)
    cheap = [start for start in range(count) if cost[start] <= colluders]
    for one, other in combinations(cheap, 2):
        if cost[one] + cost[other] > colluders or other - one < half or one + count - other < half:
            continue
        inside = before[other] - before[one + half]
        outside = before[one + count] - before[other + half]
        if inside and outside:
            return False
    return True


def holders_left(partners_of: dict[int, tuple[int, ...]], left: Collection[int], member: int) -> int:
    """The number of those who are left and hold shares of this member."""
    return sum(partner in left for partner in partners_of[member])
