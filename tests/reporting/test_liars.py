"""How many liars a node is said to bear, in figures and in a sentence."""

from __future__ import annotations

import pytest

from p2pfl.reporting import Bearing, bearings, contraction, names
from sim import describe


@pytest.mark.parametrize(
    ("neighbors", "liars", "mixes", "borne"),
    [(2, 1, False, 0), (3, 1, True, 1), (4, 2, False, 0), (5, 2, True, 2), (8, 1, True, 1), (0, 1, False, 0)],
)
def test_a_node_mixes_with_more_than_2b_neighbors_and_bears_b_only_then(neighbors, liars, mixes, borne):
    found = Bearing(rule="median", neighbors=neighbors, liars=liars, needed=2 * liars + 1)
    assert (found.mixes, found.borne) == (mixes, borne)


@pytest.mark.parametrize(
    ("rule", "neighbors", "liars", "sentence"),
    [
        ("mean", 5, 0, 'tolerates 0 malicious neighbors of 5: rule = "mean" trusts all of them'),
        (
            "median:b=1",
            5,
            1,
            "tolerates 1 malicious neighbor of 5 under median:b=1, and mixes while 3 of them are connected",
        ),
        ("cs+:b=2", 4, 2, "mixes with nobody: cs+:b=2 needs 5 neighbors and has 4"),
    ],
)
def test_the_sentence_says_what_it_bears_and_what_it_needs(rule, neighbors, liars, sentence):
    assert str(Bearing(rule=rule, neighbors=neighbors, liars=liars, needed=2 * liars + 1)) == sentence


def test_neighbors_are_counted_for_each_member():
    star = describe(nodes=4, topology="star", rule="median:b=1")
    assert [(one.neighbors, one.borne) for one in bearings(star)] == [(3, 1), (1, 0), (1, 0), (1, 0)]


def test_a_rule_needs_more_than_2b_neighbors():
    assert {one.needed for one in bearings(describe(nodes=9, topology="complete", rule="median:b=2"))} == {5}


def test_the_mean_bears_nobody_however_many_neighbors_there_are():
    assert [one.borne for one in bearings(describe(nodes=6, topology="complete", rule="mean"))] == [0] * 6


def test_in_a_schedule_all_neighbors_count_not_those_of_one_round():
    schedule = describe(nodes=8, topology="one-peer-hypercube", rule="median:b=1")
    assert [(one.neighbors, one.mixes) for one in bearings(schedule)] == [(3, True)] * 8


def test_beyond_a_few_names_are_counted():
    many = describe(nodes=8, topology="ring")
    assert names(many, [0, 1]) == "node0, node1"
    assert names(many, range(8)) == "node0, node1, node2, node3, node4 and 3 more"


def test_no_contraction_is_predicted_where_no_laplacian_step_is_taken():
    """The rule's result depends on the values, so no factor of the graph bounds it."""
    samples = [100] * 8
    assert contraction(describe(nodes=8, rule="median:b=1"), samples, []).predicted is None
    assert contraction(describe(nodes=8, rule="mean"), samples, []).predicted is not None
    assert contraction(describe(nodes=8, rule="mean"), [None] * 8, []).predicted is None, "nobody was there to mix"
