"""When training ends, and what one neighbor can do to it."""

from __future__ import annotations

import pytest
from core_kit import commit, has_completed, hello, make_node, only, open_session, say, settings, started
from hypothesis import example, given
from hypothesis import strategies as st

from p2pfl import core

EIGHT = 0b1111_1111


def ending(index=0, peers=(1, 2), **changes):
    own = settings(**({"members": 8} | changes))
    return core.Core(index=index, neighbors=peers, settings=own, samples=30.0).termination


def over(one, now, *, trained_s=1.0, training=0, stopped=False):
    unfinished = (one.members.begun | training) & one.members.counted & ~one.members.completed
    return one.over(now, trained_s=trained_s, unfinished=unfinished, stopped=stopped)


def test_nobody_is_told_by_others_that_it_is_through():
    """One neighbor's word that all are through would end the federation at once, as a success."""
    one = ending()
    one.members.begin(0.0)
    one.members.hear(1, 0, core.bitmap(EIGHT), core.bitmap(EIGHT), 1.0)
    assert not one.has_completed
    assert over(one, 1.0, trained_s=8.0) is None
    assert over(one, 5.9, trained_s=8.0) is None
    assert over(one, 6.0, trained_s=8.0) is core.Reason.HALF, "linger_s, or a quarter of the training"


def test_who_had_begun_before_a_restart_is_waited_for():
    """After a power cut the first two machines that are up must not take themselves for everybody."""
    known = {1: core.EdgeRecord(seq=7), 2: core.EdgeRecord(incarnation=1)}
    for records, reason in ((known, None), ({}, core.Reason.ALL)):
        node = make_node(0, 1, 2, rounds=9, fresh=False, version=9, rounds_done=9, elapsed_s=80.0, records=records)
        started(node)
        open_session(node, 1, greeting=hello(version=9, level=None, trained=9, begun=b"\x02", through=b"\x02"))
        node.wake(4.0)
        assert node.termination.ended_by is reason
        assert (node.rounds.phase is core.Phase.TRAINING) == (reason is None)


def test_who_is_through_goes_on_for_fifty_times_as_long_as_it_trained_whatever_is_claimed():
    one = ending()
    one.members.begin(0.0)
    one.members.hear(1, 0, core.bitmap(EIGHT), b"", 1.0)
    one.members.complete(10.0)
    end = 10.0 + core.LONGEST_MULTIPLE * 10.0
    for now in range(11, int(end)):
        one.members.note_progress(1, float(now))
        assert over(one, float(now), trained_s=float(now)) is None
    assert over(one, end, trained_s=end) is core.Reason.LONG


@pytest.mark.parametrize(("liars", "reason"), [(None, core.Reason.HALF), (1, None)])
def test_with_a_robust_rule_half_means_half_of_all_members(liars, reason):
    """Of those far away little is known on a sparse graph: three fast neighbors are not half of eight."""
    one = ending(peers=(1, 2, 3), liars=liars)
    one.members.begin(0.0)
    for peer in (1, 2, 3):
        one.members.hear(peer, 0, core.bitmap(1 << peer), core.bitmap(1 << peer), 1.0)
    one.members.note_progress(1, 90.0)
    assert over(one, 100.0, trained_s=1.0, training=1) is reason


def test_news_of_nodes_that_are_through_waits_less_and_what_completes_the_picture_not_at_all():
    """Each waits for the others' word and trains on until it comes."""
    members, waited = ending().members, []

    def hears(peer, completed, now):
        members.due_at = float("inf")
        members.hear(peer, 0, core.bitmap(0b1_1110), core.bitmap(completed), now)
        waited.append(members.due_at - now)

    members.begin(0.0)
    hears(1, 0b0_0010, 1.0)
    members.complete(2.0)
    hears(1, 0b0_0110, 2.0)
    hears(2, 0b0_1100, 2.0 + core.SOON_FOR_S)
    hears(2, 0b1_1100, 9.0)
    assert waited == pytest.approx([core.SEND_WITHIN_S, core.SOON_S, core.SEND_WITHIN_S, 0.0])


def test_who_cannot_agree_about_the_sets_is_not_told_them_for_ever():
    one = ending(liars=1)
    one.members.begin(0.0)
    tells = 0
    for _ in range(5 * core.MOST_SENDS):
        if one.members.has_news_for(1):
            one.members.tell(1)
            tells += 1
    assert tells == core.MOST_SENDS
    one.members.complete(2.0)
    assert one.members.has_news_for(1)


