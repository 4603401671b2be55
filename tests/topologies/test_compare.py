"""Topologies side by side."""

from __future__ import annotations

import csv
import json

import click
import pytest
from click.testing import CliRunner

from topologies import (
    COLUMNS,
    Topology,
    TopologyError,
    build,
    build_schedule,
    compare,
    describe,
    describe_schedule,
    write_topology,
)
from topologies.cli import topology
from topologies.cli.terminal import Bytes, readable_bytes

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


# -- `topology compare`, `simulate` and `attack` as commands.


def call(*arguments, code=0):
    result = CliRunner().invoke(topology, arguments, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("400K", 400_000),
        ("2G", 2 * 10**9),
        ("1.5MB", 1_500_000),
        ("4Ki", 4096),
        ("1KiB", 1024),
        ("7", 7),
        ("1e3", 1000),
    ],
)
def test_a_suffix_is_a_power_of_a_thousand_and_with_an_i_of_1024(text, size):
    assert Bytes().convert(text, None, None) == size


@pytest.mark.parametrize("text", ["", "K", "-5", "0", "4X", "4 00K", "nan", "1e999", "0.1"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(click.BadParameter):
        Bytes().convert(text, None, None)


def test_sizes_for_people_keep_four_digits():
    assert [readable_bytes(size) for size in (None, 0, 999, 1000, 409_600, 2e9)] == [
        "-",
        "0 B",
        "999 B",
        "1 kB",
        "409.6 kB",
        "2 GB",
    ]


def test_compare_prints_the_same_rows_in_every_form():
    asked = ("compare", "ring", "base:k=1", "-n", "16,8", "--model-bytes", "1K")
    rows = json.loads(call(*asked, "--format", "json").stdout)
    assert [list(row) for row in rows] == [list(COLUMNS)] * 4
    assert [(row["topology"], row["n"]) for row in rows] == [
        ("ring", 8),
        ("base:k=1", 8),
        ("ring", 16),
        ("base:k=1", 16),
    ]
    table = list(csv.DictReader(call(*asked, "--format", "csv").stdout.splitlines()))
    assert [row["bytes"] for row in table] == [str(row["bytes"]) for row in rows]
    assert "64 kB" in call(*asked).stdout


def test_the_table_has_columns_of_bytes_only_where_a_model_has_a_size_and_is_narrow_without():
    asked = ("compare", "ring", "random-regular:degree=4", "-n", "16,64")
    assert "bytes" in call(*asked, "--model-bytes", "1K").stdout
    assert "bytes" not in call(*asked).stdout
    assert max(map(len, call(*asked).stdout.splitlines())) <= 120
    assert [list(row) for row in json.loads(call(*asked, "--format", "json").stdout)] == [list(COLUMNS)] * 4


def test_compare_cautions_on_stderr_and_only_where_a_person_reads():
    shown = call("compare", "ring", "hypercube", "-n", "12")
    assert "Vogels" in shown.stderr
    assert "hypercube on 12 nodes" in shown.stderr
    assert "Vogels" not in shown.stdout
    assert "Vogels" not in call("compare", "ring", "-n", "12", "--format", "json").stderr


def test_a_table_is_not_cut():
    head = call("compare", "ring", "-n", "8").stdout.splitlines()[0]
    assert head.split()[-1] == "certified"


def test_a_list_of_sizes_is_whole_numbers():
    assert "whole numbers joined by commas" in call("compare", "ring", "-n", "8;9", code=2).stderr


def test_simulate_tells_measured_beside_predicted():
    facts = json.loads(call("simulate", "torus", "-n", "16", "--format", "json").stdout)
    assert facts["measured_contraction"] == pytest.approx(facts["predicted_contraction"], abs=1e-9)
    assert "measured contraction   0.6\n" in call("simulate", "torus", "-n", "16").stdout


def test_simulate_as_csv_is_the_history():
    rows = list(
        csv.DictReader(call("simulate", "ring", "-n", "8", "--rounds", "5", "--format", "csv").stdout.splitlines())
    )
    assert [row["round"] for row in rows] == ["0", "1", "2", "3", "4", "5"]
    assert float(rows[0]["distance"]) == float(rows[0]["predicted"]) == 1.0


def test_simulate_runs_a_schedule_with_its_own_weights():
    facts = json.loads(call("simulate", "base:k=1", "-n", "12", "--format", "json").stdout)
    assert facts["measured_exact_after"] == facts["predicted_exact_after"]


def test_what_simulate_could_not_reach_is_said():
    shown = call("simulate", "ring", "-n", "40", "--rounds", "3")
    assert "measured rounds        -\n" in shown.stdout
    assert "epsilon was not reached within 3 rounds" in shown.stderr


def test_attack_prints_the_decay_and_says_when_the_graph_falls_apart():
    shown = call("attack", "star", "-n", "12", "--remove", "2", "--strategy", "degree", "--format", "json")
    rows = json.loads(shown.stdout)
    assert [row["removed"] for row in rows] == [0, 1, 2]
    assert (rows[1]["failed"], rows[1]["components"], rows[1]["lambda_2"]) == ([0], 11, 0.0)
    assert "not connected after 1 of 2" in shown.stderr


def test_attack_calls_nodes_as_the_file_does(tmp_path):
    path = tmp_path / "named.json"
    write_topology(Topology("", 3, [(0, 1), (1, 2)], names=["a", "b", "c"]), path)
    rows = json.loads(call("attack", str(path), "--strategy", "degree", "--format", "json").stdout)
    assert rows[1]["failed"] == ["b"]


def test_what_attack_cannot_do_is_a_mistake():
    with pytest.raises(TopologyError, match="remove: out of range"):
        call("attack", "ring", "-n", "8", "--remove", "-1")
