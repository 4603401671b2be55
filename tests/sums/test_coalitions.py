"""What coalitions work out of sums: nothing but sums, whatever they do; and planted mistakes are found.

`test_attacks.py` has more of both, with what honest members may say.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from coalition_kit import (
    DEEDS,
    claimed_death,
    combinations_without,
    difference,
    played,
    rank,
    reduced,
    signed,
    smallest,
    two_lists,
)
from sum_world import complete, ring

from p2pfl.features.sums import SetupSecrets, SumSettings, SumSetup, stream
from sim import attack_sums, describe, sums_mistakes

SETUP = "p2pfl.features.sums.setup"
SHORT = (two_lists, claimed_death, difference)


def mistakes(world, size=1):
    """Of all coalitions of that size; where some cheat, of those alone."""
    tried = [world.colluders] if world.colluders else combinations(range(world.count - 1), size)
    return {mistake for members in tried for mistake in world.mistakes(members)}


@pytest.mark.parametrize("edges", [ring(5), complete(5)])
def test_as_it_is_one_learns_sums_and_two_together_all_of_a_third(edges):
    world = played(edges=edges)
    assert mistakes(world) == set()
    assert len(world.done) == 10
    columns, rows, promised, _ = world.knowledge((0, 3))
    assert rank([*promised, *rows]) > rank(promised)
    assert len(smallest(rows, columns, 5)) == 1


@pytest.mark.parametrize(
    "deed", [pytest.param(deed, marks=() if deed in SHORT else pytest.mark.long) for deed in DEEDS]
)
def test_no_deed_makes_the_honest_reveal_more(deed):
    assert mistakes(played(deed, edges=ring(5))) == set()


@pytest.mark.long
@pytest.mark.parametrize("edges", [ring(7), complete(7)])
@pytest.mark.parametrize("deed", DEEDS)
def test_seven_hold_against_two_in_every_deed(deed, edges):
    assert mistakes(played(deed, count=7, colluders=2, edges=edges), 2) == set()


def test_the_deeds_do_what_they_say():
    """Of the claimed death a list without the victim is certified; the same data again are refused."""
    dead, twice = (played(deed, edges=ring(5)) for deed in (claimed_death, difference))
    first = [done.members for at, done in dead.done if at and done.label == "0"]
    assert len(first) == 4
    assert not any(4 in members for members in first)
    assert [sum(1 for at, done in twice.done if at and done.label == label) for label in "01"] == [4, 0]


# Planted mistakes.


def test_a_secret_that_serves_two_sums_is_found(monkeypatch):
    true = SetupSecrets.__init__

    def once(self, draw, sums):
        true(self, draw, sums)
        self.seeds = [self.seeds[0]] * sums

    monkeypatch.setattr(SetupSecrets, "__init__", once)
    assert "a secret of two sums" in mistakes(played(edges=ring(5)))


def no_threshold(monkeypatch):
    monkeypatch.setattr(SumSettings, "threshold", property(lambda self: self.colluders))


def no_pairs(monkeypatch):
    """Then the seed that a member reveals of its own unmasks it."""
    monkeypatch.setattr(SumSetup, "_pair_stream", lambda *each: np.zeros(each[-1], "<u8"))


def no_last_bit(monkeypatch):
    true = stream
    monkeypatch.setattr(f"{SETUP}.stream", lambda seed, size: true(seed, size) & ~np.uint64(1))


def half_of_the_width(monkeypatch):
    true = stream
    monkeypatch.setattr(f"{SETUP}.stream", lambda seed, size: true(seed, size) >> np.uint64(32))


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (no_threshold, "both secrets of a sum"),
        (no_pairs, "more than the sums"),
        (no_last_bit, "more than the sums"),
        (half_of_the_width, "not as good as random"),
    ],
)
def test_a_planted_mistake_is_found(monkeypatch, plant, said):
    plant(monkeypatch)
    assert said in mistakes(played(edges=complete(5)))


@pytest.mark.parametrize(
    ("plant", "said"), [(no_threshold, "can tell both secrets of"), (no_pairs, "can work out the vector of")]
)
def test_a_planted_mistake_is_found_by_the_attack_of_a_user(monkeypatch, plant, said):
    federation = describe(nodes=4, topology="complete")
    assert sums_mistakes(attack_sums(federation, 3)) == []
    plant(monkeypatch)
    assert any(said in mistake for mistake in sums_mistakes(attack_sums(federation, 3)))


def test_combinations_without_masks_are_all_found_and_no_others():
    chance = np.random.default_rng(1)
    a, b, c, d = chance.integers(0, 2**64, (4, 80), dtype="<u8")
    rows = np.array([a, a + b, b, c, 2 * d, c + 4 * d + a])
    found = reduced(signed(combinations_without(rows, np.eye(6, dtype="<u8"))))
    assert rank(found) == 3, "and the last bit of d"
    for true in ([1, -1, 1, 0, 0, 0], [-1, 0, 0, -1, -2, 1], [0, 0, 0, 0, 1, 0]):
        assert rank([*found, true]) == 3
    assert rank([*found, [1, 0, 0, 0, 0, 0]]) == 4
