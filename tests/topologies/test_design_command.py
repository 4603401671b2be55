"""`p2pfl topology design`, as a command."""

from __future__ import annotations

import csv
import io
import json

import networkx as nx
import numpy as np
import pytest
from click.testing import CliRunner

from topologies import TopologyError, build, describe, spectrum
from topologies.cli import topology
from topologies.metrics.robustness import Robustness

ASKED = ("design", "-n", "12", "--max-degree", "4", "--evaluations", "300")


def call(*arguments):
    return CliRunner().invoke(topology, arguments, catch_exceptions=False)


def test_the_file_that_is_written_holds_the_winner_as_the_table_has_it(tmp_path):
    path = tmp_path / "graph.json"
    result = call(*ASKED, "--format", "json", "-o", str(path))
    document = json.loads(result.stdout)
    best = document["candidates"][0]
    described = describe(build(str(path), 12))
    assert best["rank"] == 1
    assert described["mixing_rate"] == pytest.approx(best["mixing_rate"], abs=1e-12)
    assert (described["edges"], described["diameter"]) == (best["edges"], best["diameter"])
    assert described["rounds_to_consensus"] == best["rounds"]
    assert described["degree"]["max"] == best["degree_max"] <= 4
    assert document["line"] == f'topology = "{path.as_posix()}"'
    assert document["line"] in result.stderr


def test_a_winner_with_a_name_needs_no_file_and_one_without_says_so():
    named = call("design", "-n", "6", "--max-degree", "2")
    nameless = call("design", "-n", "7", "--max-degree", "3")
    assert '  topology = "ring"\n' in named.stderr
    assert "Only a file can hold the best graph: -o graph.json" in nameless.stderr


def test_the_line_of_a_random_family_brings_its_seed():
    asked = ("design", "-n", "100", "--max-degree", "3", "--evaluations", "0", "--seed", "40", "--format", "json")
    document = json.loads(call(*asked).stdout)
    best = document["candidates"][0]
    assert document["line"] == f'topology = "random-regular:degree=3"\nseed = {best["seed"]}'
    assert spectrum(build(best["topology"], 100, best["seed"])).mixing_rate == pytest.approx(best["mixing_rate"])


def test_every_row_has_its_reason_in_every_form():
    table = call(*ASKED).stdout
    as_csv = list(csv.DictReader(io.StringIO(call(*ASKED, "--format", "csv").stdout)))
    as_json = json.loads(call(*ASKED, "--format", "json").stdout)["candidates"]
    assert [row["why"] for row in as_csv] == [row["why"] for row in as_json]
    assert sum(row["rank"] is not None for row in as_json) == 10
    assert all(f"{row['topology']}: {row['why']}" in table for row in as_json)
    assert "complete: does not qualify: a node has 11 neighbors, and max-degree allows 4" in table


def test_differences_are_counted_from_the_winner():
    rows = json.loads(call(*ASKED, "--format", "json").stdout)["candidates"]
    best, other = rows[0], next(row for row in rows[1:] if row["rank"] and row["rounds"] > rows[0]["rounds"] + 1)
    assert f"{other['rounds'] - best['rounds']} more rounds" in other["why"]


def test_unknown_robustness_is_said(monkeypatch):
    unknown = Robustness(lower=2, upper=3, method="told")
    monkeypatch.setattr("topologies.design.candidates.robustness", lambda _: unknown)
    result = call("design", "-n", "14", "--max-degree", "6", "--byzantine", "1", "--evaluations", "50")
    assert "2..3" in result.stdout
    assert "whether it is robust enough is unknown" in result.stdout


def test_lambda_2_is_a_column_and_can_be_the_criterion():
    asked = ("design", "-n", "10", "--max-degree", "3", "--evaluations", "3000", "--format", "json")
    by_rounds, by_lambda = (json.loads(call(*asked, *more).stdout) for more in ((), ("--maximize", "lambda_2")))
    rows = by_lambda["candidates"]
    ranked = [row["lambda_2"] for row in rows if row["rank"]]
    assert ranked == sorted(ranked, reverse=True)
    assert ranked[0] == pytest.approx(2.0)  # the Petersen graph's
    assert rows[0]["why"].startswith("has the largest lambda_2 of all that were tried; the next: a lambda_2 ")
    for row in by_rounds["candidates"]:
        if row["topology"] in {"torus", "complete"}:
            graph = build(row["topology"], 10)
            assert row["lambda_2"] == pytest.approx(spectrum(graph).algebraic_connectivity)


def test_the_largest_lambda_2_of_six_nodes_is_that_of_the_atlas(tmp_path):
    path = tmp_path / "best.json"
    call("design", "-n", "6", "--max-degree", "3", "--maximize", "lambda_2", "-o", str(path))
    degree_three = [graph for graph in nx.graph_atlas_g() if len(graph) == 6 and max(dict(graph.degree).values()) <= 3]
    best = max(np.linalg.eigvalsh(nx.laplacian_matrix(graph).toarray().astype(float))[1] for graph in degree_three)
    assert spectrum(build(str(path), 6)).algebraic_connectivity == pytest.approx(best)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--maximize", "lambda_2", "--minimize", "bytes"), "two criteria"),
        (("--maximize", "lambda2"), "did you mean 'lambda_2'"),
    ],
)
def test_a_criterion_that_cannot_be_is_refused(more, said):
    with pytest.raises(TopologyError, match=said):
        call("design", "-n", "6", *more)


def test_a_search_within_a_time_ends_with_the_best_so_far():
    asked = ("design", "-n", "12", "--max-degree", "3", "--evaluations", "1000000000", "--within", "1ms")
    result = call(*asked, "--format", "json")
    document = json.loads(result.stdout)
    assert document["stopped"]
    assert document["candidates"][0]["degree_max"] <= 3
    assert "The time of --within was over" in result.stderr
    assert not json.loads(call(*ASKED, "--within", "60s", "--format", "json").stdout)["stopped"]
