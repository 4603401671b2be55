"""Models in which rows meet are refused, with what to write in their place; those in which none does are not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from p2pfl.errors import UserError
from p2pfl.learn import RoundStart

WIDTH, CLASSES = 6, 3


def table(count=8):
    rng = np.random.default_rng(1)
    return rng.standard_normal((count, WIDTH)).astype(np.float32), rng.integers(0, CLASSES, count)


def between(layer):
    return lambda: nn.Sequential(nn.Linear(WIDTH, 4), layer(), nn.Linear(4, CLASSES))


class Centered(nn.Module):
    """A home-made normalization over the batch."""

    def forward(self, x):
        return x - x.mean(0)


class Attention(nn.Module):
    def forward(self, x):
        return torch.softmax(x @ x.t(), dim=1) @ x


class Running(nn.Module):
    """Keeps a mean of what it has seen."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(4), persistent=False)

    def forward(self, x):
        if self.training:
            self.seen = 0.9 * self.seen + 0.1 * x.detach().mean(0)
        return x * 2.0


class Frozen(nn.BatchNorm1d):
    """Normalizes by what it learned elsewhere, in training too."""

    def train(self, mode=True):  # noqa: FBT002 - torch's own
        del mode
        return super().train(mode=False)


def instance_norm():
    return nn.Sequential(
        nn.Unflatten(1, (2, 3)), nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten(), nn.Linear(6, CLASSES)
    )


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (between(lambda: nn.BatchNorm1d(4)), "1: BatchNorm1d"),
        (between(lambda: nn.BatchNorm1d(4, track_running_stats=False)), "1: BatchNorm1d"),
        (instance_norm, "1: InstanceNorm1d"),
        (between(Centered), "change with the other rows"),
        (between(Attention), "change with the other rows"),
        (between(Running), "1.seen"),
    ],
)
def test_a_model_in_which_rows_meet_is_refused_and_the_replacement_named(protected, model, said):
    with pytest.raises(UserError) as caught:
        protected(data=(table(), None), model=model)
    assert said in str(caught.value)
    assert caught.value.file == "mine"
    assert caught.value.key == "model"
    assert "torch.nn.GroupNorm or torch.nn.LayerNorm" in str(caught.value)


@pytest.mark.parametrize(
    "model",
    [
        between(lambda: nn.LayerNorm(4)),
        between(lambda: nn.GroupNorm(2, 4)),
        between(lambda: nn.Dropout(0.5)),
        between(lambda: Frozen(4)),
        lambda: nn.Sequential(nn.Unflatten(1, (2, 3)), nn.InstanceNorm1d(2), nn.Flatten(), nn.Linear(6, CLASSES)),
    ],
)
def test_a_model_in_which_no_row_meets_another_is_not(protected, model):
    mine = protected(data=(table(), None), model=model)
    assert mine.train(RoundStart(mine.initial()), 0).samples == 8


class Fussy(nn.Module):
    """Knows no negative numbers, and looks at them before anything else."""

    def forward(self, x):
        if bool((x < 0).any()):
            raise ValueError("negative")
        return x


def test_a_model_may_refuse_numbers_that_are_in_no_row(protected):
    x, y = table()
    protected(data=((np.abs(x) + 1, y), None), model=lambda: nn.Sequential(Fussy(), nn.Linear(WIDTH, CLASSES)))


def test_rows_that_are_all_alike_hide_no_mixing(protected):
    x, y = np.ones((8, WIDTH), np.float32), table()[1]
    with pytest.raises(UserError, match="change with the other rows"):
        protected(data=((x, y), None), model=between(Attention))


def test_a_model_that_fails_in_training_alone_is_named(protected):
    class Lame(nn.Module):
        def forward(self, x):
            if self.training:
                raise ValueError("lame")
            return x

    with pytest.raises(UserError, match=r"mine: model: the model fails in training: ValueError: lame"):
        protected(data=(table(), None), model=lambda: nn.Sequential(Lame(), nn.Linear(WIDTH, CLASSES)))


def test_the_trial_leaves_the_models_buffers_as_they_were(protected, learner):
    model = between(lambda: Frozen(4))
    mine, plain = protected(data=(table(), None), model=model), learner(data=(table(), None), model=model)
    for name, array in plain.state_dict(plain.initial()).items():
        np.testing.assert_array_equal(mine.state_dict(mine.initial())[name], array)


def test_where_all_of_a_node_is_hidden_rows_may_meet(protected):
    protected(data=(table(), None), model=between(lambda: nn.BatchNorm1d(4)), how={"unit": "member"})
