"""Worlds drawn from a number: always valid, always the same, and as bad as they promise."""

from __future__ import annotations

from collections import Counter

from drawn_worlds import COMPRESSORS, RULES, draw, draw_changing

from p2pfl.aggregate import liars_of
from sim import Crash, Separate, check_world, plan_faults, settle, steps_of

SEEDS = 2000


def mixes(federation):
    """Whether some node has more than 2 b neighbors."""
    liars = liars_of(federation.gossip.rule)
    most = max(len(federation.neighbors(member.index)) for member in federation.members)
    return liars > 0 and most > 2 * liars


def test_drawn_worlds_have_every_kind_of_fault_and_peace_too():
    kinds, drawn = Counter(), [draw(seed) for seed in range(SEEDS)]
    for federation, world in drawn:
        assert check_world(world, len(federation.members)) == []
        plan = plan_faults(world, len(federation.members), federation.seed)
        crashes = [fault for fault in plan.faults if isinstance(fault, Crash)]
        kinds["durable crash"] += any(not crash.amnesia for crash in crashes)
        kinds["amnesia"] += any(crash.amnesia for crash in crashes)
        kinds["for good"] += bool(plan.gone)
        kinds["partition"] += any(isinstance(fault, Separate) for fault in plan.faults)
        kinds["late"] += bool(plan.late)
        kinds["churn"] += world.churn is not None
        kinds["edges of their own"] += bool(federation.edge_compressors)
        kinds["schedule"] += bool(federation.schedule)
        kinds["bandwidth"] += world.links.bandwidth is not None
        kinds["heavy loss"] += world.links.drop > 0.15
        kinds["duplication"] += world.links.duplication > 0
        kinds["jitter"] += world.links.jitter_s > 0
        kinds["robust rule"] += federation.gossip.rule != "mean"
        kinds["neighbors enough for it"] += mixes(federation)
        kinds["control variate"] += federation.method.startswith("variate")
        kinds["peace"] += not plan.faults
    assert min(kinds.values()) > SEEDS // 20, kinds
    assert {federation.gossip.compressor for federation, _ in drawn} == set(COMPRESSORS)
    assert {spec for federation, _ in drawn for spec in federation.edge_compressors.values()} == set(COMPRESSORS)
    assert {federation.gossip.rule for federation, _ in drawn} == {"mean", *RULES}
    assert len({len(federation.members) for federation, _ in drawn}) == 7


def test_every_drawn_world_whose_members_change_is_free_of_contradiction():
    kinds = Counter()
    for seed in range(300):
        federation, world = draw_changing(seed)
        nodes = len(federation.members)
        assert check_world(world, nodes) == []
        assert settle(world, nodes, federation.seed) == world
        plan_faults(world, nodes, federation.seed)
        assert len(steps_of(federation, world)) == 1 + len(world.amendments)
        kinds["join"] += any(one.join for one in world.amendments)
        kinds["leave"] += any(one.leave for one in world.amendments)
        kinds["graph"] += any(one.topology for one in world.amendments)
        kinds["crash"] += bool(world.crashes)
        kinds["partition"] += bool(world.partitions)
        kinds["robust rule"] += federation.gossip.rule != "mean"
    assert min(kinds.values()) > 30, kinds


def test_the_draw_of_a_number_is_written_down():
    """So that a seed found on one machine replays on another: change it only where `draw` is meant to change."""
    federation, world = draw(3)
    assert (len(federation.members), federation.edges, federation.training.rounds) == (
        4,
        ((0, 1), (1, 2), (1, 3)),
        16,
    )
    other, _ = draw(8)
    assert (other.gossip.compressor, other.edge_compressors) == ("q2", {(0, 3): "q2", (2, 3): "top-k:0.1"})
    assert (world.compute.round_s, world.links.latency_s.low) == (0.16870989, 0.000717239462)
