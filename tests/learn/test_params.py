from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from torch import nn

from p2pfl.errors import UserError
from p2pfl.learn import FlatModule


def with_batch_norm():
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(6, 6, bias=False)
        self.decode = nn.Linear(6, 6)
        self.decode.weight = self.encode.weight


class Mixed(nn.Module):
    """Every dtype at once, a number without dimensions, and a tensor that is not contiguous."""

    def __init__(self):
        super().__init__()
        self.short = nn.Parameter(torch.ones(3, dtype=torch.float16))
        self.brain = nn.Parameter(torch.ones(2, 2, dtype=torch.bfloat16))
        self.long = nn.Parameter(torch.ones(2, dtype=torch.float64))
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.turned = nn.Parameter(torch.zeros(2, 3).t())
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("seen", torch.tensor(7))
        self.register_buffer("scratch", torch.zeros(9), persistent=False)


MODELS = [with_batch_norm, Tied, Mixed]


@pytest.mark.parametrize("model", MODELS)
def test_a_vector_that_is_loaded_is_read_back(model):
    flat = FlatModule(model(), "mine")
    vector = np.arange(flat.size, dtype=np.float32)
    flat.load(vector)
    np.testing.assert_array_equal(flat.vector(), vector)


def test_batch_norms_float_buffers_are_shared_and_its_counter_is_not():
    flat = FlatModule(with_batch_norm(), "mine")
    assert flat.size == (4 * 5 + 5) + 4 * 5 + (5 * 2 + 2)
    assert list(flat.local_state()) == ["1.num_batches_tracked"]


def test_tied_weights_count_once_and_stay_tied():
    module = Tied()
    flat = FlatModule(module, "mine")
    assert flat.size == 6 * 6 + 6
    flat.load(np.ones(flat.size, dtype=np.float32))
    assert module.decode.weight is module.encode.weight
    assert sorted(flat.state_dict()) == ["decode.bias", "decode.weight", "encode.weight"]


def test_other_float_types_are_cast_to_the_vector_and_back():
    module = Mixed()
    flat = FlatModule(module, "mine")
    assert flat.vector().dtype == np.float32
    flat.load(np.full(flat.size, 1.5, dtype=np.float32))
    assert module.short.dtype == torch.float16
    assert module.brain.dtype == torch.bfloat16
    assert module.long.dtype == torch.float64
    assert module.brain.tolist() == [[1.5, 1.5], [1.5, 1.5]]


def test_a_running_variance_below_zero_is_raised_to_zero():
    module = with_batch_norm()
    flat = FlatModule(module, "mine")
    flat.load(np.full(flat.size, -0.25, dtype=np.float32))
    assert module[1].running_var.tolist() == [0.0] * 5
    assert module[1].running_mean.tolist() == [-0.25] * 5


def test_vectors_given_out_are_copies():
    flat = FlatModule(nn.Linear(2, 1), "mine")
    first = flat.vector()
    flat.load(np.zeros(3, dtype=np.float32))
    assert first.any()


def test_the_digest_sees_names_shapes_types_and_order():
    models = [
        nn.Sequential(nn.Linear(4, 2)),
        nn.ModuleDict({"a": nn.Linear(4, 2)}),
        nn.Sequential(nn.Linear(2, 4)),
        nn.Sequential(nn.Linear(4, 2)).half(),
        nn.Sequential(nn.Linear(4, 1), nn.Linear(4, 1)),
    ]
    digests = [FlatModule(model, "mine").digest for model in models]
    assert len(set(digests)) == len(models)
    assert {len(digest) for digest in digests} == {16}
    assert FlatModule(nn.Sequential(nn.Linear(4, 2)), "yours").digest == digests[0]


def test_the_digest_of_a_known_model_never_changes():
    layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    assert FlatModule(layers, "mine").digest.hex() == "5905712e18de4bf0c671c85c92b1c4e0"


def test_a_buffer_that_the_module_replaces_is_still_the_one_that_is_read():
    module = with_batch_norm()
    flat = FlatModule(module, "mine")
    module[1].running_mean = torch.full((5,), 3.0)
    assert flat.vector()[4 * 5 + 5 + 10 : 4 * 5 + 5 + 15].tolist() == [3.0] * 5
    flat.load(np.zeros(flat.size, dtype=np.float32))
    assert module[1].running_mean.tolist() == [0.0] * 5


def test_local_state_of_another_model_is_refused():
    with pytest.raises(UserError, match="another model"):
        FlatModule(nn.Linear(2, 1), "mine").load_local_state({"seen": np.array(1)})


def test_the_state_dict_loads_into_a_plain_module():
    module = with_batch_norm()
    flat = FlatModule(module, "mine")
    vector = np.linspace(0, 1, flat.size, dtype=np.float32)
    flat.load(vector)
    plain = with_batch_norm()
    plain.load_state_dict({name: torch.from_numpy(array) for name, array in flat.state_dict().items()})
    np.testing.assert_array_equal(FlatModule(plain, "mine").vector(), vector)


def test_a_correction_reaches_trained_parameters_only():
    module = with_batch_norm()
    module[0].bias.requires_grad_(requires_grad=False)
    flat = FlatModule(module, "mine")
    pulls = [(p, part["pull"]) for p, part in flat.parts({"pull": np.arange(flat.size, dtype=np.float32)})]
    assert [tuple(pull.shape) for _, pull in pulls] == [(5, 4), (5,), (5,), (2, 5), (2,)]
    assert pulls[0][1].flatten().tolist() == list(range(20))
    assert pulls[1][1].tolist() == list(range(25, 30))
    assert all(part == {} for _, part in flat.parts({}))


@pytest.mark.parametrize("model", [nn.Identity, lambda: nn.LazyLinear(3), lambda: nn.Linear(2, 2, dtype=torch.cfloat)])
def test_a_model_that_cannot_be_shared_is_the_users_mistake(model):
    with pytest.raises(UserError, match="mine"):
        FlatModule(model(), "mine")


def test_a_vector_of_another_size_is_our_bug():
    with pytest.raises(ValueError, match="shape"):
        FlatModule(nn.Linear(2, 1), "mine").load(np.zeros(4, dtype=np.float32))


def test_a_vector_goes_in_and_out_without_a_copy_on_the_way():
    flat = FlatModule(nn.Sequential(nn.Linear(500, 500), nn.Linear(500, 500)), "mine")
    vector = flat.vector()
    tracemalloc.start()
    flat.load(vector)
    flat.parts({"pull": vector})
    assert tracemalloc.get_traced_memory()[1] < 0.1 * vector.nbytes
    flat.vector()
    assert tracemalloc.get_traced_memory()[1] < 1.1 * vector.nbytes
    tracemalloc.stop()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_vector_that_cannot_be_written_to_is_loaded_like_any_other(dtype):
    module = nn.Linear(2, 1)
    flat = FlatModule(module, "mine")
    vector = np.array([1.0, 2.0, 3.0], dtype)
    vector.flags.writeable = False
    flat.load(vector)
    assert [part["a"].flatten().tolist() for _, part in flat.parts({"a": vector})] == [[1.0, 2.0], [3.0]]
    with torch.no_grad():
        module.weight += 1.0
    assert flat.vector().tolist() == [2.0, 3.0, 3.0]
    assert vector.tolist() == [1.0, 2.0, 3.0]
