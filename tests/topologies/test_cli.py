"""`topology list` and `topology info`, as commands of their own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from topologies import TopologyError
from topologies.cli import topology
from topologies.families import FAMILIES

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


@pytest.mark.parametrize("spec", ["ring", "random-regular", "erdos-renyi:p=0.01", "star"])
def test_info_as_json_has_every_promised_field(spec):
    result = call("info", spec, "-n", "36", "--format", "json")
    assert result.exit_code == 0
    assert set(json.loads(result.stdout)) >= PROMISED


def test_info_on_a_disconnected_graph_says_so_and_succeeds():
    result = call("info", "circulant:offsets=2", "-n", "8", "--format", "json")
    described = json.loads(result.stdout)
    assert result.exit_code == 0
    assert described["algebraic_connectivity"] == 0
    assert described["rounds_to_consensus"] is None


def test_the_table_says_the_same():
    result = call("info", "circulant:offsets=2", "-n", "8")
    assert "rounds to consensus       -\n" in result.stdout
    assert "connected                 no\n" in result.stdout


def test_list_shows_every_family_in_a_form_that_can_be_built():
    rows = json.loads(call("list", "--format", "json").stdout)
    assert [row["name"] for row in rows] == list(FAMILIES)
    assert "watts-strogatz:k=4,p=0.1" in call("list").stdout


def test_a_mistake_is_left_to_the_caller_to_print():
    with pytest.raises(TopologyError, match="did you mean 'ring'"):
        call("info", "rng", "-n", "8")


def test_importing_the_package_loads_neither_numpy_nor_networkx_and_the_commands_never_torch():
    code = """
import sys, topologies, topologies.cli
assert not {"numpy", "networkx", "torch", "p2pfl"} & set(sys.modules)
topologies.cli.topology(["info", "random-regular", "-n", "20"], standalone_mode=False)
assert not {"torch", "p2pfl", "scipy"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)
