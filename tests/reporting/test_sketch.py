"""How far models are apart."""

from __future__ import annotations

import numpy as np
import pytest

from p2pfl.reporting import consensus_distance


def test_equal_models_are_not_apart_at_all_not_even_by_rounding():
    row = np.random.default_rng(0).normal(size=256)
    assert consensus_distance(np.tile(row, (7, 1))) == 0


def test_the_distance_is_relative_to_the_mean():
    assert consensus_distance(np.array([[1.0, 0.0], [3.0, 0.0]])) == pytest.approx(0.5)
