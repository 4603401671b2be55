"""A node's life: wait, train, mix without training, linger, finish; and the joining of one that has no memory."""

from __future__ import annotations

import pytest
from core_kit import (
    commit,
    exchange_as_initiator,
    filled,
    freeze,
    has_completed,
    hello,
    make_node,
    only,
    open_session,
    request,
    say,
    sent,
    started,
)

from p2pfl import core


def train(node, effects, now):
    """One round that starts among `effects`, then its commit; what follows."""
    assert only(effects, core.StartRound)
    return commit(node, node.handle(core.RoundTrained(steps=1, samples=30), now), now)


def test_nothing_is_trained_before_the_driver_runs():
    node = make_node(0)
    assert node.wake(100.0) == []
    assert node.deadline() is None


def test_a_fresh_node_waits_for_all_its_neighbors_and_starts_with_the_last():
    node = make_node(1, 0, 2)
    assert started(node) == []
    assert only(open_session(node, 0, 0.1), core.StartRound) == []
    assert only(open_session(node, 2, 0.2), core.StartRound) == [core.StartRound(index=0, accompanied=True)]


def test_a_fresh_node_waits_for_the_others_no_longer_than_the_setting():
    node = make_node(1, 0, 2, start_wait_s=2.5)
    started(node)
    assert node.deadline() == 2.5
    open_session(node, 0, 1.0)
    assert only(node.wake(2.4), core.StartRound) == []
    assert only(node.wake(2.5), core.StartRound) == [core.StartRound(index=0, accompanied=True, away=(2,))]


def test_a_node_with_a_memory_waits_only_briefly_for_the_others():
    node = make_node(1, 0, 2, start_wait_s=60.0, fresh=False, version=5, rounds_done=2)
    started(node)
    assert node.deadline() == core.RESUME_WAIT_S
    open_session(node, 0, 1.0, greeting=hello(version=5, level=None))
    assert only(node.wake(core.RESUME_WAIT_S), core.StartRound) == [
        core.StartRound(index=2, accompanied=True, away=(2,))
    ]


@pytest.mark.parametrize("done", [0, 2])
def test_a_node_whose_neighbors_are_not_there_waits_untrained_for_ever_and_says_so_once(done):
    """Nobody there yet, after a power cut, and nobody there any more look alike."""
    node = make_node(1, 0, 2, start_wait_s=2.5, fresh=not done, version=done, rounds_done=done)
    effects = started(node)
    for second in range(3, 4000, 7):
        effects += node.wake(float(second))
    assert [alarm.kind for alarm in only(effects, core.Alarm)] == ["waiting-alone"]
    assert only(effects, core.StartRound) == []
    assert node.rounds.phase is core.Phase.WAITING
    effects = open_session(node, 0, 4000.0, greeting=hello(version=done, level=None)) + node.wake(4000.0)
    assert only(effects, core.StartRound) == [core.StartRound(index=done, accompanied=True, away=(2,))]


def test_a_node_that_has_finished_answers_with_done_for_a_while_and_finishes_again():
    node = make_node(1, 0, fresh=False, version=9, rounds_done=3, ended=True)
    started(node)
    assert node.rounds.phase is core.Phase.LINGERING
    assert [message.done for message in sent(open_session(node, 0, 1.0))][:1] == [True]
    assert only(node.wake(4.9), core.Finish) == []
    assert only(node.wake(5.0), core.Finish) == [core.Finish()]


def test_a_node_that_has_finished_lets_go_of_the_request_that_was_open_then():
    """Its answer, of a model from long before the end, would move what has been found since."""
    records = {1: core.EdgeRecord(seq=3, pending=request(seq=4, version=5)), 2: core.EdgeRecord(seq=3)}
    node = make_node(0, 1, 2, fresh=False, version=9, rounds_done=3, ended=True, records=records)
    effects = started(node)
    assert [reset.peer for reset in only(effects, core.ResetEdge)] == [1]
    assert [alarm.notice for alarm in only(effects, core.Alarm)] == [True]
    assert [(record.incarnation, record.pending) for record in records.values()] == [(1, None), (0, None)]


def test_a_node_without_neighbors_trains_closes_and_finishes():
    node = make_node(0)
    effects = started(node)
    for index in range(3):
        assert only(effects, core.StartRound) == [core.StartRound(index=index, accompanied=False)]
        effects = train(node, effects, 1.0 + index)
    for version in (4, 5):
        assert only(effects, core.CommitRound)[0].version == version
        assert not only(effects, core.CommitRound)[0].trained
        effects = commit(node, effects, 4.0)
    assert effects == [core.Finish()]
    assert node.deadline() is None


