"""Sums of one history: each is of whole groups, whoever dies, lies or is late, so two sums differ by no fewer."""

from __future__ import annotations

import random
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sum_world import Link, SumWorld, complete, ring

from p2pfl.features.sums import (
    Branch,
    BranchPart,
    Effects,
    GroupWave,
    KeptSums,
    MemberList,
    NewStatement,
    Post,
    Reveal,
    SetupOpening,
    SlotVote,
    SumHistory,
    VectorReady,
    Wave,
    Working,
    atoms,
    bits_of,
    decode_statement,
    is_sound,
    members_of,
)
from p2pfl.learn import check_of

LABELS = ("first", "second", "third")
STEPS = (VectorReady, GroupWave, BranchPart, MemberList, SlotVote, Reveal)
ABOUT_PARTS = ("the vector of", "two vectors of", "a seed of")
"""The findings of a watch that a liar brings about by a wrong part in another's name."""


def groups_of(count, colluders=1):
    number = max(1, count // (colluders + 2))
    bounds = [count * place // number for place in range(number + 1)]
    return tuple(frozenset(range(*bounds[place : place + 2])) for place in range(number))


class GroupWorld(SumWorld):
    """All sums are of the same data. The last entry of each vector is a check of the others, as in hidden models."""

    def __init__(self, count, edges, *, colluders=1, **changes):
        groups = changes.pop("groups", groups_of(count, colluders))
        super().__init__(count, edges, colluders=colluders, least=colluders + 2, groups=groups, **changes)
        self.groups, self.liar = groups, None
        self.data, see = lambda _: b"d" * 32, self.watch._see_vector
        self.watch._see_vector = lambda member, part: see(member, part) if len(part.vector) == 8 * self.size else None

    def vector(self, index, label):
        words = super().vector(index, label)
        words[-1] = check_of(words[:-1])
        return words

    def said(self, message):
        """The kind of a message, or of the statement in it."""
        return type(decode_statement(message.body) if isinstance(message, Post) else message)

    def at_first(self, kind, action, *, times=1, by=None):
        """Do something once a message of a kind was said so many times."""
        left, before = [times], self.on_message

        def watched(index, message):
            before(index, message)
            if left[0] and (by is None or index == by) and self.said(message) is kind:
                left[0] -= 1
                if not left[0]:
                    self.schedule(self.now, action)

        self.on_message = watched

    def let_state(self, index, make):
        """A member states what an honest one does not, if it has a set-up."""
        node = self.nodes[index]
        if node is not None and node.setup is not None:
            effects = Effects()
            node._state(make(node), self.now, effects)
            self.carry_out(index, effects)

    def lists(self):
        """The members of each list that has a certificate."""
        slots = {slot for slot, _ in self.watch.signed}
        return {
            each.members and frozenset(members_of(each.members))
            for slot in slots
            if slot[1] >= 0
            for each in self.watch.certified(slot)
        }

    def verdict(self):
        """(right, refused, spoiled, wrong) results: a spoiled one has a wrong check, so who asked for it refuses it."""
        right = spoiled = wrong = 0
        for _, done in self.done:
            exact = sum((self.vector(member, done.label) for member in done.members), np.zeros(self.size, "<u8"))
            if np.array_equal(done.total, exact):
                right += 1
            elif check_of(done.total[:-1]) != done.total[-1]:
                spoiled += 1
            else:
                wrong += 1
        return right, len(self.refused), spoiled, wrong

    def check_groups(self):
        """What holds in any world, even with a liar."""
        agreed = {}
        for _, done in self.done:
            assert agreed.setdefault((done.setup, done.number), done.members) == done.members
        found = [each for each in self.watch.found if not (self.liar is not None and each.startswith(ABOUT_PARTS))]
        assert not found, found
        for members in self.lists() | {frozenset(done.members) for _, done in self.done}:
            assert members
            assert members == frozenset().union(*(group for group in self.groups if group <= members)), members
        *_, spoiled, wrong = self.verdict()
        assert not wrong
        assert not spoiled or self.liar is not None


def wrong_part(world, chance, part):
    """A part as a liar passes it on: of one member alone, of others, of too many, of none, or garbage."""
    members = members_of(part.members)
    garbage = np.array([chance.getrandbits(64) for _ in range(world.size)], "<u8").tobytes()
    match chance.randrange(7):
        case 0 if members:
            return BranchPart(wave=part.wave, members=bits_of(members[:1]), vector=part.vector)
        case 1:
            return BranchPart(wave=part.wave, members=bits_of(range(world.count)), vector=part.vector)
        case 2:
            return BranchPart(wave=part.wave, members=b"", vector=b"")
        case 3:
            return BranchPart(wave=part.wave, members=part.members, vector=garbage)
        case 4:
            return BranchPart(wave=part.wave, members=bits_of({*members, world.liar}), vector=part.vector)
        case 5:
            return BranchPart(wave=part.wave, members=bits_of({world.liar}), vector=part.vector[8:])
    return part


def odd_statement(world, chance):
    """A wave or list of odd members, in the liar's name."""
    some = bits_of(chance.sample(range(world.count), chance.randint(0, world.count)))
    some = chance.choice([some, bits_of(chance.choice(world.groups)), bits_of({*range(world.count), world.count})])
    terms, epoch = world.terms(chance.choice(LABELS)), chance.choice([0, 1, 2, 7, 2**31])
    kind = chance.choice([GroupWave, GroupWave, Wave, MemberList])
    number = chance.randrange(3)

    def make(node):
        of = {"setup": node.setup.id, "number": number, "terms": terms}
        if kind is MemberList:
            return MemberList(**of, members=some, total=chance.randbytes(32))
        return GroupWave(**of, epoch=epoch, members=some) if kind is GroupWave else Wave(**of, epoch=epoch)

    return make


def let_lie(world, chance, until_s):
    """One member states odd things, and passes wrong parts on."""
    world.liar, send = chance.randrange(world.count), world._send
    share = chance.choice([0.0, 0.3, 1.0])

    def lie(index, peer, message):
        if index == world.liar and isinstance(message, BranchPart) and chance.random() < share:
            message = wrong_part(world, chance, message)
        send(index, peer, message)

    def state():
        with suppress(RuntimeError):
            world.let_state(world.liar, odd_statement(world, chance))

    world._send = lie
    for _ in range(chance.choice([0, 1, 5, 20])):
        world.schedule(chance.random() * until_s, state)


def drawn(seed):
    """A world with deaths at each step, restarts, partitions and a liar, all drawn from the seed."""
    chance = random.Random(f"groups {seed}")
    count, colluders = chance.choice([(3, 1), (4, 1), (6, 1), (6, 1), (7, 1), (9, 1), (8, 2)])
    edges = chance.choice([ring, complete, complete])(count)
    link = Link(delay_s=(0.005, chance.choice([0.05, 0.5])), loss=chance.choice([0.0, 0.0, 0.1, 0.3]))
    world = GroupWorld(count, edges, colluders=colluders, seed=seed, link=link)
    world.ask_all(*LABELS, spread_s=chance.choice([0.05, 2.0]))
    until_s = chance.choice([2.0, 8.0, 20.0])
    if chance.random() < 0.5:
        let_lie(world, chance, until_s)
    for _ in range(chance.randint(0, 3)):
        index, back_s = chance.randrange(count), chance.choice([None, chance.random() * 5])

        def die(index=index, back_s=back_s):
            world.crash(index)
            if back_s is not None:
                world.schedule(world.now + back_s, lambda: again(world, index))

        match chance.choice(["step", "step", "time", "cut"]):
            case "step":
                by = chance.choice([None, index])
                world.at_first(chance.choice(STEPS), die, times=chance.choice([1, 2, 5, 20]), by=by)
            case "time":
                world.schedule(chance.random() * until_s, die)
            case _:
                crossing = [edge for edge in edges if (edge[0] <= index) != (edge[1] <= index)]
                at = chance.random() * until_s
                world.schedule(at, lambda crossing=crossing: world.cut(crossing))
                world.schedule(at + (back_s or 1.0), world.heal)
    return world


def again(world, index):
    if world.nodes[index] is None:
        had = {done.label for at, done in world.done if at == index}
        world.start(index)
        label = next((label for label in LABELS if label not in had), None)
        if label is not None:
            world.ask(index, label)


def run(seed):
    world = drawn(seed)
    world.run(until_s=1e5)
    world.check_groups()
    return world.verdict()


def try_all(seeds):
    for seed in seeds:
        try:
            run(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


@pytest.mark.slow
@pytest.mark.parametrize("block", range(6))
def test_in_any_world_a_sum_is_of_whole_groups_and_right_or_refused(block):
    try_all(range(block * 10, block * 10 + 10))


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("block", range(10))
def test_in_a_thousand_worlds_a_sum_is_of_whole_groups_and_right_or_refused(block):
    try_all(range(block * 100, block * 100 + 100))


def sets_of(world, label):
    return {done.members for _, done in world.done if done.label == label}


def test_a_dead_member_takes_its_group_out_and_brings_it_back():
    world = GroupWorld(9, complete(9))
    world.ask_all("a", "b", "c", "d", pause_s=3.0)
    world.schedule(3.0, lambda: world.crash(4))
    world.schedule(8.5, lambda: (world.start(4), world.ask(4, "c")))
    world.run()
    world.check_groups()
    assert sets_of(world, "b") == {(0, 1, 2, 6, 7, 8)}
    assert sets_of(world, "c") == sets_of(world, "d") == {tuple(range(9))}
    assert not world.refused
    assert not world.held_up


def test_where_no_group_is_whole_without_it_who_sums_other_things_is_not_waited_for():
    """As a restarted member does, which begins a round again while the others are in the middle of it."""
    world = GroupWorld(5, complete(5))
    for member in range(5):
        world.ask(member, "again" if member == 2 else "one")
    world.run()
    assert {refused.reason for _, refused in world.refused} == {"member 2 sums other things"}
    assert not world.held_up


def test_where_no_group_is_whole_without_it_a_restarted_member_waits_no_longer_each_time():
    world, labels = GroupWorld(5, complete(5), sums=9), [f"round {number}" for number in range(8)]
    world.ask_all(*labels, pause_s=1.0)
    go_on, begun = world.on_outcome, set()

    def restart(index, effect):
        go_on(index, effect)
        if index == 2 and effect.label not in begun:
            begun.add(effect.label)
            world.crash(2)
            at = labels.index(effect.label) + 1
            world.schedule(world.now + 0.5, lambda: (world.start(2), at < len(labels) and world.ask(2, labels[at])))

    world.on_outcome = restart
    world.run()
    world.check_groups()
    assert (len(world.done), world.refused) == (5 * len(labels), [])


def restarted_in(label, kind, *, after_s=0.0, back_s=0.5, **link):
    """Member 2 of one whole group dies in a sum, `after_s` after it said something of that kind, and comes back.

    Return how many have that sum, how long after its death the last one ends it, and whom the others blame.
    """
    world, died, ended = GroupWorld(5, complete(5), size=1000, link=Link(delay_s=(0.002, 0.02), **link)), [], []
    world.ask_all("a", "b", "c", pause_s=8.0)
    go_on = world.on_outcome

    def on_outcome(index, effect):
        ended.append((effect.label, world.now))
        go_on(index, effect)

    def die():
        world.crash(2)
        world.schedule(world.now + back_s, lambda: world.start(2))

    def on_message(index, message):
        if index == 2 and len(ended) == 5 * "abc".index(label) and not died and world.said(message) is kind:
            died.append(world.now + after_s)
            world.schedule(died[0], die)

    world.on_outcome, world.on_message = on_outcome, on_message
    world.run()
    world.check_groups()
    last_s = max(at for of, at in ended if of == label) - died[0]
    return sum(done.label == label for _, done in world.done), last_s, {member for _, _, member, _ in world.held_up}


@pytest.mark.parametrize("label", "ac")
def test_where_no_group_is_whole_without_it_a_member_that_is_back_without_its_vector_is_not_waited_for(label):
    """The others know by its keys that it has forgotten the set-up, be that young or old; six waits are 3.5 s."""
    done, last_s, blamed = restarted_in(label, GroupWave)
    assert (done, blamed) == (0, set())
    assert last_s < 1.0


@pytest.mark.parametrize("bytes_per_s", [4e4, 1e9])
@pytest.mark.parametrize("label", "ac")
def test_a_sum_comes_about_where_the_part_of_a_restarted_member_was_in(label, bytes_per_s):
    done, *_ = restarted_in(label, BranchPart, after_s=8000 / bytes_per_s + 0.03, back_s=0.05, bytes_per_s=bytes_per_s)
    assert done == 4


@pytest.mark.parametrize(("slow_s", "members"), [(9.0, [6] * 4), (60.0, [6] + [3] * 3)])
def test_a_slower_member_is_waited_for_as_long_again_as_the_others_took(slow_s, members):
    world, labels = GroupWorld(6, complete(6), sums=8), [f"round {number}" for number in range(len(members))]
    world.ask_all(*labels, pause_s=[6.0] * 5 + [slow_s])
    world.run()
    world.check()
    assert [{len(each) for each in sets_of(world, label)} for label in labels] == [{each} for each in members]
    assert not world.refused
    assert not world.held_up


def test_a_member_that_was_late_once_is_waited_for_again(monkeypatch):
    monkeypatch.setattr("p2pfl.features.sums.summing.SPARED", 4)
    world, pauses = GroupWorld(6, complete(6), sums=6), [6.0] * 5 + [15.0]
    labels = [f"round {number}" for number in range(6)]
    world.ask_all(*labels, pause_s=pauses)
    go_on = world.on_outcome

    def catch_up(index, effect):
        has_more = any(sets_of(world, label) for label in labels[labels.index(effect.label) + 1 :])
        pauses[5] = 15.0 if world.now < 14 else 0.0 if has_more else 8.0
        go_on(index, effect)

    world.on_outcome = catch_up
    world.run()
    world.check()
    sizes = [len(next(iter(sets_of(world, label)))) for label in labels]
    assert sizes == [6, 3, 3, 3, 6, 6]


def test_the_next_set_up_without_a_member_takes_no_longer_than_the_first():
    world = GroupWorld(7, complete(7), sums=3)
    world.crash(5)
    world.ask_all(*[f"round {number}" for number in range(6)], pause_s=60.0)
    world.run()
    assert len(world.done) == 6 * 6
    assert world.now < 5 * 60 + 60


def test_where_no_group_is_whole_no_vector_leaves_and_nobody_is_blamed():
    """A wave that asks for nobody is one that no member may send: its author would be struck for it."""
    world = GroupWorld(6, complete(6))
    for member in (0, 1, 3, 4):
        world.schedule(0.1, lambda member=member: world.ask(member, "one"))
    world.run()
    assert {refused.reason for _, refused in world.refused} == {"no group is ready as a whole"}
    assert not world.held_up
    assert not any(isinstance(message, BranchPart) for _, message in world.messages)


def test_a_group_that_is_ready_after_the_wave_is_in_the_next_one():
    """It was not asked for its parts, so these are not lost, though another's are."""
    world = GroupWorld(9, complete(9), link=Link(delay_s=(0.01, 0.02)))
    for member in range(6):
        world.schedule(0.1, lambda member=member: world.ask(member, "one"))

    def late():
        world.crash(5)
        for member in (6, 7, 8):
            world.ask(member, "one")

    world.at_first(GroupWave, late)
    world.run()
    world.check_groups()
    assert sets_of(world, "one") == {(0, 1, 2, 6, 7, 8)}


@pytest.mark.parametrize("seed", range(12))
def test_the_living_behind_a_dead_parent_stay_in_the_sum(seed):
    """One wave has lost them, and the next finds them on another way; the same root asks at once."""
    world = GroupWorld(9, ring(9), seed=seed)
    world.ask_all("one")
    world.at_first(GroupWave, lambda: world.crash(1), by=2)
    world.run()
    world.check_groups()
    assert sets_of(world, "one") == {(3, 4, 5, 6, 7, 8)}
    assert {post.author for _, post in world.messages if world.said(post) is GroupWave} == {0}


def asking(*members):
    return GroupWave(setup=bytes(16), number=0, epoch=0, terms=bytes(32), members=bits_of(members))


PLAIN = Wave(setup=bytes(16), number=0, epoch=0, terms=bytes(32))


@pytest.mark.parametrize("wave", [asking(), asking(0, 1), asking(0, 1, 2, 3), asking(6, 7, 8), PLAIN])
def test_no_member_may_ask_for_a_part_of_a_group(wave):
    settings = GroupWorld(6, complete(6)).nodes[0].settings
    assert not is_sound(1, wave, settings)
    assert is_sound(1, asking(3, 4, 5), settings)
    assert is_sound(1, wave, GroupWorld(6, complete(6), groups=()).nodes[0].settings) is (wave is PLAIN)


def test_who_holds_its_part_back_is_named_and_its_group_goes_out():
    world = GroupWorld(6, [*complete(5), (0, 5)])
    send = world._send

    def hold(index, peer, message):
        is_held = index == 5 and isinstance(message, BranchPart)
        send(index, peer, Working(wave=message.wave, is_child=True) if is_held else message)

    world._send = hold
    world.ask_all("one")
    world.run()
    world.check_groups()
    assert sets_of(world, "one") == {(0, 1, 2)}
    assert {(by, member) for _, by, member, _ in world.held_up} == {(0, 5)}


def test_a_liar_that_proposes_a_part_of_a_group_is_found_out_and_stops_nobody():
    """Such a list would leave one member out, and its difference from another sum would be that one's vector."""
    world = GroupWorld(6, complete(6))
    world.liar = 0
    members = bits_of({0, 1, 2, 3, 4})

    def propose(node):
        of = {"setup": node.setup.id, "number": 0, "terms": world.terms("one")}
        return MemberList(**of, members=members, total=bytes(32))

    world.ask_all("one", "two")
    world.at_first(VectorReady, lambda: world.let_state(0, propose), by=0)
    world.run()
    world.check_groups()
    assert {by for _, by, member, why in world.held_up if member == 0 and "a part of a group" in why} == {1, 2, 3, 4, 5}
    assert not any(isinstance(statement, frozenset) and len(statement) == 5 for statement in world.lists())
    assert sets_of(world, "two") <= {(3, 4, 5), tuple(range(6))}


def branch(asked, own, *parts):
    taken = NewStatement(id=bytes(16), author=0, statement=asking(*asked), post=None, peer=None)
    vectors = {peer: (frozenset(members), np.full(size, 1, "<u8")) for peer, (members, size) in enumerate(parts)}
    return Branch(taken=taken, waiting=set(), parts=vectors).merged((own, bytes(32), np.full(4, 1, "<u8")))


def test_a_part_counts_only_if_it_is_of_members_who_were_asked():
    members, total = branch({0, 1, 2}, 0, ({1, 5}, 4), ({2}, 4))
    assert members == {0, 2}
    assert total.tolist() == [2] * 4


def test_a_part_of_another_size_keeps_no_right_part_out_where_the_own_vector_is_not_asked_for():
    """The root would propose a total of another size, and be blamed for it."""
    members, total = branch({0, 1, 2}, 5, ({1}, 3), ({0, 2}, 4))
    assert members == {0, 2}
    assert total.size == 4


def test_a_set_up_has_a_whole_group():
    """Else it serves no sum, and everybody would wait for the next one."""
    settings = GroupWorld(6, complete(6)).nodes[0].settings
    opening = SetupOpening(members=bits_of({0, 1, 3, 4}), keys=bytes(64))
    assert not is_sound(0, opening, settings)
    assert is_sound(0, SetupOpening(members=bits_of({0, 1, 2, 4}), keys=bytes(64)), settings)


def test_who_was_struck_is_left_out_only_where_a_whole_group_is_left():
    world = GroupWorld(4, complete(4))
    world.ask_all("a", "b", "c", "d", "e")
    for node in world.nodes.values():
        for _ in range(3):
            node.blame.strike(3, "it was slow")
    world.run()
    world.check_groups()
    assert sets_of(world, "e") == {(0, 1, 2, 3)}


@pytest.mark.parametrize("groups", [({0, 1}, {2, 3, 4, 5}), ({0, 1, 2}, {2, 3, 4, 5})])
def test_groups_are_disjoint_and_have_two_honest_members(groups):
    with pytest.raises(ValueError, match="groups"):
        GroupWorld(6, complete(6), groups=tuple(map(frozenset, groups)))


SETS = st.lists(st.frozensets(st.integers(0, 8), min_size=1), min_size=1, max_size=8)


@given(SETS, st.integers(1, 4))
def test_a_history_allows_the_same_by_atoms_as_by_all_its_sets(sets, least):
    history = SumHistory(least)
    for place, members in enumerate(sets):
        assert history.allows(b"d", members) == (atoms(sets[: place + 1])[0] >= least)
        history.keep(b"d", members)


def test_what_is_kept_of_sums_of_whole_groups_is_bounded_over_restarts(tmp_path):
    """Ten thousand rounds with one group or another out are no longer than a few."""
    chance, groups = random.Random(1), groups_of(30)
    for _ in range(3):
        kept = KeptSums(tmp_path, [bytes([index] * 32) for index in range(30)])
        for _ in range(300):
            kept.add(b"d" * 32, frozenset().union(*chance.sample(groups, chance.randint(1, 10))))
    assert len(kept.past) <= len(groups)
    history = SumHistory(3, kept.past)
    assert not history.allows(b"d" * 32, frozenset(range(29)))
    assert history.allows(b"d" * 32, frozenset(range(6, 30)))
