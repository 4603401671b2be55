"""The federation changes while the node runs: when that takes effect, and what becomes of each edge."""

from __future__ import annotations

from dataclasses import replace

import pytest
from core_kit import (
    apply_reply,
    apply_request,
    begun_alone,
    commit,
    exchange_as_initiator,
    freeze,
    has_completed,
    hello,
    make_node,
    only,
    open_session,
    reply_to,
    request,
    say,
    sent,
    started,
)

from p2pfl import core
from tests.invariants import check_invariants


def amended(node, *neighbors, **changes):
    return core.Amended(neighbors=neighbors, turns={}, settings=replace(node.settings, **changes))


def training(index, *neighbors, **changes):
    """In its first round, with nobody there."""
    node = make_node(index, *neighbors, **({"rounds": 9} | changes))
    begun_alone(node)
    return node


def end_round(node, now):
    """The round under way ends, and its exchanges with it; what follows."""
    effects = node.handle(core.RoundTrained(steps=1, samples=30), now)
    return commit(node, effects, now)


def test_a_running_round_ends_as_it_would_have_and_then_the_edges_are_others():
    node = training(1, 0, 2)
    assert node.handle(amended(node, 0, 3), 0.1) == []
    assert list(node.edges) == [0, 2]
    effects = end_round(node, 0.2)
    assert only(effects, core.ChangeEdges, core.StartRound) == [
        core.ChangeEdges(added=(3,), dropped=(2,)),
        core.StartRound(index=1, accompanied=False),
    ]
    assert list(node.edges) == [0, 3]
    assert node.facts.degree == 2
    check_invariants(node)


def test_of_several_changes_the_newest_counts_and_the_same_again_changes_nothing():
    node = training(1, 0, 2)
    node.handle(amended(node, 0, 3), 0.1)
    node.handle(amended(node, 0, 2, 4), 0.1)
    assert only(end_round(node, 0.2), core.ChangeEdges) == [core.ChangeEdges(added=(4,), dropped=())]
    node.handle(amended(node, 0, 2, 4), 0.3)
    assert only(end_round(node, 0.4), core.ChangeEdges) == [core.ChangeEdges(added=(), dropped=())]


def test_edges_that_stay_keep_their_session_and_what_is_pending():
    node = training(0, 1, 2)
    _, effects = freeze(node, open_session(node, 1), 0.1)
    edge = node.edges[1]
    node.handle(amended(node, 1, 3), 0.1)
    node.wake(9.0)
    end_round(node, 9.1)
    effects = node.wake(20.0)
    assert list(node.edges) == [1, 3], effects
    assert node.edges[1] is edge
    assert edge.is_open
    assert edge.exchange.record.pending is not None


def test_with_a_removed_member_nothing_is_exchanged_from_the_first_moment_on():
    node = training(0, 1, 2)
    exchange_as_initiator(node, open_session(node, 1))
    assert node.handle(amended(node, 2, retired=frozenset({1})), 0.1) == [
        core.CloseSession(peer=1, session=1, reason="no longer a member")
    ]
    refused = node.handle(core.SessionOpened(peer=1, session=2), 0.2)
    assert refused == [core.CloseSession(peer=1, session=2, reason="resting")]
    assert only(end_round(node, 0.3), core.ChangeEdges) == [core.ChangeEdges(added=(), dropped=(1,))]


def test_a_reply_to_a_request_on_an_edge_that_goes_is_still_applied_before_it_does():
    """Else its other half, which the neighbor has applied, would be missing."""
    node = training(0, 1, 2)
    asked, _ = freeze(node, open_session(node, 1, 0.1), 0.1)
    node.handle(amended(node, 2), 0.1)
    assert only(end_round(node, 0.2), core.ChangeEdges) == []
    assert node.deadline() < 2.0, "bounded by the patience with that neighbor"
    effects = say(node, 1, reply_to(asked), 0.3)
    assert len(only(effects, core.ApplyReply)) == 1
    assert only(node.wake(9.0), core.ChangeEdges) == [], "the engine is at work on it"
    effects = apply_reply(node, effects, 9.0)
    assert effects[:2] == [
        core.CloseSession(peer=1, session=1, reason="no longer a neighbor"),
        core.ChangeEdges(added=(), dropped=(1,)),
    ]
    assert only(effects, core.Freeze) == []
    assert len(only(effects, core.StartRound)) == 1