def test_a_run_bounded_by_time_counts_what_earlier_lives_have_used():
    for elapsed_s, more in ((0.0, True), (9.9, True), (10.0, False)):
        node = make_node(0, fresh=False, elapsed_s=elapsed_s, rounds=None, time_s=10.0)
        assert bool(only(started(node), core.StartRound)) is more


def test_a_failed_round_counts_and_raises_an_alarm():
    node = make_node(0)
    started(node)
    effects = node.handle(core.RoundTrained(steps=0, samples=0), 1.0)
    effects = commit(node, effects, 1.0, failed=True)
    assert [alarm.kind for alarm in only(effects, core.Alarm)] == ["round-failed"]
    assert node.facts.rounds == 1


def finished_training(**changes):
    """Node 0, edge to 1 open and served, all rounds done."""
    node = make_node(0, 1, fresh=False, version=3, rounds_done=3, closing_rounds=0, **changes)
    has_completed(node, 1)
    started(node)
    return node, exchange_as_initiator(node, open_session(node, 1))


def test_a_node_that_is_done_says_so_and_lingers_until_its_neighbors_are():
    node = make_node(0, 1, fresh=False, version=3, rounds_done=3, closing_rounds=0)
    has_completed(node, 1)
    started(node)
    effects = open_session(node, 1)
    assert core.Done(version=3) in sent(effects)
    assert only(effects, core.Finish) == []
    assert node.rounds.phase is core.Phase.LINGERING
    assert only(say(node, 1, core.Ready(version=9, closing=None), 1.0), core.Finish) == []
    freeze(node, effects, 1.0)
    assert only(say(node, 1, core.Done(version=9), 1.0), core.Finish) == [core.Finish()]


def test_a_node_that_is_done_lingers_no_longer_than_the_setting():
    node, _ = finished_training(linger_s=7.0)
    assert only(node.wake(6.9), core.Finish) == []
    assert only(node.wake(7.0), core.Finish) == [core.Finish()]


def test_a_lingering_node_still_answers():
    node = make_node(1, 0, fresh=False, version=3, rounds_done=3, closing_rounds=0)
    has_completed(node, 0)
    started(node)
    open_session(node, 0)
    assert node.rounds.phase is core.Phase.LINGERING
    assert say(node, 0, request(), 1.0)


def test_a_neighbor_that_says_done_in_its_greeting_is_done():
    node = make_node(0, 1, fresh=False, version=3, rounds_done=3, closing_rounds=0)
    started(node)
    assert only(open_session(node, 1, greeting=hello(done=True)), core.Finish)


def test_a_stop_finishes_at_once_in_every_phase():
    for version in (0, 3):
        node = make_node(1, 0, fresh=not version, version=version, rounds_done=version)
        started(node)
        assert node.handle(core.StopRequested(), 1.0) == [core.Finish()]
        assert node.handle(core.StopRequested(), 1.0) == []
        assert node.handle(core.RoundTrained(steps=1, samples=30), 2.0) == []


def test_a_commit_under_way_at_the_stop_does_not_start_another_round():
    node = make_node(0)
    started(node)
    node.handle(core.RoundTrained(steps=1, samples=30), 1.0)
    node.handle(core.StopRequested(), 1.0)
    assert node.handle(core.RoundCommitted(version=1, rounds=1, samples=30, failed=False), 2.0) == []


def test_while_a_request_is_out_n_may_not_fall_below_half_of_what_it_was_frozen_with():
    node = make_node(0, 1, 2, samples=90.0, start_wait_s=0.0)
    started(node)
    freeze(node, open_session(node, 1))
    (op,) = only(node.handle(core.RoundTrained(steps=1, samples=1), 1.0), core.CommitRound)
    assert op.least_samples == pytest.approx(45.0)


# -- joining ----------------------------------------------------------------------------------------------------------


def joining(*peers, version=50):
    """Node 0 without memory; its neighbors are at `version`. Effects of the last greeting."""
    node = make_node(0, *peers)
    effects = started(node)
    for peer in peers:
        effects += open_session(node, peer, greeting=hello(version=version))
    return node, effects


def test_a_node_without_memory_in_a_federation_under_way_joins_before_it_trains():
    node, effects = joining(1)
    assert node.rounds.phase is core.Phase.JOINING
    assert only(effects, core.StartRound) == []
    assert not only(effects, core.CommitRound)[0].trained


