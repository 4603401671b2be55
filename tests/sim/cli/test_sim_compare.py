"""`p2pfl sim compare`: one table and one picture of several graphs."""

from __future__ import annotations

import json

import pytest

from sim import perform
from topologies import build, spectrum


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    def run_here(jobs, run, count):
        return ((job, perform(run, job)) for job in jobs)

    monkeypatch.setattr("sim.cli.sweep.run_here", run_here)


def test_graphs_are_compared_in_one_table_with_what_the_spectrum_predicts(p2pfl, tmp_path):
    picture = tmp_path / "graphs.png"
    options = ("-n", 12, "--rounds", 3, "--compressor", "none", "--format", "json", "--plot", picture)
    outcome = p2pfl("sim", "compare", "ring", "complete", "base:k=1", *options)
    ring, complete, base = json.loads(outcome.out)
    assert (ring["graph"], complete["graph"], base["graph"]) == ("ring", "complete", "base:k=1")
    graph = spectrum(build("ring", 12))
    assert ring["lambda_2"] == pytest.approx(graph.algebraic_connectivity)
    assert ring["predicted"] == pytest.approx(graph.mixing_rate, rel=0.01)  # nodes have unequal numbers of rows
    assert ring["measured"] == pytest.approx(ring["predicted"], rel=0.06)
    assert complete["apart"] < 1e-4 < ring["apart"]
    assert base["sent"] < ring["sent"] < complete["sent"]
    assert ring["worst"] <= ring["mean"]
    assert picture.stat().st_size > 10_000


def test_nodes_that_are_apart_have_a_virtual_time_and_the_table_fits_a_terminal(p2pfl):
    asked = ("sim", "compare", "ring", "random-regular:degree=4", "-n", 10, "--rounds", 2, "--quiet")
    in_step, apart = (p2pfl(*asked, "--clock", clock).out for clock in ("in-step", "apart"))
    assert "time, s" in apart
    assert "time, s" not in in_step
    assert "random-regular:" in in_step


@pytest.mark.parametrize(
    ("graphs", "text"),
    [
        (("ring", "rng"), "topology: unknown topology (found 'rng')"),
        (("ring", "hypercube"), "nodes: no hypercube of this size (found 12)"),
        (
            ("base:k=1", "--clock", "apart"),
            "topology: arrays cannot simulate this (found 'base:k=1'); allowed: --clock",
        ),
    ],
)
def test_a_graph_that_cannot_be_had_is_refused_before_any_run(p2pfl, graphs, text):
    outcome = p2pfl("sim", "compare", *graphs, "-n", 12)
    assert outcome.code == 2
    assert text in outcome.err
    assert "runs done" not in outcome.err