def test_nothing_new_begins_on_an_edge_that_goes():
    node = training(0, 1, 2)
    exchange_as_initiator(node, open_session(node, 1, 0.1), 0.1)
    node.handle(amended(node, 2), 0.1)
    assert only(say(node, 1, core.Ready(version=7), 0.1), core.Freeze) == []
    assert only(end_round(node, 0.2), core.Freeze) == []
    assert list(node.edges) == [2]


def test_a_reply_that_may_be_on_its_way_is_waited_for_until_the_neighbor_has_asked_again():
    node = training(1, 0, 2)
    open_session(node, 0)
    applied(node, 0, request())
    node.handle(amended(node, 2), 0.1)
    assert only(end_round(node, 0.2), core.ChangeEdges) == []
    effects = say(node, 0, request(seq=2), 0.3)
    assert len(only(sent(effects), core.Busy)) == 1, "it has had the answer to the one before"
    assert only(effects, core.ChangeEdges) == [core.ChangeEdges(added=(), dropped=(0,))]


def applied(node, peer, asked, now=0.1):
    """The engine has applied this request."""
    return apply_request(node, say(node, peer, asked, now), now)


def test_a_neighbor_that_never_answers_is_not_waited_for_longer_than_a_round_would():
    node = training(0, 1, 2)
    freeze(node, open_session(node, 1, 0.1), 0.1)
    node.handle(amended(node, 2), 0.1)
    end_round(node, 0.2)
    effects = node.wake(node.deadline())
    while not only(effects, core.ChangeEdges):
        assert node.deadline() < 5.0
        effects = node.wake(node.deadline())
    assert list(node.edges) == [2]


def test_a_neighbor_to_be_that_comes_early_is_greeted_once_it_is_one():
    """The other end may have gone over to the new graph before: its session need not be dialed again."""
    node = training(1, 0)
    assert node.handle(core.SessionOpened(peer=2, session=4), 0.1) == [
        core.CloseSession(peer=2, session=4, reason="no neighbor of this node")
    ]
    node.handle(amended(node, 0, 2), 0.1)
    assert node.handle(core.SessionOpened(peer=2, session=5), 0.1) == []
    assert node.handle(core.MessageReceived(peer=2, session=5, message=hello()), 0.1) == []
    effects = end_round(node, 0.2)
    assert [message.version for message in sent(effects)] == [1]
    say(node, 2, hello(), 0.3, session=5)
    assert node.edges[2].is_open


def test_the_map_of_neighbors_stays_in_their_order():
    node = training(2, 1, 5, 7)
    node.handle(amended(node, 0, 1, 3, 5, 7), 0.1)
    end_round(node, 0.2)
    assert list(node.edges) == list(node.told_lifetimes.lines) == list(node.members.claims) == [0, 1, 3, 5, 7]


@pytest.mark.parametrize(("rounds", "phase"), [(2, core.Phase.CLOSING), (9, core.Phase.TRAINING)])
def test_the_rounds_to_do_may_become_more_or_fewer(rounds, phase):
    """A node that was through goes on; one that has done more than there are to do ends as if they were done."""
    node = training(0, 1, rounds=3)
    has_completed(node, 1)
    for number in (1, 2):
        end_round(node, float(number))
    node.handle(amended(node, 1, rounds=rounds), 2.5)
    end_round(node, 3.0)
    assert node.rounds.phase is phase
    assert node.facts.rounds == 3


def test_a_node_that_does_not_train_any_more_keeps_the_rounds_that_it_has_done():
    node = training(0, 1, rounds=1)
    has_completed(node, 1)
    effects = end_round(node, 1.0)
    assert node.rounds.phase is core.Phase.CLOSING
    node.handle(amended(node, 2, rounds=9), 1.5)
    assert len(only(commit(node, effects, 1.6), core.ChangeEdges)) == 1
    assert node.rounds.phase is not core.Phase.TRAINING
    assert node.settings.rounds == 1


