"""Whatever is lost, doubled, late, cut off or dead: a sum is exactly that of the members who are named, or refused."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sum_world import Link, SumWorld, complete, ring

LABELS = ("first", "second", "third")


def faulty(seed):
    """A world with faults, all drawn from the seed; `python -c` with the seed shows it again."""
    chance = random.Random(seed)
    count = chance.choice([3, 4, 5, 6, 7])
    edges = chance.choice([ring, complete])(count)
    link = Link(
        delay_s=(0.005, chance.choice([0.05, 0.5])),
        loss=chance.choice([0.0, 0.0, 0.1, 0.3]),
        twice=chance.choice([0.0, 0.2]),
    )
    world = SumWorld(count, edges, seed=seed, link=link)
    world.ask_all(*LABELS, spread_s=chance.choice([0.05, 2.0]))
    until_s = chance.choice([1.0, 4.0, 20.0])
    for _ in range(chance.randint(0, 4)):
        at, index, back_s = chance.random() * until_s, chance.randrange(count), chance.random() * 5
        match chance.choice(["crash", "restart", "cut"]):
            case "crash":
                world.schedule(at, lambda index=index: world.crash(index))
            case "restart":
                world.schedule(at, lambda index=index: world.crash(index))
                world.schedule(at + back_s, lambda index=index: again(world, index))
            case _:
                crossing = [edge for edge in edges if (edge[0] <= index) != (edge[1] <= index)]
                world.schedule(at, lambda crossing=crossing: world.cut(crossing))
                world.schedule(at + back_s, world.heal)
    return world


def restless(seed):
    """A world in which members are restarted time and again, so that most set-ups come to nothing."""
    chance = random.Random(f"restless {seed}")
    count = chance.choice([3, 4, 5, 6, 7])
    edges = chance.choice([ring, complete])(count)
    link = Link(
        delay_s=(0.005, chance.choice([0.05, 0.5])),
        loss=chance.choice([0.0, 0.1, 0.3, 0.5]),
        twice=chance.choice([0.0, 0.2]),
    )
    world = SumWorld(count, edges, seed=seed, link=link, sums=chance.choice([3, 8]))
    labels = tuple("abcdef"[: chance.choice([3, 6])])
    world.ask_all(*labels, spread_s=chance.choice([0.05, 2.0]), pause_s=chance.choice([0.1, 1.0, 5.0]))
    until_s = chance.choice([4.0, 20.0, 60.0])
    for _ in range(chance.randint(4, 24)):
        at, index, back_s = (
            chance.random() * until_s,
            chance.randrange(count),
            chance.random() * chance.choice([0.2, 2, 5]),
        )
        if chance.choice(["restart", "restart", "restart", "cut"]) == "restart":
            world.schedule(at, lambda index=index: world.crash(index))
            world.schedule(at + back_s, lambda index=index: again(world, index, labels))
        else:
            crossing = [edge for edge in edges if (edge[0] <= index) != (edge[1] <= index)]
            world.schedule(at, lambda crossing=crossing: world.cut(crossing))
            world.schedule(at + back_s, world.heal)
    return world


def again(world, index, labels=LABELS):
    if world.nodes[index] is None:
        had = {done.label for at, done in world.done if at == index}
        world.start(index)
        label = next((label for label in labels if label not in had), None)
        if label is not None:
            world.ask(index, label)


def run(seed, draw=faulty):
    world = draw(seed)
    world.run(until_s=1e5)
    world.check()


@settings(max_examples=settings.default.max_examples // 2)
@given(st.integers(0, 2**32))
def test_in_any_world_a_sum_is_that_of_the_named_members_or_refused(seed):
    run(seed)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("draw", [faulty, restless])
@pytest.mark.parametrize("block", range(20))
def test_in_thousands_of_worlds_a_sum_is_that_of_the_named_members_or_refused(block, draw):
    for seed in range(block * 100, block * 100 + 100):
        try:
            run(seed, draw)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


@pytest.mark.parametrize(("draw", "seed"), [(faulty, 668), pytest.param(restless, 1103, marks=pytest.mark.long)])
def test_a_member_ends_its_part_in_a_set_up_of_which_nothing_is_kept_any_more(draw, seed):
    """It has begun many others since, which came to nothing."""
    run(seed, draw)


@settings(max_examples=settings.default.max_examples // 2)
@given(st.integers(0, 2**32), st.sampled_from([3, 4, 5, 8]), st.sampled_from([ring, complete]))
def test_where_nothing_fails_all_sums_are_done_and_of_all_members(seed, count, graph):
    world = SumWorld(count, graph(count), seed=seed, link=Link(delay_s=(0.001, 0.2), twice=0.2))
    world.ask_all(*LABELS)
    world.run()
    world.check()
    assert not world.refused
    assert {done.members for _, done in world.done} == {tuple(range(count))}
    assert len(world.done) == 3 * count


def test_a_set_up_that_is_used_up_is_followed_by_another():
    world = SumWorld(4, ring(4))
    world.ask_all(*"abcdefg")
    world.run()
    world.check()
    assert len({done.setup for _, done in world.done}) == 3
    assert len(world.done) == 28


def test_the_larger_side_of_a_partition_gets_a_sum_and_the_smaller_one_is_refused():
    world = SumWorld(5, complete(5))
    world.ask_all("one", "two", pause_s=1.0)
    go_on = world.on_outcome

    def part_when_all_have_one(index, effect):
        go_on(index, effect)
        if len(world.done) == 5:
            world.cut([(index, 4) for index in range(4)])

    world.on_outcome = part_when_all_have_one
    world.run()
    world.check()
    assert {(index, done.members) for index, done in world.done if done.label == "two"} == {
        (index, (0, 1, 2, 3)) for index in range(4)
    }
    assert [(index, refused.reason) for index, refused in world.refused] == [(4, "too few members are ready")]


def test_a_member_that_has_forgotten_how_often_it_started_is_in_the_next_set_up():
    world = SumWorld(4, complete(4))
    world.ask_all(*"abcdef", pause_s=3.0)
    world.schedule(1.5, lambda: world.crash(1))

    def back():
        world.lives[1] = 0
        world.start(1)
        world.ask(1, "b")

    world.schedule(2.0, back)
    world.run()
    world.check()
    assert any(1 in done.members for _, done in world.done if done.label in "def")


def test_a_restarted_member_signs_nothing_in_the_set_up_that_it_has_forgotten():
    world = SumWorld(5, complete(5), sums=8)
    world.ask_all("a", "b", "c", "d", "e", "f", "g", pause_s=4.0)
    world.schedule(2.0, lambda: world.crash(1))
    world.schedule(3.0, lambda: (world.start(1), world.ask(1, "b")))
    world.run()
    world.check()
    first = world.done[0][1].setup
    signers = {author for (slot, author) in world.watch.signed if slot[0] == first and slot[1] >= 2}
    assert 1 not in signers
    assert any(1 in done.members for _, done in world.done if done.setup != first), "it is in the next set-up"
