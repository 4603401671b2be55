"""Edges with compressors of their own: each has its bytes, its step and its word in the report."""

from __future__ import annotations

from dataclasses import replace

import pytest
from drawn_worlds import COMPRESSORS

from p2pfl.compress import make_compressor
from p2pfl.errors import PeerFault, UserError
from sim import LiarSpec, PreparedRun, WorldSpec, describe, make_learners, script, settle, simulate

COMPLETE = describe(nodes=6, rounds=6, topology="complete", compressor="none")
SLOW = {(0, 1): "q4", (2, 3): "top-k:0.05+q8", (3, 4): "sign"}


def federation(**options):
    return replace(describe(nodes=6, rounds=4, topology="ring", compressor="none", **options), edge_compressors=SLOW)


@pytest.mark.long
def test_the_report_says_what_each_edge_used_and_what_it_cost():
    report = simulate(federation(), references=False)
    rows = {(row.name, to.name): to for row in report.nodes for to in row.neighbors}
    assert len(rows) == 12
    assert {rows[pair].compressor for pair in (("node0", "node1"), ("node1", "node0"))} == {"q4"}
    assert rows["node1", "node2"].compressor == "none"
    assert rows["node0", "node1"].bytes_sent < rows["node1", "node2"].bytes_sent / 5
    assert rows["node3", "node4"].bytes_sent < rows["node0", "node1"].bytes_sent / 2
    for row in report.nodes:
        assert sum(to.bytes_sent for to in row.neighbors) == row.bytes_sent
        assert sum(to.messages_sent for to in row.neighbors) == row.messages_sent
    assert sorted(report.config["edge_compressors"]) == [[0, 1, "q4"], [2, 3, "top-k:0.05+q8"], [3, 4, "sign"]]
    assert sum(to.bytes_sent for to in rows.values()) == report.bytes_sent


@pytest.mark.long
def test_the_size_of_a_packed_payload_is_known_only_when_it_is_packed():
    packed = replace(federation(), edge_compressors={(0, 1): "q4+zstd"})
    report = simulate(packed, references=False)
    rows = {(row.name, to.name): to for row in report.nodes for to in row.neighbors}
    assert rows["node0", "node1"].bytes_sent < rows["node1", "node2"].bytes_sent / 5


@pytest.mark.parametrize("spec", COMPRESSORS)
def test_no_codec_takes_what_a_liar_sends_instead_of_numbers(spec):
    codec = make_compressor(spec)
    for size in (1, 2, 5, 255, 256, 257, 2410):
        with pytest.raises(PeerFault):
            codec.decode(b"\xff" * codec.size_bytes(size), size)


@pytest.mark.long
def test_such_a_liar_is_refused_on_every_edge_and_the_others_go_on():
    around = {(low, high): spec for (low, high), spec in zip(COMPLETE.edges, COMPRESSORS * 2, strict=False)}
    world = WorldSpec(liars=LiarSpec(attack="nan", nodes=(2,)))
    gossip = replace(COMPLETE.gossip, linger_s=1.0)
    given = replace(COMPLETE, edge_compressors=around, gossip=gossip)
    report = simulate(given, world=world, references=False)
    honest = [row for row in report.nodes if not row.byzantine]
    assert all(row.finished and row.accuracy > 0.1 for row in honest)
    # With the others it is the liar that has to answer, and it cannot make out its own answer.
    assert all(row.alarms.get("request-refused") for row in report.nodes[3:])


def test_a_count_that_the_model_does_not_have_is_refused():
    with pytest.raises(UserError, match="5000 values to keep, of 2410"):
        simulate(replace(federation(), edge_compressors={(0, 1): "top-k:5000"}))


def test_each_end_of_an_edge_takes_the_step_that_goes_with_its_compressor():
    made = federation()
    learners = make_learners(made)
    stage = PreparedRun(script(made, settle(WorldSpec(), 6, made.seed), learners))
    stage.world.run(until_ns=10**7, finish=False)
    for node, host in enumerate(stage.world.hosts):
        for peer in host.core.edges:
            wanted = make_compressor(made.compressor_of(node, peer)).gamma(learners.size)
            assert host.core.settings.profile.gamma_of(peer) == pytest.approx(wanted * made.gossip.gamma)
