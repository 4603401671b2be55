"""Where a node trains: what is moved and what is not, precision, memory that is short, devices that are not there.

For an accelerator that this machine lacks, torch's `meta` device stands in one thing alone: that a step leaves no
tensor on the processor, for a product of tensors on two devices raises.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from p2pfl.config import Compute, TaskConfig, TrainingConfig
from p2pfl.errors import UserError
from p2pfl.learn import (
    BATCH,
    SMALLER,
    Device,
    FlatModule,
    RoundStart,
    TorchLearner,
    available_devices,
    device_of,
    make_learner,
    make_optimizer,
)
from p2pfl.methods import Variate

ACCELERATORS = [device for device in available_devices() if device.type != "cpu"]
needs_accelerator = pytest.mark.skipif(not ACCELERATORS, reason="torch finds no accelerator on this machine")
MIXED = Compute(precision="bf16")


class Pair(NamedTuple):
    left: torch.Tensor
    right: object


def model():
    return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))


def on_meta():
    device = Device()
    device.torch, device.is_host = torch.device("meta"), False
    return device


@pytest.fixture
def on(learner):
    """The same learner on another device."""

    def on(compute, **options):
        plain = learner(**({"model": model} | options))
        return TorchLearner(plain.task, plain.context, plain.training, plain.model.share, compute)

    return on


def test_on_the_host_nothing_is_moved_and_the_bits_are_those_without_a_device(learner, on):
    plain, auto = learner(model=model), on(Compute(device="cpu"))
    value = torch.ones(2)
    assert Device().move(value) is value
    assert Device().rows(len) is len
    start = plain.initial()
    np.testing.assert_array_equal(plain.train(RoundStart(start), 0).vector, auto.train(RoundStart(start), 0).vector)
    assert device_of(auto) == "cpu"


def test_what_a_batch_consists_of_is_moved_whatever_holds_it():
    one = torch.ones(2)
    found = on_meta().move({"a": [one, (one, 3)], "b": Pair(one, "text")})
    assert isinstance(found["b"], Pair)
    assert [tensor.device.type for tensor in (found["a"][0], found["a"][1][0], found["b"].left)] == ["meta"] * 3
    assert (found["a"][1][1], found["b"].right) == (3, "text")


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_step_leaves_nothing_on_the_processor(learner, optimizer):
    """Inputs, targets, the model, the vectors of the method, gradients and the optimizer's state."""
    mine = learner(model=model, training=TrainingConfig(optimizer=optimizer, learning_rate=0.01))
    trained, start = mine.model, mine.initial()
    trained.device = on_meta()
    trained.module.to("meta")
    trained.parameters = list(trained.module.parameters())
    trained._optimizer = make_optimizer(trained.parameters, mine.training, "task")
    flat = FlatModule(model(), "task")
    flat._trained = [
        (parameter, place) for parameter, (_, place) in zip(trained.parameters, flat._trained, strict=True)
    ]
    trained.flat = flat
    parts = [part for _, named in flat.parts({"anchor": start}) for part in named.values()]
    assert {part.device.type for part in parts} == {"meta"}
    put = trained.gradients(RoundStart(start, {"correction": np.ones_like(start)}, Variate()))
    (loss,) = trained._steps([torch.arange(3)], trained.backward(mine.train_set), put, 0.01)
    assert loss.device.type == "meta"
    trained.device.is_host = True
    with pytest.raises(RuntimeError):
        trained._steps([torch.arange(3)], trained.backward(mine.train_set), put, 0.01)


def test_mixed_precision_trains_in_it_and_keeps_parameters_and_tests_in_float32(on):
    seen = {}

    class Watched(nn.Linear):
        def forward(self, inputs):
            outputs = super().forward(inputs)
            seen[self.training] = outputs.dtype
            return outputs

    rows = (torch.randn(40, 4), torch.arange(40) % 3)
    plain, mixed = (on(compute, model=lambda: Watched(4, 3), data=(rows, rows)) for compute in (None, MIXED))
    start = plain.initial()
    one, other = (each.train(RoundStart(start), 0) for each in (plain, mixed))
    assert seen[True] == torch.bfloat16
    assert {parameter.dtype for parameter in mixed.model.module.parameters()} == {torch.float32}
    assert not np.array_equal(one.vector, other.vector)
    np.testing.assert_allclose(one.vector, other.vector, atol=0.05)
    assert other.vector.dtype == np.float32
    assert mixed.evaluate(other.vector, "test").samples
    assert seen[False] == torch.float32
    assert device_of(mixed) == "cpu, bf16"
    assert mixed.shape_digest == plain.shape_digest, "they may mix"


