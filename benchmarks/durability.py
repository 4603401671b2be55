"""What a node's log is worth: drawn fault schedules in virtual time, with the log and with snapshots alone.

    python benchmarks/durability.py --schedules 50

Twelve nodes with unequal rows and fourfold speeds minimize quadratics whose common optimum is known, while nodes are
killed, stay away, and some lose their disk. With `snapshot` a node that was killed goes on from its last snapshot, and
its edges begin anew. *Excess* is the worst node's loss above the optimum at the end; *distance* the mean distance of
the models while faults go on.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from p2pfl.config.model import TaskConfig
from p2pfl.core.events import Event, Operation, RoundCommitted
from p2pfl.engine.changes import image
from p2pfl.engine.state import NodeState
from p2pfl.learn.task import NodeContext, QuadraticLearner, QuadraticTask
from sim import cluster, simulate
from sim.exact import Boot, ExactEngine, MemoryStore
from sim.federations import describe
from sim.worlds.model import ComputeSpec, CrashSpec, SlowNodes, WorldSpec

NODES, ROUNDS, ROUND_S = 12, 120, 0.05
SAMPLES = [50 + 30 * node for node in range(NODES)]
FAULTS_UNTIL_S = 0.5 * ROUNDS * ROUND_S
SLOW = tuple(SlowNodes(nodes=(node,), speed=1 / (1 + 3 * node / (NODES - 1))) for node in range(1, NODES))
GRAPHS = ("ring", "random-regular:degree=4", "exponential", "torus")
COMPRESSORS = ("none", "q4", "q8")


class SnapshotStore(MemoryStore):
    """A disk that holds the last snapshot alone."""

    def append(self, *_: Any) -> None:
        pass

    def checkpoint(self, state: NodeState) -> None:
        self._image = image(state, with_replicas=False)


class SnapshotEngine(ExactEngine):
    """An engine without a log: a snapshot every `EVERY` rounds; what is started from it is in a new lifetime."""

    EVERY = 20

    def forget(self) -> None:
        super().forget()
        self.store = SnapshotStore()

    def boot(self, name: int) -> Boot:
        if not isinstance(self.store, SnapshotStore):
            self.store = SnapshotStore()
        elif (state := self._recovered()) is not None:
            state.begin_lifetime(name)
            self.store.checkpoint(state)
        return super().boot(name)

    def run(self, operation: Operation) -> Event | None:
        event = super().run(operation)
        if isinstance(event, RoundCommitted) and self.state.rounds % self.EVERY == 0:
            self.store.checkpoint(self.state)
        return event


def schedule(seed: int) -> tuple[CrashSpec, ...]:
    """Draw 3 to 10 crashes in the first half of the fastest node's rounds; one in six takes the disk along."""
    rng = random.Random(seed)
    crashes, back_at = [], dict.fromkeys(range(NODES), 0.0)
    for at_s in sorted(rng.uniform(0.2, FAULTS_UNTIL_S) for _ in range(rng.randint(3, 10))):
        node, down_s = rng.randrange(NODES), rng.uniform(0.05, 1.5)
        if at_s > back_at[node] + 0.1:
            back_at[node] = at_s + down_s
            crashes.append(CrashSpec(nodes=(node,), at_s=at_s, down_s=down_s, amnesia=rng.random() < 1 / 6))
    return tuple(crashes)


def run(seed: int, every: int | None) -> dict[str, Any]:
    """Simulate one schedule with the log, or with a snapshot `every` so many rounds."""
    rng = random.Random(1000 + seed)
    graph, compressor = rng.choice(GRAPHS), rng.choice(COMPRESSORS)
    described = describe(nodes=NODES, topology=graph, rounds=ROUNDS, compressor=compressor, seed=seed)
    options = {"size": 16, "condition": 10.0, "samples": SAMPLES}
    how: dict[str, Any] = {"local_steps": 5, "learning_rate": 0.1, "batch_size": 10, "when_through": "train-on"}
    training = replace(described.training, method="variate:beta=0.1", evaluate_every=0, **how)
    federation = replace(described, task=TaskConfig(name="quadratic", options=options), training=training)
    crashes = schedule(seed)
    world = WorldSpec(compute=ComputeSpec(round_s=ROUND_S), slow=SLOW, crashes=crashes, evaluate_every_s=ROUND_S)
    SnapshotEngine.EVERY = every or 0
    cluster.ExactEngine = SnapshotEngine if every else ExactEngine  # type: ignore[misc]
    report = simulate(federation, world=world, references=False)
    context = NodeContext(node=0, nodes=NODES, name="node0", seed=seed, base_dir=Path())
    learner = QuadraticLearner(QuadraticTask(**options), context, training)
    least = learner.evaluate(learner.optimum(), "test").loss
    way = [point.consensus_distance or 0.0 for point in report.history if 0.2 < point.time_s < FAULTS_UNTIL_S + 1.5]
    return {
        "seed": seed,
        "every": every,
        "graph": graph,
        "compressor": compressor,
        "crashes": len(crashes),
        "excess": max(row.test_loss for row in report.nodes) - least,
        "distance": fmean(way),
        "time_s": report.virtual_time_s,
        "megabytes": report.bytes_sent / 1e6,
    }


def rows(schedules: int, every: list[int]) -> Iterator[dict[str, Any]]:
    for seed in range(schedules):
        for kind in (None, *every):
            yield run(seed, kind)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=50)
    parser.add_argument("--every", type=int, nargs="+", default=[20], help="rounds between two snapshots")
    parser.add_argument("--out", type=Path, help="a line of JSON for each run")
    options = parser.parse_args()
    for row in rows(options.schedules, options.every):
        print(json.dumps(row), flush=True)
        if options.out:
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
