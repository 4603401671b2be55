"""A spec is one string; what is wrong with it is said with the nearest right one."""

from __future__ import annotations

import pytest

from topologies import TopologyError, build
from topologies.families import parse
from topologies.files.content import is_file


def test_defaults_are_filled_in():
    assert parse("watts-strogatz:p=0.3").parameters == {"k": 4, "p": 0.3}
    assert parse("watts-strogatz: k = 6 , p = 1").parameters == {"k": 6, "p": 1.0}


@pytest.mark.parametrize(
    ("spec", "key", "value", "allowed"),
    [
        ("rng", "topology", "rng", "did you mean 'ring'"),
        ("", "topology", "", "ring"),
        ("RING", "topology", "RING", "did you mean 'ring'? One of: barabasi-albert, "),
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
        ("torus:dims=4x1", "torus:dims", "4x1", "joined by 'x'"),
        ("torus:dims=4*5", "torus:dims", "4*5", "such as 4x5x6"),
        ("torus:dim=4x5", "torus", "dim", "did you mean 'dims'"),
        ("geometric:radius=0", "geometric:radius", "0", "above 0"),
        ("geometric:radius=inf", "geometric:radius", "inf", "above 0"),
        ("geometric:metric=round", "geometric:metric", "round", "flat or torus"),
        ("d-cliques:inter=tree", "d-cliques:inter", "tree", "ring or full"),
        ("d-cliques:labels=", "d-cliques:labels", "", "path"),
        ("barabasi-albert:m=0", "barabasi-albert:m", "0", "from 1"),
        ("keyed-ring", "topology", "keyed-ring", "did you mean 'keyed-rings'"),
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
        ("torus:rows=5,cols=5", 24, "rows"),
        ("torus:rows=8", 8, "at least 2"),
        ("watts-strogatz:k=3", 9, "even"),
        ("circulant:offsets=5", 8, "1 to 4"),
        ("torus:dims=4x5", 24, "20, the product of dims (4x5)"),
        ("torus:dims=4x5,rows=4", 20, "either dims, or rows and cols"),
        ("grid:cols=4", 10, "cols (4)"),
        ("random-regular:degree=5", 7, "nodes times degree even"),
        ("barbell:path=8", 8, "at least 2"),
        ("hierarchical:gateways=8", 8, "from 1 to 7"),
        ("hierarchical:roots=9", 8, "from 1 to 8"),
        ("hierarchical:gateways=2,uplinks=3", 8, "from 1 to 2"),
        ("stochastic-block:blocks=9", 8, "from 1 to 8"),
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
    assert not is_file("d-cliques:labels=data/labels.json")
    assert is_file("C:/graphs/g.json")
    assert is_file("C:\\graphs\\g")


@pytest.mark.parametrize("value", ["1_0", "+4", "\u0664", "4.0", "1" + "0" * 9 + "1", "9" * 400, "9" * 5000])
@pytest.mark.parametrize("parameter", ["random-regular:degree", "circulant:offsets", "barbell:path"])
def test_a_parameter_that_counts_is_plain_digits_of_a_bounded_number(parameter, value):
    with pytest.raises(TopologyError, match=r"whole numbers? from [01]"):
        build(f"{parameter}={value}", 12)


@pytest.mark.parametrize(
    ("spec", "edges"),
    [
        ("erdos-renyi:p=1e-320", 0),
        ("erdos-renyi:p=1e-17", 0),
        ("stochastic-block:inside=1e-320,between=0", 0),
        ("geometric:radius=1e-320", 0),
        ("geometric:radius=1e308", 15),
        ("geometric:radius=1e-320,metric=torus", 0),
    ],
)
def test_numbers_at_the_edge_of_floating_point_are_numbers(spec, edges):
    assert len(build(spec, 6).edges) == edges


def test_more_rings_than_anyone_could_wait_for_are_refused():
    with pytest.raises(TopologyError, match=r"keyed-rings:r: .*from 1 to 1000"):
        build("keyed-rings:r=1000000", 12)
    with pytest.raises(TopologyError, match="too many to hold"):
        build("keyed-rings:r=6", 2_000_000)


@pytest.mark.parametrize("spec", ["g\0.json", "a/g\0", "d-cliques:labels=g\0"])
def test_a_path_that_no_system_knows_is_a_mistake(spec):
    with pytest.raises(TopologyError, match="null byte"):
        build(spec, 6)


def test_counts_of_labels_from_a_device_that_never_ends_are_not_read(monkeypatch):
    monkeypatch.setattr("topologies.families.cliques.BYTES_LIMIT", 1000)
    with pytest.raises(TopologyError, match="d-cliques:labels: too large a file"):
        build("d-cliques:labels=/dev/zero", 6)


def test_an_error_shows_little_of_a_long_spec():
    with pytest.raises(TopologyError) as caught:
        build("x" * 100_000, 6)
    assert len(str(caught.value)) < 2000
