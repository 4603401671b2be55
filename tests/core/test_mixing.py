"""The robust profile's core: when a node mixes, with whom, and how much each counts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from core_kit import (
    SAMPLES,
    apply_request,
    has_completed,
    hello,
    make_node,
    only,
    open_session,
    pending_initiator,
    reply_to,
    request,
    say,
    settings,
)
from robust_kit import Around

from p2pfl import core

HUGE = 1e300


def met(degree=3, **changes):
    around = Around(degree, **changes)
    around.meet()
    return around


# -- no flow --------------------------------------------------------------------------------------------------------


def test_a_responder_never_answers_with_a_factor():
    node = make_node(1, 0, liars=1, version=3, rounds_done=3, fresh=False)
    open_session(node, 0)
    (op,) = only(say(node, 0, request(echo=3, weight=HUGE, staleness=1.0)), core.ApplyRequest)
    assert op.factor == 0.0


@pytest.mark.parametrize("factor", [5e-324, 1e-9, 1.0])
def test_an_answer_with_any_factor_is_refused_and_counted(factor):
    node, asked = pending_initiator(liars=1)
    effects = say(node, 1, reply_to(asked, factor=factor))
    assert only(effects, core.ApplyReply) == []
    assert only(effects, core.ResetEdge) == [core.ResetEdge(peer=1, incarnation=1)]
    assert node.reputations(0.0)[1].faults == {"factor": 1}


# -- when -----------------------------------------------------------------------------------------------------------


def test_a_round_mixes_once_after_its_exchanges_and_before_the_next_begins():
    around = met()
    around.rounds(3)
    order = [type(effect) for effect in around.of(core.StartRound, core.CommitRound, core.Mix)]
    assert order == [core.StartRound, core.CommitRound, core.Mix] * 3 + [core.StartRound]
    for mix in around.of(core.Mix):
        place = around.seen.index(mix)
        replies = [effect for effect in around.seen[:place] if isinstance(effect, core.ApplyReply)]
        assert {reply.peer for reply in replies[-3:]} == {1, 2, 3}


def test_no_round_begins_before_the_engine_has_mixed():
    around = met()
    around.answer = lambda effect, plain=around.answer: [] if isinstance(effect, core.Mix) else plain(effect)
    around.carry_out(around.node.handle(core.RoundTrained(steps=1, samples=30), 1.0))
    assert around.last(core.StartRound, core.CommitRound, core.Mix) == around.last(core.Mix)
    assert around.node.rounds.mixing.mixed == 0
    assert around.node.deadline() is None or only(around.node.wake(around.node.deadline()), core.StartRound) == []
    assert only(around.node.handle(core.Mixed(), 9.0), core.StartRound) == [core.StartRound(index=1, accompanied=True)]
    assert around.node.rounds.mixing.mixed == 1


def test_closing_rounds_mix_too_and_the_last_before_the_node_is_done():
    around = met(rounds=1, closing_rounds=2)
    has_completed(around.node, 1, 2, 3)
    around.now = 1.0
    around.carry_out(around.node.handle(core.RoundTrained(steps=1, samples=30), 1.0))
    for closing in (1, 2):
        for peer in (1, 2, 3):
            message = core.Ready(version=closing + 1, closing=closing)
            around.carry_out(say(around.node, peer, message, 1.0, around.node.edges[peer].line.session))
    order = [type(effect) for effect in around.of(core.CommitRound, core.Mix)]
    assert order == [core.CommitRound, core.Mix] * 3
    assert around.node.facts.done


def test_a_mix_that_is_under_way_at_the_stop_begins_nothing():
    around = met()
    around.answer = lambda effect, plain=around.answer: [] if isinstance(effect, core.Mix) else plain(effect)
    around.carry_out(around.node.handle(core.RoundTrained(steps=1, samples=30), 1.0))
    assert around.node.handle(core.StopRequested(), 1.0) == [core.Finish()]
    assert around.node.handle(core.Mixed(), 1.1) == []


def test_a_rule_that_failed_is_told_of_counts_as_a_round_alone_and_the_next_one_begins():
    around = met()
    around.fails = True
    around.rounds(2)
    assert around.alarms("mixing-failed") == ["mixing-failed"] * 2
    assert (around.node.rounds.mixing.mixed, around.node.rounds.mixing.alone) == (0, 2)
    assert around.last(core.StartRound).index == 2


def test_the_conservative_profile_never_mixes():
    around = met(liars=None)
    around.rounds(3)
    assert around.of(core.Mix) == []


def test_ten_mixes_in_a_row_of_which_nothing_came_are_told_of_once_and_once_that_something_came_again():
    around = met()
    around.moves = False
    around.rounds(core.UNMOVED_ROUNDS - 1)
    around.moves = True
    around.rounds(1)
    around.moves = False
    around.rounds(core.UNMOVED_ROUNDS - 1)
    assert around.alarms("nothing-kept") == []
    around.rounds(2 * core.UNMOVED_ROUNDS)
    assert around.alarms("nothing-kept", "kept-again") == ["nothing-kept"]
    assert around.node.rounds.mixing.alone == 0
    around.moves = True
    around.rounds(3)
    assert around.alarms("nothing-kept", "kept-again") == ["nothing-kept", "kept-again"]


# -- with whom ------------------------------------------------------------------------------------------------------


def test_with_no_more_than_twice_the_liars_nothing_is_mixed_and_one_alarm_says_so():
    around = met(5, liars=2)
    around.rounds(2)
    assert [mix.peers for mix in around.of(core.Mix)] == [(1, 2, 3, 4, 5)] * 2
    around.lose(4)
    around.rounds(10)
    assert len(around.of(core.Mix)) == 2
    assert around.alarms("too-few-neighbors", "enough-neighbors") == ["too-few-neighbors"]
    around.meet_again(4)
    around.rounds(3)
    assert around.alarms("too-few-neighbors", "enough-neighbors") == ["too-few-neighbors", "enough-neighbors"]
    assert around.last(core.Mix).peers == (1, 2, 3, 4, 5)
    assert (around.node.rounds.mixing.mixed, around.node.rounds.mixing.alone) == (5, 10)


def test_a_neighbor_in_quarantine_is_not_there_and_as_many_of_the_others_may_lie_as_before():
    around = met(5, liars=2)
    around.rounds(2)
    edge = around.node.edges[4]
    while not edge.line.reputation.quarantines:
        around.carry_out(edge.exchange.blame(core.Fault.PAYLOAD, "not finite", around.now))
    around.rounds(10)
    assert len(around.of(core.Mix)) == 2, "four are left, of which two may lie"
    assert around.alarms("too-few-neighbors") == ["too-few-neighbors"]
    assert around.node.settings.profile.neighbors_needed == 5


def test_a_rule_that_needs_more_neighbors_gets_them_or_is_not_asked():
    around = met(4, liars=1, least=5)
    around.rounds(3)
    assert around.of(core.Mix) == []
    assert around.alarms("too-few-neighbors") == ["too-few-neighbors"]


def test_a_few_rounds_without_filled_replicas_are_not_told_of_and_more_are():
    around = met(3, silent={1, 2, 3})
    around.rounds(core.GRACE - 1)
    assert around.node.rounds.mixing.alone == core.GRACE - 1
    assert around.alarms("too-few-neighbors") == []
    around.rounds(1)
    assert around.alarms("too-few-neighbors") == ["too-few-neighbors"]


def test_replicas_of_fewer_than_two_transactions_are_not_mixed():
    around = Around(4)
    around.meet(1, 2, 3)
    around.now = 2.0
    around.carry_out(around.node.wake(2.0))
    around.rounds(1)
    around.meet(4)
    assert around.node.edges[4].exchange.record.seq == 1
    around.silent = {4}
    around.rounds(1)
    assert around.last(core.Mix).peers == (1, 2, 3)


def test_a_neighbor_that_began_anew_is_mixed_once_its_replica_is_filled_again():
    around = met(4)
    around.rounds(2)
    around.silent = {4}
    around.carry_out(say(around.node, 4, core.Resync(incarnation=1), around.now, 4))
    around.rounds(1)
    assert around.last(core.Mix).peers == (1, 2, 3)
    around.silent = set()
    around.carry_out(around.node.wake(around.now + 60.0))
    around.now += 60.0
    around.rounds(2)
    assert around.last(core.Mix).peers == (1, 2, 3, 4)


def test_a_neighbor_without_a_session_is_not_mixed_and_comes_back_with_the_age_of_its_replica():
    around = met(4)
    around.rounds(2)
    before = around.last(core.Mix).weights[3]
    around.lose(4)
    around.rounds(12)
    assert around.last(core.Mix).peers == (1, 2, 3)
    around.silent = {4}
    around.meet_again(4)
    around.rounds(1)
    assert around.last(core.Mix).peers == (1, 2, 3, 4)
    assert 0.0 < around.last(core.Mix).weights[3] < before / 2


@pytest.mark.parametrize("spec", ["hinge-polynomial:4,0.5", "none", "constant"])
def test_a_neighbor_that_stays_and_never_exchanges_loses_all_its_weight(spec):
    around = met(4, staleness=core.parse_staleness(spec))
    around.rounds(2)
    around.silent = {4}
    around.rounds(core.LIMIT + 2)
    weights = [mix.weights[3] for mix in around.of(core.Mix) if 4 in mix.peers]
    assert weights == sorted(weights, reverse=True)
    assert around.last(core.Mix).peers == (1, 2, 3)


def test_neighbors_that_all_stay_and_never_exchange_are_told_of_although_their_sessions_are_there():
    around = met(3)
    around.rounds(2)
    around.silent = {3}
    around.rounds(core.LIMIT + 2 + core.GRACE)
    assert around.alarms("too-few-neighbors") == ["too-few-neighbors"]


# -- how much -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("claim", [0.0, 1e-300, 7.5, SAMPLES, HUGE])
def test_no_neighbor_weighs_more_than_one_of_all_whatever_it_claims(claim):
    around = met(4)
    around.weights = {2: claim}
    around.rounds(3)
    for mix in around.of(core.Mix):
        assert all(0.0 < weight <= 1 / 5 for weight in mix.weights)
        assert sum(mix.weights) < 1.0
        assert (2 in mix.peers) == (claim > 0.0)
        shares = dict(zip(mix.peers, mix.weights, strict=True))
        assert shares.get(2, 0.0) == min(SAMPLES / 5, claim) / SAMPLES


@pytest.mark.parametrize("echo", [0, 1, 10**9])
def test_an_echo_from_the_future_counts_no_more_than_the_latest(echo):
    node = make_node(1, 0, 2, 3, liars=1, version=10, rounds_done=10, rounds=99, fresh=False)
    open_session(node, 0, greeting=hello(version=9))
    for seq in (1, 2):
        apply_request(node, say(node, 0, request(seq=seq, echo=echo, weight=HUGE)))
    tau = max(0, 10 - echo)
    assert node.edges[0].exchange.share() == pytest.approx(node.settings.staleness(tau) / 4)
    assert node.edges[0].exchange.weighing.report.echo <= 10


def test_in_a_schedule_all_neighbors_share_the_weight_whatever_round_it_is():
    """One neighbor a round would weigh a half; three of them could throw the model past all."""
    schedule = (((0, 1),), ((0, 2),), ((0, 3),))
    node = make_node(0, 1, 2, 3, liars=1, turns=core.turns_of(0, schedule))
    assert node.facts.weight == SAMPLES / 4


# -- speed ----------------------------------------------------------------------------------------------------------


def rhos(paces, count=6, **changes):
    around = met(len(paces), speed_limit=4.0, **changes)
    around.paces = dict(enumerate(paces, 1))
    around.rounds(count)
    return [commit.rho for commit in around.of(core.CommitRound)]


@pytest.mark.parametrize("lie", [0.0, 1e-9, 1e9])
def test_one_lying_pace_of_three_moves_nothing_far(lie):
    honest = rhos([0.1, 0.2, 0.2])
    lied = rhos([lie, 0.2, 0.2])
    assert honest[1:] == pytest.approx([0.1 / 0.15] * 5)
    assert all(0.5 <= rho <= 1.0 for rho in lied[1:])


def test_a_pace_that_is_not_known_yet_does_not_count():
    assert rhos([0.0, 0.0, 0.0]) == [1.0] * 6
    around = met(3, speed_limit=4.0)
    around.node.edges[1].exchange.weighing.report = None
    training = around.node.rounds.training
    training.pace_from = 0.0
    assert training.correction(1, 0.0, 0.3) == 1.0


def test_with_too_few_that_tell_their_pace_the_own_one_counts():
    assert rhos([1e9, 1e9], count=3) == [1.0] * 3


# -- joining --------------------------------------------------------------------------------------------------------


def test_one_liar_that_says_the_federation_has_moved_on_is_not_believed():
    around = Around(3)
    around.meet(1, greeting=hello(version=50))
    around.meet(2, 3)
    assert around.last(core.StartRound) == core.StartRound(index=0, accompanied=True)
    assert around.of(core.CommitRound, core.Bootstrap) == []


def test_a_node_that_joins_starts_from_more_than_twice_the_liars():
    around = Around(3)
    around.meet(1, 2, 3, greeting=hello(version=50))
    around.wait()
    assert around.of(core.Bootstrap) == [core.Bootstrap(peers=(1, 2, 3))]
    assert around.of(core.Mix) == []


def test_a_node_that_joins_among_too_few_starts_from_its_own_model():
    around = Around(3, silent={3})
    around.meet(1, 2, 3, greeting=hello(version=50))
    around.wait()
    assert around.of(core.Bootstrap) == []
    assert around.last(core.StartRound) is not None


def test_what_leaves_while_the_next_round_trains_names_the_version_it_is_of():
    """The model has mixed since; what the neighbor then holds is the same version, a little further."""
    around = met()
    around.rounds(1)
    version = around.node.facts.version
    around.carry_out(say(around.node, 2, core.Ready(version=7), around.now, 2))
    asked = [send.message for send in around.of(core.Send) if isinstance(send.message, core.Request) and send.peer == 2]
    assert asked[-1].version == version


def mixing_of(facts=None, *, is_open=True, **changes):
    service = SimpleNamespace(exchanges=0, has_turn=True)
    edge = SimpleNamespace(is_open=is_open, service=service, exchange=SimpleNamespace(share=lambda: 0.0))
    return core.Mixing({1: edge}, facts or SimpleNamespace(closing=None), settings(**changes)), service


def kinds(mixing, rounds):
    return [alarm.kind for _ in range(rounds) for alarm in mixing.begin()]


def test_who_mixes_with_nobody_in_most_rounds_says_so_once():
    """Rounds count training: where each is over before an exchange is, all are done before anything has mixed."""
    mixing, service = mixing_of()
    service.exchanges = 1
    assert kinds(mixing, 1) == []
    assert kinds(mixing, core.UNMOVED_ROUNDS - 2) == []
    assert kinds(mixing, 3 * core.UNMOVED_ROUNDS) == ["hardly-mixes"]
    assert (mixing.mixed, mixing.alone) == (1, 4 * core.UNMOVED_ROUNDS - 2)


@pytest.mark.parametrize(
    ("unlike", "said"),
    [({"is_open": False}, []), ({"facts": SimpleNamespace(closing=0)}, []), ({"liars": 1}, ["too-few-neighbors"])],
    ids=["nobody is there", "closing rounds", "too few for the rule"],
)
def test_what_is_said_in_other_words_is_no_such_alarm(unlike, said):
    mixing, _ = mixing_of(**unlike)
    assert kinds(mixing, 3 * core.UNMOVED_ROUNDS) == said
