"""The same gossip task in this simulator and in others: node-updates per CPU-second, memory, and accuracy.

The task: the digits' network of 2,410 parameters; each node has 14 images and trains one step of SGD on ten of them per
round, then exchanges float32 models in a random graph of degree 4:

    p2pfl            the exact simulator: one neighbor a round, by four random matchings in turn; nodes are asynchronous
    p2pfl-in-step    its arrays in step: each round an exchange with all four neighbors, on `--device`
    p2pfl-apart      its arrays, each node at its own pace: some 1.5 exchanges with each of the four a round
    gossipy          a push to a random neighbor, which averages and trains (`MERGE_UPDATE`)
    blazefl          a local step of each client in its thread pool, then pairs are averaged by the matchings

BlazeFL has no edges between clients, so its server does what a gossip needs, in one operation on an array for a whole
matching. A node-update is one local step with the exchanges before or after it. How soon simulators of eight nodes
reach an accuracy is measured in rivals/.

Each other simulator runs in an interpreter of its own, which has it installed; those not given are skipped:
    python -m venv /tmp/gossipy && /tmp/gossipy/bin/pip install gossipy-dfl==0.0.1 torch==2.13.0
    python3.12 -m venv /tmp/blazefl && /tmp/blazefl/bin/pip install blazefl==2.0.3 torch==2.13.0
(torchvision and other data sets' packages that gossipy imports may be missing.)

CPU is that of a simulator's process from the first round to the last, without imports and set-up; memory is its largest
proportional set size, sampled twice a second. A run ends after --rounds, or in the first round after --limit seconds;
then the figure is of the rounds it finished, and the column `rounds` shows how many. Those of p2pfl have no limit.
Accuracy is the mean over at most 100 nodes' models.

Usage: python benchmarks/simulators.py --gossipy /tmp/gossipy/bin/python --blazefl /tmp/blazefl/bin/python ...
Five minutes on a GPU: python benchmarks/simulators.py --device cuda --only p2pfl-in-step p2pfl-apart
(the column `updates/s` counts there, as a processor that waits for a GPU is busy)
"""

# ruff: noqa: PLC0415 - each simulator is imported in its own interpreter alone

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np

with contextlib.suppress(ImportError):
    import psutil  # of the driver alone

SAMPLES, BATCH, RATE, MATCHINGS = 14, 10, 0.1, 4
TESTED = 100
STUBBED = ("torchvision", "torchvision.datasets", "torchvision.transforms")
BEGIN, END = "begin", "end"
PAUSE_S = 0.5
HEADS = ("simulator", "nodes", "rounds", "updates/CPU-s", "updates/s", "memory MB", "accuracy", "")
COLUMNS = "{:14} {:>7} {:>7} {:>14} {:>10} {:>10} {:>9}  {}"


# --- one simulator, in its own interpreter ---------------------------------------------------------------------------


class Work:
    """The task, from the file that the driver wrote, and how long it may take."""

    def __init__(self, path: Path, nodes: int, rounds: int, limit_s: float, device: str | None) -> None:
        self.table = np.load(path)
        self.nodes, self.rounds, self.limit_s, self.device = nodes, rounds, limit_s, device
        self.begun = 0.0

    def __getattr__(self, name: str) -> Any:
        """Read an array of the task when it is first used: p2pfl has its own, and none of these."""
        setattr(self, name, self.table[name])
        return self.__dict__[name]

    def begin(self) -> None:
        """Tell the driver that set-up is over."""
        print(BEGIN, flush=True)
        sys.stdin.readline()
        self.begun = time.monotonic()

    def end(self, rounds: float, updates: int, models: Any = None, **known: float) -> None:
        """Tell the driver what was done. `models` are (k, 2410); without them the accuracy is known."""
        print(END, flush=True)
        sys.stdin.readline()
        shown = {"rounds": round(rounds, 2), "updates": updates} | known
        if models is not None:
            shown["accuracy"] = self.accuracy(np.asarray(models)[:TESTED])
        print(json.dumps(shown), flush=True)

    @property
    def late(self) -> bool:
        return time.monotonic() - self.begun > self.limit_s

    def mixed(self, models: Any, round_number: int) -> Any:
        """Average the pairs of one matching, (n, 2410)."""
        mates = self.matchings[round_number % len(self.matchings)]
        return 0.5 * (models + models[mates])

    def accuracy(self, models: Any) -> float:
        from torch import from_numpy

        outputs = [network(model)(from_numpy(self.test_x)).argmax(dim=1).numpy() for model in models]
        return float(np.mean([(guess == self.test_y).mean() for guess in outputs]))


