"""`topology list` and `topology info`, as commands of their own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from topologies import TopologyError, build
from topologies.cli import COMMANDS, topology
from topologies.metrics import describe

PROMISED = {
    "nodes",
    "edges",
    "connected",
    "components",
    "degree",
    "algebraic_connectivity",
    "laplacian_max_eigenvalue",
    "mixing_rate",
    "rounds_to_consensus",
    "messages_to_consensus",
    "diameter",
    "method",
    "residual",
    "certified",
    "seconds",
}


def call(*arguments):
    return CliRunner().invoke(topology, arguments, catch_exceptions=False)


def test_a_mixing_rate_below_one_is_never_written_as_one():
    assert "mixing rate               1 - 1.31595e-09\n" in call("info", "ring", "-n", "100000").stdout
    assert " 1 - 1.31595e-09 " in call("compare", "ring", "-n", "100000").stdout
    assert "mixing rate               1\n" in call("info", "erdos-renyi:p=0.0", "-n", "9").stdout


SAY_WHAT_THEY_ARE = {
    *("spec", "seed", "nodes", "edges", "connected", "components", "degree", "diameter"),
    *("laplacian max eigenvalue", "seconds"),
}


def test_info_explains_each_of_its_words_when_asked():
    plain, explained = call("info", "ring", "-n", "16"), call("info", "ring", "-n", "16", "--explain")
    assert "--explain" in plain.stderr
    assert "--explain" not in call("info", "ring", "-n", "16", "--format", "json").stderr
    figures, _, meaning = explained.stdout.partition("\nWhat the words mean:\n")
    words = {line.partition("  ")[0] for line in figures.splitlines()} - SAY_WHAT_THEY_ARE
    known = {word.replace("mixing certified", "certified").replace("messages to", "rounds to") for word in words}
    text = " ".join(meaning.split())
    assert [word for word in sorted(known) if word not in text] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_has_an_example(name):
    assert f"\n    p2pfl topology {name}" in call(name, "--help").stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_fits_a_hundred_columns(name):
    assert max(map(len, call(name, "--help").stdout.splitlines())) <= 100


@pytest.mark.parametrize("spec", ["ring", "random-regular", "erdos-renyi:p=0.01", "star"])
def test_info_as_json_has_every_promised_field(spec):
    result = call("info", spec, "-n", "36", "--format", "json")
    assert result.exit_code == 0
    assert set(json.loads(result.stdout)) >= PROMISED


def test_info_on_a_disconnected_graph_says_so_and_succeeds():
    result = call("info", "circulant:offsets=2", "-n", "8")
    assert result.exit_code == 0
    assert "rounds to consensus       -\n" in result.stdout
    assert "connected                 no\n" in result.stdout


def test_importing_the_package_loads_neither_numpy_nor_networkx_and_the_commands_never_torch():
    code = """
import sys, topologies, topologies.cli
assert not {"numpy", "networkx", "torch", "p2pfl"} & set(sys.modules)
topologies.cli.topology(["info", "random-regular", "-n", "20"], standalone_mode=False)
assert not {"torch", "p2pfl", "scipy"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize("missing", ["converged", "mixing_converged"])
def test_what_did_not_converge_ends_with_exit_code_4(monkeypatch, missing):
    found = describe.survey(build("ring", 5)) | {missing: False}
    monkeypatch.setattr(describe, "survey", lambda *_, **__: found)
    assert invoked("info", "ring", "-n", "5") == 4


def test_what_should_be_certified_and_is_not_ends_with_exit_code_4(monkeypatch):
    found = describe.survey(build("ring", 5)) | {"certified": False}
    monkeypatch.setattr(describe, "survey", lambda *_, **__: found)
    assert invoked("info", "ring", "-n", "5") == 0
    assert invoked("info", "ring", "-n", "5", "--certify") == 4


def test_bytes_to_consensus_are_messages_times_the_model():
    found = json.loads(call("info", "torus", "-n", "36", "--model-bytes", "400K", "--format", "json").stdout)
    assert found["bytes_to_consensus"] == 400_000 * found["messages_to_consensus"]
    assert found["bytes_per_round_busiest_node"] == 4 * 400_000


def test_a_schedule_is_described_too():
    found = json.loads(call("info", "base:k=1", "-n", "25", "--format", "json").stdout)
    assert (found["exact_after"], found["period"], found["rounds_to_consensus"]) == (9, 9, 9)


def invoked(*arguments):
    return topology(arguments, standalone_mode=False)


def test_a_misspelt_subcommand_is_answered_with_the_nearest():
    result = call("compair", "ring")
    assert result.exit_code == 2
    assert "Did you mean 'compare'?" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["attack", "ring", "-n", "6"],
        ["design", "-n", "5"],
        ["simulate", "ring", "-n", "6"],
        ["simulate", "base:k=1", "-n", "6"],
    ],
)
def test_a_seed_that_numpy_does_not_have_is_a_mistake(arguments):
    with pytest.raises(TopologyError, match=r"seed: no such seed \(found -1\); allowed: a whole number from 0"):
        call(*arguments, "--seed", "-1")


def test_design_for_more_nodes_than_a_graph_has_names_the_number_of_nodes():
    with pytest.raises(TopologyError, match="nodes: impossible size"):
        call("design", "-n", "2000001")
