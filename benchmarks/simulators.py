"""The same gossip task in this simulator and in others: node-updates per CPU-second, memory, and accuracy.

The task: the digits' network of 2,410 parameters; each node has 14 images and trains one step of SGD on ten of them per
round. In each round each node also exchanges models with one neighbor in a random graph of degree 4:

    p2pfl      `simulate`, with float32 models over four random matchings in turn; nodes are asynchronous
    gossipy    a push to a random neighbor, which averages and trains (`MERGE_UPDATE`)
    flower     a message to each node with its own model, one actor; the ServerApp averages pairs, matching by matching
    blazefl    a local step of each client in its process pool (or thread pool, `blazefl-threads`), pairs as in flower

Flower and BlazeFL have no edges between clients, so their servers do what a gossip needs, in one operation on an array
for a whole matching. A node-update is one local step with the exchange before or after it.

Each other simulator runs in an interpreter of its own, which has it installed; those not given are skipped:
    python -m venv /tmp/gossipy && /tmp/gossipy/bin/pip install gossipy-dfl==0.0.1 torch==2.13.0
    python -m venv /tmp/flower && /tmp/flower/bin/pip install "flwr[simulation]==1.42.0" torch==2.13.0
    python3.12 -m venv /tmp/blazefl && /tmp/blazefl/bin/pip install blazefl==2.0.3 torch==2.13.0
(torchvision and other data sets' packages that gossipy imports may be missing.)

CPU is that of all processes of a simulator from the first round to the last, without imports and set-up; memory is the
largest sum of their proportional set sizes, sampled twice a second. A run ends after --rounds, or in the first round
after --limit seconds; then the figure is of the rounds it finished, and the column `rounds` shows how many. Accuracy is
the mean over at most 100 nodes' models.

Usage: python benchmarks/simulators.py --gossipy /tmp/gossipy/bin/python --flower /tmp/flower/bin/python ...
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.abc
import importlib.machinery
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np

SAMPLES, BATCH, RATE, MATCHINGS = 14, 10, 0.1, 4
SHAPES = ((32, 64), (32,), (10, 32), (10,))
TESTED = 100
STUBBED = ("torchvision",)
BEGIN, END = "begin", "end"
PAUSE_S = 0.5
SUBREAPER = 36
"""Linux's PR_SET_CHILD_SUBREAPER: processes whose parent has ended become ours, so that none is missed or left."""
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
HEADS = ("simulator", "nodes", "rounds", "updates", "updates/CPU-s", "memory MB", "accuracy", "")
COLUMNS = "{:16} {:>7} {:>7} {:>8} {:>14} {:>10} {:>9}  {}"


# --- one simulator, in its own interpreter ---------------------------------------------------------------------------


class Work:
    """The task, from the file that the driver wrote, and how long it may take."""

    def __init__(self, path: Path, rounds: int, limit_s: float) -> None:
        with np.load(path) as table:
            self.x, self.y, self.test_x, self.test_y = (table[name] for name in ("x", "y", "test_x", "test_y"))
            self.matchings = table["matchings"]
        self.nodes, self.rounds, self.limit_s = len(self.x), rounds, limit_s
        self.begun = 0.0

    def begin(self) -> None:
        """Tell the driver that set-up is over."""
        print(BEGIN, flush=True)
        sys.stdin.readline()
        self.begun = time.monotonic()

    def end(self, rounds: float, updates: int, models: Any) -> None:
        """Tell the driver what was done. `models` are (k, 2410)."""
        print(END, flush=True)
        sys.stdin.readline()
        shown = {"rounds": round(rounds, 2), "updates": updates, "accuracy": self.accuracy(np.asarray(models)[:TESTED])}
        print(json.dumps(shown), flush=True)

    @property
    def late(self) -> bool:
        return time.monotonic() - self.begun > self.limit_s

    def mixed(self, models: Any, round_number: int) -> Any:
        """Average the pairs of one matching, (n, 2410)."""
        mates = self.matchings[round_number % len(self.matchings)]
        return 0.5 * (models + models[mates])

    def accuracy(self, models: Any) -> float:
        right = []
        for model in models:
            first, first_bias, second, second_bias = unpacked(model)
            hidden = np.maximum(self.test_x @ first.T + first_bias, 0)
            right.append(((hidden @ second.T + second_bias).argmax(axis=1) == self.test_y).mean())
        return float(np.mean(right))


