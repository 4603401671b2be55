"""Many members and many sums: what a member keeps is bounded, what has come once costs nothing again."""

from __future__ import annotations

from collections import Counter

import networkx as nx
import pytest
from sum_world import IDENTITIES, Link, SumWorld, complete, posted, ring, settings_of

from p2pfl.features.sums import (
    LOOK_EVERY,
    MOST_SETUPS,
    MOST_SLOTS,
    PLAIN,
    Ack,
    Blame,
    BranchPart,
    Effects,
    Keys,
    Parcel,
    Post,
    SetupOpening,
    StatementLog,
    Wave,
    bits_of,
    decode_statement,
    encode_statement,
    first_of,
    id_of,
)


def statements(world):
    return [decode_statement(message.body) for _, message in world.messages if isinstance(message, Post)]


def test_statements_of_sums_long_ended_leave_the_board_and_all_keep_the_same():
    world = SumWorld(4, ring(4), sums=64)
    world.ask_all(*[str(number) for number in range(30)], pause_s=0.5)
    world.run()
    world.check()
    assert len(world.done) == 4 * 30
    logs = [node._log for node in world.nodes.values()]
    of_setup, of_sum = 5, 5
    for log in logs:
        assert len(log._posts) <= 4 * (of_setup + of_sum * MOST_SLOTS)
        assert len(log._seen) <= 4 * (of_setup + of_sum * MOST_SLOTS) + 4 * 3, "parcels that were handed on"
    assert len({log._digest for log in logs}) == 1


def id_by_hash(post):
    return id_of(post.author, post.body)


def posts_sent(logs, name_of=id_by_hash):
    """How many posts two neighbors send from one comparison to the end of what follows from it."""
    count, todo = 0, []
    for index, log in enumerate(logs):
        effects = Effects()
        log.compare(effects)
        todo += [(index, each) for each in effects]
    while todo:
        index, effect = todo.pop(0)
        if effect.peer > 1:
            continue
        effects = Effects()
        if isinstance(effect.message, Post):
            count += 1
            logs[effect.peer].hear(index, effect.message, name_of(effect.message), effects)
        else:
            logs[effect.peer].hear_have(index, effect.message, effects)
        todo += [(effect.peer, each) for each in effects]
    return count


def number(value):
    return value.to_bytes(8, "little")


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ([number(7) + number(1)], [number(7) + number(2)]),
        ([number(2) * 2, number(4) * 2], [number(8) * 2, number(14) * 2]),
    ],
    ids=["ids that begin alike", "sets of one exclusive or"],
)
def test_an_author_cannot_hide_from_neighbors_that_they_have_other_statements_of_it(here, there):
    """2^32 hashes make two ids that begin alike, and 64 statements a set of the same exclusive or as another."""
    posts = [posted(2, SetupOpening(members=bits_of(range(5)), keys=each * 5)) for each in (*here, *there)]
    names = {post.body: name for post, name in zip(posts, (*here, *there), strict=True)}
    logs = [
        StatementLog(settings_of(index, 5), IDENTITIES[index], Blame(index), lambda *_: False) for index in range(2)
    ]
    for index, (log, of) in enumerate(zip(logs, (posts[: len(here)], posts[len(here) :]), strict=True)):
        for post in of:
            log.hear(4, post, names[post.body], Effects())
        log.opened(1 - index, Effects())
        log.wide.add(1 - index)
    assert sum(posts_sent(logs, lambda post: names[post.body]) for _ in range(LOOK_EVERY)) >= len(posts)
    assert logs[0]._posts.keys() == logs[1]._posts.keys() == {*here, *there}


def test_who_has_dropped_other_set_ups_of_an_author_than_its_neighbor_is_not_sent_them_again_and_again():
    """Which are dropped depends on the order in which they came."""
    posts = []
    for number in range(2 * MOST_SETUPS):
        opening = SetupOpening(members=bits_of(range(5)), keys=bytes([number]) * 16 * 5)
        posts += [posted(2, opening), posted(2, Ack(setup=id_of(2, encode_statement(opening)), holds=b""))]
    logs = [
        StatementLog(settings_of(index, 5), IDENTITIES[index], Blame(index), lambda *_: False) for index in range(2)
    ]
    for log, order in zip(logs, (posts, posts[::-1]), strict=True):
        for post in order:
            log.hear(4, post, id_of(2, post.body), Effects())
        log.opened(1 - logs.index(log), Effects())
    assert len({log._digest for log in logs}) == 2
    assert all(len(log._posts) <= 2 * MOST_SETUPS for log in logs)
    assert sum(posts_sent(logs) for _ in range(LOOK_EVERY)) > 0
    assert sum(posts_sent(logs) for _ in range(LOOK_EVERY)) == 0


def test_a_member_that_is_many_sums_behind_has_each_of_them_when_it_asks():
    labels = [str(number) for number in range(2 * MOST_SLOTS)]
    world = SumWorld(5, complete(5), sums=64)

    def go_on(index, effect):
        at = labels.index(effect.label) + 1
        if at < len(labels):
            world.schedule(world.now + 0.1, lambda: world.ask(index, labels[at]))

    world.on_outcome = go_on
    for index in range(4):
        world.schedule(0.0, lambda index=index: world.ask(index, labels[0]))
    world.run()
    assert len(world.done) == 4 * len(labels)
    world.schedule(world.now, lambda: world.ask(4, labels[0]))
    world.run()
    world.check()
    assert [done.label for index, done in world.done if index == 4] == labels
    assert {done.members for _, done in world.done} == {(0, 1, 2, 3)}


