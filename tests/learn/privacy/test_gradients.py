"""Gradients of single rows: each way gives what a loop of single backward passes gives, and none exceeds its length."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from p2pfl.config import Compute
from p2pfl.learn import Device, seeded
from p2pfl.learn.privacy import LayerChain, OneByOne, Vectorized, row_gradients

WIDTH, CLASSES = 5, 3
INF = math.inf


class Residual(nn.Module):
    """Two heads on one stem, a tied weight, a parameter that nothing uses, and one that is frozen."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.again, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.again.weight = self.stem.weight
        self.idle, self.frozen = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(WIDTH), requires_grad=False)

    def forward(self, x):
        x = self.norm(x + torch.relu(self.stem(x)))
        return self.head(self.again(x) * self.frozen)


class Warm(nn.Module):
    """A parameter that is one number, not a vector of one."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.warmth = layer, nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return self.layer(x) * self.warmth


class Lengths(nn.Module):
    """Branches on values, which torch.func cannot."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.linear(x) * (2.0 if float(x.sum()) > 0 else 1.0)


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(WIDTH, 4), nn.Tanh(), nn.Linear(4, CLASSES, bias=False))


def partly_frozen():
    module = nn.Sequential(nn.Linear(WIDTH, 4), nn.ReLU(), nn.Linear(4, CLASSES))
    module[0].weight.requires_grad_(requires_grad=False)
    return module


def in_place():
    """Where the second layer's output is overwritten before its gradient is asked for."""
    layers = (nn.Linear(WIDTH, 4), nn.Tanh(), nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, CLASSES))
    return nn.Sequential(*layers)


def convolutions():
    return nn.Sequential(
        nn.Unflatten(1, (1, WIDTH)), nn.Conv1d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6, CLASSES)
    )


def embedding():
    return nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(4 * WIDTH, CLASSES))


def recurrent():
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = nn.LSTM(1, 3, batch_first=True), nn.Linear(3, CLASSES)

        def forward(self, x):
            return self.head(self.lstm(x.unsqueeze(-1))[0][:, -1])

    return Last()


MODELS = {
    "mlp": (mlp, LayerChain),
    "partly frozen": (partly_frozen, LayerChain),
    "in place": (in_place, Vectorized),
    "residual": (Residual, Vectorized),
    "convolutions": (convolutions, Vectorized),
    "group norm": (lambda: nn.Sequential(nn.Linear(WIDTH, 4), nn.GroupNorm(2, 4), nn.Linear(4, CLASSES)), Vectorized),
    "embedding": (embedding, Vectorized),
    "recurrent": (recurrent, None),
    "branches": (Lengths, OneByOne),
    "a number": (lambda: Warm(nn.Linear(WIDTH, CLASSES)), Vectorized),
    "a number and branches": (lambda: Warm(Lengths()), OneByOne),
}


def weighted(outputs, targets):
    weight = torch.tensor([1.0, 3.0, 0.5])
    return (functional.cross_entropy(outputs, targets, reduction="none") * weight[targets]).mean()


def squared(outputs, targets):
    return functional.mse_loss(outputs[:, 0], targets.float())


LOSSES = [functional.cross_entropy, weighted, squared]


def rows(count, *, seed=0, whole=False):
    generator = torch.Generator().manual_seed(seed)
    x = (
        torch.randint(7, (count, WIDTH), generator=generator)
        if whole
        else torch.randn(count, WIDTH, generator=generator)
    )
    return x, torch.randint(CLASSES, (count,), generator=generator)


def made(name, loss=functional.cross_entropy, *, seed=0, compute=None):
    build, _ = MODELS[name]
    with seeded(seed):
        module = build()
    parameters = [one for one in module.parameters() if one.requires_grad]
    trial = rows(2, seed=99, whole=name == "embedding")
    return module, parameters, row_gradients(module, parameters, loss, Device(compute), trial)


def looped(module, parameters, loss, batch, clip):
    """A backward pass for each row, cut and summed in float64."""
    total = [torch.zeros_like(one, dtype=torch.float64) for one in parameters]
    for x, y in zip(*batch, strict=True):
        found = torch.autograd.grad(loss(module(x[None]), y[None]), parameters, allow_unused=True)
        found = [torch.zeros_like(p) if g is None else g for g, p in zip(found, parameters, strict=True)]
        length = math.sqrt(sum(float(one.double().square().sum()) for one in found))
        for sums, one in zip(total, found, strict=True):
            sums.add_(one.double() * min(1.0, clip / length if length else 1.0))
    return total


def length_of(tensors):
    return math.sqrt(sum(float(one.double().square().sum()) for one in tensors))


def apart(one, other):
    return length_of([a.double() - b.double() for a, b in zip(one, other, strict=True)])


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_a_model_goes_the_fastest_way_that_it_allows(name):
    expected = MODELS[name][1]
    assert expected is None or type(made(name)[2]) is expected


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", MODELS)
def test_sums_and_losses_are_those_of_single_backward_passes(name, loss):
    module, parameters, way = made(name, loss)
    batch = rows(6, whole=name == "embedding")
    for clip in (0.3, INF):
        sums, losses = way.clipped_sum(*batch, clip)
        expected = looped(module, parameters, loss, batch, clip)
        assert apart(sums, expected) <= 1e-4 * max(length_of(expected), 0.1)
        each = [float(loss(module(x[None]), y[None]).detach()) for x, y in zip(*batch, strict=True)]
        torch.testing.assert_close(losses, torch.tensor(each), rtol=1e-4, atol=1e-5)
        assert [one.shape for one in sums] == [one.shape for one in parameters]


