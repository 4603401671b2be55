"""Training that stops because nothing gets better: decided by a node's own figures, told like the end of its rounds."""

from __future__ import annotations

import pytest
from core_kit import begun_alone, commit, has_completed, make_node, only, open_session, settings

from p2pfl import core
from tests.invariants import check_invariants

TWO = core.Stop(patience=2, least=0.1)


def node_of(figures, *, best=None, rounds_done=0, **changes):
    """A node that has trained one round for each of the figures, without an exchange; and the last effects.

    Two others have begun and are not through: it cannot end yet.
    """
    usual = {"stop": TWO, "rounds": 99, "linger_s": 5.0, "when_through": "train-on"}
    node = make_node(0, 1, 2, rounds_done=rounds_done, **(usual | changes))
    node.rounds.training.best = best
    node.members.remember([1, 2], 0.0)
    effects = begun_alone(node)
    for turn, figure in enumerate(figures, start=1):
        assert only(effects, core.StartRound), f"no round {turn} was begun"
        effects = node.handle(core.RoundTrained(steps=1, samples=30, figure=figure), float(turn))
        effects = commit(node, effects, float(turn))
    return node, effects


@pytest.mark.parametrize(
    ("figures", "through"),
    [
        ([3.0, 2.0, 1.0], False),
        ([3.0, 2.0, 2.0, 2.0], True),
        ([3.0, 2.0, 1.95, 1.95], True),
        ([3.0, 2.0, 1.95, 1.8], False),
        ([3.0, float("nan"), float("nan")], True),
        ([float("nan"), float("inf"), 3.0, 2.0], False),
        ([None, None, None, None], False),
    ],
    ids=[
        "it gets better",
        "it does not",
        "by too little",
        "by enough in two steps",
        "no number",
        "none at first",
        "nothing is known",
    ],
)
def test_a_node_is_through_when_its_patience_has_run_out(figures, through):
    node, _ = node_of(figures)
    assert node.termination.has_completed is through


@pytest.mark.parametrize("liars", [None, 1])
def test_it_goes_on_as_a_full_member_until_the_others_are_through_too(liars):
    """In both profiles: nobody's word but its own makes it through, and nobody is left behind by it."""
    node, effects = node_of([1.0, 1.0, 1.0], liars=liars)
    assert node.termination.has_completed
    assert only(effects, core.StartRound), "it trains on"
    (told,) = only(effects, core.Alarm)
    assert (told.kind, told.notice) == ("trained-enough", True)
    assert told.text == "this node has trained enough after round 3: no improvement of loss since round 1"
    assert node.termination.ended_by is None
    for peer in (1, 2):
        open_session(node, peer, 3.5)
    has_completed(node, 1, 2, now=3.5)
    effects = commit(node, node.handle(core.RoundTrained(steps=1, samples=30, figure=0.2), 4.0), 4.0)
    effects += node.wake(60.0)
    assert node.termination.ended_by is core.Reason.ALL
    assert not [alarm for alarm in only(effects, core.Alarm) if alarm.kind in ("stopped-early", "trained-enough")]


def test_who_only_mixes_then_trains_no_more():
    node, effects = node_of([1.0, 1.0, 1.0], when_through="mix")
    assert node.rounds.phase is core.Phase.TRAINING
    assert not only(effects, core.StartRound)


def test_what_comes_after_the_patience_ran_out_changes_nothing():
    """Else a restarted node would find itself not through, of which the others have heard."""
    node, _ = node_of([1.0, 1.0, 1.0, 0.1])
    assert node.rounds.training.best == core.Best(1.0, 1)
    again, _ = node_of([], best=core.Best(1.0, 1), rounds_done=4)
    assert again.termination.has_completed


def test_the_best_figure_leaves_with_each_round_so_that_a_restart_remembers():
    node, _ = node_of([3.0, 1.0])
    (op,) = only(node.handle(core.RoundTrained(steps=1, samples=30, figure=2.0), 9.0), core.CommitRound)
    assert op.best == core.Best(1.0, 2)
    again, _ = node_of([2.0], best=op.best, rounds_done=3)
    assert again.termination.has_completed
    assert not node_of([2.0], best=None, rounds_done=3)[0].termination.has_completed


