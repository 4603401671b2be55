"""Whom a node's alarms name: neighbors that lie, and, in honest worlds with unequal labels, nobody.

    python benchmarks/robust/suspects.py                 # 50 honest worlds and 14 attacks: some ten minutes

Twelve nodes in step as arrays, by the rule and the comparison that real nodes have (`p2pfl.aggregate.Likeness`); 30
rounds and five closing ones. For each attack: how many of the liar's six neighbors name it, and the round of the first.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

from sim.arrays.run import Together
from sim.arrays.setting import setting_of
from sim.learning.rounds import Rounds
from sim.sweeps.job import build, make_job
from sim.worlds.settling import settle

PARTITIONS = (
    "dirichlet:0.5",
    "shards:2",
    "dirichlet:0.2",
    "dirichlet:1",
    "classes:3",
    "dirichlet:0.1",
    "dirichlet:0.3",
)
RULES = ("hampel:b=1", "nnm+trimmed-mean:b=1", "trimmed-mean:b=1", "geometric-median:b=1", "cs+:b=1")
ATTACKS = (
    *("sign-flip", "noise:0.1", "ipm", "foe", "dissensus", "spectral", "mirror"),
    *("label-flip", "backdoor", "ascent", "foreign", "adapt", "alie", "mimic"),
)
Named = dict[tuple[int, int], tuple[str, int]]


def named(options: dict[str, Any], seed: int) -> tuple[Named, frozenset[int]]:
    """Return the alarms that stand at the end, by (node, neighbor), with the round of the latest; and the liars."""
    usual = {"nodes": 12, "rounds": 30, "closing_rounds": 5, "closing": "train", "arrays": True, "clock": "in-step"}
    federation, world = build(make_job(usual | options, seed))
    setting = setting_of(federation, settle(world, 12, seed), None, clock="in-step", device=None)
    run, standing = Together(setting, Rounds(setting.grouped, setting.method, setting.device)), Named()
    for moment in run.run():
        for node, mixer in enumerate(run.stage.by_rule.mixers if run.stage.by_rule else ()):
            while mixer.likeness.news:
                kind, peer, _ = mixer.likeness.news.popleft()
                standing.pop((node, peer), None)
                if kind != "looks-alike" and node not in setting.liars:
                    standing[node, peer] = kind, int(moment.now)
    return standing, setting.liars


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--worlds", type=int, default=50, help="honest worlds")
    arguments.add_argument("--attacks", nargs="*", default=ATTACKS)
    asked = arguments.parse_args()
    torch.set_num_threads(1)
    for attack in asked.attacks:
        for partition in PARTITIONS[:2]:
            lies = {"topology": "random-regular:degree=6", "rule": RULES[0], "byzantine": 1, "attack": attack}
            found, liars = named(lies | {"partition": partition, "momentum": 0.5}, 1)
            right = {pair: alarm for pair, alarm in found.items() if pair[1] in liars}
            first = min((number for _, number in right.values()), default="-")
            print(
                attack,
                partition,
                f"named by {len(right)} of 6, first {first}, others {len(found) - len(right)}",
                flush=True,
            )
    alarms = 0
    for number in range(asked.worlds):
        graph = {"topology": f"random-regular:degree={(4, 6, 8, 5)[number % 4]}", "rule": RULES[number % len(RULES)]}
        partition = {"partition": PARTITIONS[number % len(PARTITIONS)], "momentum": 0.5 * (number % 2)}
        alarms += len(named(graph | partition, number + 100)[0])
    print(f"{asked.worlds} honest worlds: {alarms} alarms stand at the end")


if __name__ == "__main__":
    main()
