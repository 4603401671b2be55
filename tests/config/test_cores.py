"""How far a node must look before it begins."""

import pytest

from p2pfl.config import FARTHEST, all_hops, hops
from sim import describe


def federation(spec, nodes):
    return describe(nodes=nodes, topology=spec, seed=3)


@pytest.mark.parametrize("spec", ["ring", "star", "complete", "random-regular:degree=3", "path"])
def test_all_hops_at_once_are_those_of_each_node(spec):
    one = federation(spec, 12)
    assert all_hops(one) == [hops(one, member) for member in range(12)]


def test_the_ends_of_a_path_look_farthest():
    assert all_hops(federation("path", 5)) == [4, 3, 2, 3, 4]


def test_nobody_looks_further_than_the_limit():
    assert set(all_hops(federation("ring", 200))) == {FARTHEST}
    assert hops(federation("ring", 200), 7) == FARTHEST
