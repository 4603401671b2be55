"""What nodes hold against a neighbor is put together for a reader without losing who holds it."""

from __future__ import annotations

from p2pfl.reporting import HeldAgainst, NeighborStatus, NodeReport, held_against, in_words


def node(name, **faults):
    """`faults` by neighbor."""
    neighbors = [
        NeighborStatus(
            name=peer,
            compressor="q4",
            bytes_sent=0,
            messages_sent=0,
            standing=0.5,
            faults=kinds,
            quarantines=int("flood" in kinds),
        )
        for peer, kinds in faults.items()
    ]
    return NodeReport(name=name, neighbors=neighbors)


def test_only_neighbors_with_a_proven_fault_are_listed_with_who_proved_it():
    (held,) = held_against([node("a", b={}, c={"payload": 2}), node("b", a={})])
    assert held == HeldAgainst(node="a", neighbor="c", standing=0.5, faults={"payload": 2}, quarantines=0)


def test_a_node_that_left_no_result_holds_nothing_against_anybody():
    assert held_against([NodeReport(name="a", neighbors=None)]) == []


def test_faults_of_one_neighbor_are_added_over_those_who_tell_them():
    held = held_against([node("a", c={"payload": 2}), node("b", c={"payload": 1, "flood": 4})])
    assert in_words(held) == "c: flood 4, payload 3, told by 2 neighbors, quarantined by 1"


def test_several_are_told_by_name_and_nobody_not_at_all():
    held = held_against([node("a", c={"audit": 1}, b={"audit": 1})])
    assert in_words(held) == "b: audit 1, told by 1 neighbor; c: audit 1, told by 1 neighbor"
    assert in_words([]) is None