@pytest.mark.parametrize(("knows", "todo", "goes_on"), [(3, 9, True), (9, 9, False), (2, 1, False), (1, 2, False)])
def test_a_neighbor_that_has_stopped_because_it_knows_of_fewer_rounds_stops_nobody(knows, todo, goes_on):
    """It goes on when it is started again; who ended with it would take all of the rounds for done."""
    node = training(0, 1, rounds=3)
    node.handle(amended(node, 1, rounds=todo), 0.1)
    open_session(node, 1, 0.2, greeting=hello(version=5, level=None, done=True, closing=2, trained=3, bound=knows))
    end_round(node, 1.0)
    node.wake(21.0)
    end_round(node, 22.0)
    node.wake(42.0)
    assert (node.rounds.phase is core.Phase.TRAINING) == goes_on


def test_a_node_that_was_removed_ends_and_says_why():
    node = training(0, 1)
    effects = node.handle(amended(node, retired=frozenset({0})), 0.1)
    assert [effect.kind for effect in only(effects, core.Alarm)] == ["removed"]
    assert only(effects, core.Finish) == [core.Finish(retired=True)]
    assert node.retired
    assert node.handle(amended(node, retired=frozenset({0})), 0.2) == []


def test_more_neighbors_do_not_make_a_node_claim_more_samples_than_it_has():
    """A request that was weighed among few is open while the next round is weighed among many."""
    node = training(0, 1, rounds=9)
    node.facts.joining = False
    freeze(node, open_session(node, 1, 0.1), 0.1)
    node.handle(amended(node, 1, 2, 3, 4, 5), 0.1)
    end_round(node, 20.0)
    node.wake(40.0)
    assert node.facts.degree == 5
    (op,) = only(node.handle(core.RoundTrained(steps=1, samples=30), 41.0), core.CommitRound)
    assert op.least_samples <= node.facts.samples


def test_a_change_before_the_start_takes_effect_with_it():
    node = make_node(0, 1)
    node.handle(amended(node, 2), 0.0)
    assert only(started(node), core.ChangeEdges) == [core.ChangeEdges(added=(2,), dropped=(1,))]


# -- Lives: who starts without flows is heard of everywhere; two processes with one key are no restart.

LIFE = core.Lifetime(0, 7)


def greeting(name, *, lifetime=LIFE, **changes):
    return hello(generation=lifetime.generation, life=lifetime.name, process=name, **changes)


def test_only_the_return_of_a_process_after_another_proves_two():
    copies = core.Copies()
    assert [copies.note_greeting(name, now) for now, name in enumerate((1, 1, 2, 3, 3))] == [False] * 5
    assert copies.note_greeting(1, 5.0)
    assert not copies.note_greeting(3, 6.0)
    assert copies.other_for_s(3, 7.0) == 7.0
    assert copies.other_for_s(1, 7.0) == 4.0
    assert copies.other_for_s(2, 7.0) is None


def test_each_of_two_processes_is_told_how_long_the_other_has_been_heard_and_the_alarm_comes_once():
    node = make_node(9, 1)
    effects = []
    for session, name in enumerate((5, 8, 5, 8, 5, 8), start=1):
        effects += open_session(node, 1, float(session), session=session, greeting=greeting(name))
    assert [alarm.kind for alarm in only(effects, core.Alarm)].count("two-places") == 1
    told = {(message.process, message.other_ms) for message in sent(effects) if isinstance(message, core.Resign)}
    assert told == {(5, 1000), (8, 3000), (5, 3000), (8, 5000)}


def test_of_two_processes_the_one_that_has_run_for_less_time_stops_and_says_so_and_never_both():
    """Neither is ever known to a neighbor for longer than it has run."""
    for started_at, stops in ((0.0, False), (96.0, True)):
        node = make_node(9, 1)
        started(node, started_at)
        open_session(node, 1, started_at)
        own = node.edges[1].common.start.name
        assert only(say(node, 1, core.Resign(process=99, other_ms=10**9), 100.0), core.Finish) == []
        effects = say(node, 1, core.Resign(process=own, other_ms=5000), 100.0)
        assert only(effects, core.Finish) == ([core.Finish(resigned=True)] if stops else [])
        assert (node.rounds.phase is core.Phase.FINISHED) == stops
        assert any("one key speaks from two places" in alarm.text for alarm in only(effects, core.Alarm)) == stops