def test_who_took_over_half_of_its_rounds_has_trained_for_as_long_as_the_others():
    """Else a joiner would wait for a part of what they wait, and end them all."""
    node = make_node(0, 1, rounds=400)
    started(node)
    node.rounds.training.begin(0.0)
    node.rounds.training.take_over(200, None)
    node.facts.rounds = 300
    assert node.rounds.training.elapsed_s(50.0) == 150.0


def amended(one, now=0.0, neighbors=(1, 2), **changes):
    """As where the federation has changed."""
    before = one.members.bound
    one.settings.adopt(settings(**({"members": 8} | changes)))
    one.members.amend(neighbors, before, now)


def test_a_member_that_was_removed_is_not_waited_for():
    one = ending()
    one.members.begin(0.0)
    one.members.hear(1, 0, core.bitmap(0b110), core.bitmap(0b010), 1.0)
    one.members.complete(2.0)
    assert over(one, 2.0) is None
    amended(one, 2.0, retired=frozenset({2}))
    assert over(one, 2.0) is core.Reason.ALL


def test_a_member_that_was_removed_is_no_part_of_the_half():
    """Of six who have begun two are through; where two others go, those two are half."""
    one = ending()
    one.members.begin(0.0)
    one.members.hear(1, 0, core.bitmap(0b11_1111), core.bitmap(0b110), 1.0)
    assert over(one, 100.0) is None
    amended(one, 100.0, retired=frozenset({4, 5}))
    assert over(one, 104.9) is None
    assert over(one, 105.0) is core.Reason.HALF


def test_a_newcomer_is_waited_for_also_where_its_word_came_before_that_of_the_change():
    one = ending(members=3)
    one.members.begin(0.0)
    one.members.hear(1, 0, core.bitmap(0b1110), core.bitmap(0b0110), 1.0)
    one.members.complete(2.0)
    assert over(one, 2.0) is core.Reason.ALL
    amended(one, 2.0, members=4)
    assert over(one, 2.0) is None
    one.members.hear(1, 0, core.bitmap(0b1110), core.bitmap(0b1110), 3.0)
    assert over(one, 3.0) is core.Reason.ALL


def test_with_more_rounds_to_do_nobody_is_through_any_more():
    one = ending(rounds=3)
    one.members.begin(0.0)
    one.members.hear(1, 0, core.bitmap(0b110), core.bitmap(0b110), 1.0, bound=3)
    one.members.complete(2.0)
    assert over(one, 2.0) is core.Reason.ALL
    amended(one, 2.0, rounds=9)
    assert not one.has_completed
    assert over(one, 9.0) is None
    one.members.complete(9.0)
    one.members.hear(1, 0, core.bitmap(0b110), core.bitmap(0b110), 9.0, bound=3)
    assert over(one, 9.0) is None, "who knows of three rounds may say so of six that are left"
    one.members.hear(1, 0, core.bitmap(0b110), core.bitmap(0b110), 9.5, bound=9)
    assert over(one, 9.5) is core.Reason.ALL


def test_who_was_through_by_a_larger_number_of_rounds_is_so_by_a_smaller_one():
    one = ending(rounds=9)
    one.members.begin(0.0)
    one.members.hear(1, 0, core.bitmap(0b110), core.bitmap(0b110), 1.0, bound=9)
    amended(one, 2.0, rounds=3)
    one.members.complete(2.0)
    assert over(one, 2.0) is core.Reason.ALL


def rounds_beyond(asked, when_through, until):
    """Return when a node that is through, beside three that are not, begins further rounds, and all alarms.

    It took a second for each round that it was asked for; the further ones take no time.
    """
    node = make_node(0, 1, 2, 3, rounds=asked, rounds_done=asked, fresh=False, when_through=when_through)
    node.rounds.training.elapsed_before_s = float(asked)
    started(node)
    effects, begun, now = [], [], 0.0
    for peer in (1, 2, 3):
        effects += open_session(node, peer, greeting=hello(level=None, begun=core.bitmap(0b1111)))
    while now < until and len(begun) <= 3 * asked:
        if only(effects, core.StartRound):
            begun.append(now + asked)
            node.facts.rounds += 1
            node.rounds.working = False
        node.edges[1].progress.note_version(node.edges[1].progress.version + 1, now)  # the others go on
        now = max(now, node.deadline() or now)
        effects = [*only(effects, core.Alarm), *node.wake(now)]
    return begun, only(effects, core.Alarm)


