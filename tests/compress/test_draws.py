"""Chance that both ends compute."""

from __future__ import annotations

import numpy as np
import pytest

from p2pfl.compress.interface import bits, seeds_of, words


def test_words_are_those_of_the_reference_implementation_of_splitmix64():
    """Seed 1234567 as in https://rosettacode.org/wiki/Pseudo-random_numbers/Splitmix64; seed 0 as in java.util."""
    assert words([1234567], 0, 3).tolist() == [[6457827717110365317, 3203168211198807973, 9817491932198370423]]
    assert words([0], 0, 3).tolist() == [[0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]]


def test_a_word_depends_on_its_seed_and_place_alone():
    seeds = [0, 7, 2**64 - 1]
    every = words(seeds, 0, 50)
    for row, seed in enumerate(seeds):
        assert words([seed], 13, 20).tolist() == [every[row, 13:33].tolist()]


@pytest.mark.parametrize(("first", "count"), [(0, 0), (0, 1), (0, 64), (1, 63), (1, 64), (63, 2), (130, 200)])
def test_bits_are_those_of_the_words_from_the_lowest_on(first, count):
    drawn = words([3, 2**63], 0, 8).tolist()
    wanted = [[row[i // 64] >> i % 64 & 1 for i in range(first, first + count)] for row in drawn]
    assert bits(np.array([3, 2**63], np.uint64), first, count).tolist() == wanted


@pytest.mark.parametrize("chances", [None, [], [1], [1, 2, 3]])
def test_every_row_wants_a_chance(chances):
    with pytest.raises(ValueError, match="a chance for each of 2 rows"):
        seeds_of(chances, 2)