@pytest.mark.parametrize("second", [2, 1])
def test_of_two_neighbors_one_alone_makes_nobody_resign_even_while_the_other_is_away(second):
    """Two copies will be heard by both, unless one of them has ended for good."""
    node = make_node(9, 1, 2)
    started(node)
    resign = core.Resign(process=node.edges[1].common.start.name, other_ms=10**9)
    open_session(node, 1)
    assert only(say(node, 1, resign) + say(node, 1, resign), core.Finish) == []
    if second == 2:
        open_session(node, 2)
    else:
        node.handle(core.MemberEnded(member=2), 0.0)
    assert only(say(node, second, resign), core.Finish) == [core.Finish(resigned=True)]


def test_where_b_neighbors_may_lie_one_alone_makes_nobody_resign():
    node = make_node(9, 1, 2, 3, liars=1)
    started(node)
    for peer in (1, 2, 3):
        open_session(node, peer)
    own = node.edges[1].common.start.name
    assert (
        only(
            say(node, 1, core.Resign(process=own, other_ms=9)) + say(node, 1, core.Resign(process=own, other_ms=9)),
            core.Finish,
        )
        == []
    )
    assert only(say(node, 3, core.Resign(process=own, other_ms=9)), core.Finish) == [core.Finish(resigned=True)]


def met(*neighbors, **changes):
    """Node 9, which has met neighbors 1 and 2 in their first lives, and not others."""
    node = make_node(9, 1, 2, *neighbors, **changes)
    for peer in (1, 2):
        open_session(node, peer, greeting=greeting(peer, lifetime=core.Lifetime(0, 10 + peer)))
    return node


def with_an_edge_that_rests():
    """Node 9, whose edge to 1 has carried something and has no session; 2 is there."""
    node = met()
    node.handle(core.SessionClosed(peer=1, session=1), 0.0)
    node.edges[1].exchange.record.seq = 3
    return node


def test_a_neighbor_heard_to_be_in_a_new_life_begins_its_edge_anew_at_this_end():
    node = with_an_edge_that_rests()
    effects = say(node, 2, core.LivesTold(lives=((1, 1, 77),)))
    assert [(op.peer, op.incarnation) for op in only(effects, core.ResetEdge)] == [(1, 1)]
    assert only(effects, core.NoteLifetime) == [core.NoteLifetime(member=1, lifetime=core.Lifetime(1, 77))]
    assert say(node, 2, core.LivesTold(lives=((1, 1, 77),))) == []


def test_an_edge_over_which_nothing_has_gone_has_nothing_to_begin_anew_whatever_is_said_of_its_neighbor():
    """Or whoever lies about it could use up all its incarnations."""
    node = with_an_edge_that_rests()
    effects = []
    for generation in range(1, 400):
        effects += say(node, 2, core.LivesTold(lives=((1, generation, 77 + generation),)), 0.0)
    assert len(only(effects, core.ResetEdge)) == 1
    assert node.edges[1].exchange.record.incarnation == 1


def test_what_a_neighbor_tells_about_lives_is_bounded_and_passed_on_in_few_messages():
    node = make_node(9, 1, 2, members=1000)
    for peer in (1, 2):
        open_session(node, peer)
    effects = []
    for generation in range(1, 5000):
        effects += say(node, 1, core.LivesTold(lives=((500, generation, generation),)), 0.5)
    assert len(only(effects, core.NoteLifetime)) <= 2000
    assert len([message for message in sent(effects) if isinstance(message, core.LivesTold)]) <= 1
    passed = [message for message in sent(node.wake(1.0)) if isinstance(message, core.LivesTold)]
    assert len(passed) == 1


def test_a_neighbor_that_is_there_is_told_of_other_lives_of_its_own_once_in_a_while():
    """Each word about it may be a lie: told of them all it would take this node for the liar."""
    node = met()
    effects = []
    for generation in range(1, 300):
        effects += say(node, 2, core.LivesTold(lives=((1, generation, 77),)), 0.0)
    for now in (core.CHALLENGE_EVERY_S - 0.1, core.CHALLENGE_EVERY_S):
        effects += say(node, 2, core.LivesTold(lives=((1, 300, 77),)), now)
    assert lives_told(effects) == [(1, ((1, 1, 77),)), (1, ((1, 300, 77),))]


