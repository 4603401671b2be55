"""Tests come every so many rounds, or take a bounded share of a node's time."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from p2pfl.node import FIRST_TESTS, TEST_SHARE, EvaluationPace, LocalRounds


def play(pace, rounds, *, round_s, test_s):
    """Play rounds of `round_s` seconds; `test_s(n)` is how long the n-th test takes."""
    tested = []
    for index in range(rounds):
        if pace.is_due(index):
            pace.tested(test_s(len(tested)))
            tested.append(index)
        pace.worked(round_s)
    return tested


@pytest.mark.parametrize(("every", "tested"), [(0, []), (1, [0, 1, 2, 3, 4, 5]), (4, [0, 4])])
def test_a_number_is_the_rounds_between_two_tests(every, tested):
    assert play(EvaluationPace(every), 6, round_s=1.0, test_s=lambda _: 100.0) == tested


@pytest.mark.parametrize("round_s", [0.02, 0.05, 0.9])
def test_automatic_tests_take_a_tenth_of_the_time_after_the_first(round_s):
    """However short the rounds are, after the first tests the others fit in a tenth of the time of rounds."""
    rounds = round(200 / round_s)
    tested = play(EvaluationPace("auto"), rounds, round_s=round_s, test_s=lambda _: 1.0)
    assert tested[:FIRST_TESTS] == [0, 1]
    later = len(tested) - FIRST_TESTS
    assert 0.7 * TEST_SHARE < later / (rounds * round_s) <= TEST_SHARE


def test_rounds_that_are_long_are_all_tested():
    assert play(EvaluationPace("auto"), 5, round_s=10.1, test_s=lambda _: 1.0) == [0, 1, 2, 3, 4]


def test_a_single_slow_test_does_not_delay_the_next_ones():
    """The first test also loads code; it says nothing about what tests cost."""
    pace = EvaluationPace("auto")
    tested = play(pace, 100, round_s=1.0, test_s=lambda count: 1000.0 if count in (0, 4) else 1.0)
    assert tested == [0, 1, *range(11, 100, 10)]


def test_a_stop_condition_that_reads_tests_is_tested_every_round():
    pace = EvaluationPace("auto", each_round=True)
    assert play(pace, 5, round_s=0.001, test_s=lambda _: 1.0) == [0, 1, 2, 3, 4]


def test_a_test_that_waits_for_the_learner_does_not_call_for_another():
    pace = EvaluationPace("auto")
    for _ in range(FIRST_TESTS):
        pace.tested(1.0)
    pace.worked(10.0)
    assert pace.is_due(2)
    pace.begin()
    assert not pace.is_due(3)


@pytest.mark.parametrize(("every", "tests"), [("auto", 2), (1, 30)])
async def test_a_node_that_lingers_keeps_to_the_share_of_time_too(monkeypatch, every, tests):
    """Its neighbors may be busy for hours, and the node looks at its model every second."""
    clock = iter(range(100))
    monkeypatch.setattr("p2pfl.node.learner_runner.time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    pace = EvaluationPace(every)
    for _ in range(FIRST_TESTS):
        pace.tested(1.3)
    local = LocalRounds(SimpleNamespace(), SimpleNamespace(pace=pace, evaluate_every=every), on_measure=int)
    measured = []
    local.measure = lambda: measured.append(1)
    for _ in range(30):
        local.look_while_mixing()
    assert len(measured) == tests
