"""Why a loss grows: what is a reason to act, and what only looks like it."""

from __future__ import annotations

import pytest

from p2pfl.learn import DRIVEN, NOISY, OVERFITTED, WINDOW, Losses


def losses_of(own, tests, *, private=False):
    """Of so many rounds, each with a test."""
    losses = Losses(private=private)
    for trained, tested in zip(own, tests, strict=True):
        if trained is not None:
            losses.trained(trained)
        losses.tested(tested)
    return losses


def steps(*values):
    return [value for value in values for _ in range(WINDOW)]


@pytest.mark.parametrize(
    ("tests", "grown"),
    [
        (steps(1.0, 0.5), False),
        (steps(1.0, 0.5, 0.9), True),
        ([*steps(1.0, 0.5), *[9.0] * 4], False),
        (steps(1.0, 0.01, 0.05), False),
        ([*steps(0.5), *[1.0] * (WINDOW - 1)], True),
        ([0.5, 1.0] * 3, False),
    ],
    ids=["it falls", "it comes back", "a few outliers", "next to nothing", "from the first", "too few rounds"],
)
def test_a_loss_has_grown_where_it_is_far_above_its_best_for_long(tests, grown):
    assert (losses_of(tests, tests).growth is not None) is grown


def test_a_model_that_fits_its_own_rows_ever_better_is_overfitted():
    """Digits for 900 rounds: .074 becomes .092 and more, and the loss of the own rounds falls on."""
    growth = losses_of(steps(2.0, 0.1, 0.05, 0.01), steps(2.3, 0.07, 0.2, 0.4)).growth

    assert growth.reason == OVERFITTED
    assert growth.text == "the loss on the test rows is 0.4, after 0.07 at its best"


def test_a_model_that_overfits_is_not_lost_because_its_node_was_started_again():
    """The first test of a process that goes on is of a model that has learned, and comes before the first round."""
    losses = Losses(resumed=True)
    losses.tested(0.3)
    for own, test in zip(steps(0.1, 0.01, 0.001), steps(0.3, 0.7, 0.9), strict=True):
        losses.trained(own)
        losses.tested(test)

    assert (losses.growth.reason, losses.growth.is_lost) == (OVERFITTED, False)


def test_a_model_that_fits_its_own_rows_worse_as_well_is_driven():
    assert losses_of(steps(2.0, 0.1, 0.4), steps(2.3, 0.07, 0.5)).growth.reason == DRIVEN


def test_what_the_own_rounds_were_like_before_the_best_test_does_not_count():
    """Nodes with unlike data first fit their own rows alone."""
    assert losses_of(steps(0.01, 0.2, 0.1), steps(2.3, 0.3, 0.7)).growth.reason == OVERFITTED


def test_with_noise_for_privacy_the_own_rounds_are_not_looked_at():
    assert losses_of([None] * 3 * WINDOW, steps(2.3, 0.3, 0.7), private=True).growth.reason == NOISY
    private = Losses(private=True)
    for loss in steps(1.0, 100.0):
        private.trained(loss)
    assert private.growth is None


def test_without_tests_the_loss_of_the_own_rounds_may_grow_while_nodes_come_to_agree():
    losses = Losses()
    for loss in [4.0, *steps(0.5, 2.0)]:
        losses.trained(loss)
    assert losses.growth is None
    for loss in steps(50.0):
        losses.trained(loss)
    assert losses.growth.reason == DRIVEN
    assert "latest rounds is 50, after 0.5" in losses.growth.text
