"""What data a task may return and what is said about others; and which rows the steps of a round see."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from p2pfl.config import TrainingConfig
from p2pfl.errors import UserError
from p2pfl.learn import Task, draw_batches

X, Y = np.ones((6, 4), dtype=np.float32), np.array([0, 1, 2, 0, 1, 2])


class Broken(torch.utils.data.Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, row):
        raise OSError("no such picture")


def not_finite():
    inputs = X.copy()
    inputs[4, 1] = np.nan
    return inputs


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (None, "data returned NoneType"),
        ((X, Y, X), "data returned tuple of 3"),
        ((X, Y), "training set: it is ndarray"),
        ((None, None), "training set: there is none"),
        (((X, Y[:5]), None), "6 inputs and 5 targets"),
        (((X[:0], Y[:0]), None), "training set: it is empty"),
        (((X, Y), (X[:0], Y[:0])), "test set: it is empty"),
        (((X, ["a"] * 6), None), "training set, targets: its type is <U1"),
        (((X, np.array([None] * 6)), None), "its type is object"),
        (((X > 0, Y), None), "its type is bool"),
        (((X, 3), None), "it is a single number"),
        ((([[1, 2], [3]], Y[:2]), None), "training set, inputs: .*inhomogeneous"),
        (((not_finite(), Y), None), "training set, inputs: row 4 holds a value that is not finite"),
        ((Broken(), None), "OSError: no such picture"),
        (((X[:, :3], Y), None), "model and loss fail on the first samples: RuntimeError: mat1 and mat2"),
        (((X, Y + 1), None), r"class label has no output of the model \(found 3\); allowed: 0 to 2"),
        (((X, Y - 1), None), r"found -1"),
        (((X.astype(np.uint8), Y), None), "model and loss fail"),
    ],
)
def test_what_cannot_be_learned_from_is_refused_at_the_start(learner, data, text):
    with pytest.raises(UserError, match=text) as caught:
        learner(data=data)
    assert caught.value.file == "mine"
    assert "\n" not in str(caught.value)


def test_an_exception_in_data_is_named_with_its_line(learner):
    def data(node):
        raise FileNotFoundError(f"nothing for {node.name}")

    with pytest.raises(UserError, match=r"FileNotFoundError: nothing for a \(test_samples.py, line \d+\)"):
        learner(data=data)


@pytest.mark.parametrize("model", [lambda: 3, {}.popitem])
def test_a_model_factory_that_gives_no_module_is_refused(learner, model):
    with pytest.raises(UserError, match="mine: model"):
        learner(model=model)


def test_a_model_without_anything_to_train_is_refused(learner):
    with pytest.raises(UserError, match="can be trained"):
        learner(model=lambda: nn.Linear(4, 3).requires_grad_(requires_grad=False))


def test_a_loss_that_is_no_scalar_is_refused(learner):
    with pytest.raises(UserError, match="a scalar tensor"):
        learner(loss=lambda outputs, targets: functional.cross_entropy(outputs, targets, reduction="none"))


@pytest.mark.parametrize("fields", [{"model": 3}, {"data": None}, {"loss": "mse"}, {"metrics": {"f1": 0.5}}])
def test_a_task_of_anything_but_functions_is_refused(fields):
    with pytest.raises(UserError, match="must be a function"):
        Task(**{"model": nn.Identity, "data": lambda _: None, **fields})


@pytest.mark.parametrize(
    "pair",
    [
        (X.astype(np.float64), Y.astype(np.uint8)),
        (X.tolist(), Y.tolist()),
        (torch.from_numpy(X), torch.from_numpy(Y).to(torch.int32)),
        (np.frombuffer(X.tobytes(), dtype=np.float32).reshape(6, 4), Y),
        torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),
    ],
)
def test_arrays_lists_and_tensors_of_the_usual_types_are_taken(learner, pair):
    mine = learner(data=(pair, None))
    assert mine.train_set.inputs.dtype == torch.float32
    assert mine.train_set.targets.dtype == torch.int64
    assert mine.samples == 6


def test_integer_inputs_stay_integers_for_embeddings(learner):
    tokens = np.arange(6, dtype=np.int32).reshape(6, 1) % 3
    mine = learner(model=lambda: nn.Sequential(nn.Embedding(3, 3), nn.Flatten()), data=((tokens, Y), None))
    assert mine.train_set.inputs.dtype == torch.int64


def rows_of(training, samples, seed=0):
    return [rows.tolist() for rows in draw_batches(training, samples, np.random.default_rng(seed))]


@given(samples=st.integers(1, 60), size=st.integers(1, 80), steps=st.integers(1, 30))
def test_steps_are_counted_and_full_and_use_all_rows_equally_often(samples, size, steps):
    batches = rows_of(TrainingConfig(local_steps=steps, batch_size=size), samples)
    assert [len(batch) for batch in batches] == [min(size, samples)] * steps
    counts = np.bincount(np.concatenate(batches), minlength=samples)
    assert counts.max() - counts.min() <= 1


@given(samples=st.integers(1, 60), size=st.integers(1, 80), epochs=st.integers(1, 4))
def test_epochs_are_passes_over_all_rows(samples, size, epochs):
    batches = rows_of(TrainingConfig(local_steps=None, local_epochs=epochs, batch_size=size), samples)
    counts = np.bincount(np.concatenate(batches), minlength=samples)
    assert set(counts.tolist()) == {epochs}
    assert max(len(batch) for batch in batches) <= min(size, samples) + 1


def test_a_single_row_left_over_joins_the_batch_before_it():
    batches = rows_of(TrainingConfig(local_steps=None, local_epochs=1, batch_size=4), 9)
    assert [len(batch) for batch in batches] == [4, 5]
