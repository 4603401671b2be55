"""Statements go along a tree: about one copy for each member, and all of them by other ways where the tree broke."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest

from p2pfl.features.sums import (
    LARGE_BYTES,
    MOST_LINKS,
    Branch,
    BranchPart,
    MemberList,
    Post,
    SendToNeighbor,
    Sums,
    Total,
    Wave,
    Working,
    decode_statement,
)

sys.path.insert(0, str(Path(__file__).parent))
from sum_world import SumWorld, complete

COUNT, VICTIM = 12, 5
LABELS = ("one", "two", "three", "four")


class Flooding(Sums):
    """Hands all on over all edges, as the version before did."""

    def _follow(self, effects):
        self._tree.latest = None


class Dropper(Sums):
    """Takes part, and hands nothing of others on."""

    def _settled(self, now, effects):
        return [each for each in super()._settled(now, effects) if not self._is_others(each)]

    def _is_others(self, effect):
        if not isinstance(effect, SendToNeighbor) or not isinstance(effect.message, Post):
            return False
        return effect.message.author != self.settings.index


class Pruner(Dropper):
    """Tells its neighbors, too, after each wave that it is in no tree with them."""

    def _follow(self, effects):
        branch = self._tree.latest
        super()._follow(effects)
        for peer in self._log.neighbors if branch is not None else ():
            effects.say(peer, Working(wave=branch.taken.id, is_child=False))


def edges_of(degree):
    return sorted(tuple(sorted(edge)) for edge in nx.random_regular_graph(degree, COUNT, seed=2).edges)


def world_of(degree=4, seed=0, make=Sums, labels=LABELS):
    world = SumWorld(COUNT, edges_of(degree), seed=seed, make=make, sums=8)
    world.ask_all(*labels, pause_s=0.5)
    return world


def kind_of(message):
    return type(decode_statement(message.body)) if isinstance(message, Post) else type(message)


def copies(world, first=0):
    """How often each statement, but for waves, was sent to each other member, on average; and each total."""
    messages = [message for _, message in world.messages[first:]]
    posts = Counter(each for each in messages if isinstance(each, Post) and kind_of(each) is not Wave)
    totals = Counter(each for each in messages if isinstance(each, Total))
    return [sum(of.values()) / len(of) / (COUNT - 1) for of in (posts, totals)]


@pytest.mark.parametrize("degree", [3, 4, 6])
def test_after_the_first_sum_a_statement_comes_to_each_member_about_once_and_a_total_once(degree):
    world = world_of(degree)
    first = []

    def look(*_):
        if len(world.done) == COUNT and not first:
            first.append(len(world.messages))

    world.on_message = look
    world.run()
    world.check()
    assert len(world.done) == COUNT * len(LABELS)
    of_statements, of_totals = copies(world, *first)
    assert of_statements < 1.2, "flooding takes 2 to 5"
    assert of_totals == 1.0


def outcome_of_second(make, fault, seed):
    """The second sum's members, by who has it, and its seconds, with a fault as its list is proposed."""
    world, asked_at, lists = world_of(seed=seed, make=make, labels=LABELS[:2]), [], []

    def look(_, message):
        if "two" in world.asked.values() and not asked_at:
            asked_at.append(world.now)
        if asked_at and kind_of(message) is MemberList and not lists:
            lists.append(message)
            world.later(lambda: fault(world))

    world.on_message = look
    world.run()
    world.check()
    done = {index: outcome.members for index, outcome in world.done if outcome.label == "two"}
    return done, world.now - asked_at[0], world.nodes[0].patience.wait_s


def silence(world):
    """Nothing comes from this member any more, and its sessions stay."""
    true = world._send
    world._send = lambda index, peer, message: None if index == VICTIM else true(index, peer, message)


FAULTS = {
    "nothing": lambda _: None,
    "a death": lambda world: world.crash(VICTIM),
    "a session that closes": lambda world: world.disconnect(next(edge for edge in world.edges if VICTIM in edge)),
    "all sessions of one member close and come back": lambda world: (
        world.cut([edge for edge in world.edges if VICTIM in edge]),
        world.schedule(world.now + 0.2, world.heal),
    ),
    "a silent member": silence,
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fault", list(FAULTS))
def test_where_the_tree_breaks_all_others_have_the_sum_less_than_a_wait_later_than_by_flooding(fault, seed):
    done, took_s, wait_s = outcome_of_second(Sums, FAULTS[fault], seed)
    flooded, flooded_s, _ = outcome_of_second(Flooding, FAULTS[fault], seed)
    assert set(range(COUNT)) - {VICTIM} <= done.keys()
    assert set(done.values()) == set(flooded.values())
    assert took_s < flooded_s + wait_s


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("liar", [Dropper, Pruner])
def test_a_member_that_hands_nothing_on_stops_nobody(liar, seed):
    took = {}
    for make in (Sums, Flooding):
        world = world_of(seed=seed, make=dict.fromkeys(range(COUNT), make) | {VICTIM: liar})
        world.run()
        world.check()
        assert len(world.done) == COUNT * len(LABELS)
        assert {done.members for _, done in world.done} == {tuple(range(COUNT))}
        took[make] = world.now
    assert took[Sums] < took[Flooding] + len(LABELS) * world.nodes[0].patience.wait_s


@pytest.mark.parametrize("seed", range(3))
def test_members_that_flood_as_before_and_members_with_a_tree_sum_together(seed):
    world = world_of(seed=seed, make={index: Flooding if index % 3 else Sums for index in range(COUNT)})
    world.run()
    world.check()
    assert len(world.done) == COUNT * len(LABELS)
    assert not world.held_up


def test_in_a_dense_graph_no_member_hands_to_all_what_all_others_say():
    """A wave's tree is a star there."""
    count = MOST_LINKS + 4
    world = SumWorld(count, complete(count), sums=8)
    world.ask_all("one", "two")
    world.run()
    world.check()
    by = Counter(sender for sender, message in world.messages if kind_of(message) not in {Wave, BranchPart, Total})
    assert max(by.values()) < 2 * min(by.values())


def test_once_a_sum_is_known_its_parts_are_freed_and_of_totals_the_latest_two_are_kept_where_they_are_large():
    world = SumWorld(4, complete(4), seed=3, size=LARGE_BYTES // 8 + 1, sums=6)
    world.ask_all("one", "two", "three", "four", "five")
    world.run()
    world.check()
    for node in world.nodes.values():
        tree = node._tree
        parts = [vector.size for branch in tree._branches.values() for _, vector in branch.parts.values()]
        sent = [branch.sent for branch in tree._branches.values() if isinstance(branch.sent, BranchPart)]
        assert sum(parts) == len(sent) == len(tree.own) == len(tree.gathered) == 0
        assert {total.number for _, total in tree._totals.values()} <= {3, 4}


def test_a_part_without_a_vector_and_a_right_one_are_no_error_of_a_node_that_carries_both():
    taken = SimpleNamespace(wave=Wave(setup=bytes(16), number=0, epoch=0, terms=bytes(32)))
    parts = {1: (frozenset({1}), np.zeros(0, "<u8")), 2: (frozenset({2}), np.ones(3, "<u8"))}
    members, total = Branch(taken=taken, waiting=set(), parts=parts).merged(None)
    assert (members, total.size) == ({1}, 0)