@pytest.mark.parametrize(("asked", "at_once"), [(20, 5), (200, 20)])
def test_who_is_through_goes_on_for_five_rounds_or_a_tenth_then_for_ten_spread_over_ten_times_its_training(
    asked, at_once
):
    """Else a node whose neighbors are slower or gone would train for ever."""
    begun, alarms = rounds_beyond(asked, "train", 11.0 * asked)
    assert begun[:at_once] == pytest.approx([asked] * at_once, abs=0.01)
    assert begun[at_once:] == pytest.approx([asked * 10 ** (number / 10) for number in range(1, 11)])
    assert [(alarm.kind, alarm.peer, alarm.notice) for alarm in alarms] == [("waits-for", 1, True)]
    assert rounds_beyond(asked, "mix", 11.0 * asked)[0] == []
    assert len(rounds_beyond(asked, "train-on", 11.0 * asked)[0]) > 3 * asked


def test_a_restart_gives_no_further_rounds_beyond():
    node = make_node(0, 1, rounds=20, rounds_done=35, version=35, fresh=False)
    started(node)
    open_session(node, 1, greeting=hello(version=1, level=None, begun=core.bitmap(0b11)))
    assert node.termination.has_completed
    assert node.termination.next_round_at(9.0) == float("inf")


@pytest.mark.parametrize("met", [False, True])
def test_a_neighbor_that_has_ended_for_good_holds_up_neither_the_start_nor_the_end(met):
    """The launcher of all nodes knows."""
    waits = {"linger_s": 9000.0, "start_wait_s": 9000.0}
    node = make_node(0, 1, 2, rounds=0, closing_rounds=0, members=3, when_through="mix", **waits)
    started(node)
    through = hello(level=None, begun=core.bitmap(0b011), through=core.bitmap(0b010), closing=0, done=True)
    open_session(node, 1, greeting=through)
    if met:
        open_session(node, 2, greeting=hello(begun=core.bitmap(0b100)))
        node.edges[2].exchange.busy = False
        node.handle(core.SessionClosed(peer=2, session=1), 1.0)
    assert node.phase is not core.Phase.FINISHED
    (told,) = only(node.handle(core.MemberEnded(member=2), 2.0), core.Alarm)
    assert (told.kind, told.peer, told.notice) == ("member-ended", 2, True)
    assert node.phase is core.Phase.FINISHED
    assert node.termination.ended_by is core.Reason.ALL


def test_a_member_that_has_ended_counts_again_once_it_is_heard_and_the_own_end_or_an_open_session_is_no_such():
    node = make_node(0, 1, members=3)
    started(node)
    for member in (0, 1, 2, 2):
        node.handle(core.MemberEnded(member=member), 0.0)
    assert node.members.counted == 0b001
    open_session(node, 1)
    assert node.members.counted == 0b011
    assert not node.edges[1].line.is_shut
    assert only(node.handle(core.MemberEnded(member=1), 1.0), core.Alarm) == []


# -- Who takes no part is not trained for, and is not waited for longer than it has been away.

ALL = core.bitmap(0b1111)
LINGER_S = 5.0


def at_its_end(*neighbors, unfinished=3, met=True, at=1.0, **changes):
    """Node 0, which has done its rounds and trains on, when it hears that all have but `unfinished`."""
    changes = {"when_through": "train-on"} | changes
    node = make_node(0, *neighbors, rounds_done=3, version=3, fresh=False, members=4, **changes)
    started(node)
    node.rounds.training.elapsed_before_s = 10.0
    for peer in neighbors:
        if met or peer != unfinished:
            greeting = hello(version=3, level=None, trained=3, begun=ALL)
            open_session(node, peer, now=0.5, greeting=greeting)
    has_completed(node, *(peer for peer in neighbors if peer != unfinished), now=at)
    others = core.bitmap(0b1111 & ~(1 << unfinished))
    node.members.hear(neighbors[0], 0, ALL, others, at)
    return node


def lost(node, peer, now):
    node.edges[peer].exchange.busy = False  # the engine has answered
    return node.handle(core.SessionClosed(peer=peer, session=1), now)


def mute(node, peer, since):
    """It keeps its session, tells of rounds, and none of this node's was exchanged."""
    service = node.edges[peer].service
    service.unanswered, service.unanswered_from = core.UNANSWERED_ROUNDS, since