def test_a_removed_member_is_forgotten_and_nobody_can_tell_of_it():
    """At the change, or at the start of a node that was off. Engine time is forgotten of every former neighbor."""
    node, forgotten = training(9, 1, 2), [core.NoteLifetime(member=2, lifetime=core.Lifetime(0, 0))]
    for peer in (1, 2):
        open_session(node, peer, greeting=greeting(peer, lifetime=core.Lifetime(1, 10 + peer)))
        node.neighbors.engine_time.spend(peer, 1e6, 0.0)
    node.handle(amended(node, 1, retired=frozenset({2})), 0.1)
    assert only(end_round(node, 0.2), core.NoteLifetime) == forgotten
    assert say(node, 1, core.LivesTold(lives=((2, 5, 77),)), 0.3) == []
    assert list(node.lifetimes.latest) == [1]
    assert [node.neighbors.engine_time.wait_s(peer, 0.3) > 0.0 for peer in (1, 2)] == [True, False]
    was_off = make_node(9, 1, retired=frozenset({2}))
    was_off.lifetimes.latest[2] = core.Lifetime(1, 12)
    assert only(was_off.handle(core.Started(), 0.0), core.NoteLifetime) == forgotten


def test_no_generation_is_far_above_what_was_known():
    lifetimes = core.Lifetimes(0, core.Lifetime(0, 1), {3: core.Lifetime(2, 9)})
    assert lifetimes.judge(3, core.Lifetime(2 + core.LARGEST_STEP + 1, 4)) is core.News.STALE
    assert lifetimes.judge(4, core.Lifetime(core.LARGEST_STEP + 1, 4)) is core.News.STALE
    assert lifetimes.judge(3, core.Lifetime(2 + core.LARGEST_STEP, 4)) is core.News.NEW
    assert lifetimes.judge(4, core.Lifetime(core.LARGEST_STEP, 4)) is core.News.LATER


def lives_told(effects):
    messages = [(effect.peer, effect.message) for effect in effects if hasattr(effect, "message")]
    return [(peer, message.lives) for peer, message in messages if isinstance(message, core.LivesTold)]


@pytest.mark.parametrize("rounds", [0, 1])
def test_when_a_federation_begins_there_is_nothing_to_say_of_first_lives_and_later_only_of_new_ones(rounds):
    node = make_node(9, 1, 2, rounds_done=rounds)
    effects = []
    for peer in (1, 2):
        effects += open_session(node, peer, greeting=greeting(peer, lifetime=core.Lifetime(0, 10 + peer)))
    news = [(1, ((2, 0, 12),))] if rounds else []
    assert lives_told(effects + node.wake(1.0)) == news
    again = open_session(node, 2, 2.0, session=2, greeting=greeting(2, lifetime=core.Lifetime(0, 12)))
    assert lives_told(again + node.wake(3.0)) == []


def test_of_two_first_lives_the_one_heard_of_last_is_taken_for_the_later_one():
    """Whoever remembers the other one must drop its flow, though nobody could tell the node of an earlier life."""
    for old, new in ((11, 77), (77, 11)):
        node = make_node(9, 1, 2)
        for peer, name in ((1, old), (2, 50)):
            open_session(node, peer, greeting=greeting(peer, lifetime=core.Lifetime(0, name)))
        node.handle(core.SessionClosed(peer=1, session=1), 0.0)
        node.edges[1].exchange.record.seq = 3
        effects = say(node, 2, core.LivesTold(lives=((1, 0, new),)), 0.0)
        assert len(only(effects, core.ResetEdge)) == 1
        assert node.lifetimes.latest[1] == core.Lifetime(1, new)
        assert say(node, 2, core.LivesTold(lives=((1, 0, new),)), 0.0) == []


def test_who_learns_of_an_earlier_life_of_its_own_tells_of_neighbors_that_came_without_a_past():
    """They may have lost theirs as well, and have met nobody else who would know."""
    node = met()
    effects = say(node, 2, core.LivesTold(lives=((9, 0, 5),)), 0.0) + node.wake(1.0)
    told = lives_told(effects)
    assert ((2, ((1, 0, 11),))) in told
    assert ((1, ((2, 0, 12),))) in told


