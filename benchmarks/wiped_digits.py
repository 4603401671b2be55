"""The final cost of a lost folder where no other node has seen its digits, in virtual time.

    python benchmarks/wiped_digits.py [--rounds 440] [--seeds 3] [--json FILE]

Five nodes on a ring with two of the ten digits each. At a fifth of the rounds one is switched off for thirty of them:
`away` comes back with its folder, `wiped` without. The output is the test loss of the worst node, by seed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from sim.federations import describe
from sim.simulation import simulate
from sim.worlds.model import ComputeSpec, CrashSpec, WorldSpec

ROUND_S = 0.1
ROUNDS_AWAY = 30
KINDS = ("undisturbed", "away", "wiped")


def worst_loss(kind: str, rounds: int, seed: int) -> float:
    federation = describe(nodes=5, topology="ring", rounds=rounds, partition="shards:2", seed=seed)
    crash = CrashSpec(nodes=(1,), at_s=ROUND_S * rounds / 5, down_s=ROUND_S * ROUNDS_AWAY, amnesia=kind == "wiped")
    crashes = () if kind == "undisturbed" else (crash,)
    world = WorldSpec(compute=ComputeSpec(round_s=ROUND_S), crashes=crashes)
    report = simulate(federation, world=world, references=False)
    return max(node.test_loss for node in report.nodes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=440)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = []
    print("seed", *(f"{kind:>12}" for kind in KINDS), "  wiped/away")
    for seed in range(given.seeds):
        losses = {kind: worst_loss(kind, given.rounds, seed) for kind in KINDS}
        found.append({"seed": seed, "rounds": given.rounds, **losses})
        ratio = losses["wiped"] / losses["away"]
        print(f"{seed:4}", *(f"{losses[kind]:12.4f}" for kind in KINDS), f"{ratio:12.2f}", flush=True)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