def look(node, now):
    """What the node does at the end of the round under way."""
    node.rounds.working = node.rounds.barrier.is_waiting = False
    return node.wake(now)


def test_who_takes_long_for_a_round_is_away_after_three_of_them():
    node = at_its_end(1, 3, linger_s=60.0)
    say(node, 1, core.Ready(version=4, level=0), 1.0)
    for version, now in ((4, 2.0), (5, 6.0)):
        say(node, 3, core.Ready(version=version), now)
    lost(node, 3, 6.0)
    assert only(look(node, 6.0 + 3 * core.AWAY_S), core.StartRound)
    assert not only(look(node, 6.0 + 3 * 4.0), core.StartRound)


def test_nobody_trains_for_a_neighbor_that_is_gone_and_the_end_waits_for_it_no_longer_than_it_was_away():
    node = at_its_end(1, 3)
    say(node, 1, core.Ready(version=4, level=0), 1.0)
    lost(node, 3, 1.0)
    assert only(look(node, 2.0), core.StartRound), "it was there a second ago"
    effects = look(node, 4.0)
    assert not only(effects, core.StartRound)
    assert node.rounds.phase is core.Phase.TRAINING
    assert not only(look(node, 1.0 + LINGER_S - 0.6), core.StartRound)
    look(node, 0.5 + LINGER_S)
    assert node.termination.ended_by is core.Reason.PRESENT
    assert node.unfinished == [3]


def test_a_round_counts_a_neighbor_that_keeps_its_session_and_answers_nothing_as_away():
    """It would count this node as away as well; with all neighbors like that the node is alone."""
    node = make_node(0, 1, 3, rounds_done=1, version=1, fresh=False, members=4)
    started(node)
    for peer in (1, 3):
        open_session(node, peer, now=0.5)
    mute(node, 3, since=1.0)
    assert node.termination.absent_neighbors(1.0 + core.AWAY_S - 0.1) == ()
    assert node.termination.absent_neighbors(1.0 + core.AWAY_S) == (3,)
    node.members.claims[3].round_s = core.AWAY_S
    assert node.termination.absent_neighbors(1.0 + core.AWAY_S) == (), "long rounds have more time"
    node.members.claims[3].round_s = 0.1
    mute(node, 1, since=1.0)
    assert only(look(node, 6.0), core.StartRound)[0].accompanied is False


@pytest.mark.parametrize("rounds", [10, 1000])
def test_a_mute_neighbor_neither_adds_a_round_nor_a_second_at_the_end(rounds):
    """Its session is open, and whatever it says of its progress, it exchanges nothing."""
    node = at_its_end(1, 3, at=9.0)
    mute(node, 3, since=0.0)
    for version in range(4, 4 + rounds):
        say(node, 3, core.Ready(version=version, trained=version), 9.0)
    say(node, 1, core.Ready(version=4, level=0), 9.0)
    effects = look(node, 9.0)
    assert node.termination.ended_by is core.Reason.PRESENT
    assert [(alarm.kind, alarm.peer) for alarm in only(effects, core.Alarm)] == [("takes-no-part", 3)]


def test_a_mute_neighbor_does_not_hold_up_closing_and_lingering():
    node = at_its_end(1, 3, at=9.0, closing_rounds=1)
    mute(node, 3, since=0.0)
    say(node, 1, core.Ready(version=4, closing=1, level=0), 9.0)
    commit(node, look(node, 9.0), 9.1)
    node.edges[1].progress.done = True
    look(node, 9.2)
    assert node.facts.closing_rounds_done == 1
    assert node.rounds.phase is core.Phase.FINISHED


def test_a_slow_neighbor_that_takes_part_is_trained_with_until_the_documented_wait_is_over():
    """Of its rounds it needs three for as long as this node's whole training; each exchange of others it answers."""
    node = at_its_end(1, 3)
    say(node, 3, core.Ready(version=4, trained=1), 1.0)
    for now in (2.0, 4.0, 5.9):
        assert only(look(node, now), core.StartRound), now
        say(node, 3, core.Ready(version=int(10 * now), trained=2), now)
    look(node, 1.0 + LINGER_S)
    assert node.termination.ended_by is core.Reason.HALF


def test_a_neighbor_that_comes_back_is_trained_with_again():
    node = at_its_end(1, 3)
    say(node, 1, core.Ready(version=4, level=0), 1.0)
    lost(node, 3, 1.0)
    assert not only(look(node, 4.5), core.StartRound)
    assert only(open_session(node, 3, now=5.0, session=2, greeting=hello(version=2, level=None)), core.StartRound)


