"""Members that come and go in a simulated federation, and edges with them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from oracle import checked

from p2pfl.errors import UserError
from sim import AmendSpec, CrashSpec, World, WorldSpec, all_edges, describe, settle, simulate, steps_of

CHANGES = WorldSpec(
    amendments=(
        AmendSpec(at_s=0.2, join=(5,)),
        AmendSpec(at_s=0.3, leave=(1,), topology="complete"),
        AmendSpec(at_s=0.4, topology="base:k=1"),
    )
)


@pytest.fixture
def federation():
    described = describe(nodes=6, topology="ring", rounds=14)
    return replace(described, task=replace(described.task, name="quadratic", options={}))


def test_the_graph_is_that_of_those_who_are_members_then(federation):
    changes = replace(CHANGES, amendments=CHANGES.amendments[:2])
    first, joined, left = (step.federation for step in steps_of(federation, changes))
    assert first.edges == ((0, 1), (0, 4), (1, 2), (2, 3), (3, 4))
    assert first.retired == {5}
    assert joined.edges == ((0, 1), (0, 5), (1, 2), (2, 3), (3, 4), (4, 5))
    assert joined.retired == frozenset()
    assert left.retired == {1}
    assert len(left.edges) == 10
    assert not any(1 in edge for edge in left.edges)
    assert set(all_edges(steps_of(federation, changes))) == {*first.edges, *joined.edges, *left.edges}


@pytest.mark.long
def test_a_run_goes_on_through_all_changes_with_every_invariant_checked(federation):
    """Sum n_i x_i is what was booked; who leaves has stopped, who joins ends with the others."""
    report = checked(federation, world=replace(CHANGES, crashes=(CrashSpec(nodes=(2,), at_s=0.25, down_s=0.1),)))
    rounds = [node.rounds for node in report.nodes]
    assert rounds[1] < 14
    assert not report.nodes[1].finished
    assert min(rounds[:1] + rounds[2:]) >= 14
    assert all(node.finished for node in report.nodes if node.name != "node1")
    assert all(node.exchanges > 0 for node in report.nodes)


def test_a_file_says_the_same_as_a_program(federation, tmp_path):
    path = tmp_path / "world.toml"
    first = '[[amend]]\nat_s = 0.2\njoin = "node5"\n'
    second = '[[amend]]\nat_s = 0.3\nleave = [1]\ntopology = "complete"\n'
    path.write_text(first + second)
    names = [member.name for member in federation.members]
    read = World.from_file(path).spec(names)
    assert read.amendments == CHANGES.amendments[:2]
    assert settle(read, 6, 0).starts[0].nodes == (5,)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("join = 5", "amend[0].at_s"),
        ("at_s = 1\nnodes = 5", "amend[0].nodes"),
        ("at_s = 1\njoin = 77", "amend[0].join"),
        ("at_s = 1\nleave = [0,1,2,3,4]", "amend[0].leave"),
        ("at_s = 1e8\njoin = 5", "amend[0].at_s"),
        ("at_s = 1\njoin = 5\n[[amend]]\nat_s = 2\njoin = 5", "amend[0].join"),
        ("at_s = 1\njoin = 5\n[[join]]\nat_s = 2\nnodes = 5", "amend[0].join"),
        ("at_s = 2\njoin = 5\n[[amend]]\nat_s = 1\nleave = 5", "amend[1].leave"),
        ("at_s = 1\njoin = 5\n[[crash]]\nat_s = 0.5\nnodes = 5", "crash[0].at_s"),
        ('at_s = 1\njoin = 5\n[liars]\nnodes = 1\nattack = "sign-flip"', "amend"),
    ],
)
def test_what_contradicts_itself_is_named(federation, tmp_path, text, key):
    path = tmp_path / "world.toml"
    path.write_text(f"[[amend]]\n{text}\n")
    with pytest.raises(UserError) as refused:
        World.from_file(path).spec([member.name for member in federation.members])
    assert refused.value.key == key


@pytest.mark.parametrize("topology", ["no-such-graph", "edges:nowhere.txt"])
def test_a_graph_that_there_is_not_is_named_before_the_run(federation, topology):
    world = WorldSpec(amendments=(AmendSpec(at_s=1.0, topology=topology),))
    with pytest.raises(UserError) as refused:
        simulate(federation, world=world)
    assert refused.value.key == "amend[0].topology"
