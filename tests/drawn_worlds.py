"""Small random federations in bad random worlds, each drawn from one number: for tests that run thousands of them.

The worlds are unlikely but allowed. The task is the built-in quadratic, so no torch is needed, and nobody lies:
whatever must hold among honest nodes must hold in each of these worlds.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from random import Random

from p2pfl.chance import stream
from p2pfl.config import Edges, FederationConfig, GossipConfig, Member, TaskConfig, TrainingConfig
from sim import (
    AmendSpec,
    ChurnSpec,
    ComputeSpec,
    CrashSpec,
    JoinSpec,
    LinkSpec,
    PartitionSpec,
    SlowNodes,
    Spread,
    UpTimes,
    WorldSpec,
    below,
    ends,
    log_uniform,
    permutation,
    sample,
    uniform,
)
from sim.worlds.settling import choice

COMPRESSORS = (
    *("none", "float16", "q8", "q4", "q2", "sign", "q8", "q4"),
    *("rotate+sign", "rotate+q2", "rotate+q4", "random-k:0.3", "random-k:0.5+q8", "random-k:1+rotate+sign"),
    *("top-k:0.1", "top-k:0.3+q4", "top-k:1+float16", "top-k:0.5+rotate+q8", "q4+zstd", "top-k:0.2+q8+zstd"),
)
"""Compressors that include every kind of chain; two stand there twice, so that each seed keeps its world."""
RULES = (
    *("trimmed-mean:b=1", "median:b=1", "geometric-median:b=1", "hampel:b=1,cut=6.0", "nnm+median:b=1"),
    *("nnm+trimmed-mean:b=1", "monna:b=1", "scc:b=1", "hampel:b=1", "cs+:b=2", "nnm+geometric-median:b=1"),
)
GRAPHS = ("ring", "path", "star", "complete", "keyed-rings")
"""Topologies that exist for any number of members."""
STALENESS = ("none", "constant", "constant:0.5", "hinge:2,1", "polynomial:0.5", "hinge-polynomial:4,0.5")
HORIZON_S = 8.0
"""The approximate length of such a run; faults fall within it."""


def draw(seed: int) -> tuple[FederationConfig, WorldSpec]:
    """Draw a connected federation of 2 to 8 nodes, and a settled world that does not contradict itself."""
    rng = stream(seed, "drawn federation")
    nodes = 2 + below(rng, 7)
    edges = _edges(rng, nodes)
    schedule = _schedule(rng, edges) if rng.random() < 0.3 else ()
    rule = _rule(stream(seed, "drawn rule"))
    federation = FederationConfig(
        path=Path(f"drawn-{seed}.toml"),
        name=f"drawn-{seed}",
        seed=seed,
        topology="drawn",
        task=_task(rng, nodes),
        training=_training(rng, rule),
        gossip=replace(_gossip(rng), rule=rule),
        members=tuple(_member(seed, index) for index in range(nodes)),
        edges=edges,
        schedule=schedule,
        edge_compressors=_edge_compressors(rng, edges),
    )
    return federation, _world(stream(seed, "drawn world"), nodes)


def draw_changing(seed: int) -> tuple[FederationConfig, WorldSpec]:
    """Draw the same federation on a named graph; its members and graph change a few times, and there are no other
    joins.
    """
    federation, world = draw(seed)
    rng, nodes = stream(seed, "drawn changes"), len(federation.members)
    changes = _amendments(rng, nodes)
    joins = tuple(JoinSpec(nodes=one.join, at_s=one.at_s) for one in changes if one.join)
    changing = replace(
        world,
        amendments=changes,
        joins=(),
        churn=None,
        crashes=_crashes(rng, nodes, joins) if rng.random() < 0.5 else (),
    )
    return replace(federation, topology=choice(rng, GRAPHS), edge_compressors={}), changing


def _amendments(rng: Random, nodes: int) -> tuple[AmendSpec, ...]:
    """Draw changes that always leave at least two members."""
    order = permutation(rng, nodes)
    others = order[2:]
    joining = [node for node in others if rng.random() < 0.4]
    found, here, now = [], [node for node in others if node not in joining], 0.0
    for _ in range(1 + below(rng, 3)):
        now += log_uniform(rng, 0.05, HORIZON_S / 3)
        join = tuple(sorted(joining)) if rng.random() < 0.5 else tuple(joining[:1])
        leave = (choice(rng, here),) if here and rng.random() < 0.5 else ()
        joining = [node for node in joining if node not in join]
        here = [node for node in (*here, *join) if node not in leave]
        found.append(
            AmendSpec(at_s=now, join=join, leave=leave, topology=choice(rng, GRAPHS) if rng.random() < 0.6 else None)
        )
    if joining:
        found.append(AmendSpec(at_s=now + 0.1, join=tuple(sorted(joining))))
    return tuple(found)


def _member(seed: int, index: int) -> Member:
    """Make a member whose private key nobody holds."""
    key = hashlib.blake2b(f"{seed} {index}".encode(), digest_size=32, person=b"p2pfl-drawn-key").digest()
    return Member(index=index, name=f"node{index}", key=key, address=None)


def _edges(rng: Random, nodes: int) -> Edges:
    """Draw a random tree and some more edges."""
    order = permutation(rng, nodes)
    pairs = {tuple(sorted((order[place], order[below(rng, place)]))) for place in range(1, nodes)}
    density = rng.random() ** 2
    pairs |= {(a, b) for a in range(nodes) for b in range(a + 1, nodes) if rng.random() < density}
    return tuple(sorted((a, b) for a, b in pairs))


def _schedule(rng: Random, edges: Edges) -> tuple[Edges, ...]:
    """Draw two to four rounds that divide the edges among them; some edges are in several rounds, and a round may be
    empty.
    """
    period = 2 + below(rng, 3)
    rounds: list[set[tuple[int, int]]] = [set() for _ in range(period)]
    for edge in edges:
        for _ in range(1 + below(rng, 2)):
            rounds[below(rng, period)].add(edge)
    return tuple(tuple(sorted(used)) for used in rounds)


def _edge_compressors(rng: Random, edges: Edges) -> dict[tuple[int, int], str]:
    """Draw compressors for single edges: mostly none, otherwise for about half of the edges."""
    if rng.random() < 0.7:
        return {}
    return {edge: choice(rng, COMPRESSORS) for edge in edges if rng.random() < 0.5}


def _task(rng: Random, nodes: int) -> TaskConfig:
    options = {
        "size": int(log_uniform(rng, 1, 700)),
        "condition": log_uniform(rng, 1, 20),
        "noise": choice(rng, (0.0, 0.1)),
        "samples": [int(log_uniform(rng, 1, 300)) for _ in range(nodes)],
    }
    return TaskConfig(name="quadratic", options=options)


def _training(rng: Random, rule: str) -> TrainingConfig:
    epochs = rng.random() < 0.3
    return TrainingConfig(
        rounds=5 + below(rng, 16),
        local_steps=None if epochs else 1 + below(rng, 4),
        local_epochs=1 if epochs else None,
        batch_size=choice(rng, (16, 64, 256)),
        learning_rate=uniform(rng, 0.02, 0.3),
        method=_method(choice(rng, (0.0, 0.0, 0.1, 0.3)), rule),
        speed_correction=choice(rng, (1.0, 1.0, 2.0)),
        closing_rounds=below(rng, 8),
        evaluate_every=choice(rng, (0, 1, 5)),
    )


def _method(beta: float, rule: str) -> str:
    """Return a control variate of that strength, if the rule has one."""
    return f"variate:beta={beta!r}" if beta and rule == "mean" else "plain"


def _gossip(rng: Random) -> GossipConfig:
    return GossipConfig(
        compressor=choice(rng, COMPRESSORS),
        staleness=choice(rng, STALENESS),
        gamma=choice(rng, (1.0, 1.0, 0.7, 0.3)),
        start_wait_s=choice(rng, (0.0, 0.5, 2.0)),
        linger_s=choice(rng, (0.0, 2.0, 5.0)),
        max_wait_s=log_uniform(rng, 0.1, 2.0),
        exchanges_per_s=choice(rng, (200.0, 200.0, 20.0, 5.0)),
        audit_every=1 + below(rng, 16),
    )


def _rule(rng: Random) -> str:
    """Draw a rule; one that needs more neighbors than a node has mixes nothing there."""
    return choice(rng, RULES) if rng.random() < 0.3 else "mean"


def _world(rng: Random, nodes: int) -> WorldSpec:
    joins = _joins(rng, nodes)
    return WorldSpec(
        compute=_compute(rng),
        links=_links(rng),
        slow=_slow(rng, nodes),
        partitions=_partitions(rng, nodes),
        crashes=_crashes(rng, nodes, joins),
        churn=_churn(rng, nodes),
        joins=joins,
        limit_s=600.0,
    )


def _compute(rng: Random) -> ComputeSpec:
    speeds = (Spread(), Spread(kind="log-uniform", low=0.1, high=1.0), Spread(kind="uniform", low=0.5, high=2.0))
    return ComputeSpec(
        round_s=log_uniform(rng, 0.005, 0.3),
        speed=choice(rng, speeds),
        jitter=choice(rng, (0.0, 0.1, 1.0)),
        engine_s=choice(rng, (0.0, 0.0005, 0.01)),
    )


def _links(rng: Random) -> LinkSpec:
    """Draw latencies from much shorter to longer than a round."""
    low = log_uniform(rng, 0.0005, 0.05)
    spread = Spread(kind="log-uniform", low=low, high=low * 10) if rng.random() < 0.5 else Spread(low=low, high=low)
    return LinkSpec(
        latency_s=spread,
        jitter_s=choice(rng, (0.0, 0.005, 0.2)),
        bandwidth=None if rng.random() < 0.5 else log_uniform(rng, 2_000, 1e7),
        drop=choice(rng, (0.0, 0.05, 0.3)) * rng.random(),
        duplication=choice(rng, (0.0, 0.3)) * rng.random(),
        redial_s=log_uniform(rng, 0.01, 1.0),
    )


def _slow(rng: Random, nodes: int) -> tuple[SlowNodes, ...]:
    if rng.random() < 0.7:
        return ()
    return (SlowNodes(nodes=_few_nodes(rng, nodes), far_s=uniform(rng, 0.01, 0.3), speed=choice(rng, (1.0, 0.2))),)


def _few_nodes(rng: Random, nodes: int) -> tuple[int, ...]:
    """Draw at least one node, seldom all."""
    return tuple(sample(rng, range(nodes), 1 + below(rng, nodes)))


def _partitions(rng: Random, nodes: int) -> tuple[PartitionSpec, ...]:
    """Draw up to two partitions, one after the other."""
    found, now = [], 0.0
    for _ in range(choice(rng, (0, 0, 1, 2))):
        begin = now + uniform(rng, 0.0, HORIZON_S / 4)
        now = begin + log_uniform(rng, 0.05, HORIZON_S / 2)
        group = tuple(sample(rng, range(nodes), 1 + below(rng, nodes - 1)))
        found.append(PartitionSpec(groups=(group,), at_s=begin, until_s=now))
    return tuple(found)


def _joins(rng: Random, nodes: int) -> tuple[JoinSpec, ...]:
    if rng.random() < 0.7:
        return ()
    return tuple(JoinSpec(nodes=(node,), at_s=log_uniform(rng, 0.01, HORIZON_S)) for node in _few_nodes(rng, nodes))


def _crashes(rng: Random, nodes: int, joins: tuple[JoinSpec, ...]) -> tuple[CrashSpec, ...]:
    """Draw up to six crashes that fit each other; one in eight is for good."""
    lives, found = UpTimes(joins), []
    for _ in range(choice(rng, (0, 0, 1, 3, 6))):
        crash = CrashSpec(
            nodes=(below(rng, nodes),),
            at_s=uniform(rng, 0.001, HORIZON_S),
            down_s=None if rng.random() < 1 / 8 else log_uniform(rng, 0.001, HORIZON_S / 2),
            amnesia=rng.random() < 0.3,
        )
        if lives.objection(crash.nodes[0], *ends(crash)) is None:
            lives.add(crash.nodes[0], *ends(crash))
            found.append(crash)
    return tuple(found)


def _churn(rng: Random, nodes: int) -> ChurnSpec | None:
    if rng.random() < 0.7:
        return None
    return ChurnSpec(
        nodes=_few_nodes(rng, nodes),
        up_s=log_uniform(rng, 0.3, HORIZON_S),
        down_s=log_uniform(rng, 0.01, 2.0),
        until_s=uniform(rng, 1.0, HORIZON_S),
        amnesia=choice(rng, (0.0, 0.0, 0.3)),
    )
