"""`topology info --within`: what is not finished is a range, or named; and lambda_2 comes first."""

from __future__ import annotations

import json

import networkx as nx
import numpy as np
import pytest
from click.testing import CliRunner

from topologies import TopologyError, build, spectral, spectrum
from topologies.cli import topology
from topologies.families.random import _rewired_ring
from topologies.graph import Topology, ordered
from topologies.metrics import cuts, describe


def call(*arguments):
    return CliRunner().invoke(topology, arguments, catch_exceptions=False)


def answer(*arguments):
    result = CliRunner().invoke(topology, arguments, catch_exceptions=False, standalone_mode=False)
    return result.return_value, result


def test_lambda_2_is_the_first_figure_after_what_the_graph_is():
    for spec in ("torus", "base:k=1"):
        lines = call("info", spec, "-n", "16").stdout.splitlines()
        names = [line.partition("  ")[0] for line in lines]
        assert names[names.index("components") + 1] == "algebraic connectivity"


def test_with_time_enough_nothing_changes():
    plain = json.loads(call("info", "torus", "-n", "16", "--format", "json").stdout)
    code, result = answer("info", "torus", "-n", "16", "--format", "json", "--within", "60s")
    assert (code, json.loads(result.stdout) | {"seconds": 0}) == (0, plain | {"seconds": 0})


def test_what_is_not_finished_is_named_and_never_awaited():
    code, result = answer("info", "watts-strogatz", "-n", "400000", "--within", "50ms", "--format", "json")
    found = json.loads(result.stdout)
    assert code == 4
    assert (found["nodes"], found["algebraic_connectivity"], found["within_s"]) == (400_000, None, 0.05)
    assert {"algebraic_connectivity", "mixing_rate", "robustness"} <= set(found["not_computed"])
    assert "not computed within 0.05 s" in call("info", "watts-strogatz", "-n", "400000", "--within", "50ms").stdout


def test_an_eigenvalue_that_is_not_finished_is_a_range(monkeypatch):
    early = {"nodes": 9, "connected": True, "algebraic_connectivity_bounds": [0.1, 2.0]}
    unfinished = {"algebraic_connectivity": 1.5, "converged": False, "method": "lanczos"}
    monkeypatch.setattr("topologies.cli.terminal.facts_within", lambda *_: (early | unfinished, False))
    code, result = answer("info", "ring", "-n", "9", "--within", "1s")
    assert code == 4
    assert " 0.1 to 1.5 (not computed within 1 s)\n" in result.stdout
    monkeypatch.setattr("topologies.cli.terminal.facts_within", lambda *_: (early, False))
    assert " 0.1 to 2 (not computed within 1 s)\n" in answer("info", "ring", "-n", "9", "--within", "1s")[1].stdout


def test_figures_are_noted_while_the_survey_goes_on_and_end_as_without(monkeypatch):
    monkeypatch.setattr(describe, "ROUGH", 10)
    noted = []
    graph = build("watts-strogatz", 40)
    found = describe.survey(graph, note=noted.append)
    assert "algebraic_connectivity_bounds" in noted[1]
    low, high = noted[1]["algebraic_connectivity_bounds"]
    assert low <= noted[2]["algebraic_connectivity"] <= high
    merged = {key: value for more in noted for key, value in more.items()}
    assert {**found, "seconds": 0} == {**describe.survey(graph), "seconds": 0}
    assert {key for key in merged if key not in found} == {"algebraic_connectivity_bounds"}


@pytest.mark.parametrize("spec", ["ring", "path", "star", "barbell", "complete", "watts-strogatz", "torus"])
def test_lambda_2_lies_within_its_rough_bounds(spec):
    graph = build(spec, 16, 2)
    low, high = cuts.rough_connectivity(Topology("own", 16, graph.ends))
    assert 0.0 < low <= spectrum(graph).algebraic_connectivity * (1 + 1e-9)
    assert spectrum(graph).algebraic_connectivity <= high * (1 + 1e-9)


def test_a_mistake_is_told_as_without_a_limit():
    with pytest.raises(TopologyError, match="no such graph on 9 nodes"):
        call("info", "watts-strogatz:k=3", "-n", "9", "--within", "20s")
    result = call("info", "ring", "-n", "9", "--within", "soon")
    assert (result.exit_code, "allowed: such as 10s" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("n", "k", "p"), [(5, 4, 0.9), (6, 4, 1.0), (20, 4, 0.1), (3, 2, 1.0), (9, 8, 1.0), (60, 6, 0.5)]
)
def test_rewired_rings_are_those_of_networkx(n, k, p):
    for seed in range(5):
        drawn = ordered(nx.watts_strogatz_graph(n, k, p, seed=seed).edges)
        assert np.array_equal(ordered(_rewired_ring(n, k, p, seed)), drawn)


def test_a_cut_of_a_graph_with_even_degrees_is_even():
    graph = build("random-regular:degree=4", 200)
    found = cuts.connectivity(graph, spectral.plain_extremes(graph)).edges
    assert found.method == "degree, spectrum and sweep cut"
    assert (found.lower, found.upper) == (4, nx.edge_connectivity(graph.to_networkx()))


def test_a_graph_from_standard_input_is_read_with_a_limit_too():
    document = json.dumps(nx.node_link_data(nx.cycle_graph(9), edges="links"))
    result = CliRunner().invoke(topology, ["info", "-", "--within", "60s"], input=document, catch_exceptions=False)
    assert "nodes                     9\n" in result.stdout


def test_figures_that_a_graph_is_too_large_for_are_named(monkeypatch):
    monkeypatch.setattr(describe, "effective_resistance", lambda _: None)
    large = call("info", "torus", "-n", "16").stdout
    assert "not computed              too large for: effective resistance\n" in large
    assert "\neffective resistance" not in large
    assert json.loads(call("info", "torus", "-n", "16", "--format", "json").stdout)["effective_resistance"] is None
