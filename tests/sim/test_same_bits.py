"""Many nodes' arithmetic at once is the same run as one operation at a time: the same events, and the same bits.

The random worlds are those of `tests/faults/many_worlds.py`, whose `--same` runs more of them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from sim import simulate
from sim.attacks import parse_attack
from sim.federations import describe
from sim.lazy.control import LazyEngine, Pairs
from sim.lazy.rows import EdgeCodecs, Rows
from sim.worlds.model import (
    ChurnSpec,
    ComputeSpec,
    CrashSpec,
    JoinSpec,
    LiarSpec,
    LinkSpec,
    PartitionSpec,
    SlowNodes,
    Spread,
    WorldSpec,
)
from sim.worlds.random_worlds import draw

SEEDS = range(25)
FIRST = range(4)
"""of them; the others are for `make test-all`."""
FAR_APART = ComputeSpec(speed=Spread(kind="log-uniform", low=0.1, high=1.0), jitter=0.2)
BAD_LINKS = LinkSpec(drop=0.05, duplication=0.1, jitter_s=0.02, bandwidth=200_000.0)
CRASHES = (
    CrashSpec(nodes=(1, 5), at_s=0.03, down_s=0.02),
    CrashSpec(nodes=(2,), at_s=0.04, down_s=0.03, amnesia=True),
    CrashSpec(nodes=(7,), at_s=0.05),
)
EACH_ANOTHER = ("none", "random-k:40", "q8:stochastic", "rotate+q2", "sign", "top-k:0.05+rotate+q4:stochastic")
"""one edge after the other, over and over."""
WORLDS = {
    "nothing happens": (WorldSpec(), {}),
    "speeds and bad links": (WorldSpec(compute=FAR_APART, links=BAD_LINKS), {}),
    "slow nodes": (WorldSpec(slow=(SlowNodes(nodes=(0, 3), far_s=0.05, speed=0.2),)), {}),
    "crashes": (WorldSpec(crashes=CRASHES), {}),
    "churn": (WorldSpec(churn=ChurnSpec(up_s=0.1, down_s=0.03, until_s=0.6)), {}),
    "churn that loses disks": (WorldSpec(churn=ChurnSpec(up_s=0.1, down_s=0.03, until_s=0.6, amnesia=0.5)), {}),
    "late joiners in a partition": (
        WorldSpec(
            joins=(JoinSpec(nodes=(3, 4), at_s=0.04),),
            partitions=(PartitionSpec(groups=((0, 1, 2),), at_s=0.02, until_s=0.05),),
        ),
        {},
    ),
    "joins that nobody planned": (
        WorldSpec(links=replace(BAD_LINKS, drop=0.3), compute=FAR_APART),
        {"start_wait_s": 0.02},
    ),
    "a liar": (WorldSpec(liars=LiarSpec(attack="zero", count=1)), {}),
    "noisy liars": (WorldSpec(liars=LiarSpec(attack="noise:0.5", count=2)), {}),
    "liars that crash": (
        WorldSpec(liars=LiarSpec(attack="noise:0.5", nodes=(1, 2)), crashes=CRASHES, compute=FAR_APART),
        {},
    ),
    "a control variate, one step": (WorldSpec(compute=FAR_APART), {"method": "variate:beta=0.3", "local_steps": 1}),
    "a control variate in bad luck": (
        WorldSpec(compute=FAR_APART, links=BAD_LINKS, crashes=CRASHES),
        {"method": "variate:beta=0.3", "speed_correction": 2.0},
    ),
    "a schedule": (WorldSpec(compute=FAR_APART, links=BAD_LINKS), {"topology": "random-matchings:rounds=4"}),
    "a schedule with crashes": (WorldSpec(crashes=CRASHES), {"topology": "random-matchings:rounds=4"}),
    "no compressor": (WorldSpec(compute=FAR_APART), {"compressor": "none"}),
    "float16": (WorldSpec(links=BAD_LINKS), {"compressor": "float16"}),
    "q8": (WorldSpec(crashes=CRASHES), {"compressor": "q8"}),
    "random-k": (WorldSpec(compute=FAR_APART), {"compressor": "random-k:0.2"}),
    "top-k": (WorldSpec(links=BAD_LINKS), {"compressor": "top-k:0.1+q8"}),
    "a rotation": (WorldSpec(compute=FAR_APART), {"compressor": "rotate+sign"}),
    "signs": (WorldSpec(links=BAD_LINKS), {"compressor": "sign"}),
    "stochastic codes": (WorldSpec(crashes=CRASHES), {"compressor": "q4:stochastic"}),
    "every edge another, in bad luck": (
        WorldSpec(compute=FAR_APART, links=BAD_LINKS, crashes=CRASHES),
        {"own": EACH_ANOTHER, "method": "variate:beta=0.3"},
    ),
    "every edge without chance": (WorldSpec(compute=FAR_APART), {"own": ("none", "q8", "top-k:0.1", "sign")}),
    "liars on edges of their own": (
        WorldSpec(liars=LiarSpec(attack="noise:0.5", nodes=(1, 2)), compute=FAR_APART),
        {"own": EACH_ANOTHER},
    ),
    "trimmed mean in bad luck": (
        WorldSpec(compute=FAR_APART, links=BAD_LINKS, crashes=CRASHES),
        {"rule": "trimmed-mean:b=1", "method": "plain"},
    ),
    "hampel and churn that loses disks": (
        WorldSpec(churn=ChurnSpec(up_s=0.1, down_s=0.03, until_s=0.6, amnesia=0.5)),
        {"rule": "hampel:b=1", "method": "plain"},
    ),
    "cs+ and a liar": (
        WorldSpec(liars=LiarSpec(attack="sign-flip", nodes=(3,)), compute=FAR_APART, links=BAD_LINKS),
        {"rule": "cs+:b=1", "method": "plain"},
    ),
    "a liar who sees all, and the mean": (
        WorldSpec(liars=LiarSpec(attack="alie", nodes=(3,)), compute=FAR_APART, links=BAD_LINKS),
        {},
    ),
    "mirrors that crash": (
        WorldSpec(liars=LiarSpec(attack="mirror", nodes=(1, 3)), compute=FAR_APART, crashes=CRASHES),
        {"rule": "trimmed-mean:b=1", "method": "plain"},
    ),
    "other data": (WorldSpec(compute=FAR_APART), {"partition": "dirichlet:0.5"}),
}


def federation(
    *,
    topology="random-regular:degree=4",
    compressor="q4",
    partition="shards:2",
    nodes=9,
    seed=0,
    start_wait_s=0.2,
    own=(),
    rule="mean",
    **training,
):
    described = describe(
        nodes=nodes, topology=topology, compressor=compressor, partition=partition, rounds=4, seed=seed
    )
    wanted = {"local_steps": 3, "closing_rounds": 2} | training
    gossip = replace(described.gossip, rule=rule, start_wait_s=start_wait_s, linger_s=0.3)
    edges = dict(zip(described.edges, own * len(described.edges), strict=False))
    return replace(described, training=replace(described.training, **wanted), gossip=gossip, edge_compressors=edges)


def digests(described, world, *, batching):
    seldom = replace(world, evaluate_every_s=5.0)
    report = simulate(described, world=seldom, batching=batching, references=False)
    operations = report.batching.operations
    # The size of a packed payload is an event, and depends on values.
    specs = {described.gossip.compressor, *described.edge_compressors.values()}
    lies = world.liars is not None and parse_attack(world.liars.attack)
    seen = lies and (lies.refused or lies.flood)
    together = batching and not seen and not any("zstd" in spec for spec in specs)
    assert operations == ("batched" if together else "one at a time"), report.batching.why
    return report.digest, report.value_digest, report.messages_sent


IN_SHORT = {
    *("churn that loses disks", "every edge another, in bad luck"),
}
"""Each kind of event once; the other worlds are for `make test-all`."""


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in IN_SHORT else pytest.mark.long) for name in WORLDS]
)
def test_digits_learned_many_nodes_at_once_have_the_same_bits(name):
    assert same(name)


ROBUST = {
    "cs+, crashes and a flood": (
        WorldSpec(liars=LiarSpec(attack="flood", nodes=(3,)), crashes=CRASHES, compute=FAR_APART),
        "cs+:b=1",
    ),
    "nobody is robust": (WorldSpec(liars=LiarSpec(attack="nan", nodes=(3,))), "mean"),
}


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if "crashes" in name else pytest.mark.long) for name in ROBUST]
)
def test_rounds_in_one_call_have_the_bits_of_each_alone_where_operations_go_one_at_a_time(name):
    world, rule = ROBUST[name]
    method = "variate:beta=0.3" if rule == "mean" else "plain"
    described = federation(partition="dirichlet:0.5", method=method)
    described = replace(described, gossip=replace(described.gossip, rule=rule))
    reports = [simulate(described, world=world, batching=batching, references=False) for batching in (True, False)]
    assert [one.batching.operations for one in reports] == ["one at a time"] * 2
    assert [one.batching.training for one in reports] == ["batched", "one at a time"]
    together, alone = ((one.digest, one.value_digest, one.messages_sent) for one in reports)
    assert together == alone


@cache
def one_by_one(world):
    """What the world of that name or seed comes to, one operation at a time, which no mistake in `sim.lazy` changes."""
    return digests(*federation_and_world(world), batching=False)


def federation_and_world(world):
    if isinstance(world, int):
        return draw(world)
    spec, options = WORLDS[world]
    return federation(**options), spec


def same(world):
    return digests(*federation_and_world(world), batching=True) == one_by_one(world)


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=() if seed in FIRST else pytest.mark.long) for seed in SEEDS]
)
def test_a_random_world_is_the_same_run_either_way(seed):
    assert same(seed)


def train_losses(described, world, *, batching):
    report = simulate(described, world=replace(world, evaluate_every_s=0.01), batching=batching, references=False)
    losses = [point.train_loss for point in report.history]
    told = [(one.mean, one.min, one.max) if one else () for one in losses]
    return [pytest.approx(point, rel=1e-4) for point in told] if batching else told


@pytest.mark.long
@pytest.mark.parametrize("name", [pytest.param("speeds and bad links", marks=pytest.mark.long), "crashes"])
def test_the_loss_of_a_round_is_told_when_the_round_has_ended(name):
    world, options = WORLDS[name]
    described = federation(**options)
    assert train_losses(described, world, batching=True) == train_losses(described, world, batching=False)


def one_run_and_the_other(name="speeds and bad links"):
    return digests(*federation_and_world(name), batching=True), one_by_one(name)


@pytest.mark.long
def test_a_millionth_in_one_half_of_an_exchange_is_seen(monkeypatch):
    def wrong(rows, nodes, model, difference, *rest):
        right(rows, nodes, model, difference * np.float32(1 + 1e-6), *rest)

    right = Rows._move
    monkeypatch.setattr(Rows, "_move", wrong)
    here, there = one_run_and_the_other()
    assert here[0] == there[0]
    assert here[1] != there[1]


@pytest.mark.long
def test_the_chance_of_another_transaction_is_seen(monkeypatch):
    def wrong(engine, peer, incarnation, seq):
        return right(engine, peer, incarnation, seq + 1)

    right = LazyEngine._chance
    monkeypatch.setattr(LazyEngine, "_chance", wrong)
    here, there = one_run_and_the_other("stochastic codes")
    assert here[0] == there[0]
    assert here[1] != there[1]


@pytest.mark.long
def test_a_row_that_goes_through_the_codec_of_another_edge_is_seen(monkeypatch):
    def wrong(codecs, rows, edges, chance):
        return right(codecs, rows, np.roll(edges, 1), chance)

    right = EdgeCodecs.quantize
    monkeypatch.setattr(EdgeCodecs, "quantize", wrong)
    here, there = one_run_and_the_other("every edge without chance")
    assert here[1] != there[1]


def test_a_request_that_takes_the_place_of_one_not_yet_applied_is_seen(monkeypatch):
    def wrong(pairs, edge):
        ticket, _ = right(pairs, edge)
        return ticket, 0

    right = Pairs.freeze
    monkeypatch.setattr(Pairs, "freeze", wrong)
    with pytest.raises(AssertionError):  # other bits, or a request that is not there any more
        assert all(same(seed) for seed in SEEDS)


@pytest.mark.long
def test_a_round_that_starts_from_a_later_model_is_seen(monkeypatch):
    def wrong(rows, learners, nodes, *rest):
        rows.begin(nodes, [10**12] * len(nodes), [()] * len(nodes))
        return right(rows, learners, nodes, *rest)

    right = Rows.train
    monkeypatch.setattr(Rows, "train", wrong)
    here, there = one_run_and_the_other()
    assert here[1] != there[1]