def unpacked(model: Any) -> list[Any]:
    """Return the four parameters of a vector (2410,)."""
    ends = np.cumsum([int(np.prod(shape)) for shape in SHAPES])[:-1]
    return [part.reshape(shape) for part, shape in zip(np.split(model, ends), SHAPES, strict=True)]


def network(model: Any = None) -> Any:
    from torch import from_numpy, nn  # noqa: PLC0415 - the driver needs no torch

    made = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    if model is not None:
        for parameter, value in zip(made.parameters(), unpacked(model), strict=True):
            parameter.data = from_numpy(value.copy())
    return made


def vector(made: Any) -> Any:
    return np.concatenate([parameter.detach().numpy().ravel() for parameter in made.parameters()])


def trained(model: Any, x: Any, y: Any) -> Any:
    """Do one step of SGD on BATCH random samples, from and to a vector (2410,)."""
    import torch  # noqa: PLC0415 - as above

    made = network(model)
    optimizer = torch.optim.SGD(made.parameters(), lr=RATE)
    chosen = torch.randperm(len(x))[:BATCH]
    torch.nn.functional.cross_entropy(made(torch.from_numpy(x)[chosen]), torch.from_numpy(y)[chosen]).backward()
    optimizer.step()
    return vector(made)


def first_models(nodes: int) -> Any:
    """Return the same model for all, (n, 2410)."""
    import torch  # noqa: PLC0415 - as above

    torch.manual_seed(0)
    torch.set_num_threads(1)
    return np.repeat(vector(network())[None], nodes, axis=0)


def run_p2pfl(work: Work) -> None:
    """Run `simulate`; its report has the CPU time of the run alone, and the accuracy of all nodes."""
    from dataclasses import replace  # noqa: PLC0415 - in this interpreter alone

    import torch  # noqa: PLC0415 - as above

    from sim import simulate  # noqa: PLC0415 - as above
    from sim.federations import describe  # noqa: PLC0415 - as above
    from sim.worlds.model import ComputeSpec, WorldSpec  # noqa: PLC0415 - as above

    torch.set_num_threads(1)
    federation = describe(
        nodes=work.nodes,
        rounds=work.rounds,
        topology=f"random-matchings:rounds={MATCHINGS}",
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
    )
    print(END, flush=True)
    sys.stdin.readline()
    cost = report.cost
    # Nodes train on until word has spread that all have done their rounds, so they do more than were asked for.
    rounds = round(cost.node_rounds / work.nodes, 1)
    shown = {"rounds": rounds, "updates": cost.node_rounds, "accuracy": report.accuracy.mean}
    print(json.dumps(shown | {"cpu_s": cost.run_cpu_s}), flush=True)


