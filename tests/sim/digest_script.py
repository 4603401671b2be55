"""Prints the digests of some runs: `test_digests.py` starts it in processes of other kinds."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import faces  # noqa: F401
from drawn_worlds import draw

from sim import ChurnSpec, ComputeSpec, LiarSpec, LinkSpec, Spread, WorldSpec, describe, simulate

SEEDS = (2, 10)


def digests(last: int = 0) -> list[list[str]]:
    """Of digits in a world with everything in it, without a robust rule and with one, random worlds, hidden models.

    Of all of them, or of the `last` ones.
    """
    described = describe(nodes=6, topology="random-regular:degree=4", rounds=3, seed=3)
    gossip = replace(described.gossip, start_wait_s=0.2, linger_s=0.2)
    described = replace(described, training=replace(described.training, local_steps=3, closing_rounds=4), gossip=gossip)
    world = WorldSpec(
        compute=ComputeSpec(speed=Spread(kind="log-uniform", low=0.1, high=1.0), jitter=0.2),
        links=LinkSpec(drop=0.05, duplication=0.1, jitter_s=0.02),
        churn=ChurnSpec(up_s=0.1, down_s=0.03, until_s=0.3, amnesia=0.3, count=3),
        liars=LiarSpec(attack="noise:0.5", count=1),
    )
    robust = replace(described, gossip=replace(gossip, rule="nnm+geometric-median:b=1"))
    watched = replace(world, liars=LiarSpec(attack="foe", count=1))
    hidden = describe(nodes=4, rounds=2, privacy="hide=models")
    tcp = WorldSpec(links=LinkSpec(jitter_s=0.05, loss=0.02))
    runs = [(described, world), (robust, watched), *(draw(seed) for seed in SEEDS), (hidden, tcp)]
    seldom = [(given, replace(around, evaluate_every_s=1.0)) for given, around in runs[-last:]]
    reports = [simulate(given, world=around, references=False) for given, around in seldom]
    return [[report.digest, report.value_digest] for report in reports]


if __name__ == "__main__":
    json.dump(digests(), sys.stdout)
