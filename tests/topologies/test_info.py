"""`topology info`: lambda_2 comes first, and what a graph is too large for is named."""

from __future__ import annotations

import json

import networkx as nx
from click.testing import CliRunner

from topologies import build, spectral
from topologies.cli import topology
from topologies.metrics import cuts, describe


def call(*arguments):
    return CliRunner().invoke(topology, arguments, catch_exceptions=False)


def test_lambda_2_is_the_first_figure_after_what_the_graph_is():
    for spec in ("torus", "base:k=1"):
        lines = call("info", spec, "-n", "16").stdout.splitlines()
        names = [line.partition("  ")[0] for line in lines]
        assert names[names.index("components") + 1] == "algebraic connectivity"


def test_a_cut_of_a_graph_with_even_degrees_is_even():
    graph = build("random-regular:degree=4", 200)
    found = cuts.connectivity(graph, spectral.plain_extremes(graph)).edges
    assert found.method == "degree, spectrum and sweep cut"
    assert (found.lower, found.upper) == (4, nx.edge_connectivity(graph.to_networkx()))


def test_figures_that_a_graph_is_too_large_for_are_named(monkeypatch):
    monkeypatch.setattr(describe, "cut_points", lambda _: None)
    large = call("info", "torus", "-n", "16").stdout
    assert "not computed              too large for: bridges, cut nodes\n" in large
    assert "\nbridges" not in large
    assert json.loads(call("info", "torus", "-n", "16", "--format", "json").stdout)["bridges"] is None
