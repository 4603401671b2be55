"""Turns: in which versions an edge is active, and how many turns lie between two versions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.core.settings import ALWAYS, Conservative, Turns, schedule_index, turns_of

TURNS = st.integers(1, 9).flatmap(
    lambda period: st.builds(
        lambda phases: Turns(period, tuple(sorted(phases))), st.sets(st.integers(0, period - 1), min_size=1)
    )
)


@given(turns=TURNS, known=st.integers(0, 60), rounds=st.integers(0, 60))
def test_the_turns_between_two_versions_are_the_active_ones_after_the_first_up_to_the_second(turns, known, rounds):
    counted = sum(turns.is_active(version) for version in range(known + 1, known + rounds + 1))
    assert turns.turns_between(known, known + rounds) == counted


@given(turns=TURNS, version=st.integers(0, 60))
def test_active_are_the_versions_that_are_a_phase_modulo_the_period(turns, version):
    assert turns.is_active(version) == (version % turns.period in turns.phases)


@given(known=st.integers(0, 2**53), now=st.integers(0, 2**53))
def test_on_a_static_graph_turns_are_rounds(known, now):
    assert ALWAYS.is_active(now)
    assert ALWAYS.turns_between(known, now) == max(0, now - known)


@pytest.mark.parametrize(("version", "closing", "expected"), [(7, None, 7), (7, 0, 7), (8, 1, 1), (12, 5, 5)])
def test_the_version_selects_the_graph_until_the_closing_rounds_do(version, closing, expected):
    assert schedule_index(version, closing) == expected


SCHEDULE = (((0, 1), (2, 3)), ((0, 2), (1, 3), (0, 1)), ())


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (0, {1: Turns(3, (0, 1)), 2: Turns(3, (1,))}),
        (3, {1: Turns(3, (1,)), 2: Turns(3, (0,))}),
        (4, {}),
    ],
)
def test_each_node_reads_the_turns_of_its_own_edges_from_the_schedule(index, expected):
    assert turns_of(index, SCHEDULE) == expected


def test_the_degree_of_a_node_in_a_schedule_is_the_largest_of_any_round():
    assert [Conservative().degree(turns_of(index, SCHEDULE)) for index in range(5)] == [2, 2, 1, 1, 0]
    assert Conservative().degree({1: ALWAYS, 2: ALWAYS}) == 2