def test_memory_that_is_too_small_is_one_clear_error(on):
    """Torch says so itself: nobody has a petabyte."""

    class Greedy(nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs) + (torch.empty(1 << 50).sum() if self.training else 0)

    mine = on(Compute(file="pi1/node.toml"), model=lambda: Greedy(4, 3))
    with pytest.raises(UserError, match="the memory of the device is too small") as caught:
        mine.train(RoundStart(mine.initial()), 0)
    error = caught.value
    assert (str(error.file), error.key, error.value) == ("pi1/node.toml", "node.device", "cpu")
    assert "batch_size" in error.allowed


def test_a_test_for_which_memory_is_too_small_is_made_in_smaller_parts(on):
    sizes, most = [], 16

    class Hungry(nn.Linear):
        def forward(self, inputs):
            sizes.append(len(inputs))
            if len(inputs) > most:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().forward(inputs)

    rows = (torch.zeros(40, 4), torch.zeros(40, dtype=torch.int64))
    mine = on(None, model=lambda: Hungry(4, 3), data=(rows, rows))
    sizes.clear()
    assert mine.evaluate(mine.initial(), "test").samples == 40
    assert sizes == [*(min(40, size) for size in (BATCH, *SMALLER)), 16, 8]
    most = 15
    with pytest.raises(UserError, match="too small"):
        mine.evaluate(mine.initial(), "test")


@pytest.mark.parametrize("name", ["cuda:97", "mps", "cuda"])
def test_a_device_that_is_not_there_is_refused_with_those_that_are(monkeypatch, name):
    monkeypatch.setattr("p2pfl.learn.evaluation.available_devices", lambda: [torch.device("cpu")])
    with pytest.raises(UserError) as caught:
        Device(Compute(device=name, file="pi1/node.toml"))
    error = caught.value
    assert (str(error.file), error.key, error.value, error.allowed) == (
        "pi1/node.toml",
        "node.device",
        name,
        "auto, cpu",
    )


def test_auto_is_the_first_that_is_there(monkeypatch):
    monkeypatch.setattr("p2pfl.learn.evaluation.available_devices", lambda: [torch.device("meta"), torch.device("cpu")])
    assert Device(Compute(device="auto")).torch.type == "meta"
    assert Device(Compute(device="cpu")).torch.type == "cpu"


def test_a_task_without_torch_is_on_no_device():
    place = {"seed": 0, "node_index": 0, "node_count": 2, "node_name": "a", "base_dir": None}

    def made(compute):
        own = {"local": {}, "local_dir": None, "compute": compute}
        return make_learner(TaskConfig(name="quadratic"), TrainingConfig(), **place, **own)

    assert [device_of(made(Compute(device=device))) for device in ("auto", "cpu")] == ["cpu"] * 2
    refused = [Compute(device="cuda"), MIXED, Compute(micro_batch_size=8), Compute(compile=True)]
    for compute, key in zip(refused, ("device", "precision", "micro_batch_size", "compile"), strict=True):
        with pytest.raises(UserError, match="does not use torch") as caught:
            made(compute)
        assert caught.value.key == f"node.{key}"


@needs_accelerator
def test_an_accelerator_computes_the_round_of_the_processor_and_the_same_one_again(on):
    """Without dropout, whose draws are the device's own; vectors come and go as float32 on the host."""

    def plain():
        return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))

    for device in ACCELERATORS:
        host, other = on(None, model=plain), on(Compute(device=str(device)), model=plain)
        assert (host.shape_digest, host.size) == (other.shape_digest, other.size)
        start = host.initial()
        np.testing.assert_array_equal(start, other.initial())
        np.testing.assert_allclose(
            host.train(RoundStart(start), 0).vector, other.train(RoundStart(start), 0).vector, atol=1e-3
        )
        assert abs(host.evaluate(start, "test").loss - other.evaluate(start, "test").loss) < 1e-4


@needs_accelerator
def test_dropout_on_an_accelerator_depends_on_the_round_alone_and_puts_its_generator_back(on):
    for device in ACCELERATORS:
        mine = on(Compute(device=str(device)))
        torch.rand(3, device=device)
        state = torch.get_device_module(device).get_rng_state
        before = state()
        first = mine.train(RoundStart(mine.initial()), 0).vector
        assert torch.equal(state(), before)
        torch.rand(3, device=device)
        np.testing.assert_allclose(mine.train(RoundStart(mine.initial()), 0).vector, first, atol=1e-5)
