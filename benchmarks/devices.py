"""A model of ten million parameters on every device of this machine, and in one federation of all of them.

    python benchmarks/devices.py [--parameters 10000000] [--steps 10] [--rounds 3]

First table: by device and precision, the seconds of one step of a local round, of a test, and of moving the vector to
the model and back; and the distance between the end of the rounds and that of the CPU in float32, divided by the length
of their own move. Second table: a federation with a node on each device, the CPU among them, on the same task. The
output names devices that this machine lacks.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from p2pfl import Federation, Task
from p2pfl.config.model import Compute, TrainingConfig
from p2pfl.learn.devices import available_devices, describe
from p2pfl.learn.interface import RoundStart, Vector
from p2pfl.learn.load import learner_for
from p2pfl.learn.task import NodeContext
from p2pfl.learn.trainer import TorchLearner

FEATURES, CLASSES, ROWS = 256, 10, 2048
KINDS = {"cpu": "cpu", "cuda": "an NVIDIA or AMD GPU (cuda)", "mps": "Apple's GPU (mps)"}


def model_of(parameters: int) -> Callable[[], nn.Module]:
    """Make four layers, whose two inner ones have about all of the parameters."""
    width = round((parameters / 2) ** 0.5)

    def model() -> nn.Module:
        inner = [nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)]
        return nn.Sequential(*inner, nn.ReLU(), nn.Linear(width, CLASSES))

    return model


def data(node: NodeContext) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Make classes that a random linear map separates; each node has its own rows, all have the same test set."""
    truth = torch.randn(FEATURES, CLASSES, generator=torch.Generator().manual_seed(1))

    def drawn(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = torch.randn(ROWS, FEATURES, generator=torch.Generator().manual_seed(seed))
        return inputs, (inputs @ truth).argmax(1)

    return drawn(100 + node.node), drawn(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Times in seconds; `vector` (d,) is the model after the last round."""

    device: str
    step_s: float
    test_s: float
    move_s: float
    vector: Vector
    start: Vector


def measure(task: Task, training: TrainingConfig, compute: Compute, rounds: int) -> Measured:
    context = NodeContext(node=0, nodes=1, name="node0", seed=0, base_dir=Path())
    learner = learner_for(task, context, training, compute=compute)
    if not isinstance(learner, TorchLearner):
        raise TypeError("the benchmark is of torch")
    start = vector = learner.initial()
    learner.train(RoundStart(start.copy()), 0)  # the first time, kernels are chosen and memory is allocated
    took = []
    for index in range(rounds):
        began = time.perf_counter()
        vector = learner.train(RoundStart(vector), index).vector
        took.append(time.perf_counter() - began)
    began = time.perf_counter()
    learner.evaluate(vector, "test")
    tested = time.perf_counter()
    learner.model.load_state_dict({name: torch.from_numpy(array) for name, array in learner.state_dict(vector).items()})
    return Measured(
        device=str(learner.device),
        step_s=min(took) / (training.local_steps or 1),
        test_s=tested - began,
        move_s=time.perf_counter() - tested,
        vector=vector,
        start=start,
    )


def print_devices(task: Task, training: TrainingConfig, rounds: int) -> None:
    print("| device | step (s) | test of 2,048 (s) | vector there and back (s) | away from the CPU |")
    print("|---|---|---|---|---|")
    found = [
        measure(task, training, Compute(device=str(device), precision=precision), rounds)
        for device in reversed(available_devices())
        for precision in ("float32", "bf16")
    ]
    plain = found[0]
    moved = float(np.linalg.norm(plain.vector - plain.start))
    for one in found:
        away = float(np.linalg.norm(one.vector - plain.vector)) / moved
        print(f"| {one.device} | {one.step_s:.4f} | {one.test_s:.3f} | {one.move_s:.3f} | {away:.2g} |")


def print_federation(task: Task, training: TrainingConfig, rounds: int) -> None:
    devices = [str(device) for device in reversed(available_devices())]
    names = [f"node{index}" for index in range(max(2, len(devices)))]
    report = Federation(
        task=task,
        nodes=names,
        topology="complete",
        rounds=rounds,
        local_steps=training.local_steps or 1,
        batch_size=training.batch_size,
        learning_rate=training.learning_rate,
        compressor="q8",
        max_wait_s=60.0,
        linger_s=60.0,
        device={name: devices[index % len(devices)] for index, name in enumerate(names)},
    ).run()
    print("\n| node | device | rounds | exchanges | accuracy |")
    print("|---|---|---|---|---|")
    for node in report.nodes:
        print(f"| {node.name} | {node.device} | {node.rounds} | {node.exchanges} | {node.accuracy or 0:.3f} |")
    print(f"\nconsensus distance {report.consensus_distance}, {report.wall_time_s:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=10_000_000)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    make = model_of(options.parameters)
    size = sum(parameter.numel() for parameter in make().parameters())
    kinds = {device.type for device in available_devices()}
    lacking = [words for kind, words in KINDS.items() if kind not in kinds]
    print(f"torch {torch.__version__}, {platform.machine()}, {torch.get_num_threads()} thread(s), {size:,} parameters")
    print(f"here: {', '.join(map(describe, available_devices()))}; not here: {', '.join(lacking) or 'nothing'}\n")
    task = Task(model=make, data=data, name="ten million")
    training = TrainingConfig(local_steps=options.steps, batch_size=options.batch_size, learning_rate=0.05)
    print_devices(task, training, options.rounds)
    print_federation(task, training, options.rounds)
    if len(available_devices()) == 1:
        print("There is one kind of device here: nothing was shown about a mixture of devices.")


if __name__ == "__main__":
    main()