def test_a_node_that_comes_with_the_others_does_not_join():
    node, effects = joining(1, version=1)
    assert node.rounds.phase is core.Phase.TRAINING
    assert only(effects, core.StartRound)


def test_while_it_joins_its_exchanges_weigh_nothing():
    node, effects = joining(1)
    effects = exchange_as_initiator(node, effects)
    effects += say(node, 1, core.Ready(version=51, closing=None))
    assert [op.staleness for op in only(effects, core.Freeze)] == [0.0]


def test_it_starts_from_the_median_of_all_live_neighbors_once_their_replicas_are_filled():
    node, effects = joining(1, 2)
    effects = filled(node, effects)
    assert only(effects, core.Bootstrap) == [core.Bootstrap(peers=(1, 2))]
    assert min(edge.service.exchanges for edge in node.edges.values()) >= 3
    assert node.handle(core.Bootstrapped(), 0.0) == [core.StartRound(index=0, accompanied=True)]
    assert not node.facts.joining


def test_a_silent_neighbor_delays_joining_only_for_a_while():
    node, effects = joining(1, 2)
    silent = only(effects, core.Freeze)[1]
    freeze(node, [silent])
    effects = [effect for effect in effects if effect != silent]
    now = 0.0
    while not only(effects, core.Bootstrap):
        after = []
        for op in only(effects, core.Freeze):
            after += exchange_as_initiator(node, [op], now, version=50)
        for op in only(effects, core.CommitRound):
            after += commit(node, [op], now)
        if not after:
            now = node.deadline()
            after = node.wake(now)
        effects = after
    assert now >= core.JOIN_WAIT_S
    assert only(effects, core.Bootstrap) == [core.Bootstrap(peers=(1,))]


def test_a_node_that_nobody_answers_begins_from_its_own_start():
    node, effects = joining(1)
    freeze(node, effects)
    effects = commit(node, effects, 0.0)
    while not only(effects, core.StartRound):
        now = node.deadline()
        assert now <= core.LONGEST_JOIN_S + 2 * core.JOIN_WAIT_S
        effects = node.wake(now)
        if only(effects, core.CommitRound):
            effects += commit(node, effects, now)
    assert not node.facts.joining


def test_a_node_begins_only_when_everybody_is_there_as_far_as_the_graph_reaches():
    """With four hops to go, the neighbors' levels must rise to three; without them it waits out its patience."""
    node = make_node(1, 0, 2, start_wait_s=50.0, hops=4)
    started(node)
    open_session(node, 0)
    assert [m.level for m in sent(open_session(node, 2)) if isinstance(m, core.Ready)] == [1, 1]
    say(node, 0, core.Ready(version=0, level=3))
    assert node.rounds.phase is core.Phase.WAITING
    effects = say(node, 2, core.Ready(version=0, level=2))
    assert [m.level for m in sent(effects) if isinstance(m, core.Ready)] == [3, 3]
    effects = say(node, 2, core.Ready(version=0, level=3))
    assert only(effects, core.StartRound) == [core.StartRound(index=0, accompanied=True)]


def test_who_has_begun_holds_nobody_back():
    node = make_node(1, 0, start_wait_s=50.0, hops=9)
    started(node)
    open_session(node, 0)
    assert node.rounds.phase is core.Phase.WAITING
    assert only(say(node, 0, core.Ready(version=0, level=None)), core.StartRound) == [
        core.StartRound(index=0, accompanied=True)
    ]


def trained(**changes):
    """Node 1, which has done its one round and is to do two closing rounds, beside a neighbor that has begun none."""
    node = make_node(1, 0, start_wait_s=0.0, rounds=1, closing_rounds=2, linger_s=30.0, **changes)
    has_completed(node, 0)
    started(node)
    open_session(node, 0)
    commit(node, node.handle(core.RoundTrained(steps=1, samples=30), 1.0), 1.0)
    return node


def test_a_closing_round_waits_until_the_neighbor_is_no_more_than_one_behind():
    node = trained()
    assert only(node.wake(10.0), core.CommitRound) == []
    assert [op.trained for op in only(say(node, 0, core.Ready(version=9, closing=0), 11.0), core.CommitRound)] == [
        False
    ]


def test_a_closing_round_does_not_wait_for_ever():
    node = trained()
    node.wake(10.0)
    closing_since = node.rounds.phase_from
    assert only(node.wake(closing_since + 29.0), core.CommitRound) == []
    assert len(only(node.wake(closing_since + 30.0), core.CommitRound)) == 1


