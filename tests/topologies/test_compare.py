"""Topologies side by side."""

from __future__ import annotations

import pytest

from topologies import TopologyError, build, build_schedule, describe
from topologies.files import write_topology
from topologies.metrics.describe import COLUMNS, compare, describe_schedule

MANY = ["ring", "torus", "star", "complete", "random-regular:degree=4"]


def column(found, name):
    return [row[name] for row in found.rows]


@pytest.mark.parametrize("spec", MANY)
def test_a_row_says_what_the_description_of_the_graph_says(spec):
    (row,) = compare([spec], [16], model_bytes=1000, seed=3, weights="best-constant").rows
    told = describe(build(spec, 16, 3), "best-constant")
    assert row["lambda_2"] == told["algebraic_connectivity"]
    assert row["mixing_rate"] == told["mixing_rate"]
    assert row["rounds"] == told["rounds_to_consensus"]
    assert row["messages"] == told["messages_to_consensus"]
    assert row["bytes"] == 1000 * told["messages_to_consensus"]
    assert row["busiest_bytes"] == 1000 * told["degree"]["max"]
    assert (row["n"], row["edges"]) == (told["nodes"], told["edges"])


@pytest.mark.parametrize("spec", ["base:k=1", "one-peer-exponential"])
def test_schedules_and_directed_graphs_have_rows_too(spec):
    (row,) = compare([spec], [16], model_bytes=10).rows
    told = describe_schedule(build_schedule(spec, 16))
    assert row["rounds"] == told["rounds_to_consensus"]
    assert row["bytes"] == 10 * told["messages_to_consensus"]
    assert row["busiest_bytes"] == 10 * told["degree"]["max"]


def test_sizes_are_groups_and_rows_stand_within_them_as_they_were_asked_for():
    found = compare(MANY, [64, 16])
    assert column(found, "n") == [16] * 5 + [64] * 5
    assert column(found, "topology") == MANY * 2


def test_a_graph_that_cannot_be_leaves_an_empty_row_and_a_reason():
    found = compare(["hypercube", "ring"], [16, 100])
    empty = [row for row in found.rows if row["edges"] is None]
    assert [(row["topology"], row["n"]) for row in empty] == [("hypercube", 100)]
    assert set(empty[0]) == set(COLUMNS)
    (missing,) = found.missing
    assert "hypercube on 100 nodes" in str(missing)
    assert "power of two" in str(missing)


def test_where_no_graph_can_be_it_is_a_mistake():
    with pytest.raises(TopologyError, match="power of two"):
        compare(["hypercube"], [12, 100])


def test_a_disconnected_graph_never_reaches_consensus():
    (row,) = compare(["circulant:offsets=2"], [8], model_bytes=5).rows
    assert (row["lambda_2"], row["rounds"], row["messages"], row["bytes"]) == (0.0, None, None, None)
    assert row["busiest_bytes"] == 10


def test_without_the_size_of_a_model_bytes_are_not_known():
    (row,) = compare(["ring"], [8]).rows
    assert row["bytes"] is None
    assert row["busiest_bytes"] is None


def test_a_graph_file_has_its_own_size(tmp_path):
    path = tmp_path / "mine.json"
    write_topology(build("torus", 12), path)
    found = compare([str(path), "ring"], [8, 16])
    assert [(row["topology"], row["n"]) for row in found.rows] == [("ring", 8), (str(path), 12), ("ring", 16)]
    assert [row["edges"] for row in compare([str(path)], []).rows] == [24]


@pytest.mark.parametrize(
    ("specs", "wanted", "text"),
    [
        (["rng", "ring"], {}, "did you mean 'ring'"),
        (["ring"], {"weights": "metro"}, "weights"),
        (["ring"], {"epsilon": 2.0}, "epsilon"),
    ],
)
def test_a_mistake_in_the_request_is_no_empty_row(specs, wanted, text):
    with pytest.raises(TopologyError, match=text):
        compare(specs, [8], **wanted)


def test_a_family_needs_a_number_of_nodes():
    with pytest.raises(TopologyError, match="how many nodes"):
        compare(["ring"], [])
