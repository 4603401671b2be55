"""What liars show: each attack as its name in the literature says."""

from __future__ import annotations

import numpy as np
import pytest

from sim import ATTACKS, BlindEntry, Sight, parse_attack

EXAMPLES = {
    "sign-flip": "sign-flip:3",
    "noise": "noise:0.5",
    "nan": "nan",
}
MODELS = np.random.default_rng(0).normal(size=(6, 300)).astype(np.float32)
INITIAL = np.random.default_rng(1).normal(size=300).astype(np.float32)


def show(spec, models=MODELS, *, seed=1, nodes=(3, 1, 4, 1, 5, 9), counts=(0, 1, 2, 3, 4, 5)):
    told = [
        parse_attack(spec).tell(Sight(node=node, peer=0, own=own, initial=INITIAL, count=count, seed=seed))
        for node, own, count in zip(nodes, models, counts, strict=True)
    ]
    assert not any(np.shares_memory(one, models) for one in told)
    return np.stack(told)


def test_every_attack_that_looks_at_nobody_has_an_example_here():
    assert EXAMPLES.keys() == {name for name, entry in ATTACKS.items() if isinstance(entry, BlindEntry)}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("spec", [*EXAMPLES.values(), "sign-flip"])
def test_a_lie_has_shape_and_type_of_the_models_and_leaves_them_alone(spec, dtype):
    models = MODELS.astype(dtype)
    before = models.copy()
    shown = show(spec, models)
    assert (shown.shape, shown.dtype) == (models.shape, dtype)
    shown[:] = 0
    assert np.array_equal(models, before)
    assert INITIAL.any()


def test_each_attack_shows_what_its_name_says():
    assert np.array_equal(show("sign-flip"), -MODELS)
    assert np.array_equal(show("sign-flip:3"), MODELS * np.float32(-3))
    assert np.isnan(show("nan")).all()


def test_noise_is_gaussian_around_the_model_and_fresh_each_time():
    models = np.zeros((4, 20_000))
    noise = show("noise:0.5", models, nodes=(1, 1, 2, 1), counts=(0, 1, 0, 0))
    assert abs(noise[0].std() - 0.5) < 0.01
    assert abs(noise[0].mean()) < 0.015
    assert np.array_equal(noise[0], noise[3])
    assert not (noise[0] == noise[1]).any()
    assert not (noise[0] == noise[2]).any()
    other = show("noise:0.5", models, seed=2, nodes=(1, 1, 2, 1), counts=(0, 1, 0, 0))
    assert not (noise[0] == other[0]).any()
