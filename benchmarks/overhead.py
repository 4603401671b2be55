"""The cost of gossip to a node: CPU-seconds of a real run compared with the bare torch loop that takes the same steps.

Each process is a neighbor of every other, by default three in all; rounds of at least a second of training, by default
with the usual compressor, method and durability. Bare loops and federations alternate, so that a machine whose speed
drifts is fair to both. The last run of each is probed, on no more nodes than there are processors, because otherwise
the figures would measure the system's scheduler: a task on the event loop sleeps for a few milliseconds and records how
late it is woken, minus the time that the loop's thread waited for a processor. Bare loops train in a thread next to
such an event loop, as many at once as there are nodes. On a machine with other work, a negative --nice (as root) keeps
that work from interfering; what the host of a virtual machine takes is counted. Memory is a process's peak beyond what
it uses with everything imported, in multiples of the model (float32), beside the plan that `p2pfl check` makes. Prints
a table, and JSON with --json FILE.

With --start, checkouts of p2pfl take turns: seconds until the first line of a node of `demo` and of `launch`, CPU-
seconds of `check`, and of the whole `demo` CPU-seconds, seconds and megabytes sent; medians of --repeats. With --trees
they take turns in what is measured otherwise. `chrt -r 1` before the command (as root) keeps other work from
interfering.

Usage: python benchmarks/overhead.py [--parameters 10k,1M,25M] [--rounds 5] [--repeats 5] [--start BEFORE,AFTER]
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import os
import re
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PROBED = max(2, min(3, os.cpu_count() or 1))
SUFFIXES = {"k": 1_000, "M": 1_000_000}
ASLEEP_S = 0.002
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
PAGE_BYTES = resource.getpagesize()
ADOPT_ORPHANS = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2): the server from which nodes are forked outlives its launcher for a moment."""

TASK = """
import torch
from p2pfl import Task

def data(node):
    generator = torch.Generator().manual_seed(node.node)
    inputs = torch.randn(4096, 784, generator=generator)
    return (inputs, inputs[:, :10].argmax(1)), None

def model():
    return torch.nn.Sequential(torch.nn.Linear(784, {hidden}), torch.nn.ReLU(), torch.nn.Linear({hidden}, 10))

task = Task(model=model, data=data)
"""

FIRST = """
import os, sys, time
from_file = os.read
def read(file, most):
    if (content := from_file(file, most)).startswith(b'{"'):
        print("first", time.time(), flush=True)
    return content
os.read = read
from p2pfl.cli.main import main
main(sys.argv[1:])
"""

Figures = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", default="10k,1M,25M", help="of a perceptron with one hidden layer, about")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3, help="one is enough above ten million parameters")
    parser.add_argument("--round-s", type=float, default=1.5, help="least seconds of bare training in a round")
    parser.add_argument("--compressor", help="in place of the default; such as fragment:8+bf16")
    parser.add_argument("--method", help="in place of the default; such as plain")
    parser.add_argument("--neighbors", type=int, default=2, help="of each node")
    parser.add_argument("--nice", type=int, default=0, help="of the probed runs")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--start", type=lambda text: text.split(","), default=[], help="checkouts to compare")
    parser.add_argument("--trees", type=lambda text: text.split(","), default=[], help="checkouts to compare otherwise")
    options = parser.parse_args()
    if options.start or options.trees:
        trees, repeats = options.start or options.trees, options.repeats
        options.repeats = 1
        measure = beginnings if options.start else lambda tree: of_tree(tree, options)
        runs = [(tree, measure(tree)) for tree in trees * repeats]
        medians = [
            {key: statistics.median(run[key] for name, run in runs if name == tree) for key in runs[0][1]}
            for tree in trees
        ]
        for key in medians[0]:
            print(f"{key:40} " + " ".join(f"{figures[key]:>12.4g}" for figures in medians))
        return
    reports = [measured(text, options) for text in options.parameters.split(",")]
    for key in reports[0]:
        print(f"{key:32} " + " ".join(f"{report[key]:>12.4g}" for report in reports))
    if options.json:
        options.json.write_text(json.dumps(reports, indent=1))


