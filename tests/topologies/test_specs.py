"""A spec is one string; what is wrong with it is said with the nearest right one."""

from __future__ import annotations

import pytest

from topologies import TopologyError, build
from topologies.specs import is_file, parse


def test_defaults_are_filled_in():
    assert parse("watts-strogatz:p=0.3").parameters == {"k": 4, "p": 0.3}
    assert parse("watts-strogatz: k = 6 , p = 1").parameters == {"k": 6, "p": 1.0}


@pytest.mark.parametrize(
    ("spec", "key", "value", "allowed"),
    [
        ("rng", "topology", "rng", "did you mean 'ring'"),
        ("", "topology", "", "ring"),
        ("random-regular:degre=4", "random-regular", "degre", "did you mean 'degree'"),
        ("ring:degree=4", "ring", "degree", "nothing"),
        ("random-regular:degree=two", "random-regular:degree", "two", "whole number"),
        ("random-regular:degree=0", "random-regular:degree", "0", "whole number from 1"),
        ("random-regular:degree", "random-regular:degree", "degree", None),
        ("erdos-renyi:p=1.5", "erdos-renyi:p", "1.5", "0 to 1"),
        ("erdos-renyi:p=nan", "erdos-renyi:p", "nan", "0 to 1"),
        ("erdos-renyi:p=0.1,p=0.2", "erdos-renyi:p", "p=0.2", None),
        ("circulant:offsets=0-1", "circulant:offsets", "0-1", "joined by '-'"),
        ("ring:", "ring", "", "nothing"),
    ],
)
def test_a_wrong_spec_names_key_value_and_what_is_allowed(spec, key, value, allowed):
    with pytest.raises(TopologyError) as caught:
        parse(spec)
    assert (caught.value.key, caught.value.value) == (key, value)
    assert allowed is None or allowed in caught.value.allowed


@pytest.mark.parametrize(
    ("spec", "nodes", "allowed"),
    [
        ("hypercube", 12, "8 or 16"),
        ("torus", 7, "not a prime"),
        ("torus:rows=4", 10, "rows"),
        ("torus:rows=5,cols=5", 24, "rows"),
        ("torus:rows=8", 8, "at least 2"),
        ("random-regular:degree=3", 7, "even"),
        ("random-regular:degree=8", 8, "less than the nodes"),
        ("watts-strogatz:k=3", 9, "even"),
        ("watts-strogatz:k=10", 9, "less than the nodes"),
        ("circulant:offsets=5", 8, "1 to 4"),
        ("barbell", 9, "even number"),
        ("ring", 0, "from 1"),
        ("ring", True, "from 1"),
        ("ring", 10_000_000, "2000000"),
    ],
)
def test_an_impossible_size_says_what_would_be_possible(spec, nodes, allowed):
    with pytest.raises(TopologyError) as caught:
        build(spec, nodes)
    assert allowed in caught.value.allowed


def test_a_file_is_told_from_a_family_by_its_suffix_or_folder():
    assert is_file("graph.json")
    assert is_file("./graph")
    assert not is_file("erdos-renyi:p=0.1")