def test_a_neighbor_that_is_there_is_told_of_another_life_of_its_own_and_the_edge_goes_on():
    """It has greeted in its life of now; if it had an earlier one, it takes a later generation and says so."""
    node = met()
    effects = say(node, 2, core.LivesTold(lives=((1, 1, 77),)))
    assert [(effect.peer, effect.message) for effect in effects] == [(1, core.LivesTold(lives=((1, 1, 77),)))]


def test_with_a_robust_rule_nobodys_word_begins_an_edge_anew():
    node = met(3, liars=1)
    node.handle(core.SessionClosed(peer=1, session=1), 0.0)
    assert only(say(node, 2, core.LivesTold(lives=((1, 1, 77),))), core.ResetEdge) == []


def test_lives_are_passed_on_to_all_but_who_told_and_whom_they_are_about():
    node = make_node(9, 0, 1, 3, 4)
    for peer in (0, 1, 3, 4):
        open_session(node, peer)
    effects = say(node, 0, core.LivesTold(lives=((4, 2, 78),)))
    told = {effect.peer for effect in effects if isinstance(getattr(effect, "message", None), core.LivesTold)}
    assert told == {1, 3}


def test_a_node_without_memory_learns_its_generation_from_who_remembers_an_earlier_life():
    remembering = make_node(9, 1)
    open_session(remembering, 1, greeting=greeting(1, lifetime=core.Lifetime(3, 50)))
    effects = open_session(remembering, 1, session=2, greeting=greeting(2, lifetime=core.Lifetime(0, 60)))
    (told,) = [message for message in sent(effects) if isinstance(message, core.LivesTold)]
    assert (1, 3, 50) in told.lives
    wiped = core.Lifetimes(1, core.Lifetime(0, 60), {})
    assert wiped.claim(core.Lifetime(3, 50))
    assert wiped.own == core.Lifetime(4, 60)


def test_two_copies_do_not_outbid_each_other_for_ever():
    one, other = core.Lifetimes(1, core.Lifetime(0, 5), {}), core.Lifetimes(1, core.Lifetime(0, 6), {})
    claims = 0
    while one.claim(other.own) or other.claim(one.own):
        claims += 1
    assert claims <= 2 * core.MOST_CLAIMS


@pytest.mark.parametrize(
    ("lifetime", "news"),
    [
        (core.Lifetime(2, 9), core.News.KNOWN),
        (core.Lifetime(3, 9), core.News.LATER),
        (core.Lifetime(3, 4), core.News.NEW),
        (core.Lifetime(1, 4), core.News.STALE),
        (core.Lifetime(core.LARGEST_GENERATION + 1, 4), core.News.STALE),
        (core.Lifetime(5, 0), core.News.KNOWN),
    ],
)
def test_what_a_word_about_a_life_means(lifetime, news):
    assert core.Lifetimes(0, core.Lifetime(0, 1), {3: core.Lifetime(2, 9)}).judge(3, lifetime) is news


def test_a_word_about_nobody_is_ignored():
    node = make_node(3, 1, members=4)
    open_session(node, 1)
    assert say(node, 1, core.LivesTold(lives=((4, 1, 5), (2**50, 1, 5)))) == []
    assert len(node.lifetimes.latest) == 0


def test_an_edge_that_the_engine_works_on_begins_anew_when_it_is_through():
    node = make_node(0, 1, 2)
    effects = open_session(node, 1, greeting=greeting(1, lifetime=core.Lifetime(0, 11)))
    open_session(node, 2, greeting=greeting(2, lifetime=core.Lifetime(0, 12)))
    node.handle(core.SessionClosed(peer=1, session=1), 0.0)
    assert node.edges[1].exchange.busy
    assert only(say(node, 2, core.LivesTold(lives=((1, 1, 77),))), core.ResetEdge, core.NoteLifetime) == []
    _, effects = freeze(node, only(effects, core.Freeze))
    kinds = [type(effect) for effect in only(effects, core.ResetEdge, core.NoteLifetime)]
    assert kinds == [core.ResetEdge, core.NoteLifetime], "on the disk the life must not be without the new beginning"
    assert node.edges[1].exchange.record.pending is None


def test_a_neighbor_with_ever_other_processes_takes_bounded_memory():
    copies = core.Copies()
    for name in range(10 * core.MOST_PROCESSES):
        copies.note_greeting(name, float(name))
    assert len(copies._first_at) == core.MOST_PROCESSES
