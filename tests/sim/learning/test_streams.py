from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.chance import generator
from sim.learning.grouped import generators

pairs = st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)), min_size=1, max_size=6)


@given(seed=st.integers(0, 2**130), pairs=pairs)
def test_many_generators_at_once_are_those_made_one_by_one(seed, pairs):
    nodes, rounds = np.array(pairs, dtype=np.int64).T
    made = generators(seed, "batches", nodes, rounds)
    for (node, index), rng in zip(pairs, made, strict=True):
        expected = generator(seed, "batches", node, index)
        np.testing.assert_array_equal(rng.permutation(40), expected.permutation(40))
        assert rng.bit_generator.state == expected.bit_generator.state
