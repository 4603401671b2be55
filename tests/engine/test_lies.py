"""A neighbor's lies that would end a node, not only spoil its model: each is refused, and leaves no trace."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from p2pfl.core.events import Refused
from p2pfl.core.messages import request_digest

sys.path.insert(0, str(Path(__file__).parent))
from pair import Pair, correction


def told(request, **changes):
    """The request with a lie in it, its digest set right."""
    changed = replace(request, **changes)
    return replace(changed, digest=request_digest(changed))


@pytest.mark.parametrize("size", [1e20, 3e38])
def test_a_huge_model_is_refused_although_the_own_one_is_huge_too(size):
    """In float32 the square of the own norm is infinite, and any replica would pass below it."""
    pair = Pair(spec="none")
    pair.engines[1].state.model[:] = 1e19
    before = pair.engines[1].state.model.copy()
    lie = told(pair.freeze(), body=np.full(300, size, dtype="<f4").tobytes())
    assert isinstance(pair.apply_request(lie), Refused)
    np.testing.assert_array_equal(pair.engines[1].state.model, before)


def test_an_exchange_that_would_carry_the_model_too_far_is_refused():
    pair = Pair(spec="none", samples=(30, 1))
    request = pair.freeze()
    pair.engines[1].state.model[:] = 1e12
    lie = told(request, body=np.full(300, -9e13 / 300, dtype="<f4").tobytes())
    assert isinstance(pair.apply_request(lie, factor=1e6), Refused)


@pytest.mark.parametrize("drift", [5e-324, 1e-12])
def test_a_scale_that_would_blow_up_the_control_variate_is_refused(drift):
    pair = Pair(beta=0.1)
    assert isinstance(pair.apply_request(told(pair.freeze(), terms=(drift,))), Refused)
    assert pair.engines[1].state.edges[0].kept == {}


def test_a_reply_with_a_smaller_scale_than_ours_is_refused():
    pair = Pair(beta=0.1)
    pair.engines[0].state.terms = (0.5,)
    reply = pair.apply_request(pair.freeze()).reply
    assert reply.terms == (0.5,)
    assert isinstance(pair.apply_reply(replace(reply, terms=(0.4,))), Refused)


def test_both_ends_scale_their_variates_by_the_larger_drift():
    """Whatever each has trained: the sum of n_i C_i stays zero."""
    pair = Pair(beta=0.1)
    pair.engines[0].state.terms, pair.engines[1].state.terms = (0.5,), (4.0,)
    pair.exchange()
    total = sum(e.state.samples * correction(e.state, 0.1).astype(np.float64) for e in pair.engines)
    assert correction(pair.engines[0].state, 0.1).any()
    np.testing.assert_allclose(total, 0.0, atol=1e-4)
