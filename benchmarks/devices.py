"""A model of ten million parameters on every device of this machine, and in one federation of all of them.

    python benchmarks/devices.py [--parameters 10000000] [--steps 10] [--rounds 3]

First table, by device and precision: the seconds for one step of a local round, for a test, and for moving the vector
to the model and back; and the distance between the final model and the one from the CPU in float32, relative to the
norm of the total update. Second table: what moves between host and device, in models. Third: a federation with a node
on each device, including the CPU, on the same task. The output names devices that this machine lacks.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from p2pfl import Federation, Task
from p2pfl.config.model import Compute, TrainingConfig
from p2pfl.learn.devices import available_devices, describe
from p2pfl.learn.interface import RoundStart, Vector
from p2pfl.learn.load import learner_for
from p2pfl.learn.methods import make_method
from p2pfl.learn.params import FlatModule
from p2pfl.learn.task import NodeContext
from p2pfl.learn.trainer import TorchLearner
from p2pfl.methods.method import overrides

FEATURES, CLASSES, ROWS = 256, 10, 2048
KINDS = {"cpu": "cpu", "cuda": "an NVIDIA or AMD GPU (cuda)", "mps": "Apple's GPU (mps)"}


def model_of(parameters: int) -> Callable[[], nn.Module]:
    """Make four layers; the two inner ones have nearly all of the parameters."""
    width = round((parameters / 2) ** 0.5)

    def model() -> nn.Module:
        inner = [nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)]
        return nn.Sequential(*inner, nn.ReLU(), nn.Linear(width, CLASSES))

    return model


def data(node: NodeContext) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Make classes separated by a random linear map; each node has its own rows, and all have the same test set."""
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
    learner.train(RoundStart(start.copy()), 0)  # in the first call kernels are chosen and memory is allocated
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


class Moves(TorchDispatchMode):
    """Counts the bytes that go to another device and come back. Nothing is copied from the device, which has no
    memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self.there = self.back = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        if name == "copy_" and args[0].device != args[1].device:
            return self._count(args[0], args[1].is_meta)
        if name == "_to_copy" and torch.device((kwargs or {}).get("device") or args[0].device) != args[0].device:
            return self._count(torch.empty_like(args[0], device=kwargs["device"]), args[0].is_meta)
        return function(*args, **(kwargs or {}))

    def _count(self, moved: torch.Tensor, is_back: bool) -> torch.Tensor:  # noqa: FBT001 - called in two places above
        self.there, self.back = self.there + moved.nbytes * (not is_back), self.back + moved.nbytes * is_back
        return moved


def print_moves(make: Callable[[], nn.Module]) -> None:
    """Print what moves between host and device: torch's device `meta` stands for one, and computes nothing."""
    flat = FlatModule(make().to("meta"), "moves")
    vector = np.zeros(flat.size, np.float32)
    parts = {"start of a round, or a test": lambda: flat.load(vector), "end of a round": flat.vector}
    for spec in ("plain", "variate", "prox"):
        method = make_method(spec, TrainingConfig())
        asked = ({"anchor": vector} if method.needs_anchor else {}) | dict.fromkeys(method.given, vector)
        asked = asked if overrides(method, "gradient") else {}
        parts[f"for the gradients of {spec}, at the start"] = partial(flat.parts, asked)
    print("\n| what | models to the device | models back |")
    print("|---|---|---|")
    for name, run in parts.items():
        with Moves() as moves:
            run()
        print(f"| {name} | {moves.there / vector.nbytes:g} | {moves.back / vector.nbytes:g} |")


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
    print_moves(make)
    print_federation(task, training, options.rounds)
    if len(available_devices()) == 1:
        print("There is one kind of device here: nothing was shown about a mixture of devices.")


if __name__ == "__main__":
    main()