def test_a_neighbor_that_sees_the_unfinished_one_at_work_holds_the_others_from_rest():
    """Node 3 is no neighbor of node 0; its own neighbors, of which 2 is one, tell a level or none."""
    node = at_its_end(1, 2, hops=2)
    assert only(look(node, 2.0), core.StartRound)
    say(node, 1, core.Ready(version=4, level=1), 2.0)
    effects = look(node, 2.1)
    assert only(effects, core.StartRound), "2 has told of none"
    assert {effect.message.level for effect in only(effects, core.Send) if isinstance(effect.message, core.Ready)} == {
        0
    }
    say(node, 2, core.Ready(version=4, level=1), 2.2)
    assert not only(look(node, 2.3), core.StartRound)
    say(node, 2, core.Ready(version=5, level=None), 2.4)
    assert only(look(node, 2.5), core.StartRound)


def test_who_sees_nobody_missing_ends_when_a_neighbor_that_does_has_stopped():
    node = at_its_end(1, 2, hops=2)
    for peer in (1, 2):
        say(node, peer, core.Ready(version=4, level=1), 1.5)
    look(node, 2.0)
    assert node.termination.ended_by is None
    say(node, 2, core.Ready(version=5, level=2, closing=0), 2.1)
    look(node, 2.2)
    assert node.termination.ended_by is core.Reason.PRESENT


@pytest.mark.parametrize("liar", [None, 0, 2**40])
def test_one_liar_can_neither_end_training_nor_hold_it_beyond_the_documented_wait(liar):
    """By the level it tells: the least of all neighbors' counts, and half still ends it."""
    node = at_its_end(1, 2, 3, hops=2)
    say(node, 3, core.Ready(version=4, trained=1), 1.5)
    say(node, 2, core.Ready(version=4, level=liar), 1.5)
    assert only(look(node, 2.0), core.StartRound)
    say(node, 3, core.Ready(version=5, trained=2), 5.0)
    look(node, 1.0 + LINGER_S)
    assert node.termination.ended_by is core.Reason.HALF


def test_a_neighbor_that_was_never_met_is_not_judged():
    """Perhaps this edge alone does not work."""
    node = at_its_end(1, 3, met=False)
    assert only(look(node, 4.5), core.StartRound)
    look(node, 1.0 + LINGER_S)
    assert node.termination.ended_by is core.Reason.HALF


def test_in_an_undisturbed_run_nobody_tells_a_level():
    node = at_its_end(1, 2, hops=2)
    effects = look(node, 2.0)
    assert {effect.message.level for effect in only(effects, core.Send) if isinstance(effect.message, core.Ready)} <= {
        None
    }
    assert node.facts.settled is None


# -- What a node believes of the others' progress.

members = st.integers(0, 2**8 - 1)
WORDS = st.lists(st.tuples(st.sampled_from((1, 2, 3)), members, members, st.sampled_from((0, 5, 10))), max_size=30)


@given(WORDS)
@example([(1, 4, 4, 5), (1, 0, 0, 0), (2, 8, 0, 10)])
@example([(1, 4, 4, 5), (1, 12, 12, 5)])
def test_a_neighbors_news_merged_alone_give_the_same_sets_as_all_that_was_ever_said(words):
    """Also where neighbors plan fewer rounds, so that who they say is through does not count yet."""
    alone, anew = (core.MemberProgress(0, (1, 2, 3), settings(rounds=10, members=8)) for _ in range(2))
    for now, (peer, begun, completed, bound) in enumerate(words):
        anew._all_anew = True
        for members in (alone, anew):
            members.hear(peer, 0, core.bitmap(begun), core.bitmap(completed), float(now), bound=bound)
        assert (alone.begun, alone.completed, alone.digest) == (anew.begun, anew.completed, anew.digest)
        assert alone.claims == anew.claims


def test_complete_sets_are_kept_once_in_a_process():
    everyone = core.bitmap((1 << 70) - 1)
    one, other = (core.MemberProgress(index, (1, 2, 3), settings(rounds=10, members=70)) for index in (0, 69))
    for members in (one, other):
        for now, peer in enumerate((1, 2, 3)):
            members.hear(peer, 0, everyone, everyone, float(now), bound=10)
        members.complete(3.0)
    assert one.begun is other.begun is one.completed is other.completed is one.claims[3].begun
    assert one.tell(1)[0] is other.tell(2)[1]