def run_gossipy(work: Work) -> None:
    sys.meta_path.insert(0, Stubs())
    import logging  # noqa: PLC0415 - as above

    import torch  # noqa: PLC0415 - as above
    from gossipy import (  # noqa: PLC0415 - as above
        LOG,
        set_seed,
        simul,
    )
    from gossipy.core import AntiEntropyProtocol, CreateModelMode, StaticP2PNetwork  # noqa: PLC0415 - as above
    from gossipy.model import TorchModel  # noqa: PLC0415 - as above
    from gossipy.model.handler import TorchModelHandler  # noqa: PLC0415 - as above
    from gossipy.node import GossipNode  # noqa: PLC0415 - as above

    LOG.setLevel(logging.ERROR)
    simul.track = lambda steps, **_: Steps(steps)  # its progress bar takes more time than a round of few nodes
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
        handler = TorchModelHandler(
            Net(),
            torch.optim.SGD,
            {"lr": RATE},
            torch.nn.CrossEntropyLoss(),
            local_epochs=0,
            batch_size=BATCH,
            create_model_mode=CreateModelMode.MERGE_UPDATE,
            copy_model=False,
        )
        data = torch.from_numpy(work.x[node]), torch.from_numpy(work.y[node])
        nodes[node] = GossipNode(node, (data, None), 10, handler, peers)
    simulator = simul.GossipSimulator(nodes, Dispatcher(), 10, AntiEntropyProtocol.PUSH)
    simulator.initialized = True
    work.begin()
    done = 0
    while done < work.rounds and not work.late:
        simulator.start(n_rounds=1)
        done += 1
    models = [vector(nodes[node].model_handler.model) for node in range(min(work.nodes, TESTED))]
    work.end(done, work.nodes * done, models)


class Steps(list[int]):
    """Time steps without a progress bar."""

    def close(self) -> None:
        pass


class Dispatcher:
    """Tells gossipy that there is nothing to evaluate after each round."""

    def has_test(self) -> bool:
        return False


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds stubs for modules that gossipy imports for data sets that are not used here."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG002 - import's
        known = fullname.partition(".")[0] in STUBBED
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if known else None

    def create_module(self, spec: Any) -> Any:  # noqa: ARG002 - import's
        return MagicMock(__path__=[], __spec__=None)

    def exec_module(self, module: Any) -> None:
        pass


def run_flower(work: Work) -> None:
    os.environ |= {"RAY_DEDUP_LOGS": "0", "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict  # noqa: PLC0415 - in this interpreter alone
    from flwr.clientapp import ClientApp  # noqa: PLC0415 - as above
    from flwr.serverapp import ServerApp  # noqa: PLC0415 - as above
    from flwr.simulation import run_simulation  # noqa: PLC0415 - as above

    client, server = ClientApp(), ServerApp()
    x, y = work.x, work.y

    @client.train()  # type: ignore[untyped-decorator]
    def train(message: Any, context: Any) -> Any:
        place = int(context.node_config["partition-id"])
        model = trained(message.content["arrays"].to_numpy_ndarrays()[0], x[place], y[place])
        answer = {"arrays": ArrayRecord([model]), "place": MetricRecord({"place": place})}
        return Message(content=RecordDict(answer), reply_to=message)

    @server.main()  # type: ignore[untyped-decorator]
    def gossip(grid: Any, context: Any) -> None:  # noqa: ARG001 - Flower's signature
        while len(members := list(grid.get_node_ids())) < work.nodes:
            time.sleep(0.1)
        models = first_models(work.nodes)
        places: dict[int, int] = {}

        def ask(asked: list[int]) -> int:
            messages = [
                Message(
                    content=RecordDict({"arrays": ArrayRecord([models[places.get(member, 0)]])}),
                    dst_node_id=member,
                    message_type="train",
                )
                for member in asked
            ]
            for reply in grid.send_and_receive(messages):
                place = int(reply.content["place"]["place"])
                places[reply.metadata.src_node_id] = place
                models[place] = reply.content["arrays"].to_numpy_ndarrays()[0]
            return len(messages)

        ask(members[:1])  # starts the actor
        work.begin()
        updates = done = 0
        while done < work.rounds and not work.late:
            for low in range(0, work.nodes, TESTED):
                updates += ask(members[low : low + TESTED])
                if work.late:
                    break
            models = work.mixed(models, done)
            done += 1
        work.end(updates / work.nodes, updates, models)

    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=work.nodes,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0}, "init_args": {"num_cpus": 1}},
    )


