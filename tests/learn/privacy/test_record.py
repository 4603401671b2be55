"""Local rounds that hide every single row: what they compute, what they tell, and which models they refuse."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional

from p2pfl.config import Compute, TrainingConfig
from p2pfl.config.sections import MEMBER
from p2pfl.errors import UserError
from p2pfl.learn import DatasetSamples, RoundStart
from p2pfl.learn.privacy import Secret
from p2pfl.methods import make_method
from tests.learn.privacy.conftest import QUIET

ROWS, WIDTH, CLASSES = 24, 4, 3
FULL = TrainingConfig(local_steps=3, batch_size=ROWS, learning_rate=0.1)
"""Each step sees all rows."""
BARE = {"noise": QUIET, "clip": 1e3}
"""Neither noise nor a clip that cuts anything."""


def table(count=ROWS, seed=5):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, WIDTH)).astype(np.float32), rng.integers(0, CLASSES, count)


def start(learner):
    return RoundStart(learner.initial())


def moved(learner, round_index=0):
    begun = start(learner)
    return learner.train(begun, round_index).vector - begun.model


@pytest.mark.parametrize("training", [{}, {"momentum": 0.9}, {"optimizer": "adam"}, {"weight_decay": 0.1}])
def test_without_noise_and_clip_at_rate_one_it_is_plain_full_batch_descent(protected, learner, training):
    """But for the order in which a mean is summed, so to a few last bits of each step."""
    data, training = (table(), None), replace(FULL, **training)
    private = moved(protected(data=data, training=training, how=BARE))
    plain = moved(learner(data=data, training=training))
    np.testing.assert_allclose(private, plain, rtol=1e-4, atol=2e-7)


def test_a_step_divides_by_the_rows_it_expects_not_by_those_it_has(protected):
    training = replace(FULL, batch_size=6, local_steps=1)
    mine = protected(data=(table(), None), training=training, how=BARE)
    drawn = mine.private.protection.chance.of_round(0, 2).rows(ROWS, 6 / ROWS)
    assert len(drawn) != 6
    module = nn.Linear(WIDTH, CLASSES)
    with torch.no_grad():
        mine.model.flat.load(mine.initial())
        module.load_state_dict(mine.model.module.state_dict())
    x, y = (torch.from_numpy(one[drawn]) for one in table())
    functional.cross_entropy(module(x), y, reduction="sum").backward()
    expected = np.concatenate([one.grad.numpy().ravel() for one in (module.weight, module.bias)])
    np.testing.assert_allclose(moved(mine, 2), -0.1 * expected / 6, rtol=1e-4, atol=1e-7)


def test_the_noise_of_a_round_has_the_standard_deviation_that_was_planned(protected):
    """Of rows without a gradient nothing but noise is left: in each step of it sd = rate * noise * clip / batch."""
    training = TrainingConfig(local_steps=4, batch_size=8, learning_rate=0.5)
    mine = protected(
        data=(table(), None),
        training=training,
        how={"noise": 1.5, "clip": 0.2},
        model=lambda: nn.Linear(WIDTH, 500),
        loss=lambda outputs, _: (outputs * 0.0).sum(),
    )
    found = np.concatenate([moved(mine, index) for index in range(6)])
    std = 0.5 * 1.5 * 0.2 / 8 * math.sqrt(4)
    low, high = stats.chi2(len(found)).ppf([1e-4, 1 - 1e-4])
    assert low < ((found / std) ** 2).sum() < high


def test_one_more_row_moves_a_step_by_no_more_than_the_clip(protected):
    """A row with an enormous gradient, and one that is not finite."""
    clip, training = 0.01, replace(FULL, local_steps=1, batch_size=ROWS + 1)

    def sums(data):
        return moved(protected(data=(data, None), training=training, how={"noise": QUIET, "clip": clip})) / -0.1

    x, y = table(ROWS)
    without = sums((x, y)) * ROWS
    for row in (np.full((1, WIDTH), 1e4, np.float32), np.full((1, WIDTH), 3e38, np.float32)):
        more = sums((np.concatenate([x, row]), np.append(y, 0))) * (ROWS + 1)
        assert np.linalg.norm(more - without) <= clip * 1.001


def test_a_step_that_draws_no_row_moves_by_noise_alone(protected):
    training = TrainingConfig(local_steps=2, batch_size=1, learning_rate=1.0)
    mine = protected(data=(table(400), None), training=training, how={"noise": 0.5})
    empty = next(
        index
        for index in range(50)
        for draws in [mine.private.protection.chance.of_round(0, index)]
        if not any(len(draws.rows(400, 1 / 400)) for _ in range(2))
    )
    local = mine.train(start(mine), empty)
    assert math.isnan(local.loss)
    assert local.steps == 2
    assert np.isfinite(local.vector).all()
    assert not np.array_equal(local.vector, mine.initial())


def dropout():
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.Dropout(0.5), nn.Linear(16, CLASSES))


def test_a_round_is_a_function_of_seed_node_and_round_where_chance_is_seeded(protected):
    def outcome(**place):
        return moved(protected(data=(table(), None), model=dropout, **place)).tobytes()

    assert outcome() == outcome()
    assert len({outcome(), outcome(seed=1), outcome(node=1)}) == 3


def test_where_chance_is_secret_no_round_is_another_and_torchs_generator_is_put_back(protected):
    """Not the dropout, where all rows are seen and there is no noise; not the rows; not the noise."""
    torch.manual_seed(3)
    before = torch.get_rng_state()
    for how in ({"training": FULL, "model": dropout}, {"training": replace(FULL, batch_size=5)}, {}):
        noise = {} if not how else {"how": {"noise": QUIET}}
        made = [protected(data=(table(), None), chance=Secret(), **how, **noise) for _ in range(2)]
        assert moved(made[0]).tobytes() != moved(made[1]).tobytes()
        assert moved(made[0]).tobytes() != moved(made[0]).tobytes()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("unit", ["record", MEMBER])
def test_where_chance_is_secret_no_figure_of_private_rows_is_told(protected, unit):
    def figures(chance, *, public):
        how = {"unit": unit}
        mine = protected(data=(table(), table(7)), chance=chance, public_test=public, how=how)
        local = mine.train(start(mine), 0)
        return local.loss, mine.evaluate(local.vector, "local"), mine.evaluate(local.vector, "test")

    loss, local, test = figures(Secret(), public=False)
    assert math.isnan(loss)
    assert local is test is None
    loss, local, test = figures(Secret(), public=True)
    assert math.isnan(loss)
    assert local is None
    assert test is not None
    loss, local, test = figures(None, public=False)
    assert math.isfinite(loss)
    assert None not in (local, test)


METHODS = ["plain", "variate:beta=0.1", "prox:mu=0.5", "tracking:gain=0.5", "momentum:mu=0.9", "normalized:steps=5"]


@pytest.mark.parametrize("spec", METHODS)
def test_a_method_sees_the_private_gradient_in_place_of_the_own(protected, learner, spec):
    method = make_method(spec, FULL)
    mine, plain = protected(data=(table(), None), training=FULL, how=BARE), learner(data=(table(), None), training=FULL)
    given = {name: np.full(mine.size, 0.3, np.float32) for name in method.given}
    begun = RoundStart(mine.initial(), given, method)
    expected = plain.train(begun, 0).vector
    np.testing.assert_allclose(mine.train(begun, 0).vector, expected, rtol=1e-4, atol=1e-6)


def test_parts_that_stay_with_the_node_are_clipped_and_hidden_with_the_rest(protected):
    """Their values decide the next gradients of what is shared."""
    mine = protected(
        data=(table(), None),
        training=replace(FULL, local_steps=1),
        how={"noise": QUIET, "clip": 0.01},
        model=lambda: nn.Sequential(nn.Linear(WIDTH, 4), nn.ReLU(), nn.Linear(4, CLASSES)),
        share=("0.*",),
    )
    before = mine.local_state()
    shared = moved(mine)
    own = np.concatenate([(mine.local_state()[name] - before[name]).ravel() for name in sorted(before)])
    assert np.abs(own).max() > 0
    assert np.linalg.norm(np.concatenate([shared, own])) <= 0.1 * 0.01 * (1 + 1e-5)
    noisy = protected(
        data=(table(), None),
        training=replace(FULL, local_steps=1),
        how={"noise": 5.0, "clip": 0.01},
        model=lambda: nn.Sequential(nn.Linear(WIDTH, 4), nn.ReLU(), nn.Linear(4, CLASSES)),
        share=("0.*",),
    )
    noisy.train(start(noisy), 0)
    assert all(not np.array_equal(noisy.local_state()[name], mine.local_state()[name]) for name in before)


def test_low_rank_adapters_alone_are_trained(protected):
    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = nn.Linear(WIDTH, CLASSES).requires_grad_(requires_grad=False)
            self.down, self.up = nn.Linear(WIDTH, 1, bias=False), nn.Linear(1, CLASSES, bias=False)

        def forward(self, x):
            return self.base(x) + self.up(self.down(x))

    mine = protected(data=(table(), None), training=FULL, model=Adapted)
    change = moved(mine)
    for place in mine.model.flat.places:
        assert place.trained == bool(np.abs(change[place.part]).max() > 0)


def test_a_kept_optimizer_and_epochs_go_on_as_without_privacy(protected, learner):
    training = replace(FULL, local_steps=None, local_epochs=2, keep_optimizer=True, momentum=0.9, batch_size=ROWS)
    mine, plain = (
        make(data=(table(), None), training=training, **how)
        for make, how in ((protected, {"how": BARE}), (learner, {}))
    )
    vector = expected = mine.initial()
    for index in range(3):
        vector, expected = mine.train(RoundStart(vector), index).vector, plain.train(RoundStart(expected), index).vector
    np.testing.assert_allclose(vector, expected, rtol=1e-3, atol=1e-6)
    assert mine.local_state().keys() == plain.local_state().keys() != set()


def test_epochs_have_as_many_steps_as_the_plan_pays_for(protected):
    training = TrainingConfig(local_steps=None, local_epochs=2, batch_size=8)
    mine = protected(data=(table(25), None), training=training)
    assert mine.train(start(mine), 0).steps == mine.steps_with(25) == mine.plan.spend(25).steps == 8


class Lazy(torch.utils.data.Dataset):
    def __init__(self, count):
        self.inputs, self.targets = table(count)

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, row):
        return torch.from_numpy(self.inputs[row]), int(self.targets[row])


def test_a_dataset_is_read_row_by_row_also_where_no_row_is_drawn(protected):
    training = TrainingConfig(local_steps=8, batch_size=1)
    lazy = protected(data=(Lazy(6), None), training=training)
    whole = protected(data=(table(6), None), training=training)
    assert isinstance(lazy.train_set, DatasetSamples)
    assert moved(lazy).tobytes() == moved(whole).tobytes()


def test_inputs_may_be_bytes(protected):
    class Bytes(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(WIDTH, CLASSES)

        def forward(self, x):
            return self.linear(x.float() / 255)

    x, y = np.random.default_rng(0).integers(0, 255, (9, WIDTH), dtype=np.uint8), table(9)[1]
    assert np.abs(moved(protected(data=((x, y), None), model=Bytes))).max() > 0


def test_fine_tuning_is_refused(protected):
    mine = protected(data=(table(), None))
    with pytest.raises(UserError, match=r"--finetune: would reveal the node's rows"):
        mine.finetune(mine.initial(), 1)


def test_a_private_model_learns(protected):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((600, WIDTH)).astype(np.float32)
    data = (x, x[:, :CLASSES].argmax(1))
    training = TrainingConfig(local_steps=40, batch_size=60, learning_rate=1.0)
    mine = protected(data=(data, None), training=training, how={"noise": 1.0, "clip": 1.0})
    after = mine.train(start(mine), 0).vector
    assert mine.evaluate(mine.initial(), "local").accuracy < 0.6
    assert mine.evaluate(after, "local").accuracy > 0.85


def test_parts_of_a_batch_are_refused_where_single_rows_are_protected(protected):
    data, compute = (table(), None), Compute(micro_batch_size=2)
    with pytest.raises(
        UserError, match=r"node\.micro_batch_size: gradients of single rows are computed in another way"
    ):
        protected(data=data, compute=compute)
    assert protected(data=data, compute=compute, how={"unit": MEMBER}).plan
