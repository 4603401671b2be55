"""Two sums of the same data must not tell a summand by their difference."""

from __future__ import annotations

from collections.abc import Collection, Iterable


def atoms(sets: Collection[frozenset[int]]) -> list[int]:
    """The sizes of the groups of members who are in the same ones of these sets. Who is in none is in no group."""
    everybody = sorted(frozenset().union(*sets))
    groups: dict[tuple[bool, ...], int] = {}
    for member in everybody:
        pattern = tuple(member in each for each in sets)
        groups[pattern] = groups.get(pattern, 0) + 1
    return sorted(groups.values())


class SumHistory:
    """The member sets for which this member has signed sums, by the digest of its own data in them.

    Any linear combination of sums weighs all members of an atom alike. So if each atom has at least `least` members, no
    combination of any number of sums tells of fewer: more than pairs of sums would show.
    """

    def __init__(self, least: int, past: Iterable[tuple[bytes, frozenset[int]]] = ()) -> None:
        self._least = least
        self._sets: dict[bytes, set[frozenset[int]]] = {}
        for data, members in past:
            self.keep(data, members)

    def keep(self, data: bytes, members: frozenset[int]) -> None:
        self._sets.setdefault(data, set()).add(members)

    def allows(self, data: bytes, members: frozenset[int]) -> bool:
        sets = self._sets.get(data, set()) | {members}
        return atoms(tuple(sets))[0] >= self._least
