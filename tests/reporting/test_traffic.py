"""What travels on each edge, and what a round costs, where edges have compressors of their own."""

from __future__ import annotations

from dataclasses import replace

from p2pfl.compress import make_compressor
from p2pfl.reporting import MESSAGE_BYTES, compressor_mistakes, configuration, traffic
from sim import describe

SIZE = 1000


def star(**own):
    """Four nodes around node 0; `own` by the other end, such as n2="q8"."""
    federation = describe(nodes=5, topology="star", compressor="q4")
    return replace(federation, edge_compressors={(0, int(name[1:])): spec for name, spec in own.items()})


def payload(spec):
    return make_compressor(spec).size_bytes(SIZE)


def sent(spec):
    return payload(spec) + MESSAGE_BYTES


def test_a_round_is_the_sum_of_what_its_edges_use():
    facts = traffic(star(n2="q8", n3="top-k:0.1+q8"), SIZE)
    once = 2 * sent("q4") + sent("q8") + sent("top-k:0.1+q8")
    assert facts["bytes_per_round_busiest_node"] == [once, 2 * once]
    assert facts["bytes_per_round_all_nodes"] == [2 * once, 4 * once]


def test_each_override_has_its_ends_named():
    facts = traffic(star(n2="q8", n3="q8"), SIZE)
    assert [row["between"] for row in facts["edges"]] == [["node0", "node2"], ["node0", "node3"]]
    assert {row["message_bytes"] for row in facts["edges"]} == {payload("q8")}


def test_in_a_schedule_the_busiest_node_is_that_of_its_worst_round():
    federation = describe(nodes=4, topology="one-peer-hypercube", compressor="q4")
    federation = replace(federation, edge_compressors={(0, 2): "none"})
    facts = traffic(federation, SIZE)
    assert facts["bytes_per_round_busiest_node"][0] == sent("none")
    assert facts["bytes_per_round_all_nodes"][0] == 3 * sent("q4") + sent("none")


def test_where_one_size_is_a_bound_the_sum_is_one_too():
    assert traffic(star(n2="q8"), SIZE)["exact"]
    assert not traffic(star(n2="q8+zstd"), SIZE)["exact"]


def test_what_does_not_fit_names_the_table_that_says_so():
    federation = star(n1="top-k:10", n3="top-k:2000", n4="top-k:4000")
    federation = replace(federation, gossip=replace(federation.gossip, compressor="random-k:3000"))
    assert compressor_mistakes(federation) == []
    found = compressor_mistakes(federation, SIZE)
    assert [mistake.key for mistake in found] == ["gossip.compressor", "edge[1].compressor", "edge[2].compressor"]
    assert {mistake.file for mistake in found} == {str(federation.path)}


def test_the_configuration_of_a_report_has_what_is_shared_and_the_overrides():
    told = configuration(star(n2="q8"))
    assert told["edge_compressors"] == [[0, 2, "q8"]]
    assert list(told["gossip"]["share"]) == ["*"]