def run_blazefl(work: Work, *, threads: bool = False) -> None:
    import threading  # noqa: PLC0415 - in this interpreter alone

    import torch  # noqa: PLC0415 - as above
    from blazefl.core import IPCMode, ProcessPoolClientTrainer, ThreadPoolClientTrainer  # noqa: PLC0415 - as above

    models = first_models(work.nodes)

    class Pool(ThreadPoolClientTrainer if threads else ProcessPoolClientTrainer):  # type: ignore[misc]
        def __init__(self) -> None:
            self.num_parallels, self.device, self.device_count, self.cache = 1, "cpu", 0, []
            self.stop_event: Any = threading.Event() if threads else torch.multiprocessing.Manager().Event()
            self.ipc_mode = IPCMode.SHARED_MEMORY

        def get_client_config(self, cid: int) -> Any:
            return torch.from_numpy(work.x[cid]), torch.from_numpy(work.y[cid]), cid

        def prepare_uplink_package_buffer(self) -> Any:
            return [torch.zeros(models.shape[1])]

        worker = staticmethod(in_a_process) if not threads else in_a_thread(work)

    pool = Pool()
    work.begin()
    updates = done = 0
    while done < work.rounds and not work.late:
        pool.cache.clear()
        pool.local_process([torch.from_numpy(models)], list(range(work.nodes)))
        models = work.mixed(np.stack([package[0].numpy() for package in pool.cache]), done)
        updates += work.nodes
        done += 1
    work.end(done, updates, models)


def in_a_process(config: Any, payload: Any, device: str, stop_event: Any, *, shm_buffer: Any = None) -> Any:  # noqa: ARG001 - BlazeFL's
    """Train a client in BlazeFL's pool of processes, and return its model in shared memory."""
    from blazefl.core.utils import process_tensors_in_object  # noqa: PLC0415 - in its interpreter alone

    x, y, place = config
    shm_buffer[0].copy_(_tensor(trained(payload[0][place].numpy(), x.numpy(), y.numpy())))
    return process_tensors_in_object(shm_buffer, mode="replace")


def in_a_thread(work: Work) -> Callable[..., Any]:
    def worker(self: Any, cid: int, device: str, payload: Any, stop_event: Any) -> Any:  # noqa: ARG001 - BlazeFL's
        return [_tensor(trained(payload[0][cid].numpy(), work.x[cid], work.y[cid]))]

    return worker


def _tensor(array: Any) -> Any:
    from torch import from_numpy  # noqa: PLC0415 - as above

    return from_numpy(array)


SIMULATORS: dict[str, Callable[[Work], None]] = {
    "p2pfl": run_p2pfl,
    "gossipy": run_gossipy,
    "flower": run_flower,
    "blazefl": run_blazefl,
    "blazefl-threads": lambda work: run_blazefl(work, threads=True),
}


# --- the driver ------------------------------------------------------------------------------------------------------


def write_task(path: Path, nodes: int, seed: int = 0) -> None:
    """Draw 14 images for each node and four random matchings: the same for all but p2pfl, which draws its own alike."""
    from p2pfl.learn.digits import load_digits  # noqa: PLC0415 - the others' interpreters have none of it

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


def descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(folder.name))
    found, rest = [], list(children.get(root, ()))
    while rest:
        found.append(process := rest.pop())
        rest += children.get(process, ())
    return found


