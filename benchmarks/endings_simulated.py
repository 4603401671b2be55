"""How a federation ends, in virtual time.

    python benchmarks/endings_simulated.py [--rounds 60] [--seeds 3] [--json FILE]

Nodes of unequal n and speed minimize quadratics whose common optimum is known, and the digits. For each world: how far
the worst and the mean node end above the optimum (or the accuracy of the worst), how many of the requested rounds the
least and the most trained node took, and how long after the first node had finished the last one stopped. `train` and
`mix` are what nodes do whose rounds are done before the others'.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from p2pfl.config.model import FederationConfig, TaskConfig, TrainingConfig
from p2pfl.learn.quadratic import QuadraticLearner, QuadraticTask
from p2pfl.learn.task import NodeContext
from sim.federations import describe
from sim.simulation import simulate
from sim.worlds.model import ComputeSpec, CrashSpec, JoinSpec, SlowNodes, WorldSpec

SAMPLES = [50, 100, 150, 200, 250, 300, 350, 400]
STEP_S = 0.05
WORLDS = ("equal", "tenfold", "fiftyfold", "one fast", "half late", "one dead", "one wiped")


def quadratic(
    topology: str, rule: str, *, rounds: int, seed: int, when_through: str, linger_s: float
) -> FederationConfig:
    """Make eight quadratics of condition 10, with 50 to 400 samples."""
    plain = describe(nodes=8, topology=topology, rounds=rounds, rule=rule, compressor="none", seed=seed)
    training = replace(plain.training, local_steps=5, learning_rate=0.1, batch_size=10, when_through=when_through)
    task = TaskConfig(name="quadratic", options={"size": 8, "condition": 10.0, "samples": SAMPLES})
    gossip = replace(plain.gossip, linger_s=linger_s, start_wait_s=1.0)
    return replace(plain, task=task, training=training, gossip=gossip)


def digits(topology: str, rule: str, *, rounds: int, seed: int, when_through: str, linger_s: float) -> FederationConfig:
    """Make eight nodes with two of the ten digits each."""
    partition = "shards:2" if rule == "mean" else "dirichlet:1"
    plain = describe(nodes=8, topology=topology, rounds=rounds, rule=rule, partition=partition, seed=seed)
    gossip = replace(plain.gossip, linger_s=linger_s, start_wait_s=1.0)
    return replace(plain, training=replace(plain.training, when_through=when_through), gossip=gossip)


def world(kind: str, round_s: float, rounds: int) -> WorldSpec:
    """Make a world; `round_s` is the time of a round at speed 1."""
    compute = ComputeSpec(round_s=round_s)
    whole_s = round_s * rounds
    tenfold = tuple(SlowNodes(nodes=(node,), speed=1 / (1 + 9 * node / 7)) for node in range(1, 8))
    match kind:
        case "equal":
            return WorldSpec(compute=compute)
        case "tenfold":
            return WorldSpec(compute=compute, slow=tenfold)
        case "fiftyfold":
            return WorldSpec(compute=compute, slow=(SlowNodes(nodes=(6, 7), speed=0.02),))
        case "one fast":
            return WorldSpec(compute=compute, slow=(SlowNodes(nodes=tuple(range(1, 8)), speed=0.02),))
        case "half late":
            return WorldSpec(compute=compute, joins=(JoinSpec(nodes=(1, 3, 5, 7), at_s=0.4 * whole_s),))
        case "one dead":
            return WorldSpec(compute=compute, slow=tenfold, crashes=(CrashSpec(nodes=(3,), at_s=0.3 * whole_s),))
        case "one wiped":
            crash = CrashSpec(nodes=(3,), at_s=0.5 * whole_s, down_s=0.1 * whole_s, amnesia=True)
            return WorldSpec(compute=compute, slow=tenfold, crashes=(crash,))
    raise ValueError(kind)


def least_loss(federation: FederationConfig) -> float:
    """Compute the loss at the optimum."""
    options: dict[str, Any] = federation.task.options
    context = NodeContext(node=0, nodes=8, name="node0", seed=federation.seed, base_dir=Path())
    learner = QuadraticLearner(QuadraticTask(**options), context, TrainingConfig(batch_size=10))
    score = learner.evaluate(learner.optimum(), "test")
    return np.inf if score is None else score.loss


def figures(federation: FederationConfig, spec: WorldSpec) -> dict[str, Any]:
    """Return the figures of one run; nodes that died are left out."""
    report = simulate(federation, world=spec, references=False)
    ended = [row for row in report.nodes if row.finished]
    taken = [row.rounds for row in ended]
    result: dict[str, Any] = {
        "ended": len(ended),
        "rounds": [min(taken, default=0), max(taken, default=0)],
        "virtual_s": round(report.virtual_time_s, 2),
        "alone": max((row.rounds_without_neighbor for row in ended), default=0),
        "ended_by": sorted({str(row.ended_by) for row in ended}),
    }
    if federation.task.name == "quadratic":
        losses = np.array([row.test_loss for row in ended]) - least_loss(federation)
        result |= {"worst": float(losses.max()), "mean": float(losses.mean())}
    else:
        scores = [row.accuracy for row in ended]
        result |= {"worst": float(min(scores)), "mean": float(np.mean(scores))}
    return result


def runs(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for task in options.tasks:
        make = quadratic if task == "quadratic" else digits
        for topology, rule in options.graphs:
            for kind in options.worlds:
                for through in options.through:
                    for seed in range(options.seeds):
                        federation = make(
                            topology,
                            rule,
                            rounds=options.rounds,
                            seed=seed,
                            when_through=through,
                            linger_s=options.linger,
                        )
                        found = figures(federation, world(kind, STEP_S, options.rounds))
                        yield {
                            "task": task,
                            "topology": topology,
                            "rule": rule,
                            "world": kind,
                            "through": through,
                            "seed": seed,
                        } | found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--linger", type=float, default=1.0, help="linger_s; a quarter of a run's training is longer")
    parser.add_argument("--tasks", nargs="+", default=["quadratic", "digits"])
    parser.add_argument("--worlds", nargs="+", default=list(WORLDS))
    parser.add_argument("--through", nargs="+", default=["train", "mix"])
    parser.add_argument(
        "--graphs",
        nargs="+",
        type=lambda text: tuple(text.split("/")),
        default=[
            ("ring", "mean"),
            ("random-regular:degree=4", "mean"),
            ("base:k=1", "mean"),
            ("random-regular:degree=4", "hampel:b=1"),
        ],
        help="TOPOLOGY/RULE",
    )
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = []
    for row in runs(given):
        found.append(row)
        print(
            f"{row['task']:10s} {row['topology']:24s} {row['rule']:10s} {row['world']:10s} {row['through']:6s}"
            f" worst {row['worst']:9.4f} mean {row['mean']:9.4f} rounds {row['rounds']!s:12s}"
            f" {row['virtual_s']:8.2f} s  ended {row['ended']}  alone {row['alone']}  {'; '.join(row['ended_by'])}",
            flush=True,
        )
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
