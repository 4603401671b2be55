"""How far nodes are: options and files as people write them, and one clear error for what is no distance."""

from __future__ import annotations

import numpy as np
import pytest

from topologies import TopologyError
from topologies.timing import latencies, read_far

NAMES = ("north", "south", "east-1")


def test_a_far_node_is_far_from_all_and_two_of_them_twice_as_far_from_each_other():
    found = latencies(5, far=[read_far("3-4=60ms"), read_far("0,3=0.01s")])
    ends = np.array([(0, 1), (1, 2), (2, 4), (3, 4)])
    assert found.of(ends) == pytest.approx([0.012, 0.002, 0.062, 0.132])


def test_names_are_names_even_with_a_hyphen():
    assert latencies(3, names=NAMES, far=[read_far("east-1=5ms")]).far_s.tolist() == [0.0, 0.0, 0.005]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("28-29", "not a distance .*as 28-29=60ms"),
        ("3=60", "not a distance"),
        ("=60ms", "not a distance"),
        ("3=-1ms", "not a distance"),
        ("9=1ms", r"no such node \(found '9'\); allowed: the nodes of the graph: 0 to 4"),
        ("3-2=1ms", "an empty range"),
        ("2,1-3=1ms", "names a node twice"),
    ],
)
def test_what_is_no_far_node_is_refused(text, said):
    with pytest.raises(TopologyError, match=said):
        latencies(5, far=[read_far(text)])
