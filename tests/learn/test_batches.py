from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.config.model import TrainingConfig
from p2pfl.learn.batches import draw_batches


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


def test_a_batch_size_above_the_number_of_rows_takes_them_all():
    batches = rows_of(TrainingConfig(local_steps=2, batch_size=100), 7)
    assert [sorted(batch) for batch in batches] == [list(range(7))] * 2
