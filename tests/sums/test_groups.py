"""Sums of one history: each is of whole groups, whoever dies, lies or is late, so two sums differ by no fewer."""

from __future__ import annotations

import random
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pfl.features.sums import (
    BranchPart,
    Effects,
    GroupWave,
    MemberList,
    Post,
    Reveal,
    SlotVote,
    VectorReady,
    Wave,
    bits_of,
    decode_statement,
    members_of,
)
from p2pfl.learn.averaging import check_of

sys.path.insert(0, str(Path(__file__).parent))
from sum_world import Link, SumWorld, complete, ring

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
        """(right, refused, wrong) results. A sum whose check is wrong is refused by who asked for it."""
        right = spoiled = wrong = 0
        for _, done in self.done:
            exact = sum((self.vector(member, done.label) for member in done.members), np.zeros(self.size, "<u8"))
            if np.array_equal(done.total, exact):
                right += 1
            elif check_of(done.total[:-1]) != done.total[-1]:
                spoiled += 1
            else:
                wrong += 1
        return right, spoiled + len(self.refused), wrong

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
        assert self.verdict()[2] == 0


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
