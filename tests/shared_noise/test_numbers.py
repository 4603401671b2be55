"""What a node gives to a sum, and the step that all take by it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch.nn import functional

from p2pfl import Federation
from p2pfl.config import PrivacyConfig, TrainingConfig
from p2pfl.errors import UserError
from p2pfl.learn import NodeContext, QuadraticTask, RoundStart, Task, learner_for
from p2pfl.learn.privacy import UNIT, Protection, SharedRounds, Spend, epsilon_of, plan_of, share_of, shared_by
from tests.shared_noise.plans import Noted, plan

WIDTH, CLASSES = 4, 3
SIZE = WIDTH * CLASSES + CLASSES


def table(count, seed):
    rng = np.random.default_rng(seed)
    return 3 * rng.standard_normal((count, WIDTH)).astype(np.float32), rng.integers(0, CLASSES, count)


def learner(node, *, rows=20, chance=None, model=None, how=None, training=None):
    """Make a learner of one node, and the rows that it has."""
    data = table(rows, seed=node)
    task = Task(name="mine", data=lambda _: (data, None), model=model or (lambda: torch.nn.Linear(WIDTH, CLASSES)))
    training = training or TrainingConfig()
    protection = Protection(plan_for=lambda _: plan(training, **(how or {})), chance=chance or Noted())
    context = NodeContext(node=node, nodes=3, name="abc"[node], seed=0, base_dir=Path())
    return learner_for(task, context, training, ("*",), protection=protection), data


def rounds_of(training=None, size=6, **how):
    return SharedRounds(plan(training, **how), 100, [slice(0, size)])


def words(part):
    return part.view(np.uint64)


# -- parts ------------------------------------------------------------------------------------------------------------


def test_the_sum_of_the_parts_is_the_pooled_clipped_gradients_of_the_rows_drawn_and_the_noise():
    model, expected, total, noise = None, np.zeros(SIZE), np.zeros(SIZE, np.int64), np.zeros(SIZE, np.int64)
    lengths = []
    for node in range(3):
        chance = Noted()
        mine, (x, y) = learner(node, chance=chance)
        model = mine.initial() if model is None else model
        local = mine.train(RoundStart(model.copy()), 0)
        np.testing.assert_array_equal(local.vector, model)
        total += shared_by(mine).part
        noise += sum(chance.added)
        ((taken, rate),) = chance.taken
        assert rate == 0.5 == mine.plan.spend(20).rate
        module = torch.nn.Linear(WIDTH, CLASSES)
        mine.model.flat.load(model)
        module.load_state_dict(mine.model.module.state_dict())
        for row in taken:
            loss = functional.cross_entropy(module(torch.from_numpy(x[row : row + 1])), torch.tensor([int(y[row])]))
            parts = torch.autograd.grad(loss, list(module.parameters()))
            gradient = np.concatenate([one.double().numpy().ravel() for one in parts])
            length = np.linalg.norm(gradient)
            lengths.append(length)
            expected += gradient * min(1.0, 1.0 / length)
    assert min(lengths) < 1 < max(lengths)
    found = (total - noise) * rounds_of().step
    np.testing.assert_allclose(found, expected, atol=2e-3 * len(lengths))


@pytest.mark.parametrize("noise", [0.3, 50.0])
def test_a_row_more_changes_a_part_by_at_most_the_clip_whatever_the_rounding_does(noise):
    how = {"rate": 1.0, "noise": noise, "clip": 1.0}
    most = 0.0
    for rows in range(30, 36):
        parts = []
        for count in (rows, rows + 1):
            mine, _ = learner(0, rows=40, chance=Noted(silent=True), how=how)
            mine.samples = count
            mine.train(RoundStart(np.zeros(SIZE, np.float32)), 0)
            parts.append(shared_by(mine).part.astype(object))
        difference = [Fraction(int(b - a)) for a, b in zip(*parts, strict=True)]
        step = Fraction(shared_by(mine).step)
        most = max(most, float(sum(one * one for one in difference) * step * step))
    assert 0.9 < most <= 1.0


def test_a_change_is_cut_to_the_clip_and_one_that_is_not_finite_counts_as_none():
    shared = rounds_of(unit="member", size=4)
    zero = np.zeros(4, np.float32)
    shared.give_change(zero, np.array([3, 0, 4, 0], np.float32), Noted(silent=True))
    np.testing.assert_allclose(shared.part * shared.step, [0.6, 0, 0.8, 0], rtol=2e-3)
    assert np.linalg.norm(shared.part.astype(float) * shared.step) <= 1.0
    for wrong in (np.nan, np.inf):
        shared.give_change(zero, np.array([wrong, 1, 1, 1], np.float32), Noted(silent=True))
        assert not shared.part.any()


# -- noise ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("unit", "rate", "delta"), [("record", 0.3, 1e-5), ("member", 1.0, 1e-3)])
def test_the_accountant_counts_one_step_a_sum_at_the_rate_at_which_rows_are_drawn(unit, rate, delta):
    privacy = {"epsilon": 3, "noise": "shared", "delta": delta, "unit": unit, "rate": 0.3, "accountant": "rdp"}
    federation = Federation(nodes=5, rounds=10, privacy=privacy).config
    found = plan_of(federation, samples=90)
    assert found.spend(90) == found.spend(5) == Spend(found.noise, rate, 1)
    assert 2.9 < epsilon_of([Spend(found.noise, rate, 11)], delta, "rdp") <= 3
    assert (found.rounds_left([], 90), found.share) == (11, share_of(federation.privacy, 5))
    assert not found.allows([Spend(found.noise, rate, 11)], found.spend(90))


@given(st.integers(3, 300), st.integers(1, 298), st.none() | st.integers(3, 300))
def test_whoever_is_missing_and_leaves_its_noise_out_the_variance_is_that_of_the_plan(members, colluders, least):
    """Exactly: `least` members of whom `colluders` add nothing have `least - colluders` shares."""
    privacy = PrivacyConfig(epsilon=1.0, noise="shared", delta=1e-5, colluders=colluders, least=least)
    smallest = privacy.least_of(members)
    if not colluders + 2 <= smallest <= members:
        return  # refused
    share = Fraction(share_of(privacy, members))
    assert share * share * (smallest - colluders) >= 1 - Fraction(1, 2**50)


def noise_is_enough(total, wanted, *, chance=1e-9):
    """Check numbers (n,) that are noise alone: False if so little is impossible by chance at that deviation."""
    return float((total / wanted).astype(float) @ (total / wanted)) >= stats.chi2(len(total)).ppf(chance)


@pytest.mark.parametrize(("leave_out", "is_enough"), [(0, True), (1, True), (2, False)])
def test_one_of_four_may_leave_its_noise_out_and_two_are_found_by_their_missing_variance(leave_out, is_enough):
    """`least` is 4 and `colluders` 1: three shares are the whole noise of the plan."""
    privacy = PrivacyConfig(epsilon=1.0, noise="shared", delta=1e-5, colluders=1, least=4)
    share, size = share_of(privacy, 5), 20_000
    total, zero = np.zeros(size, np.int64), np.zeros(size, np.float32)
    for member in range(4):
        mine = rounds_of(unit="member", size=size, noise=2.0, share=share)
        mine.give_change(zero, zero, Noted(silent=member < leave_out))
        total += mine.part
    wanted = mine.plan.noise * mine.plan.clip / mine.step
    assert wanted == pytest.approx(UNIT / share)
    assert noise_is_enough(total, wanted) == is_enough
    assert noise_is_enough(total, wanted * 1.1) == (leave_out == 0)


# -- steps ------------------------------------------------------------------------------------------------------------

OPTIMIZERS = [
    ({}, torch.optim.SGD, {}),
    ({"momentum": 0.9}, torch.optim.SGD, {"momentum": 0.9}),
    ({"momentum": 0.9, "weight_decay": 0.1}, torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
    ({"optimizer": "adam"}, torch.optim.Adam, {}),
    ({"optimizer": "adam", "weight_decay": 0.1}, torch.optim.Adam, {"weight_decay": 0.1}),
    ({"optimizer": "adamw", "weight_decay": 0.1}, torch.optim.AdamW, {"weight_decay": 0.1}),
]


@pytest.mark.parametrize(("training", "kind", "options"), OPTIMIZERS)
@pytest.mark.parametrize("schedule", ["constant", "cosine:rounds=6,warmup=2"])
def test_steps_are_those_of_torch_by_the_mean_over_the_expected_rows(training, kind, options, schedule):
    training = TrainingConfig(learning_rate=0.1, schedule=schedule, **training)
    shared, rng = rounds_of(training, size=8), np.random.default_rng(3)
    shared.places, shared.entries = (slice(0, 3), slice(5, 8)), 6
    shared.rows = 50
    vector = rng.standard_normal(8).astype(np.float32)
    weights = torch.tensor(np.r_[vector[:3], vector[5:]], dtype=torch.float64, requires_grad=True)
    optimizer = kind([weights], lr=0.1, **options)
    frozen = vector[3:5].copy()
    for index in range(6):
        part = np.rint(rng.standard_normal(6) * 20 / shared.step).astype(np.int64)
        weights.grad = torch.from_numpy(part * shared.step / 25)
        for group in optimizer.param_groups:
            group["lr"] = training.rate(index, 0.0)
        optimizer.step()
        vector = shared.next_model(vector, words(part), 3, index)
        np.testing.assert_allclose(np.r_[vector[:3], vector[5:]], weights.detach().numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(vector[3:5], frozen)


def test_the_step_of_unit_member_is_the_mean_change():
    shared = rounds_of(unit="member", size=2)
    ended = shared.next_model(np.ones(2, np.float32), words(np.array([40, -80])), 4, 0)
    np.testing.assert_allclose(ended, 1 + np.array([10, -20]) * shared.step)


def test_without_the_rows_of_all_nodes_there_is_no_step():
    with pytest.raises(ValueError, match="not known"):
        rounds_of().next_model(np.zeros(6, np.float32), np.zeros(6, np.uint64), 3, 0)


def test_a_sum_that_no_right_parts_can_have_is_known_to_be_spoiled_and_noise_never_is():
    shared = rounds_of()
    shared.rows = 100
    most = round(100 / shared.step)
    for right in (np.zeros(6, np.int64), np.full(6, most), np.full(6, -most) + 3 * Noted().noise(6)):
        assert shared.is_possible(words(right), 3)
    for wrong in (np.full(6, 2**62), np.full(6, -(2**63)), np.zeros(5, np.int64), np.zeros(7, np.int64)):
        assert not shared.is_possible(words(wrong), 3)
    assert not shared.is_possible(words(np.array([0, 0, 0, 0, 0, 2**60])), 3)


# -- the state that all have alike ------------------------------------------------------------------------------------


def run(shared, vector, rounds):
    for index in rounds:
        part = np.random.default_rng(index).integers(-(2**40), 2**40, 6)
        vector = shared.next_model(vector, words(part), 3, index)
    return vector


@pytest.mark.parametrize("training", [one for one, *_ in OPTIMIZERS])
def test_a_state_that_was_kept_or_fetched_goes_on_with_the_same_bits(training):
    training, first = TrainingConfig(**training), np.ones(6, np.float32)
    whole, kept, fetched = (rounds_of(training) for _ in range(3))
    whole.rows = 77
    middle = run(whole, first, range(3))
    state, stored = b"".join(whole.packed(middle, 3)), whole.kept()
    assert kept.load_kept(stored | {"other": first}) == {"other": first}
    rounds, model, adopt = fetched.unpack(state, 6)
    adopt()
    assert (rounds, kept.rows, fetched.rows) == (3, 77, 77)
    assert b"".join(fetched.packed(model, 3)) == b"".join(kept.packed(middle, 3)) == state
    end = run(whole, middle, range(3, 6)).tobytes()
    assert run(kept, middle, range(3, 6)).tobytes() == run(fetched, model, range(3, 6)).tobytes() == end
    assert whole.packed(middle, 6) == kept.packed(middle, 6)
    assert len(state) <= whole.packed_bytes + 4 * 6


@pytest.mark.parametrize(
    "head", [(-1, 0, 0, 0, 0), (0, -1, 0, 0, 0), (0, 0, 3, 0, 3), (0, 0, 6, 6, 3), (0, 0, -6, 6, 0), (0, 0, 7, 0, 0)]
)
def test_a_state_of_the_right_length_with_impossible_numbers_is_none(head):
    raw = np.array(head, "<i8").tobytes() + bytes(4 * 6 + 8 * sum(head[2:]))
    with pytest.raises(ValueError, match="no state"):
        rounds_of().unpack(raw, 6)


def test_more_rows_than_a_sum_can_hold_are_refused():
    with pytest.raises(UserError, match=r"above 2\^62"):
        SharedRounds(plan(noise=1e-3, share=1e-3), 10**9, [slice(0, 1)])
    assert rounds_of().fits(10**9)
    assert not rounds_of(noise=1e-3, share=1e-3).fits(10**9)


# -- learners ---------------------------------------------------------------------------------------------------------


def test_the_sum_of_unit_member_has_buffers_too_and_that_of_records_no_frozen_layer():
    def normed():
        return torch.nn.Sequential(torch.nn.Linear(WIDTH, CLASSES), torch.nn.BatchNorm1d(CLASSES))

    def frozen():
        module = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, CLASSES))
        module[0].requires_grad_(requires_grad=False)
        return module

    mine, _ = learner(0, model=normed, how={"unit": "member"})
    assert shared_by(mine).entries == mine.size == SIZE + 4 * CLASSES
    mine.train(RoundStart(mine.initial()), 0)
    assert shared_by(mine).part.size == mine.size
    other, _ = learner(0, model=frozen)
    assert (shared_by(other).entries, other.size) == (SIZE, SIZE + WIDTH * WIDTH + WIDTH)


def test_any_learner_has_rounds_with_shared_noise_for_its_member_and_none_without_privacy():
    chance, training = Noted(silent=True), TrainingConfig(local_steps=1, learning_rate=0.1)
    protection = Protection(plan_for=lambda _: plan(training, unit="member", clip=1e4), chance=chance)
    context = NodeContext(node=0, nodes=3, name="a", seed=0, base_dir=Path())
    bare = learner_for(QuadraticTask(), context, training)
    hidden = learner_for(QuadraticTask(), context, training, protection=protection)
    begun = RoundStart(bare.initial())
    change = bare.train(begun, 0).vector - begun.model
    local = hidden.train(begun, 0)
    np.testing.assert_array_equal(local.vector, begun.model)
    np.testing.assert_allclose(shared_by(hidden).part * shared_by(hidden).step, change, rtol=1e-5, atol=1e-3)
    bare.shared = "something of the user's own"
    assert shared_by(bare) is None


def test_what_a_learner_keeps_has_the_state_of_all_and_its_own():
    mine, _ = learner(0, how={}, training=replace(TrainingConfig(), momentum=0.9))
    shared_by(mine).rows = 60
    model = shared_by(mine).next_model(mine.initial(), np.zeros(SIZE, np.uint64), 3, 0)
    other, _ = learner(0, training=replace(TrainingConfig(), momentum=0.9))
    other.load_local_state(mine.local_state())
    assert shared_by(other).packed(model, 1) == shared_by(mine).packed(model, 1)