def measured(text: str, options: argparse.Namespace) -> Figures:
    """Return the medians over nodes and repeats for one model size."""
    size = int(text.rstrip("kM")) * SUFFIXES.get(text[-1], 1)
    repeats = 1 if size > 10_000_000 else options.repeats
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "task.py").write_text(TASK.format(hidden=max(1, round((size - 10) / 795))))
        few = max(3, min(500, 20_000_000 // size))
        trial = bare(folder, options.batch, few)[0]
        steps = max(1, int(few * options.round_s / trial["cpu_s"]))
        runs = []
        for _ in range(repeats):
            alone = bare(folder, options.batch, steps * options.rounds)[0]
            runs += [compare(alone, node, options) for node in federation(folder, options, steps)]
        probed = federation(folder, options, steps, probe=[str(options.nice)])
        beside = bare(folder, options.batch, steps * options.rounds, probe=[str(options.nice)])
    figures = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    for name, some in (("loop", probed), ("bare_loop", beside)):  # the worst of the nodes
        figures |= {f"{name}_{key}": max(node[key] for node in some) for key in probed[0] if key.startswith("late_")}
    taken = steps * options.rounds
    figures |= {f"{who}_us_per_step": 1e6 * figures[f"{who}_cpu_s"] / taken for who in ("bare", "training")}
    return {"parameters": trial["parameters"], "local_steps": steps, "rounds": options.rounds} | figures


def of_tree(tree: str, options: argparse.Namespace) -> Figures:
    """Return the figures of the first of the sizes, measured with this checkout."""
    os.environ["PYTHONPATH"] = str(Path(tree).absolute())
    return measured(options.parameters.split(",")[0], options)


def beginnings(tree: str) -> Figures:
    """Return the figures of --start with this checkout."""
    ctypes.CDLL(None).prctl(ADOPT_ORPHANS, 1, 0, 0, 0)
    environment = os.environ | ONE_THREAD | {"PYTHONPATH": str(Path(tree).absolute())}
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as place:
        for what, *words in (
            ["demo_first_s", "demo", "--nodes", "3", "--rounds", "2"],
            ["launch_first_s", "launch", "p2pfl-demo"],
            ["check_cpu_s", "check", "p2pfl-demo"],
            ["demo", "demo", "--dir", "whole"],
        ):
            began, before, command = time.time(), os.times(), [sys.executable, "-c", FIRST, *words]
            done = subprocess.run(command, check=True, capture_output=True, cwd=place, env=environment, text=True)
            ended = time.time()
            with suppress(ChildProcessError):
                while True:
                    os.wait()
            cpu_s, first = sum(os.times()[2:4]) - sum(before[2:4]), re.search(r"(?m)^first (.*)$", done.stdout)
            if what == "demo":
                nodes = json.loads((Path(place) / "whole" / "report.json").read_text())["nodes"]
                sent = sum(node["bytes_sent"] for node in nodes) / 1e6
                figures |= {"demo_cpu_s": cpu_s, "demo_s": ended - began, "demo_mb_sent": sent}
            else:
                figures[what] = float(first[1]) - began if first else cpu_s
    return figures


# -- runs, each in processes of its own -------------------------------------------------------------------------------


def bare(folder: str, batch: int, steps: int, *, probe: Sequence[str] = ()) -> list[Figures]:
    """Run the plain loop; with `probe`, which sets the niceness, as many at once as there are nodes."""
    arguments = ["--bare", folder, str(batch), str(steps), *probe]
    return together([arguments] * (PROBED if probe else 1))


def federation(folder: str, options: argparse.Namespace, steps: int, *, probe: Sequence[str] = ()) -> list[Figures]:
    """Run a fresh federation with this task; return the nodes' results, and what `check` says they take, in bytes."""
    nodes = PROBED if probe else options.neighbors + 1
    with tempfile.TemporaryDirectory() as place:
        ward = Path(place) / "ward"
        command = [sys.executable, "-m", "p2pfl.cli.main", "new", str(ward), "--base-port", str(free_base_port())]
        command += ["--nodes", str(nodes), "--topology", "complete"]
        subprocess.run(command, check=True, capture_output=True)
        (ward / "task.py").write_text((Path(folder) / "task.py").read_text())
        file = ward / "federation.toml"
        text = file.read_text()
        keys = {"rounds": options.rounds, "local_steps": steps, "batch_size": options.batch}
        keys |= {"learning_rate": 0.01, "evaluate_every": 0}
        keys |= {key: f'"{value}"' for key in ("compressor", "method") if (value := getattr(options, key))}
        for key, value in keys.items():
            text, found = re.subn(rf"(?m)^(# )?{key} = .*$", f"{key} = {value}", text)
            if found != 1:
                raise SystemExit(f"{file} has no {key}, or several")
        file.write_text(text)
        checked = [sys.executable, "-m", "p2pfl.cli.main", "check", str(ward), "--format", "json"]
        memory = json.loads(subprocess.run(checked, check=True, capture_output=True).stdout)["memory"]["node0"]
        plan = {"planned_bytes": sum(memory.values()) - memory.get("program", 0)}
        return [node | plan for node in together([["--node", str(ward), f"node{i}", *probe] for i in range(nodes)])]


def together(arguments: list[list[str]]) -> list[Figures]:
    """Run this file once with each of the arguments, all at the same time; each prints its figures on its last line."""
    command, environment = [sys.executable, __file__], os.environ | ONE_THREAD
    started = [subprocess.Popen([*command, *a], stdout=subprocess.PIPE, env=environment, text=True) for a in arguments]
    said = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit("a run failed")
    return [json.loads(text.splitlines()[-1]) for text in said]


def free_base_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return 15_000 + int(taken.getsockname()[1]) % 15_000


def compare(alone: Figures, node: Figures, options: argparse.Namespace) -> Figures:
    """Compare one node with the bare loop; everything except training is gossip: exchanges, disk, sockets, the loop.

    A short run makes most of its exchanges after the last round of training, when the nodes converge; so the cost of a
    round is counted as one exchange per neighbor.
    """
    model_bytes = 4 * alone["parameters"]
    running, training, exchanges = node["cpu_time_running_s"], node["cpu_time_training_s"], node["exchanges"]
    gossip = running - training
    return {
        "bare_cpu_s": alone["cpu_s"],
        "node_cpu_s": running,
        "training_cpu_s": training,
        "node_over_bare": running / alone["cpu_s"],
        "training_over_bare": training / alone["cpu_s"],
        "gossip_cpu_s": gossip,
        "gossip_over_training": gossip / training,
        "gossip_over_training_in_a_round": options.neighbors * gossip / exchanges / (training / options.rounds),
        "exchanges": exchanges,
        "cpu_ms_per_exchange": 1e3 * gossip / exchanges,
        "cpu_ms_per_mb_sent": 1e3 * gossip / (node["bytes_sent"] / 1e6),
        "bare_peak_models": alone["peak_bytes"] / model_bytes,
        "node_peak_models": node["peak_bytes"] / model_bytes,
        "planned_models": node["planned_bytes"] / model_bytes,
    }


# -- inside such a process --------------------------------------------------------------------------------------------


def run_bare(folder: str, batch: int, steps: int, *, probe: bool) -> Figures:
    import torch  # noqa: PLC0415 - the memory used before is the baseline

    torch.set_num_threads(1)
    sys.path.insert(0, folder)
    import task  # noqa: PLC0415 - the file just written

    before = resident_bytes()
    (inputs, targets), _ = task.data(SimpleNamespace(node=0))
    model, loss_of = task.model(), torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows = torch.randperm(len(inputs))

    def take(count: int) -> None:
        for step in range(count):
            batch_rows = rows[step * batch % len(rows) :][:batch]
            optimizer.zero_grad()
            loss_of(model(inputs[batch_rows]), targets[batch_rows]).backward()
            optimizer.step()

    async def beside_a_loop() -> Figures:
        async with asyncio.TaskGroup() as group:
            training = asyncio.create_task(asyncio.to_thread(take, steps))
            probing = group.create_task(lateness(lambda: not training.done()))
            await training
        return probing.result()

    take(min(20, steps))
    began = time.process_time()
    late: Figures = {}
    if probe:
        late = asyncio.run(beside_a_loop())
    else:
        take(steps)
    cpu_s = time.process_time() - began
    parameters = sum(p.numel() for p in model.parameters())
    return {"cpu_s": cpu_s, "parameters": parameters, "peak_bytes": peak_bytes() - before} | late


def run_node(folder: str, name: str, *, probe: bool) -> Figures:
    import torch  # noqa: F401, PLC0415 - imports do not count as measured memory

    from p2pfl.config.load import load_config, load_node, node_file  # noqa: PLC0415 - as above
    from p2pfl.features import FEATURES  # noqa: PLC0415 - as above
    from p2pfl.node.application import Application  # noqa: PLC0415 - as above
    from p2pfl.node.assembly import read_setup  # noqa: PLC0415 - as above

    described = load_config(Path(folder))
    before = resident_bytes()
    setup = read_setup(described, load_node(node_file(described, name), described, name))

    async def run() -> tuple[Any, Figures]:
        node = Application(setup, on_line=lambda _line: None, features=FEATURES)
        running = asyncio.create_task(node.run())
        late: Figures = {}
        if probe:
            while not node.begun:  # noqa: ASYNC110 - nothing tells when that is
                await asyncio.sleep(ASLEEP_S)
            late = await lateness(lambda: node.driver is not None and not node.driver.finished.is_set())
        return await running, late

    result, late = asyncio.run(run())
    named = ("cpu_time_running_s", "cpu_time_training_s", "exchanges", "bytes_sent")
    return {key: getattr(result, key) for key in named} | late | {"peak_bytes": peak_bytes() - before}


async def lateness(goes_on: Callable[[], bool]) -> Figures:
    """Measure how late this task is woken, in milliseconds, minus waits for a processor."""
    late, whole_s = [], 0.0
    statistics_file = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)

    def waited_s() -> float:
        return int(os.pread(statistics_file, 64, 0).split()[1]) / 1e9

    while goes_on():
        began, waited = time.monotonic(), waited_s()
        await asyncio.sleep(ASLEEP_S)
        total_s = time.monotonic() - began - ASLEEP_S
        late.append(max(0.0, total_s - (waited_s() - waited)))
        whole_s = max(whole_s, total_s)
    os.close(statistics_file)
    late.sort()
    shares = {"median": 0.5, "p99": 0.99, "p999": 0.999, "worst": 1.0}
    figures = {f"late_ms_{name}": 1e3 * late[int(share * (len(late) - 1))] for name, share in shares.items()}
    return figures | {"late_ms_worst_with_waits": 1e3 * whole_s}


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGE_BYTES


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--bare", place, batch_size, count, *rest]:
            os.nice(int(rest[0]) if rest else 0)
            print(json.dumps(run_bare(place, int(batch_size), int(count), probe=bool(rest))), flush=True)
        case ["--node", place, who, *rest]:
            os.nice(int(rest[0]) if rest else 0)
            print(json.dumps(run_node(place, who, probe=bool(rest))), flush=True)
        case _:
            sys.exit(main())
    os._exit(0)