def test_what_has_come_before_has_no_effect():
    world = SumWorld(4, complete(4))
    world.ask_all("one")
    world.run()
    until_s = world.now + 1.0
    while world._queue and world._queue[0][0] < until_s:
        world.run_once()  # the next keys are on their way
    for sender, message in world.messages:
        if isinstance(message, Post) and not isinstance(decode_statement(message.body), Parcel):
            receiver = (sender + 1) % 4
            effects = world.nodes[receiver].hear(sender, message, world.now)
            assert all(not isinstance(each.message, Post) for each in effects)


def test_parcels_for_who_died_before_the_roster_do_not_burden_everybody():
    world = SumWorld(8, complete(8))
    world.ask_all("one")

    def look(sender, message):
        if isinstance(message, Post) and isinstance(decode_statement(message.body), SetupOpening):
            world.later(lambda: world.crash(3))

    world.on_message = look
    world.run()
    world.check()
    assert {done.members for _, done in world.done} == {(0, 1, 2, 4, 5, 6, 7)}
    assert not any(isinstance(each, Parcel) and each.spread for each in statements(world))


def test_a_parcel_that_was_lost_on_its_way_comes_by_all_ways():
    world = SumWorld(5, complete(5))
    world.ask_all("one")
    true, lost = world._send, []

    def lose(index, peer, message):
        statement = decode_statement(message.body) if isinstance(message, Post) else None
        if isinstance(statement, Parcel) and not statement.spread and statement.to == 2:
            lost.append(statement)
        else:
            true(index, peer, message)

    world._send = lose
    world.run()
    world.check()
    assert len(lost) == 4
    assert {done.members for _, done in world.done} == {(0, 1, 2, 3, 4)}


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_hundred_members_of_whom_a_tenth_dies_in_the_wave_have_the_sum_of_the_others():
    world = SumWorld(100, sorted({*ring(100), *((n, (n + 11) % 100) for n in range(89))}))
    world.messages = Nothing()
    world.ask_all("one")
    world.on_message = killer(world, range(0, 100, 10))
    world.run(most=10**7)
    world.check()
    assert len(world.done) == 90
    assert {done.members for _, done in world.done} == {tuple(n for n in range(100) if n % 10)}


class Nothing(list):
    def append(self, _):
        pass


def killer(world, doomed):
    def look(_, message):
        if type(message).__name__ == "BranchPart" and world.nodes[0] is not None:
            for index in doomed:
                world.later(lambda index=index: world.crash(index))

    return look


def test_among_many_neighbors_a_statement_reaches_all_by_few_of_them():
    for count in (8, 16, 33, 64):
        to = {n: first_of([other for other in range(count) if other != n], n) for n in range(count)}
        assert max(map(len, to.values())) <= 2 + count.bit_length()
        graph = nx.DiGraph([(n, other) for n, others in to.items() for other in others])
        assert nx.diameter(graph) <= count.bit_length()
    assert first_of([1, 5, 9], 3) == [1, 5, 9], "all, where they are few"


def test_in_a_dense_graph_a_sum_takes_few_messages():
    world = SumWorld(20, complete(20))
    world.ask_all("one")
    world.run()
    world.check()
    assert len(world.done) == 20
    assert len(statements(world)) < 40_000, "flooding takes 56,000"


def test_two_dense_groups_with_one_edge_between_them_have_one_sum():
    """That edge is none of the few on which its ends hand statements on."""
    edges = [*complete(12), *((a + 12, b + 12) for a, b in complete(12)), (3, 18)]
    assert 18 not in first_of([*sorted(set(range(12)) - {3}), 18], 3)
    world = SumWorld(24, edges)
    world.ask_all("one")
    world.run()
    world.check()
    assert len(world.done) == 24


@pytest.mark.parametrize("bytes_per_s", [1e9, 500_000])
def test_a_large_vector_is_waited_for_as_long_as_it_takes_on_a_slow_line_and_not_for_hours(bytes_per_s):
    """Set-ups are small, and their time tells little of it. One wave is enough, and a dead root costs a wait."""
    world = SumWorld(5, ring(5), size=20_000, link=Link(delay_s=(0.001, 0.002), bytes_per_s=bytes_per_s))
    world.ask_all("one", "two")
    waves, ended_at = set(), []

    def kill_the_next_root(_, message):
        statement = decode_statement(message.body) if isinstance(message, Post) else None
        if isinstance(statement, Wave):
            waves.add(statement)
        if isinstance(message, BranchPart) and {wave.number for wave in waves} == {0, 1} and not ended_at:
            assert len(waves) == 2
            ended_at.append(world.now)
            world.later(lambda: world.crash(0))

    world.on_message = kill_the_next_root
    world.run()
    world.check()
    assert {done.members for _, done in world.done if done.label == "one"} == {(0, 1, 2, 3, 4)}
    assert {done.members for _, done in world.done if done.label == "two"} == {(1, 2, 3, 4)}
    assert world.now < ended_at[0] + 20


def test_the_next_keys_go_to_each_member_once_along_the_tree_of_the_first_sum():
    world = SumWorld(12, sorted(tuple(sorted(edge)) for edge in nx.random_regular_graph(6, 12, seed=1).edges))
    said = Counter()

    def count(_, message):
        statement = decode_statement(message.body) if isinstance(message, Post) else None
        if isinstance(statement, Keys):
            said[statement.serial - PLAIN] += 1

    world.on_message = count
    world.ask_all("one")
    world.run()
    until_s = world.now + 1.0
    while world._queue and world._queue[0][0] < until_s:
        world.run_once()
    assert said[1] > 3 * 12 * 11
    assert said[2] < 1.5 * 12 * 11
