"""Sum and noise are whole numbers of one grid, and one row moves the sum on it by no more than the clip."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from p2pfl.config import TrainingConfig
from p2pfl.config.sections import MEMBER
from p2pfl.errors import UserError
from p2pfl.learn import Device, RoundStart, seeded
from p2pfl.learn.privacy import UNIT, Grid, LayerChain, Secret, Vectorized, pieces, row_gradients, shape_of


class Silent:
    """No noise, so that the grid alone is seen."""

    def noise(self, size):
        return np.zeros(size, np.int64)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 40),
    noise=st.floats(0.01, 1000.0),
    clip=st.sampled_from([1e-3, 0.7, 1.0, 1e4]),
    size=st.sampled_from([1, 7, 500]),
)
def test_one_row_more_moves_the_rounded_sum_by_no_more_than_the_clip_in_any_order(seed, rows, noise, clip, size):
    grid = Grid.of(noise=noise, clip=clip, size=size, rows=rows + 1, in_sequence=rows + 1)
    rng = np.random.default_rng(seed)
    found = rng.standard_normal((rows + 1, size)) * 10.0 ** rng.uniform(-12, 1, (rows + 1, size))
    found *= grid.length / np.linalg.norm(found, axis=1, keepdims=True)
    with_it = grid.hidden(found[rng.permutation(rows + 1)].sum(0), Silent())
    without = grid.hidden(found[rng.permutation(rows)].sum(0), Silent())  # the last one is the row

    assert np.linalg.norm(with_it - without) <= clip * (1 + 1e-12)


def test_a_model_of_millions_of_numbers_gives_up_little_of_its_clip_at_any_noise():
    for noise, size, least in ((1.0, 10**5, 0.998), (10.0, 10**8, 0.99), (1000.0, 10**9, 0.5)):
        grid = Grid.of(noise=noise, clip=1.0, size=size, rows=10**7, in_sequence=10**4)
        assert least < grid.length < 1.0


def test_more_rows_than_a_sum_can_take_are_refused():
    with pytest.raises(UserError, match=r"privacy\.noise: no sum of .* rows"):
        Grid.of(noise=1.0, clip=1.0, size=10, rows=10**12, in_sequence=10**6)


def on_grid(found, step):
    """Whether these float32 numbers are multiples of `step`, as closely as they can be."""
    found = found.astype(np.float64)
    return np.abs(np.rint(found / step) * step - found) <= np.abs(found) * 2.0**-24


@pytest.mark.parametrize("unit", ["record", MEMBER])
def test_what_a_step_leaves_is_a_whole_number_of_the_grid(protected, unit):
    """Of small ones too, where floats are finer: they would tell of the rows."""
    training = TrainingConfig(local_steps=1, batch_size=16, learning_rate=1.0)
    rng = np.random.default_rng(1)

    class Zero(nn.Linear):
        def reset_parameters(self):
            nn.init.zeros_(self.weight)
            nn.init.zeros_(self.bias)

    data = (rng.standard_normal((16, 4)).astype(np.float32), rng.integers(0, 3, 16))
    how = {"unit": unit, "noise": 4.0, "clip": 0.5}
    wide = {"model": lambda: Zero(4, 4000), "chance": Secret(), "training": training, "how": how}
    mine = protected(data=(data, None), **wide)
    step = 4.0 * 0.5 / UNIT / (16 if unit == "record" else 1)
    found = np.concatenate([mine.train(RoundStart(mine.initial()), index).vector for index in range(4)])
    fine = found[np.abs(found) < step * 2**20]  # a float32 there is finer than the grid
    assert len(fine) > 100
    assert on_grid(fine, step).all()
    assert len(np.unique(np.rint(fine / step))) > 0.99 * len(fine)


def conv():
    return nn.Sequential(
        nn.Unflatten(1, (1, 37)), nn.Conv1d(1, 3, 5), nn.Tanh(), nn.Flatten(), nn.LayerNorm(99), nn.Linear(99, 5)
    )


def mlp():
    return nn.Sequential(nn.Linear(37, 19), nn.Tanh(), nn.Linear(19, 5))


def seen(gradients, x, y):
    """By row, all of which its gradient is made."""
    found = []
    if isinstance(gradients, LayerChain):
        gradients._summed = lambda entered, returned, *_: found.extend([*entered, *returned])
    else:
        each = gradients._each
        gradients._each = lambda *given: (kept := each(*given), found.extend(kept[0].values()))[0]
    gradients.clipped_sum(x, y, 1.0)
    vars(gradients).pop("_summed", None)
    if not isinstance(gradients, LayerChain):
        gradients._each = each
    return torch.cat([one.flatten(1) for one in found], 1)


class Placed:
    """Draws by which the third row has the last place of a batch that has one."""

    def __init__(self, rows):
        self.rows = rows

    def order(self, count):
        found = np.random.default_rng(count).permutation(count)
        extra = found[self.rows]
        found = np.delete(found, self.rows)
        return np.insert(found, 2, extra)


class Others(Placed):
    """The same for a batch without that row."""

    def order(self, count):
        return np.delete(Placed.order(self, count), 2)


@pytest.mark.parametrize(("build", "way"), [(mlp, LayerChain), (conv, Vectorized)])
@pytest.mark.parametrize("batch", [4, 16, 100])
def test_the_gradient_of_a_row_is_the_same_to_the_last_bit_beside_one_row_more(build, way, batch):
    """Where that row takes an empty place. A batch of another shape would round all in another way."""
    with seeded(0):
        module = build()
    x, y = torch.randn(batch + 1, 37, generator=torch.Generator().manual_seed(1)), torch.arange(batch + 1) % 5
    gradients = row_gradients(module, list(module.parameters()), functional.cross_entropy, Device(), (x[:2], y[:2]))
    assert type(gradients) is way

    def by_row(rows, draws):
        ((piece, among),) = pieces(rows, shape_of(batch), draws)
        found = seen(gradients, x[piece], y[piece])[among]
        return found[torch.argsort(piece[among])]

    others = torch.cat([torch.arange(2), torch.arange(3, batch + 1)])
    with_it, without = by_row(torch.arange(batch + 1), Placed(batch)), by_row(others, Others(batch))
    assert torch.equal(with_it[others], without)


@pytest.mark.parametrize("count", [0, 1, 8, 9, 20])
def test_every_row_of_a_batch_is_in_one_place_and_no_other_counts(count):
    rows = torch.arange(100, 100 + count)
    found = list(pieces(rows, 8, Secret()))
    assert len(found) == -(-count // 8)
    assert all(piece.shape == among.shape == (8,) for piece, among in found)
    assert sorted(one for piece, among in found for one in piece[among].tolist()) == rows.tolist()


def test_the_place_of_a_row_is_drawn_anew_and_uniform():
    counts = np.zeros(8)
    for _ in range(4000):
        ((_, among),) = pieces(torch.arange(3), 8, Secret())
        counts += among.numpy()
    assert np.abs(counts - 1500).max() < 6 * np.sqrt(1500)
