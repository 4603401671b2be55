"""Time to consensus where messages take time: what the model says in simple cases, and what simulated nodes do."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from world_kit import make_world

from p2pfl.config import GossipConfig
from p2pfl.core import PATIENCE_FLOOR_S, PATIENCE_MULTIPLE, parse_staleness
from sim import LinkSpec, SlowNodes, Spread
from topologies import (
    FLOOR_S,
    FRESH,
    LIMIT,
    FarNodes,
    Goal,
    Topology,
    TopologyError,
    build,
    decay_per_s,
    describe,
    latencies,
    pace,
    read_far,
    survey,
)
from topologies.cli import topology as group
from topologies.design import design
from topologies.timing import PATIENCE, timing


def cli(*arguments):
    return CliRunner().invoke(group, arguments, catch_exceptions=False)


def apart(nodes, far=(), near_s=0.002):
    return replace(latencies(nodes, far=[FarNodes(str(node), time_s) for node, time_s in far]), near_s=near_s)


def test_equal_distances_give_the_rounds_times_the_round():
    """A round of training and one exchange; a flow decays as exp(-lambda_2), a round by 1 - lambda_2."""
    ring = build("ring", 12)
    found = timing(ring, apart(12), weights=None, epsilon=1e-3, train_s=0.1)
    low = 2.0 * (1.0 - math.cos(2.0 * math.pi / 12)) / 3.0
    assert found["round_s"]["min"] == found["round_s"]["max"] == pytest.approx(0.104)
    assert found["consensus_s"] == pytest.approx(0.104 * math.log(1e3) / low)
    assert found["consensus_in_step_s"] == pytest.approx(0.104 * describe(ring)["rounds_to_consensus"])


def test_a_node_waits_for_a_late_edge_no_longer_than_its_patience():
    star = build("star", 5)
    found = pace(5, star.ends, np.array([0.001, 0.001, 0.001, 1.0]), train_s=0.01)
    patience = 4 * 0.002 + 0.02
    assert found.round_s[0] == pytest.approx(0.012 / (1.0 - 2.0 * patience / 2.0))  # twice that in each 2 s exchange
    assert found.round_s[4] == pytest.approx(2.01)
    assert 1.0 / found.per_s[:3] == pytest.approx([found.round_s[1]] * 3)
    # 2 s of exchange are many rounds of node 0: what it is told is old, and counts less
    assert found.per_s[3] == pytest.approx(0.5 / math.sqrt(61.0))


def test_a_node_without_edges_only_trains():
    assert pace(3, np.array([(0, 1)]), np.array([0.001]), train_s=0.01).round_s.tolist() == [0.012, 0.012, 0.01]


def test_parts_that_never_agree_have_no_time():
    found = timing(Topology("two", 4, [(0, 1), (2, 3)]), apart(4), weights=None, epsilon=1e-3)
    assert (found["consensus_s"], found["consensus_in_step_s"]) == (None, None)


@pytest.mark.long
def test_simulated_nodes_take_as_long_within_a_factor_of_two():
    graph, near_s, train_s, far = build("random-regular:degree=3", 6, 1), 0.002, 0.02, {2: 0.03, 5: 0.1}
    world = make_world(
        (6, (graph.edges,)),
        3,
        link=LinkSpec(latency_s=Spread(low=near_s, high=near_s)),
        slow=tuple(SlowNodes(nodes=(node,), far_s=far_s) for node, far_s in far.items()),
        compressor="none",
        samples=[50] * 6,
        rounds=10**6,
        round_s=dict.fromkeys(range(6), train_s),
        linger_s=1e6,
        start_wait_s=60.0,
    )
    times, found = np.arange(0.1, 2.4, 0.1), []
    for until_s in times:
        world.go(until_s=float(until_s), finish=False)
        models = np.array([host.engine.state.model for host in world.hosts])
        found.append(np.linalg.norm(models - models.mean(axis=0)))
    falling = (np.array(found) < 0.3 * found[0]) & (np.array(found) > 1e-5 * found[0])
    measured = -np.polyfit(times[falling], np.log(np.array(found)[falling]), 1)[0]
    # half a millisecond of the engine at both ends of each message
    expected = pace(6, graph.ends, apart(6, far.items(), near_s + 0.001).of(graph.ends), train_s)
    c = 1.0 / (np.maximum(*graph.degrees[graph.ends].T) + 1.0)
    assert 0.5 < measured / decay_per_s(6, graph.ends, c, expected) < 2.0


def test_design_keeps_far_nodes_out_of_the_way():
    """Where exchanges are all that takes time; the graph with the fewest rounds needs three times as long."""
    far = apart(12, [(10, 0.06), (11, 0.06)])
    goal = Goal(nodes=12, max_degree=3, minimize="time", distances=far)
    best, blind = (design(one, evaluations=2000).winner for one in (goal, replace(goal, minimize="rounds")))
    assert (10, 11) not in best.topology.edges
    found = timing(best.topology, far, weights=None, epsilon=1e-3)
    assert best.seconds == pytest.approx(found["consensus_s"])
    assert best.seconds < 0.5 * blind.seconds
    assert best.rounds > blind.rounds


def test_the_least_time_needs_distances():
    with pytest.raises(TopologyError, match=r"nothing says how far .*with --far"):
        design(Goal(nodes=6, minimize="time"))


def test_the_commands_tell_times_where_nodes_are_far():
    result = cli("info", "ring", "-n", "6", "--far", "4-5=60ms", "--format", "json")
    facts = json.loads(result.stdout)
    assert facts["slowest_edge"] == [4, 5]
    assert facts["exchange_s"]["max"] == pytest.approx(0.244)
    assert facts == survey(build("ring", 6), distances=apart(6, [(4, 0.06), (5, 0.06)])) | {"seconds": facts["seconds"]}
    table = cli("info", "ring", "-n", "6", "--far", "4-5=60ms").stdout
    assert "exchange                  min 4 ms, mean 84 ms, max 244 ms" in table
    assert "consensus in step" in table
    with pytest.raises(TopologyError, match=r"far: no such node .found '9'"):
        cli("info", "ring", "-n", "6", "--far", "9=60ms")
    with pytest.raises(TopologyError, match="the time of a schedule"):
        cli("info", "base:k=1", "-n", "6", "--far", "4=60ms")
    with pytest.raises(TopologyError, match=r"train: no time is told .*with --far"):
        cli("info", "ring", "-n", "6", "--train", "50ms")
    asked = ("design", "ring", "-n", "6", "--add", "1", "--far", "5=60ms", "--evaluations", "50", "--format", "json")
    best, given = json.loads(cli(*asked).stdout)["candidates"]
    ring = timing(build("ring", 6), apart(6, [(5, 0.06)]), weights=None, epsilon=1e-3)
    assert given["seconds"] == pytest.approx(ring["consensus_s"])
    assert best["seconds"] <= given["seconds"]
    rows = json.loads(
        cli(
            "design", "-n", "6", "--max-degree", "3", "--far", "5=60ms", "--evaluations", "50", "--format", "json"
        ).stdout
    )["candidates"]
    rows = [row for row in rows if row["rank"]]
    assert [row["seconds"] for row in rows] == sorted(row["seconds"] for row in rows)


def test_patience_and_staleness_are_those_of_the_nodes():
    assert (PATIENCE, FLOOR_S) == (PATIENCE_MULTIPLE, PATIENCE_FLOOR_S)
    weight = parse_staleness(GossipConfig().staleness)
    for age in range(1, 100):
        assert weight(age) == pytest.approx(max(1.0, age - FRESH + 1.0) ** -0.5 if age <= LIMIT else 0.0)


# -- How far nodes are: options and files as people write them, and one clear error for what is no distance.

NAMES = ("north", "south", "east-1")


def test_a_far_node_is_far_from_all_and_two_of_them_twice_as_far_from_each_other():
    found = latencies(5, far=[read_far("3-4=60ms"), read_far("0,3=0.01s")])
    ends = np.array([(0, 1), (1, 2), (2, 4), (3, 4)])
    assert found.of(ends) == pytest.approx([0.012, 0.002, 0.062, 0.132])


def test_names_are_names_even_with_a_hyphen():
    assert latencies(3, names=NAMES, far=[read_far("east-1=5ms")]).far_s.tolist() == [0.0, 0.0, 0.005]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("28-29", "not a distance .*as 28-29=60ms"),
        ("3=60", "not a distance"),
        ("=60ms", "not a distance"),
        ("3=-1ms", "not a distance"),
        ("9=1ms", r"no such node \(found '9'\); allowed: the nodes of the graph: 0 to 4"),
        ("3-2=1ms", "an empty range"),
        ("2,1-3=1ms", "names a node twice"),
    ],
)
def test_what_is_no_far_node_is_refused(text, said):
    with pytest.raises(TopologyError, match=said):
        latencies(5, far=[read_far(text)])