def cpu_s(processes: list[int]) -> float:
    """Return the CPU time of these processes and of their children that have ended."""
    total = 0
    for process in processes:
        with contextlib.suppress(OSError):
            total += sum(map(int, Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return total * TICK_S


def memory_mb(processes: list[int]) -> float:
    total = 0
    for process in processes:
        with contextlib.suppress(OSError, StopIteration):
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            total += int(next(line for line in lines if line.startswith("Pss:")).split()[1])
    return total / 1000


def measure(name: str, python: str, nodes: int, rounds: int, limit_s: float) -> dict[str, Any]:
    """Run one simulator and return its figures; or why there are none."""
    with tempfile.TemporaryDirectory() as folder:
        task, said = Path(folder) / "task.npz", Path(folder) / "said"
        write_task(task, nodes)
        command = [python, __file__, "--one", name, str(task), str(rounds), str(limit_s)]
        one = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        with (
            said.open("w") as errors,
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=os.environ | one
            ) as child,
        ):
            try:
                row = watched(child, limit_s)
            finally:
                end_all(os.getpid())
        if "accuracy" not in row:
            row.setdefault("why", (said.read_text().strip().splitlines() or ["no output"])[-1][-80:])
    return {"simulator": name, "nodes": nodes} | row


def watched(child: subprocess.Popen[str], limit_s: float) -> dict[str, Any]:
    if child.stdout is None or child.stdin is None:
        raise ValueError("the simulator was started without pipes")
    os.set_blocking(child.stdout.fileno(), False)
    marks: dict[str, float] = {}
    most, row, deadline = 0.0, {}, time.monotonic() + 4 * limit_s + 120
    while "accuracy" not in row:
        processes = descendants(os.getpid())
        most = max(most, memory_mb(processes))
        for line in iter(child.stdout.readline, ""):
            if line.strip() in {BEGIN, END}:
                marks[line.strip()] = cpu_s(descendants(os.getpid()))
                child.stdin.write("\n")
                child.stdin.flush()
            elif line.startswith("{"):
                row = json.loads(line)
        if time.monotonic() > deadline:
            return {"why": f"not through after {4 * limit_s + 120:.0f} s", "memory_mb": most}
        if child.poll() is not None and "accuracy" not in row:
            return {"memory_mb": most}
        time.sleep(PAUSE_S)
    spent = row.pop("cpu_s", marks[END] - marks[BEGIN])
    return row | {"cpu_s": spent, "updates_per_cpu_s": row["updates"] / max(spent, TICK_S), "memory_mb": most}


def end_all(root: int) -> None:
    """End every process that a simulator has started."""
    for process in descendants(root):
        with contextlib.suppress(OSError):
            os.kill(process, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def cells(row: dict[str, Any]) -> Iterator[str]:
    yield row["simulator"]
    yield str(row["nodes"])
    if "accuracy" not in row:
        yield from ("-", "-", "-", f"{row.get('memory_mb', 0):.0f}", "-", row["why"])
        return
    yield f"{row['rounds']:g}"
    yield str(row["updates"])
    yield f"{row['updates_per_cpu_s']:.0f}"
    yield f"{row['memory_mb']:.0f}"
    yield f"{row['accuracy']:.3f}"
    yield "cut" if row["rounds"] < row["asked"] else ""


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        name, task, rounds, limit_s = sys.argv[2:]
        SIMULATORS[name](Work(Path(task), int(rounds), float(limit_s)))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="100,1000,10000", help="comma-separated")
    parser.add_argument("--rounds", default="100,50,10", help="for each number of nodes")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for a run, after its set-up")
    parser.add_argument("--repeats", type=int, default=1, help="all simulators in turn, so often")
    parser.add_argument("--only", nargs="+", choices=SIMULATORS, default=list(SIMULATORS), metavar="SIMULATOR")
    for name in ("gossipy", "flower", "blazefl"):
        parser.add_argument(f"--{name}", metavar="PYTHON", help=f"an interpreter that has {name}")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    arguments = parser.parse_args()
    pythons = {
        name: sys.executable if name == "p2pfl" else vars(arguments)[name.partition("-")[0]] for name in arguments.only
    }
    for name, python in pythons.items():
        if not python:
            print(f"{name}: skipped, for --{name.partition('-')[0]} PYTHON was not given")
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a simulator's processes are ended, too
    print(COLUMNS.format(*HEADS))
    rows = []
    sizes = list(zip(arguments.nodes.split(","), arguments.rounds.split(","), strict=True))
    for _ in range(arguments.repeats):
        for nodes, rounds in sizes:
            for name, python in pythons.items():
                if python:
                    row = measure(name, python, int(nodes), int(rounds), arguments.limit) | {"asked": int(rounds)}
                    rows.append(row)
                    print(COLUMNS.format(*cells(row)), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