def network(model: Any = None) -> Any:
    """Return the module, with the parameters of a vector (2410,)."""
    from torch import from_numpy, nn

    made = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    if model is not None:
        nn.utils.vector_to_parameters(from_numpy(model.copy()), made.parameters())
    return made


def vector(made: Any) -> Any:
    return np.concatenate([parameter.detach().numpy().ravel() for parameter in made.parameters()])


def trained(model: Any, x: Any, y: Any) -> Any:
    """Do one step of SGD on BATCH random samples, from and to a vector (2410,)."""
    import torch

    made = network(model)
    optimizer = torch.optim.SGD(made.parameters(), lr=RATE)
    chosen = torch.randperm(len(x))[:BATCH]
    torch.nn.functional.cross_entropy(made(torch.from_numpy(x)[chosen]), torch.from_numpy(y)[chosen]).backward()
    optimizer.step()
    return vector(made)


def first_models(nodes: int) -> Any:
    """Return the same model for all, (n, 2410)."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    return np.repeat(vector(network())[None], nodes, axis=0)


def run_p2pfl(work: Work, *, clock: str | None = None) -> None:
    """Run `simulate`; its report has the CPU time of the run alone, and the accuracy of all nodes."""
    from dataclasses import replace

    import torch

    from sim import simulate
    from sim.federations import describe
    from sim.worlds.model import ComputeSpec, WorldSpec

    torch.set_num_threads(1)
    federation = describe(
        nodes=work.nodes,
        rounds=work.rounds,
        topology="random-regular:degree=4" if clock else f"random-matchings:rounds={MATCHINGS}",
        compressor="none",
        method="plain",
        partition=f"draw:{SAMPLES}",
    )
    changes = {"local_steps": 1, "closing_rounds": 0, "batch_size": BATCH, "learning_rate": RATE}
    work.begin()
    report = simulate(
        replace(federation, training=replace(federation.training, **changes)),
        world=WorldSpec(compute=ComputeSpec(jitter=0.0), evaluate_every_s=3600.0),
        references=False,
        **({"arrays": True, "clock": clock, "device": work.device} if clock else {}),
    )
    cost = report.cost
    # Nodes train on until word has spread that all have done their rounds, so they do more than were asked for.
    rounds = round(cost.node_rounds / work.nodes, 1)
    work.end(rounds, cost.node_rounds, accuracy=report.accuracy.mean, cpu_s=cost.run_cpu_s)


def run_gossipy(work: Work) -> None:
    sys.modules |= {name: MagicMock() for name in STUBBED}
    import logging

    import torch
    from gossipy import LOG, set_seed, simul
    from gossipy.core import AntiEntropyProtocol, CreateModelMode, StaticP2PNetwork
    from gossipy.model import TorchModel
    from gossipy.model.handler import TorchModelHandler
    from gossipy.node import GossipNode

    LOG.setLevel(logging.ERROR)
    # its progress bar takes more time than a round of few nodes
    simul.track = lambda steps, **_: type("Steps", (list,), {"close": lambda _: None})(steps)
    start = first_models(1)[0]
    set_seed(0)

    class Net(TorchModel):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = network(start)

        def init_weights(self) -> None:
            pass

        def forward(self, x: Any) -> Any:
            return self.model(x)

    edges = np.zeros((work.nodes, work.nodes), dtype=np.int8) if work.nodes <= 1000 else None
    peers = StaticP2PNetwork(work.nodes, edges)
    peers._topology = {node: sorted({int(m[node]) for m in work.matchings}) for node in range(work.nodes)}  # noqa: SLF001 - without a dense matrix
    nodes = {}
    for node in range(work.nodes):
        how = {"local_epochs": 0, "batch_size": BATCH, "copy_model": False}
        how["create_model_mode"] = CreateModelMode.MERGE_UPDATE
        handler = TorchModelHandler(Net(), torch.optim.SGD, {"lr": RATE}, torch.nn.CrossEntropyLoss(), **how)
        data = torch.from_numpy(work.x[node]), torch.from_numpy(work.y[node])
        nodes[node] = GossipNode(node, (data, None), 10, handler, peers)
    simulator = simul.GossipSimulator(nodes, SimpleNamespace(has_test=lambda: False), 10, AntiEntropyProtocol.PUSH)
    simulator.initialized = True
    work.begin()
    done = 0
    while done < work.rounds and not work.late:
        simulator.start(n_rounds=1)
        done += 1
    models = [vector(nodes[node].model_handler.model) for node in range(min(work.nodes, TESTED))]
    work.end(done, work.nodes * done, models)


def run_blazefl(work: Work) -> None:
    import threading

    from blazefl.core import ThreadPoolClientTrainer
    from torch import from_numpy

    models = first_models(work.nodes)

    class Pool(ThreadPoolClientTrainer):  # type: ignore[misc]
        def __init__(self) -> None:
            self.num_parallels, self.device, self.device_count, self.cache = 1, "cpu", 0, []
            self.stop_event = threading.Event()

        def get_client_config(self, cid: int) -> Any:
            return cid

        def worker(self, cid: int, device: str, payload: Any, stop_event: Any) -> Any:  # noqa: ARG002 - BlazeFL's
            return [from_numpy(trained(payload[0][cid].numpy(), work.x[cid], work.y[cid]))]

    pool = Pool()
    work.begin()
    done = 0
    while done < work.rounds and not work.late:
        pool.cache.clear()
        pool.local_process([from_numpy(models)], list(range(work.nodes)))
        models = work.mixed(np.stack([package[0].numpy() for package in pool.cache]), done)
        done += 1
    work.end(done, work.nodes * done, models)


SIMULATORS: dict[str, Callable[[Work], None]] = {
    "p2pfl": run_p2pfl,
    "p2pfl-in-step": partial(run_p2pfl, clock="in-step"),
    "p2pfl-apart": partial(run_p2pfl, clock="apart"),
    "gossipy": run_gossipy,
    "blazefl": run_blazefl,
}


# --- the driver ------------------------------------------------------------------------------------------------------


def write_task(path: Path, nodes: int, seed: int = 0) -> None:
    """Draw 14 images for each node and four random matchings: the same for all but p2pfl, which draws its own alike."""
    from p2pfl.learn.digits import load_digits

    (x, y), (test_x, test_y) = load_digits()
    chance = np.random.default_rng(seed)
    rows = np.stack([chance.choice(len(x), SAMPLES, replace=False) for _ in range(nodes)])
    matchings = np.empty((MATCHINGS, nodes), dtype=np.int64)
    for matching in matchings:
        order = chance.permutation(nodes)
        matching[:] = np.arange(nodes)
        half = nodes // 2
        matching[order[:half]], matching[order[half : 2 * half]] = order[half : 2 * half], order[:half]
    np.savez(path, x=x.numpy()[rows], y=y.numpy()[rows], test_x=test_x, test_y=test_y, matchings=matchings)


def measure(name: str, python: str, task: Path, size: tuple[str, str], asked: argparse.Namespace) -> dict[str, Any]:
    """Run one simulator for nodes and rounds in `size`, and return its figures; or why there are none."""
    with tempfile.TemporaryDirectory() as folder:
        said, limit_s = Path(folder) / "said", asked.limit
        command = [python, __file__, "--one", name, str(task), *size, str(limit_s), asked.device or ""]
        alone = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        how: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with said.open("w") as errors, subprocess.Popen(command, stderr=errors, env=os.environ | alone, **how) as child:
            try:
                row = watched(child, limit_s)
            finally:
                child.kill()
        if "accuracy" not in row:
            row.setdefault("why", (said.read_text().strip().splitlines() or ["no output"])[-1][-80:])
    return {"simulator": name, "nodes": int(size[0]), "asked": int(size[1])} | row


def watched(child: subprocess.Popen[str], limit_s: float) -> dict[str, Any]:
    if child.stdout is None or child.stdin is None:
        raise ValueError("the simulator was started without pipes")
    os.set_blocking(child.stdout.fileno(), False)
    marks: dict[str, tuple[float, float]] = {}
    process = psutil.Process(child.pid)
    most, row, deadline = 0.0, {}, time.monotonic() + 4 * limit_s + 120
    while "accuracy" not in row:
        with contextlib.suppress(psutil.Error):  # it may have ended
            most = max(most, process.memory_full_info().pss / 1e6)
        for line in iter(child.stdout.readline, ""):
            if line.strip() in {BEGIN, END}:
                marks[line.strip()] = sum(process.cpu_times()[:4]), time.monotonic()
                child.stdin.write("\n")
                child.stdin.flush()
            elif line.startswith("{"):
                row = json.loads(line)
        if time.monotonic() > deadline:
            return {"why": f"not through after {4 * limit_s + 120:.0f} s", "memory_mb": most}
        if child.poll() is not None and "accuracy" not in row:
            return {"memory_mb": most}
        time.sleep(PAUSE_S)
    cpu, wall_s = (end - begin for begin, end in zip(marks[BEGIN], marks[END], strict=True))
    spent = max(row.pop("cpu_s", cpu), 0.01)
    rates = {"updates_per_cpu_s": row["updates"] / spent, "updates_per_s": row["updates"] / wall_s}
    return row | rates | {"cpu_s": spent, "wall_s": wall_s, "memory_mb": most}


def cells(row: dict[str, Any]) -> list[str]:
    first, memory = [row["simulator"], f"{row['nodes']:,}"], f"{row.get('memory_mb', 0):,.0f}"
    if "accuracy" not in row:
        return [*first, "-", "-", "-", memory, "-", row["why"]]
    rates = (f"{row[name]:,.0f}" for name in ("updates_per_cpu_s", "updates_per_s"))
    cut = "cut" if row["rounds"] < row["asked"] else ""
    return [*first, f"{row['rounds']:g}", *rates, memory, f"{row['accuracy']:.3f}", cut]


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        name, task, nodes, rounds, limit_s, device = sys.argv[2:]
        SIMULATORS[name](Work(Path(task), int(nodes), int(rounds), float(limit_s), device or None))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="100,1000,10000,100000", help="comma-separated")
    parser.add_argument("--rounds", default="100,50,10,5", help="for each number of nodes")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for a run, after its set-up")
    parser.add_argument("--repeats", type=int, default=1, help="all simulators in turn, so often")
    parser.add_argument("--only", nargs="+", choices=SIMULATORS, default=list(SIMULATORS), metavar="SIMULATOR")
    for name in ("gossipy", "blazefl"):
        parser.add_argument(f"--{name}", metavar="PYTHON", help=f"an interpreter that has {name}")
    parser.add_argument("--device", help="of the arrays, as cuda")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    arguments = parser.parse_args()
    pythons = {name: sys.executable if name.startswith("p2pfl") else vars(arguments)[name] for name in arguments.only}
    for name, python in pythons.items():
        if not python:
            print(f"{name}: skipped, for --{name} PYTHON was not given")
    print(COLUMNS.format(*HEADS))
    rows = []
    for _ in range(arguments.repeats):
        for size in zip(arguments.nodes.split(","), arguments.rounds.split(","), strict=True):
            with tempfile.TemporaryDirectory() as folder:
                task = Path(folder) / "task.npz"
                write_task(task, int(size[0]))
                for name, python in pythons.items():
                    if python:
                        rows.append(measure(name, python, task, size, arguments))
                        print(COLUMNS.format(*cells(rows[-1])), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
