"""`topology compare`, `simulate` and `attack` as commands."""

from __future__ import annotations

import csv
import json

import click
import pytest
from click.testing import CliRunner

from topologies import Topology, TopologyError
from topologies.cli import topology
from topologies.cli.terminal import Bytes, readable_bytes
from topologies.files import write_topology
from topologies.metrics.describe import COLUMNS


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
