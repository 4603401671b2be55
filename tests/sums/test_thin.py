"""Statements go along a tree: about one copy for each member, and all of them by other ways where the tree broke."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sum_world import SumWorld, complete, posted

from p2pfl.errors import PeerFault
from p2pfl.features.sums import (
    LARGE_BYTES,
    MOST_KNOWN,
    MOST_LINKS,
    Branch,
    BranchPart,
    Keys,
    MemberList,
    Outgoing,
    Post,
    Reveal,
    SendToNeighbor,
    Shorthand,
    SlotVote,
    Sums,
    ThinPost,
    Total,
    VectorReady,
    Wave,
    Working,
    decode_statement,
    encode_statement,
    id_of,
)
from p2pfl.features.sums.talk import THIN

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


# -- seeds without a signature ----------------------------------------------------------------------------------------


class Older(Sums):
    """The version before: it signs all that it says, and takes what is not signed for a fault."""

    def __init__(self, settings, *arguments, **how):
        super().__init__(replace(settings, is_plain=False), *arguments, **how)

    def hear(self, peer, message, now):
        assert not isinstance(message, Post) or message.signature
        return super().hear(peer, message, now)


class MixedWorld(SumWorld):
    """Sends nothing without a signature to an older member, as `Outgoing` does not."""

    def _send(self, index, peer, message):
        if not (isinstance(message, Post) and not message.signature and isinstance(self.nodes[peer], Older)):
            super()._send(index, peer, message)


def reveals(world, first=0):
    return [each for _, each in world.messages[first:] if kind_of(each) is Reveal]


def test_seeds_are_revealed_without_a_signature_only_where_all_members_of_the_set_up_understand_it():
    world = world_of()
    world.run()
    assert {each.signature for each in reveals(world)} == {b""}
    mixed = MixedWorld(COUNT, edges_of(4), make=dict.fromkeys(range(COUNT), Sums) | {VICTIM: Older}, sums=8)
    mixed.ask_all(*LABELS, pause_s=0.5)
    mixed.run()
    mixed.check()
    assert len(mixed.done) == COUNT * len(LABELS)
    assert all(each.signature for each in reveals(mixed))
    assert not mixed.held_up


@pytest.mark.parametrize("seed", range(2))
def test_members_are_upgraded_one_after_the_other_and_one_goes_back_while_sums_go_on(seed):
    """One that goes back in the middle of a set-up carries no seeds in it."""
    count, make = 5, dict.fromkeys(range(5), Older)
    world = MixedWorld(count, complete(count), seed=seed, make=make, sums=8)

    def ask(label):
        for index in range(count):
            world.ask(index, label)

    def change(index, to):
        world.crash(index)
        make[index] = to
        world.start(index)

    for number in range(70):
        world.schedule(5.0 * number, lambda number=number: ask(f"sum {number}"))
    for index in range(count):
        world.schedule(22.0 + 50.0 * index, lambda index=index: change(index, Sums))
    world.schedule(302.0, lambda: change(2, Older))
    world.run()
    world.check()
    signed = [bool(each.signature) for each in reveals(world)]
    assert signed[0]
    assert signed[-1]
    assert not all(signed)
    assert {done.members for _, done in world.done[-count:]} == {tuple(range(count))}
    assert len(world.done) > 40 * count


def drawn_of(world, author):
    """The keys that a member has said, and the seed that it reveals in the first sum."""
    of = [decode_statement(each.body) for _, each in world.messages if isinstance(each, Post) and each.author == author]
    keys = next(each for each in of if isinstance(each, Keys))
    return keys, next(each for each in of if isinstance(each, Reveal))


@pytest.mark.parametrize(
    "change",
    [
        {"own": bytes(32)},
        {"own": b""},
        {"number": 1},
        {"shares": ((1, bytes(32)),)},
    ],
)
def test_whoever_hands_on_a_changed_seed_is_at_fault_and_its_owner_is_not_struck(change):
    world = SumWorld(4, complete(4))
    world.ask_all("one")
    world.run()
    _, reveal = drawn_of(world, 2)
    changed = msgspec.structs.replace(reveal, **change)
    node, others = world.nodes[0], []
    for body in (encode_statement(changed), encode_statement(reveal).replace(b"\xc4\x20", b"\xc5\x00\x20")):
        others.append(body)
        with pytest.raises(PeerFault):
            node.hear(1, Post(author=2, body=body, signature=b""), world.now)
    with pytest.raises(PeerFault):
        node.hear(1, Post(author=3, body=encode_statement(reveal), signature=b""), world.now)
    assert not node.blame.is_struck(2)
    assert not world.held_up
    assert decode_statement(others[1]) == reveal  # its bytes alone differ


def test_a_seed_whose_set_up_is_not_known_here_is_no_fault_and_not_kept():
    world = SumWorld(4, complete(4))
    world.ask_all("one")
    world.run()
    _, reveal = drawn_of(world, 2)
    other = SumWorld(4, complete(4), seed=1)
    other.nodes[0].hear(1, Post(author=2, body=encode_statement(reveal), signature=b""), 0.0)
    assert not other.held_up


def test_a_member_that_was_restarted_hands_seeds_on_although_its_own_keys_of_before_are_not_kept():
    """All ways between the others of two halves lead through it."""
    count, middle = 16, 7
    world = SumWorld(count, [*complete(middle + 1), *((a + middle, b + middle) for a, b in complete(count - middle))])
    world.ask_all("one")
    world.run()
    first, world.on_outcome = len(world.messages), lambda *_: None
    world.crash(middle)
    world.start(middle)
    for index in {*range(count)} - {middle}:
        world.ask(index, "two")
    world.run()
    world.check()
    assert {done.members for _, done in world.done if done.label == "two"} == {(*range(middle), *range(8, count))}
    assert {bool(each.signature) for each in reveals(world, first)} == {True, False}
    assert not world.held_up


# -- posts in short ---------------------------------------------------------------------------------------------------


def carried(posts):
    """The posts at the other end of a session, and their bytes on the way."""
    mine, theirs, came, sizes = Shorthand(), Shorthand(), [], []
    for post in posts:
        thin = mine.thin(post)
        if thin is not None:
            mine.whole(thin)
            body = THIN.pack(thin).body
            came.append(theirs.whole(THIN.unpack(body)))
            sizes.append(len(body))
    return came, sizes


ids = st.integers(0, 100).map(lambda number: bytes([number]) * 16)
numbers = st.integers(0, 511)
terms = st.integers(0, 100).map(lambda number: bytes([number]) * 32)
statements = st.one_of(
    st.builds(VectorReady, setup=ids, number=numbers, terms=terms),
    st.builds(Wave, setup=ids, number=numbers, epoch=numbers, terms=terms),
    st.builds(SlotVote, setup=ids, number=numbers, chosen=ids),
    st.builds(MemberList, setup=ids, number=numbers, members=st.binary(max_size=2), terms=terms, total=terms),
    st.builds(Reveal, setup=ids, number=numbers, own=terms, shares=st.just(((3, bytes(32)),))),
)


@given(st.lists(statements, max_size=3 * MOST_KNOWN))
def test_posts_in_short_are_the_same_at_the_other_end(all_of_them):
    posts = [posted(1, each) for each in all_of_them]
    assert carried(posts)[0] == posts


def test_what_a_session_has_named_takes_one_byte_each():
    ready = posted(1, VectorReady(setup=bytes(16), number=3, terms=bytes(32)))
    proposal = MemberList(setup=bytes(16), number=3, members=b"\xff", terms=bytes(32), total=bytes(32))
    listed = posted(0, proposal)
    vote = posted(1, SlotVote(setup=bytes(16), number=3, chosen=id_of(0, listed.body)))
    assert carried([ready, ready, listed, vote])[1][1::2] == [74, 74]


@pytest.mark.parametrize(
    "statement",
    [[], [5], [5, 0, 3, 7], [[5]], [99, b""], [5, b"x" * 40, 3, b""], [5, None, 3, None], [8, bytes(16), 3, {"a": 1}]],
)
def test_a_short_post_that_names_nothing_known_is_a_fault(statement):
    thin = THIN.unpack(THIN.pack(ThinPost(author=1, statement=statement, signature=b"")).body)
    with pytest.raises(PeerFault):
        Shorthand().whole(thin)


def test_a_neighbor_of_the_version_before_gets_whole_posts_and_none_without_a_signature():
    said = []
    outgoing = Outgoing(lambda message: said.append(message) or True)
    signed = posted(1, VectorReady(setup=bytes(16), number=3, terms=bytes(32)))
    bare = Post(
        author=1, body=encode_statement(Reveal(setup=bytes(16), number=3, own=bytes(32), shares=())), signature=b""
    )
    outgoing.put(bare)
    outgoing.put(signed)
    assert said == [signed]
    outgoing.short = Shorthand()
    outgoing.put(bare)
    assert isinstance(said[1], ThinPost)
    assert Shorthand().whole(said[1]) == bare
