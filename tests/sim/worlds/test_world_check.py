"""A world that contradicts itself is refused, whether it was read or built."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2pfl.errors import UserError
from sim import (
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
    check_world,
    settle,
)

NODES = 6


def partition(*groups, at_s=1.0, until_s=2.0):
    return PartitionSpec(groups=groups, at_s=at_s, until_s=until_s)


def crash(node, at_s, down_s=None):
    return CrashSpec(nodes=(node,), at_s=at_s, down_s=down_s)


CONTRADICTIONS = [
    ({"partitions": (partition((0, 1), (1, 2)),)}, "partition[0].groups", "node 1 is in two groups"),
    ({"partitions": (partition((0, 1, 2, 3, 4, 5)),)}, "partition[0].groups", "separates nobody"),
    ({"partitions": (partition((0, 6)),)}, "partition[0].groups[0]", "no such nodes"),
    ({"partitions": (partition((0,), until_s=1.0 + 1e-10),)}, "partition[0].until_s", "ends before it begins"),
    ({"partitions": (partition((0,), at_s=float("inf")),)}, "partition[0].at_s", "impossible value"),
    (
        {"partitions": (partition((0,), at_s=1.5, until_s=3.0), partition((1,)))},
        "partition[0].at_s",
        "begins before partition[1] ends",
    ),
    ({"partitions": (partition((0,), at_s=90_000, until_s=90_001),)}, "partition[0].at_s", "never happens"),
    (
        {"joins": (JoinSpec(nodes=(1, 2), at_s=1), JoinSpec(nodes=(2,), at_s=2))},
        "join[1].nodes",
        "node 2 is in join[0]",
    ),
    ({"joins": (JoinSpec(nodes=(1,), at_s=5),), "limit_s": 5.0}, "join[0].at_s", "never happens"),
    ({"joins": (JoinSpec(nodes=(1,), at_s=-1),)}, "join[0].at_s", "impossible value"),
    ({"joins": (JoinSpec(nodes=(1,), at_s=5),), "crashes": (crash(1, 5.0),)}, "crash[0].at_s", "before it has started"),
    ({"crashes": (crash(1, 0.0),)}, "crash[0].at_s", "before it has started"),
    ({"crashes": (crash(1, 1.0, 2.0), crash(1, 3.0))}, "crash[1].at_s", "while it is down"),
    ({"crashes": (crash(1, 3.0), crash(1, 1.0, 2.0))}, "crash[1].at_s", "it never comes back"),
    ({"crashes": (crash(1, 90_000.0),)}, "crash[0].at_s", "never happens"),
    ({"crashes": (CrashSpec(nodes=(1, 1), at_s=1),)}, "crash[0].nodes", "no such nodes"),
    ({"crashes": (CrashSpec(nodes=(-1,), at_s=1),)}, "crash[0].nodes", "no such nodes"),
    ({"crashes": (CrashSpec(nodes=(1,), count=1, at_s=1),)}, "crash[0].count", "cannot be combined"),
    ({"crashes": (CrashSpec(count=7, at_s=1),)}, "crash[0].count", "more than there are nodes"),
    ({"churn": ChurnSpec(up_s=1, down_s=1, until_s=float("inf"))}, "churn.until_s", "impossible value"),
    ({"churn": ChurnSpec(up_s=0, down_s=1, until_s=1)}, "churn.up_s", "impossible value"),
    ({"churn": ChurnSpec(up_s=1e-5, down_s=1e-5, until_s=1e5)}, "churn.up_s", "crashes"),
    ({"churn": ChurnSpec(up_s=1, down_s=1, until_s=1, amnesia=1.5)}, "churn.amnesia", "impossible value"),
    ({"slow": (SlowNodes(nodes=(1,)),)}, "slow[0]", "changes nothing"),
    ({"slow": (SlowNodes(nodes=(1,), far_s=1), SlowNodes(nodes=(0, 1), far_s=2))}, "slow[1].nodes", "slow[0] too"),
    ({"slow": (SlowNodes(nodes=(1,), speed=0),)}, "slow[0].speed", "impossible value"),
    ({"liars": LiarSpec(attack="sign-flip", count=6)}, "liars", "nobody honest"),
    ({"liars": LiarSpec(attack="noise", count=1)}, "liars.attack", "impossible value"),
    ({"links": LinkSpec(loss=1.01)}, "links.loss", "impossible value"),
    ({"links": LinkSpec(latency_s=Spread(kind="uniform", low=2, high=1))}, "links.latency_s", "impossible value"),
    ({"compute": ComputeSpec(speed=Spread(low=0.0, high=0.0))}, "compute.speed", "impossible value"),
    ({"compute": ComputeSpec(step_s=1, round_s=1)}, "compute.round_s", "cannot be combined"),
    ({"compute": ComputeSpec(jitter=-0.1)}, "compute.jitter", "impossible value"),
    ({"evaluate_every_s": 0.0}, "run.evaluate_every_s", "impossible value"),
    ({"limit_s": float("inf")}, "run.limit_s", "impossible value"),
]


@pytest.mark.parametrize(("parts", "key", "says"), CONTRADICTIONS)
def test_a_contradiction_is_refused_and_located(parts, key, says):
    world = WorldSpec(path=Path("bad.toml"), **parts)
    (mistake,) = check_world(world, NODES)
    assert (mistake.file, mistake.key) == ("bad.toml", key)
    assert says in str(mistake)
    with pytest.raises(UserError):
        settle(world, NODES, seed=0)


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"partitions": (partition((0,)), partition((1,), at_s=2.0, until_s=3.0))},
        {"partitions": (partition((0,), (1,), (2, 3)),)},
        {"crashes": (crash(1, 1.0, 2.0), crash(1, 3.5), crash(2, 3.0))},
        {"crashes": (crash(1, 3.5), crash(1, 1.0, 2.0))},
        {"joins": (JoinSpec(nodes=tuple(range(NODES)), at_s=1),), "crashes": (crash(1, 1.5),)},
        {"liars": LiarSpec(attack="sign-flip", nodes=(1,)), "crashes": (CrashSpec(nodes=(1,), at_s=1, amnesia=True),)},
        {"churn": ChurnSpec(up_s=10, down_s=1, until_s=100_000)},
        {"links": LinkSpec(drop=1.0)},
    ],
)
def test_what_is_merely_bad_luck_is_allowed(parts):
    assert check_world(WorldSpec(**parts), NODES) == []