def test_the_figures_of_another_model_are_forgotten():
    """Who starts from its neighbors' median counts on from their round, and would have no patience left."""
    node, _ = node_of([1.0])
    node.rounds.beginning.resume_point = 80, None
    node.handle(core.Bootstrapped(), 2.0)
    assert node.facts.rounds == 80
    assert node.rounds.training.best is None


def test_a_time_ends_it_beside_a_number_of_rounds():
    node, _ = node_of([1.0, 1.0], stop=core.Stop(after_s=3.0))
    assert not node.termination.has_completed
    node, _ = node_of([1.0, 1.0, 1.0], stop=core.Stop(after_s=3.0))
    assert node.termination.has_completed
    assert node.rounds.training.enough(3.0) == "it has trained for 3 s"


def test_the_reason_is_told_in_words():
    for changes, words in (
        ({"rounds": 2}, "2 rounds are done"),
        ({"rounds": None, "time_s": 1.5}, "it has trained for 1.5 s"),
        ({"stop": core.Stop(patience=1, of="auc")}, "no improvement of auc since round 1"),
        ({"rounds": 3}, None),
    ):
        node, _ = node_of([1.0, 1.0], **({"stop": None} | changes))
        assert node.rounds.training.enough(2.0) == words


def test_the_figures_of_a_node_without_a_stop_are_not_kept():
    node, _ = node_of([1.0], stop=None)
    training = core.Training({}, node.facts, node.rounds.settings, 0.0)
    training.look_at(1.0)
    assert training.best is None


# -- Rounds that the privacy budget does not pay for: the node is through and mixes, or tries again later.

SPENT = core.RoundRefused(why="the budget is spent", for_good=True, planned=True)
NONE = core.RoundRefused(why="there is no budget", for_good=True)
LATER = core.RoundRefused(why="the disk refuses", for_good=False)


def beginning(**changes):
    """A node whose first round is to begin; two others have begun and are not through."""
    node = make_node(0, 1, 2, **({"rounds": 9} | changes))
    node.members.remember([1, 2], 0.0)
    assert only(begun_alone(node), core.StartRound)
    return node


@pytest.mark.parametrize(("event", "kind"), [(SPENT, "budget-spent"), (NONE, "no-budget")])
@pytest.mark.parametrize("when_through", ["mix", "train", "train-on"])
def test_a_node_without_a_budget_is_through_says_so_once_and_never_trains_again(event, kind, when_through):
    node = beginning(when_through=when_through)
    effects = node.handle(event, 1.0)
    assert [(alarm.kind, alarm.notice) for alarm in only(effects, core.Alarm)] == [(kind, event.planned)]
    assert node.termination.has_completed
    assert node.rounds.training.enough(1.0) == event.why
    for turn in range(6):
        assert not only(node.wake(1.0 + turn * core.IDLE_S), core.StartRound, core.Alarm)
        check_invariants(node)
    assert node.rounds.phase is core.Phase.TRAINING


def test_what_the_disk_refuses_to_pay_for_is_tried_again_after_a_while_and_no_end_is_told():
    node = beginning()
    assert not only(node.handle(LATER, 1.0), core.StartRound, core.Alarm, core.CommitRound)
    assert node.deadline() <= 1.0 + core.IDLE_S
    assert not only(node.wake(1.0 + core.IDLE_S / 2), core.StartRound)
    assert only(node.wake(1.0 + core.IDLE_S), core.StartRound)
    assert not node.termination.has_completed
    effects = node.handle(core.RoundTrained(steps=1, samples=30), 2.0)
    assert node.facts.rounds == 0
    commit(node, effects, 2.0)
    assert node.facts.rounds == 1


def test_more_rounds_to_do_are_no_more_budget():
    node = beginning()
    node.handle(SPENT, 1.0)
    more = core.Amended(neighbors=(1, 2), turns={}, settings=settings(rounds=99))
    effects = node.handle(more, 2.0)
    for turn in range(8):
        effects += node.wake(3.0 + turn)
    assert not only(effects, core.StartRound)
    assert node.termination.has_completed


def test_a_refusal_that_comes_after_the_end_changes_nothing():
    node = beginning()
    node.handle(core.StopRequested(), 1.0)
    assert node.handle(SPENT, 2.0) == []
    assert node.rounds.phase is core.Phase.FINISHED