def closing_rounds(node, effects, answer):
    """Go on to the end of closing: the number of each round that begins to train, and whether what is committed did."""
    seen = []
    for now in range(12, 99):
        if node.facts.done:
            break
        if begun := only(effects, core.StartRound):
            seen.append(begun[0].closing)
            effects = node.handle(answer, float(now))
        if ops := only(effects, core.CommitRound):
            seen.append(ops[0].trained)
            effects = commit(node, effects, float(now))
        else:
            effects = node.wake(float(now))
    return seen


@pytest.mark.parametrize(
    "said", [core.Ready(version=9, closing=2), core.Done(version=9), None], ids=["in step", "ended early", "mute"]
)
def test_closing_rounds_train_to_the_last_whatever_a_neighbor_does(said):
    node = trained(closing_trains=True)
    effects = [] if said is None else say(node, 0, said, 11.0)
    assert closing_rounds(node, effects, core.RoundTrained(steps=1, samples=30)) == [1, True, 2, True]
    assert node.facts.done
    assert node.facts.rounds == 3


def test_closing_rounds_only_mix_by_default_and_without_a_budget():
    node = trained()
    said = core.Ready(version=9, closing=2)
    assert closing_rounds(node, say(node, 0, said, 11.0), core.RoundTrained(steps=1, samples=30)) == [False, False]
    node = trained(closing_trains=True)
    refused = core.RoundRefused(why="nothing is left", for_good=True, planned=True)
    assert closing_rounds(node, say(node, 0, said, 11.0), refused) == [1, False, False]
    node = trained(closing_trains=True)
    refused = core.RoundRefused(why="the ledger cannot be written", for_good=False, planned=False)
    assert closing_rounds(node, say(node, 0, said, 11.0), refused) == [1, False, 2, False]


def test_the_wait_for_a_neighbor_begins_anew_in_each_closing_round_that_trains_and_no_pace_corrects_it():
    node = trained(closing_trains=True, speed_limit=9.0)
    begun = say(node, 0, core.Ready(version=9, closing=0), 11.0)
    (op,) = only(node.handle(core.RoundTrained(steps=1, samples=30), 50.0), core.CommitRound)
    assert only(begun, core.StartRound)
    assert op.rho == 1.0
    commit(node, [op], 50.0)
    assert only(node.wake(79.0), core.StartRound) == [], "its round may take as long as this one's did"
    assert [start.closing for start in only(node.wake(80.0), core.StartRound)] == [2]


def test_no_figure_of_a_closing_round_ends_or_marks_training():
    node = trained(closing_trains=True, stop=core.Stop(patience=3))
    closing_rounds(node, say(node, 0, core.Done(version=9), 11.0), core.RoundTrained(steps=1, samples=30, figure=0.1))
    assert node.rounds.training.best is None


def levels(effects):
    return [message.level for message in sent(effects) if isinstance(message, core.Ready)]


def test_a_node_whose_neighbor_is_gone_again_is_not_woken_for_ever():
    node = make_node(1, 0, 2, start_wait_s=50.0, hops=9)
    started(node)
    open_session(node, 0)
    open_session(node, 2)
    node.handle(core.SessionClosed(peer=2, session=node.edges[2].line.session), 0.5)
    for now, then in ((1.0, 3.0), (3.0, 7.0), (7.0, 15.0), (15.0, 31.0), (31.0, 47.0)):
        assert levels(node.wake(now)) == [1]
        assert node.deadline() == then


def test_a_request_of_a_later_version_tells_that_its_sender_has_begun():
    node = make_node(1, 0, start_wait_s=50.0, hops=9)
    started(node)
    open_session(node, 0)
    say(node, 0, request(version=0))
    assert node.rounds.phase is core.Phase.WAITING
    node = make_node(1, 0, start_wait_s=50.0, hops=9)
    started(node)
    open_session(node, 0)
    assert only(say(node, 0, request(version=3)), core.StartRound)


def test_a_node_that_is_ahead_in_the_closing_rounds_says_again_where_it_stands():
    node = trained()
    node.wake(10.0)
    assert node.rounds.phase is core.Phase.CLOSING
    assert [message.closing for message in sent(node.wake(11.0)) if isinstance(message, core.Ready)] == [0]
    assert sent(node.wake(11.5)) == []


def test_a_lingering_node_says_again_that_it_is_done():
    node, _ = finished_training(linger_s=7.0)
    assert [type(message) for message in sent(node.wake(1.0))] == [core.Done]
    assert sent(node.wake(1.5)) == []
