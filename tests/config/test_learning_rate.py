"""Schedules of the learning rate: what they say of a round, and what is refused."""

from __future__ import annotations

import math

import pytest

from p2pfl.config import LEAST, TrainingConfig, parse_schedule

CANONICAL = {
    "constant": "constant",
    "cosine:rounds=40": "cosine:rounds=40,to=0.01",
    "cosine:rounds=40,warmup=5,to=0.1": "cosine:rounds=40,warmup=5.0,to=0.1",
    "cosine:to=0.5,time_s=10": "cosine:time_s=10.0,to=0.5",
    "tail:rounds=40,last=8": "tail:rounds=40,last=8.0,to=0.1",
    "tail:time_s=9,last=1,warmup=2,to=0.5": "tail:time_s=9.0,last=1.0,warmup=2.0,to=0.5",
}


@pytest.mark.parametrize(("spec", "canonical"), CANONICAL.items())
def test_a_schedule_has_one_canonical_spelling(spec, canonical):
    assert str(parse_schedule(spec)) == canonical
    assert parse_schedule(canonical) == parse_schedule(spec)


@pytest.mark.parametrize(("factor", "rounds"), [(2.6, 26), (0.01, 1)])
def test_a_stretched_schedule_has_whole_rounds_and_one_at_least(factor, rounds):
    assert str(parse_schedule("cosine:rounds=10").stretched(factor)) == f"cosine:rounds={rounds},to=0.01"


@pytest.mark.parametrize(
    "spec", ["tail:rounds=25,last=25", "tail:rounds=7,last=3,warmup=4", "cosine:rounds=9,warmup=8"]
)
@pytest.mark.parametrize("factor", [0.01, 0.1, 0.37, 1 / 3, 10 / 3])
def test_a_stretched_schedule_is_one_that_a_file_may_have(spec, factor):
    stretched = parse_schedule(spec).stretched(factor)
    assert parse_schedule(str(stretched)) == stretched


FACTORS = {
    "constant": {0: 1.0, 999: 1.0},
    "cosine:rounds=99,warmup=4,to=1": {0: 0.25, 1: 0.5, 3: 1.0, 4: 1.0, 99: 1.0},
    "cosine:rounds=24,warmup=4,to=0.2": {0: 0.25, 3: 1.0, 4: 1.0, 14: 0.6, 24: 0.2},
    "tail:rounds=20,last=10,warmup=4": {0: 0.25, 4: 1.0, 10: 1.0, 15: 0.55, 20: 0.1, 99: 0.1},
}


@pytest.mark.parametrize("spec", FACTORS)
def test_the_learning_rate_follows_the_own_rounds(spec):
    training = TrainingConfig(learning_rate=0.4, schedule=spec)
    for rounds, factor in FACTORS[spec].items():
        assert math.isclose(training.rate(rounds, 1e9), 0.4 * factor)
        assert training.rate(rounds, 0.0) >= training.least_rate


@pytest.mark.parametrize(
    ("schedule", "factors"), [("constant", (0.82, 0.64, 0.46, 0.28, 0.1)), ("cosine:rounds=4,to=0.01", (0.1,) * 5)]
)
def test_in_closing_rounds_that_train_the_rate_falls_to_a_tenth_and_no_lower(schedule, factors):
    training = TrainingConfig(rounds=9, learning_rate=2.0, schedule=schedule, closing_rounds=5, closing="train")
    rates = [training.rate(8 + closing, 0.0, closing) for closing in range(1, 6)]
    assert rates == pytest.approx([2.0 * factor for factor in factors])
    assert min(rates) >= training.least_rate
    assert training.trained_rounds == 14


def test_by_time_the_rounds_do_not_count():
    schedule = parse_schedule("cosine:time_s=100,warmup=20,to=0.1")
    assert math.isclose(schedule.factor(7, 10.0), 0.5)
    assert math.isclose(schedule.factor(0, 60.0), 0.55)
    assert schedule.factor(10**6, 0.0) == LEAST == schedule.least


WRONG = {
    "cosin:rounds=4": "did you mean cosine",
    "cosine": "either rounds or time_s",
    "cosine:rounds=4,warmup=4": "leaves nothing",
    "step:rounds=4": "is gone: use cosine:rounds=40",
    "constant:rounds=4": "takes none",
    "tail:rounds=4": "give last",
    "tail:rounds=4,last=5": "longer than what a length of 4 leaves",
    "tail:rounds=4,last=3,warmup=2": "longer than what a length of 4 leaves",
    "tail:last=5": "tail: give either rounds or time_s",
    "cosine:rounds=4,rounds=5": "twice",
}


@pytest.mark.parametrize("spec", WRONG)
def test_a_wrong_schedule_is_told_with_what_would_be_right(spec):
    with pytest.raises(ValueError, match=WRONG[spec]):
        parse_schedule(spec)
