"""A plan's rounds fit into its budget, one more does not, and asking costs next to nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from p2pfl.errors import UserError
from p2pfl.federation import Federation
from p2pfl.learn.privacy import CLOSE, MOST_TIMES, STAGES, Spend, epsilon_of, plan_of

SAMPLES = 160
DELTA = 1e-4


def federation(*, rounds=5, **privacy):
    told = {"delta": DELTA} | privacy
    return Federation(nodes=2, topology="complete", rounds=rounds, local_steps=4, batch_size=160, privacy=told).config


@pytest.fixture(scope="module")
def plan():
    """Of five rounds of four steps, each on all rows: at rate 1 the accountants are fast."""
    return plan_of(federation(epsilon=8.0), SAMPLES)


def after(plan, rounds):
    cost = plan.spend(SAMPLES)
    return (cost._replace(steps=rounds * cost.steps),) if rounds else ()


def test_a_federation_without_privacy_has_no_plan():
    assert plan_of(Federation(nodes=2, topology="complete").config, SAMPLES) is None


def test_the_planned_rounds_are_allowed_and_not_one_more(plan):
    cost = plan.spend(SAMPLES)
    assert [plan.allows(after(plan, rounds), cost) for rounds in range(7)] == [True] * 5 + [False] * 2
    assert [plan.rounds_left(after(plan, rounds), SAMPLES) for rounds in range(7)] == [5, 4, 3, 2, 1, 0, 0]


def test_all_rounds_spend_the_budget_almost(plan):
    everything = after(plan, 5)
    assert CLOSE * plan.epsilon <= epsilon_of(everything, DELTA) <= plan.epsilon == 8.0
    assert plan.spent(everything) == epsilon_of(everything, DELTA)


def test_what_is_told_as_spent_grows_and_is_never_below_what_was(plan):
    told = [plan.spent(after(plan, rounds)) for rounds in range(6)]
    assert told == sorted(told)
    assert told[0] == 0.0
    assert all(shown >= epsilon_of(after(plan, rounds), DELTA) for rounds, shown in enumerate(told))


def test_of_a_thousand_rounds_few_are_accounted_for_on_their_own(plan, monkeypatch):
    thousand, asked = replace(plan, rounds=1000), set()

    def epsilon_of(spent, delta, accountant):
        asked.add(tuple(spent))
        return 8.0 * spent[-1].steps / 4000

    monkeypatch.setattr("p2pfl.learn.privacy.plan.epsilon_of", epsilon_of)
    assert thousand.rounds_left((), SAMPLES) == 1000
    asked.clear()
    told = [thousand.spent(after(thousand, rounds)) for rounds in range(1, 1001)]
    assert told == sorted(told)
    assert told[-1] == 8.0
    assert len(asked) <= STAGES


def test_asking_again_about_another_round_asks_no_accountant(plan, monkeypatch):
    cost = plan.spend(SAMPLES)
    plan.allows(after(plan, 1), cost)
    monkeypatch.setattr("p2pfl.learn.privacy.accounting._epsilon", None)
    assert plan.allows(after(plan, 3), cost)


def test_a_node_that_grows_pays_less_for_a_round_and_one_that_shrinks_ends_early():
    found = plan_of(federation(epsilon=8.0, accountant="rdp"), 200)
    large, small = found.spend(400), found.spend(160)
    assert large.rate < found.spend(200).rate < small.rate == 1.0
    spent = (found.spend(200)._replace(steps=8),)
    assert found.rounds_left(spent, 400) > 3 > found.rounds_left(spent, 160)
    assert not found.allows((*spent, small._replace(steps=8)), small)


def test_cheap_rounds_are_no_more_than_some_times_the_planned_ones(plan):
    assert plan.rounds_left((), 10**6) == MOST_TIMES * 5


def test_what_was_spent_with_other_noise_counts(plan):
    loud = (Spend(0.5, 1.0, 1),)
    assert epsilon_of(loud, DELTA) > plan.epsilon
    assert not plan.allows(loud, plan.spend(SAMPLES))
    assert plan.spent(loud) > plan.epsilon
    assert plan.rounds_left(loud, SAMPLES) == 0


def test_a_given_noise_is_taken_and_the_budget_is_what_its_rounds_come_to():
    found = plan_of(federation(noise=3.0), SAMPLES)
    assert (found.noise, found.epsilon) == (3.0, epsilon_of([Spend(3.0, 1.0, 20)], DELTA))
    assert found.rounds_left((), SAMPLES) == 5


def test_a_round_of_a_member_is_one_step_at_rate_one_however_many_rows_it_has():
    few, many = (plan_of(federation(epsilon=8.0, unit="member"), samples) for samples in (10, 10**6))
    assert few == many
    assert few.spend(10) == few.spend(10**6) == Spend(few.noise, 1.0, 1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("training", "samples", "steps", "rate"),
    [
        ({"local_steps": 20}, 1600, 20, 0.01),
        ({"local_steps": None, "local_epochs": 2}, 1600, 200, 0.01),
        ({"local_steps": None, "local_epochs": 2}, 1601, 202, 16 / 1601),
        ({"local_steps": None, "local_epochs": 2}, 9, 2, 1.0),
        ({"local_steps": 3}, 9, 3, 1.0),
    ],
)
def test_a_round_costs_its_steps_at_the_rate_of_a_batch(plan, training, samples, steps, rate):
    trained = replace(plan, training=replace(plan.training, batch_size=16, **training))
    cost = trained.spend(samples)
    assert cost == Spend(plan.noise, rate, steps)
    assert trained.spent((cost,)) >= epsilon_of((cost,), trained.delta) > 0.0


def test_the_budget_is_for_the_rounds_of_the_table_where_it_has_some():
    assert plan_of(federation(epsilon=8.0, rounds=5), SAMPLES).rounds == 5
    told = federation(epsilon=8.0)
    ten = plan_of(replace(told, privacy=replace(told.privacy, rounds=10)), SAMPLES)
    assert ten.rounds == ten.rounds_left((), SAMPLES) == 10


@pytest.mark.parametrize(
    ("privacy", "samples", "key", "text", "allowed"),
    [
        ({"epsilon": 8.0}, 10_001, "privacy.delta", "10,001 rows", "at most 0.0001"),
        ({"epsilon": 1e-3}, SAMPLES, "privacy.epsilon", "no noise up to 1000", "above 0.01"),
        ({"noise": 1e-9}, SAMPLES, "privacy.noise", "too little", "epsilon"),
    ],
)
def test_a_promise_that_cannot_be_kept_is_refused(privacy, samples, key, text, allowed):
    described = federation(**privacy)
    with pytest.raises(UserError, match=text) as caught:
        plan_of(described, samples)
    assert (caught.value.file, caught.value.key) == (str(described.path), key)
    assert allowed in caught.value.allowed


def test_a_missing_opacus_is_said_before_anything_is_computed(monkeypatch):
    monkeypatch.setattr("p2pfl.learn.privacy.accounting.find_spec", lambda _: None)
    described = federation(epsilon=8.0)
    with pytest.raises(UserError, match="Opacus") as caught:
        plan_of(described, SAMPLES)
    assert (caught.value.file, caught.value.key) == (str(described.path), "privacy")
