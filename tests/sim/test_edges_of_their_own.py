"""Edges with compressors of their own: each has its bytes, its step and its word in the report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from p2pfl.compress import make_compressor
from sim import simulate
from sim.federations import describe
from sim.learning.batched import make_learners
from sim.stage import Stage, script
from sim.worlds.choices import settle
from sim.worlds.model import WorldSpec

SLOW = {(0, 1): "q4", (2, 3): "top-k:0.05+q8", (3, 4): "sign"}


def federation(**options):
    return replace(describe(nodes=6, rounds=4, topology="ring", compressor="none", **options), edge_compressors=SLOW)


def test_the_report_says_what_each_edge_used_and_what_it_cost():
    report = simulate(federation(), references=False)
    rows = {(row["name"], to["name"]): to for row in report["nodes"] for to in row["neighbors"]}
    assert len(rows) == 12
    assert {rows[pair]["compressor"] for pair in (("node0", "node1"), ("node1", "node0"))} == {"q4"}
    assert rows["node1", "node2"]["compressor"] == "none"
    assert rows["node0", "node1"]["bytes_sent"] < rows["node1", "node2"]["bytes_sent"] / 5
    assert rows["node3", "node4"]["bytes_sent"] < rows["node0", "node1"]["bytes_sent"] / 2
    for row in report["nodes"]:
        assert sum(to["bytes_sent"] for to in row["neighbors"]) == row["bytes_sent"]
        assert sum(to["messages_sent"] for to in row["neighbors"]) == row["messages_sent"]
    assert sorted(report["config"]["edge_compressors"]) == [[0, 1, "q4"], [2, 3, "top-k:0.05+q8"], [3, 4, "sign"]]
    told = {spec: (row["edges"], row["bytes_sent"]) for spec, row in report["compressors"].items()}
    assert told["none"] == (3, sum(to["bytes_sent"] for to in rows.values() if to["compressor"] == "none"))
    assert sum(size for _, size in told.values()) == report["bytes_sent"]


def test_each_end_of_an_edge_takes_the_step_that_goes_with_its_compressor():
    made = federation()
    learners = make_learners(made)
    stage = Stage(script(made, settle(WorldSpec(), 6, made.seed), learners, exact=False, check=False))
    stage.world.run(until_ns=10**7, finish=False)
    for node, host in enumerate(stage.world.hosts):
        for peer, edge in host.core.edges.items():
            wanted = make_compressor(made.compressor_of(node, peer)).gamma(learners.size)
            assert edge.gamma == pytest.approx(wanted * made.gossip.gamma)
