"""Requests take memory only while they are under way."""

import numpy as np
import pytest

from sim.lazy.requests import RequestRows


def _vectors(*values: float) -> np.ndarray:
    return np.array(values, np.float32)[:, None] * np.ones(3, np.float32)


def test_what_is_applied_makes_room_for_requests_on_other_edges() -> None:
    requests = RequestRows(100, 3)
    requests.put(np.array([7, 2]), _vectors(1.0, 2.0))
    assert requests.of(np.array([2, 7]), drop=True)[:, 0].tolist() == [2.0, 1.0]
    requests.put(np.array([50, 99]), _vectors(3.0, 4.0))
    assert requests.of(np.array([50, 99]), drop=False)[:, 0].tolist() == [3.0, 4.0]
    assert len(requests._rows) == 2


def test_a_request_takes_the_place_of_the_last_one_on_its_edge() -> None:
    requests = RequestRows(4, 3)
    requests.put(np.array([1]), _vectors(1.0))
    requests.put(np.array([1, 3]), _vectors(5.0, 6.0))
    assert requests.of(np.array([1, 3]), drop=False)[:, 0].tolist() == [5.0, 6.0]
    assert len(requests._rows) == 2


def test_a_request_that_is_not_under_way_cannot_be_applied() -> None:
    requests = RequestRows(4, 3)
    requests.put(np.array([1]), _vectors(1.0))
    requests.of(np.array([1]), drop=True)
    with pytest.raises(AssertionError, match="not under way"):
        requests.of(np.array([1]), drop=True)
