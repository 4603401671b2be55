"""What colluders see of a sum has one distribution, whichever summands of that sum the others have: by enumeration.

All values of the masks are put in the place of the stream, modulo 8 (or 4, where all of them at once would be too
many). A vector's entries are the cases: entry i of each mask is its value in case i.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from p2pfl.features.sums import combined, sign


def cases(count, modulus):
    """(count, modulus ** count): each column is one way in which `count` uniform values may fall."""
    grid = np.meshgrid(*[np.arange(modulus, dtype="<u8")] * count, indexing="ij")
    return np.stack([each.ravel() for each in grid])


def masked(member, summand, own, pairs, others, modulus):  # noqa: PLR0917 - as in the formula
    """The y of one member in all cases; `pairs[a, b]` with a < b."""
    values = np.full(own.size, summand, "<u8")
    between = [(sign(member, q), pairs[min(member, q), max(member, q)]) for q in others if q != member]
    return combined(values, [(1, own), *between], modulus)


def distribution(columns, modulus):
    """The number of cases for each view."""
    code = np.zeros(columns[0].size, np.int64)
    for column in columns:
        code = code * modulus + column.astype(np.int64)
    return np.bincount(code, minlength=modulus ** len(columns))


def test_one_of_three_learns_the_sum_of_the_others_and_nothing_else():
    """Members 0 and 1 are honest. Member 2 sees both masked vectors, its own pair masks and the revealed seeds."""
    b0, b1, m01, m02, m12 = cases(5, 8)
    pairs = {(0, 1): m01, (0, 2): m02, (1, 2): m12}
    for total in range(8):
        seen = [
            distribution(
                [
                    masked(0, x0, b0, pairs, range(3), 8),
                    masked(1, (total - x0) % 8, b1, pairs, range(3), 8),
                    b0, b1, m02, m12,
                ],
                8,
            )
            for x0 in range(8)
        ]  # fmt: skip
        assert all(np.array_equal(each, seen[0]) for each in seen)


def test_the_enumeration_finds_a_seed_and_a_mask_key_revealed_of_one_living_member():
    """A planted mistake: member 0's seed *and* its pair masks are told. Then the view depends on the summand."""
    b0, b1, m01, m02, m12 = cases(5, 8)
    pairs = {(0, 1): m01, (0, 2): m02, (1, 2): m12}
    seen = [distribution([masked(0, x0, b0, pairs, range(3), 8), b0, m01, m02], 8) for x0 in (0, 5)]
    assert not np.array_equal(*seen)
    assert b1.size == m12.size


def test_who_drops_out_after_its_masked_vector_was_seen_keeps_its_summand_to_itself():
    """Of four, 2 is not in the list: its mask key is told, its seed never. 3 colludes. All masks at once, modulo 4."""
    b0, b1, b2, m01, m02, m03, m12, m13, m23 = cases(9, 4)
    pairs = {(0, 1): m01, (0, 2): m02, (0, 3): m03, (1, 2): m12, (1, 3): m13, (2, 3): m23}

    def view(x0, x1, x2):
        y = [masked(j, x, b, pairs, range(4), 4) for j, x, b in ((0, x0, b0), (1, x1, b1), (2, x2, b2))]
        return distribution([*y, b0, b1, m02, m12, m23, m03, m13], 4)

    first = view(0, 3, 0)
    for x0, x2 in [(1, 0), (3, 2), (0, 3), (2, 1)]:
        assert np.array_equal(view(x0, (3 - x0) % 4, x2), first)
    assert not np.array_equal(view(0, 2, 0), first), "another sum is another view"


@pytest.mark.parametrize("told", [(0,) * 9, (1, 2, 3, 4, 5, 6, 7, 0, 1)])
def test_two_of_five_learn_the_sum_of_the_other_three(told):
    """3 and 4 collude. What is revealed is uniform by itself; for any values of it the rest is enumerated, modulo 8."""
    m01, m02, m12 = cases(3, 8)
    fixed = [np.full(m01.size, value, "<u8") for value in told]
    pairs = {(0, 1): m01, (0, 2): m02, (1, 2): m12}
    pairs |= dict(zip([(0, 3), (0, 4), (1, 3), (1, 4), (2, 3), (2, 4)], fixed[3:], strict=True))

    def view(*summands):
        return distribution([masked(j, x, fixed[j], pairs, range(5), 8) for j, x in enumerate(summands)], 8)

    first = view(0, 0, 5)
    for x0, x1 in product(range(8), repeat=2):
        assert np.array_equal(view(x0, x1, (5 - x0 - x1) % 8), first)
    assert not np.array_equal(view(0, 0, 6), first)


def test_two_colluders_between_two_gaps_see_a_summand_where_partners_are_too_few():
    """Why lists that fall apart are refused: 0's only partners, in a circle of reach 2, are the colluders 3 and 4."""
    m03, m04, b0 = cases(3, 8)
    pairs = {(0, 3): m03, (0, 4): m04}
    seen = [distribution([masked(0, x0, b0, pairs, (3, 4), 8), b0, m03, m04], 8) for x0 in (1, 2)]
    assert not np.array_equal(*seen)
