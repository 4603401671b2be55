"""What a node's log is worth: drawn fault schedules in virtual time, with the log and with snapshots alone.

    python benchmarks/durability.py --schedules 50
    python benchmarks/durability.py --real 5 --minutes 10      # each seed with and without the log, at once

Twelve nodes with unequal rows and fourfold speeds minimize quadratics whose common optimum is known, while nodes are
killed, stay away, and some lose their disk. With `snapshot` a node that was killed goes on from its last snapshot, and
its edges begin anew. *Excess* is the worst node's loss above the optimum at the end; *distance* the mean distance of
the models while faults go on. With `--real` they are processes on a graph of degree 4, at one speed, and time runs a
hundred times as long: they are killed, lose their folder, or stand still as if the machine slept; `distance` is the
median distance between neighbors, `rounds_lost` what was learned anew after a kill; a fifth of the time after the
last fault counts what a round writes and takes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
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

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "e2e"))
import faces  # noqa: F401 - its kits import names from packages
from real_field import Field, Process, processes, wait_all

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


STEP_S = 1.0
"""A round of real nodes."""


def spent(processes: dict[str, Process]) -> tuple[int, float, int]:
    """Return the bytes that all have written to disks, their CPU-seconds, and their rounds."""
    written, ticks, rounds = 0, 0, 0
    for process in processes.values():
        kernel = Path(f"/proc/{process.popen.pid}")
        written += int(kernel.joinpath("io").read_text().partition("\nwrite_bytes: ")[2].split()[0])
        ticks += sum(map(int, kernel.joinpath("stat").read_text().rpartition(")")[2].split()[11:13]))
        rounds += process.rounds
    return written, ticks / os.sysconf("SC_CLK_TCK"), rounds


def real(seed: int, durability: str, minutes: float, folder: Path) -> dict[str, Any]:
    """Run one schedule with real processes."""
    rounds, crashes = int(60 * minutes / STEP_S), schedule(seed)
    scale = rounds * STEP_S / (ROUNDS * ROUND_S)
    task = f'name = "quadratic"\nsize = 16\ncondition = 10.0\nsamples = {SAMPLES}\nstep_s = {STEP_S}'
    how: dict[str, Any] = {"local_steps": 5, "learning_rate": 0.1, "linger_s": 300.0, "when_through": "train-on"}
    made = Field(
        folder / durability, NODES, task=task, topology="random-regular:degree=4", seed=seed, rounds=rounds, **how
    )
    for name in made.names:
        made.set_node(name, durability=durability)
    with processes(made) as start:
        alive, lives = {name: start(name) for name in made.names}, dict[str, list[Process]]()
        began = time.monotonic()
        moments = [(crash.at_s + back * crash.down_s, back, crash) for crash in crashes for back in (0, 1)]
        for at_s, back, crash in sorted(moments, key=lambda moment: moment[0]):
            time.sleep(max(0.0, began + scale * at_s - time.monotonic()))
            name = made.names[crash.nodes[0]]
            stops = crash.nodes[0] % 3 == 0 and not crash.amnesia
            if stops:
                alive[name].popen.send_signal(signal.SIGCONT if back else signal.SIGSTOP)
            elif back:
                lives.setdefault(name, []).append(alive[name])
                alive[name] = start(name)
            else:
                alive[name].kill()
                if crash.amnesia:
                    shutil.rmtree(made.state(name))
        before = spent(alive)
        time.sleep(0.2 * 60 * minutes)
        written, cpu_s, done = (now - then for now, then in zip(spent(alive), before, strict=True))
        codes = wait_all(alive, 120 * minutes)
        told = [[run for each in [*lives.get(name, []), alive[name]] if (run := each.lines)] for name in made.names]
    distances = [
        line["neighbor_distance"] or 0.0  # relative to the model's norm
        for line in itertools.chain(*(itertools.chain(*runs) for runs in told))
        if 0.05 * rounds < line["rounds"] < 0.6 * rounds
    ]
    lost = [max(0, was[-1]["rounds"] - now[0]["rounds"]) for runs in told for was, now in itertools.pairwise(runs)]
    return {
        "seed": seed,
        "durability": durability,
        "crashes": len(crashes),
        "excess": max(made.excess(name) for name in made.names),
        "distance": median(distances),
        "rounds_lost": sum(lost),
        "disk_kb_a_round": written / done / 1e3,
        "cpu_ms_a_round": 1e3 * cpu_s / done,
        "failed": sorted(name for name, code in codes.items() if code != 0),
    }


def reals(seeds: int, minutes: float) -> Iterator[dict[str, Any]]:
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
            kinds = ("exchange", "snapshot")
            yield from pool.map(lambda kind, seed=seed, within=folder: real(seed, kind, minutes, Path(within)), kinds)


def rows(schedules: int, every: list[int]) -> Iterator[dict[str, Any]]:
    for seed in range(schedules):
        for kind in (None, *every):
            yield run(seed, kind)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=50)
    parser.add_argument("--every", type=int, nargs="+", default=[20], help="rounds between two snapshots")
    parser.add_argument("--real", type=int, default=0, help="so many schedules with real processes instead")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long each takes")
    parser.add_argument("--out", type=Path, help="a line of JSON for each run")
    options = parser.parse_args()
    chosen = reals(options.real, options.minutes) if options.real else rows(options.schedules, options.every)
    for row in chosen:
        print(json.dumps(row), flush=True)
        if options.out:
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