@settings(deadline=None, max_examples=40)
@given(
    name=st.sampled_from(["mlp", "partly frozen", "residual", "convolutions"]),
    seed=st.integers(0, 10**6),
    count=st.integers(1, 9),
    clip=st.floats(1e-3, 10.0),
    size=st.sampled_from([1e-3, 1.0, 1e3]),
)
def test_no_row_moves_a_sum_by_more_than_the_clip(name, seed, count, clip, size):
    """Adding a row moves the sum by at most the clip, another row in its place by at most twice that."""
    _, _, way = made(name, seed=seed)
    x, y = rows(count + 1, seed=seed)
    x[-1] *= size
    other_x, other_y = x.clone(), (y + 1) % CLASSES
    other_x[-1] = -x[-1] * 3
    other_x, other_y = torch.cat([x[:-1], other_x[-1:]]), torch.cat([y[:-1], other_y[-1:]])
    whole, without, swapped = (way.clipped_sum(*one, clip)[0] for one in ((x, y), (x[:-1], y[:-1]), (other_x, other_y)))
    rounding = 1e-6 * clip * count
    assert apart(whole, without) <= clip + rounding
    assert apart(whole, swapped) <= 2 * clip + rounding
    assert length_of(whole) <= clip * (count + 1) + rounding


def test_chunks_give_what_one_call_gives(monkeypatch):
    module, parameters, way = made("residual")
    batch = rows(7)
    whole = way.clipped_sum(*batch, 0.5)
    monkeypatch.setattr("p2pfl.learn.privacy.gradients.CHUNK_FLOATS", 3 * sum(one.numel() for one in parameters))
    parts = Vectorized(module, parameters, functional.cross_entropy, Device()).clipped_sum(*batch, 0.5)
    torch.testing.assert_close(parts, whole)


@pytest.mark.parametrize("name", ["mlp", "residual", "branches"])
@pytest.mark.parametrize("wrong", [math.nan, INF, 1e38])
def test_a_gradient_that_is_not_finite_counts_as_none(name, wrong):
    _, _, way = made(name)
    x, y = rows(4)
    expected, _ = way.clipped_sum(x[:3], y[:3], 0.5)
    x[3] = wrong
    sums, _ = way.clipped_sum(x, y, 0.5)
    assert all(bool(one.isfinite().all()) for one in sums)
    assert apart(sums, expected) <= (0.5 + 1e-6 if wrong == 1e38 else 1e-6)


@pytest.mark.parametrize("name", ["mlp", "residual"])
def test_each_row_has_a_dropout_of_its_own(name):
    with seeded(0):
        module = nn.Sequential(nn.Linear(WIDTH, 32), nn.Dropout(0.5), nn.Linear(32, CLASSES)).train()
    if name == "residual":
        module.append(nn.LayerNorm(CLASSES))
    parameters = list(module.parameters())
    x, y = rows(1)
    way = row_gradients(module, parameters, functional.cross_entropy, Device(), rows(2))
    _, losses = way.clipped_sum(x.repeat(5, 1), y.repeat(5), 1.0)
    assert len(losses.unique()) == 5


@pytest.mark.parametrize("name", ["mlp", "residual"])
def test_in_mixed_precision_the_lengths_are_still_kept(name):
    _, _, way = made(name, compute=Compute(precision="bf16"))
    x, y = rows(5)
    whole, _ = way.clipped_sum(x, y, 1e-2)
    without, _ = way.clipped_sum(x[:4], y[:4], 1e-2)
    assert apart(whole, without) <= 1e-2 * (1 + 1e-5)
    assert length_of(way.clipped_sum(x[:1], y[:1], 1e-2)[0]) == pytest.approx(1e-2, rel=1e-4)
    exact, _ = made(name)[2].clipped_sum(x, y, INF)
    assert apart(way.clipped_sum(x, y, INF)[0], exact) < 0.05 * length_of(exact)


def test_inputs_and_targets_may_be_dictionaries_and_tuples():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(WIDTH, CLASSES)

        def forward(self, inputs):
            return self.linear(inputs["a"] + inputs["b"][0])

    module = Two()
    parameters = list(module.parameters())
    x, y = rows(4)
    batch = {"a": x, "b": (x,)}
    way = row_gradients(module, parameters, functional.cross_entropy, Device(), (batch, y))
    plain = row_gradients(module.linear, parameters, functional.cross_entropy, Device(), (2 * x, y))
    torch.testing.assert_close(way.clipped_sum(batch, y, 0.4), plain.clipped_sum(2 * x, y, 0.4))


@pytest.mark.parametrize("way", [Vectorized, OneByOne])
def test_all_rows_count_where_targets_are_a_dictionary(way, monkeypatch):
    """A dictionary has as many entries as it has keys, not rows."""
    monkeypatch.setattr("p2pfl.learn.privacy.gradients.CHUNK_FLOATS", 1)  # one row at a time
    module = nn.Linear(WIDTH, CLASSES)
    parameters = list(module.parameters())

    def named(outputs, targets):
        return functional.cross_entropy(outputs, targets["class"])

    x, y = rows(6)
    mine = way(module, parameters, named, Device()).clipped_sum(x, {"class": y}, 0.4)
    plain = way(module, parameters, functional.cross_entropy, Device()).clipped_sum(x, y, 0.4)
    assert len(mine[1]) == 6
    torch.testing.assert_close(mine, plain)
