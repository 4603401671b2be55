"""Hidden models beside gossip, with real processes: accuracy by rounds and bytes, and what a round costs by size.

With --task each setting is launched once: hidden models, FedAvg by the same sums (`outer = "mean"`), and gossip. Prints
accuracy, and megabytes that a node has sent, on average and at most. Images: --mnist and --cifar FOLDER; a task is
skipped where they are missing. CIFAR-10 is GN-LeNet at a rate of .05, tested on 2,000 images (cifar.py).

With --parameters a perceptron of about so many parameters takes a few steps a round. Prints, for each number of nodes,
bytes a node sends in a round beside the packed numbers that it must send (once up and once down), CPU-seconds of a node
and round beside training, seconds of a round, and the peak of memory beyond what it uses with everything imported, in
models of float32. A set-up, which serves 64 sums, is in the bytes: --rounds 64 shares it out.

Usage: python benchmarks/hidden.py [--task digits,mnist,cifar10] [--parameters 2k,1M,25M] [--nodes 3,8,16] [--rounds 40]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
SUFFIXES = {"k": 1_000, "M": 1_000_000}
CIFAR = Path(__file__).absolute().parent / "cifar.py"
SPLITS = ("shards:2", "dirichlet:0.1")
TASK = """
import torch
from p2pfl import Task

def data(node):
    generator = torch.Generator().manual_seed(node.node)
    inputs = torch.randn(64, 784, generator=generator)
    return (inputs, inputs[:, :10].argmax(1)), None

def model():
    return torch.nn.Sequential(torch.nn.Linear(784, {hidden}), torch.nn.ReLU(), torch.nn.Linear({hidden}, 10))

task = Task(model=model, data=data)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", type=lambda text: text.split(","), default=[])
    parser.add_argument("--parameters", type=lambda text: text.split(","), default=[])
    parser.add_argument("--nodes", type=lambda text: [int(each) for each in text.split(",")], default=[8, 16])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--mnist", default="mnist", help="the folder of its four files")
    parser.add_argument("--cifar", default="cifar10", help="the folder of train.npz and test.npz")
    options = parser.parse_args()
    for name in options.task:
        for nodes in options.nodes:
            for split in SPLITS:
                learn(name, nodes, split, options)
    for text in options.parameters:
        for nodes in options.nodes:
            cost(text, nodes, options.rounds)


def learn(name: str, nodes: int, split: str, options: argparse.Namespace) -> None:
    task, training = setting(name, split, options)
    if "path" in task and not Path(task["path"]).exists():
        print(f"{name} {nodes:2} {split:13} skipped: there is no {task['path']}", flush=True)
        return
    each: dict[str, float] = {}
    for label, keys in (
        ("hidden", 'hide = "models"'),
        ("FedAvg by sums", 'hide = "models"\nouter = "mean"'),
        ("gossip", ""),
        ("gossip, as many bytes", ""),
    ):
        times = each["hidden"] / each["gossip"] if "bytes" in label else 1.0
        rounds = max(1, round(options.rounds * times))
        with tempfile.TemporaryDirectory() as place:
            ward = make(place, nodes, task, training | {"rounds": rounds}, keys)
            p2pfl("launch", str(ward))
            report = json.loads((ward / "report.json").read_text())
        sent = [node["bytes_sent"] / 1e6 for node in report["nodes"]]
        scores = [node["accuracy"] for node in report["nodes"]]
        each[label] = fmean(sent)
        print(
            f"{name} {nodes:2} {split:13} {label:21} {rounds:4} rounds {fmean(scores):.3f} / {min(scores):.3f} "
            f"{fmean(sent):8.2f} / {max(sent):.2f} MB {report['wall_time_s']:5.0f} s",
            flush=True,
        )


def setting(name: str, split: str, options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the keys of [task] and of [training]."""
    task, training = {"name": name, "partition": split}, {"learning_rate": 0.1}
    if name == "mnist":
        task |= {"name": "mnist-idx", "path": str(Path(options.mnist).absolute())}
    if name == "cifar10":
        task |= {"name": f"{CIFAR}:cifar", "path": str(Path(options.cifar).absolute()), "tested": 2000}
        training = {"learning_rate": 0.05, "evaluate_every": 0}
    return task, training


def make(place: str, nodes: int, task: dict[str, Any], training: dict[str, Any], privacy: str) -> Path:
    """Make a federation on a random 4-regular graph, or the complete one of up to five nodes."""
    ward, degree = Path(place) / "ward", min(nodes - 1, 4)
    graph = "complete" if nodes <= 5 else f"random-regular:degree={degree}"
    p2pfl("new", str(ward), "--nodes", str(nodes), "--topology", graph, "--base-port", str(free_base_port()))
    file = ward / "federation.toml"
    lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in task.items())
    text = re.sub(r'(?m)^name = "task.py:task".*$', lines, file.read_text())
    for key, value in training.items():
        text, found = re.subn(rf"(?m)^(# )?{key} = .*$", f"{key} = {value}", text)
        if found != 1:
            raise SystemExit(f"{file} has no {key}, or several")
    file.write_text(text.replace("[gossip]", f"[privacy]\n{privacy}\n\n[gossip]", 1) if privacy else text)
    return ward


def cost(text: str, nodes: int, rounds: int) -> None:
    size = int(text.rstrip("kM")) * SUFFIXES.get(text[-1], 1)
    with tempfile.TemporaryDirectory() as place:
        training = {"rounds": rounds, "local_steps": 1, "evaluate_every": 0}
        ward = make(place, nodes, {"name": "task.py:task"}, training, 'hide = "models"')
        (ward / "task.py").write_text(TASK.format(hidden=max(1, round((size - 10) / 795))))
        found = together([[str(ward), f"node{index}"] for index in range(nodes)])
    from p2pfl.learn.averaging import Packing  # noqa: PLC0415 - only this mode needs it

    numbers = found[0]["size"]
    packed = 2 * 8 * Packing(size=numbers, bits=8, members=nodes).entries
    sent = [each["bytes_sent"] / rounds for each in found]
    cpu_s = fmean(each["cpu_s"] for each in found) / rounds
    took_s = max(each["took_s"] for each in found) / rounds
    peak = fmean(each["peak_bytes"] for each in found) / 4 / numbers
    print(
        f"{numbers:>11,} numbers, {nodes:2} nodes: bytes a round {fmean(sent):,.0f} / {max(sent):,.0f} = "
        f"{fmean(sent) / numbers:.2f} / {max(sent) / numbers:.2f} B a number (packed {packed / numbers:.2f}), "
        f"CPU-s {cpu_s:.3f}, s {took_s:.2f}, peak {peak:.1f} models",
        flush=True,
    )


def together(arguments: Sequence[Sequence[str]]) -> list[dict[str, float]]:
    command = [sys.executable, __file__, "--node"]
    started = [
        subprocess.Popen([*command, *each], stdout=subprocess.PIPE, env=os.environ | ONE_THREAD, text=True)
        for each in arguments
    ]
    said = [process.communicate()[0] for process in started]
    return [json.loads(text.splitlines()[-1]) for text in said]


def run_node(folder: str, name: str) -> dict[str, float]:
    import asyncio  # noqa: PLC0415 - imports do not count as measured memory
    import time  # noqa: PLC0415

    import torch  # noqa: PLC0415

    from p2pfl.config.load import load_config, load_node, node_file  # noqa: PLC0415
    from p2pfl.features import FEATURES  # noqa: PLC0415
    from p2pfl.learn import averaging  # noqa: F401, PLC0415
    from p2pfl.node.application import Application  # noqa: PLC0415
    from p2pfl.node.assembly import read_setup  # noqa: PLC0415

    torch.set_num_threads(1)
    described = load_config(Path(folder))
    before = resident_bytes()
    setup = read_setup(described, load_node(node_file(described, name), described, name))
    began = time.monotonic()
    result = asyncio.run(Application(setup, on_line=lambda _line: None, features=FEATURES).run())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    cpu_s = result.cpu_time_running_s - result.cpu_time_training_s
    figures = {"bytes_sent": result.bytes_sent, "cpu_s": cpu_s, "took_s": time.monotonic() - began}
    return figures | {"peak_bytes": peak, "size": setup.learner.size}


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


def free_base_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return 15_000 + int(taken.getsockname()[1]) % 15_000


def p2pfl(*words: str) -> None:
    command = [sys.executable, "-m", "p2pfl.cli.main", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | ONE_THREAD)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--node"]:
        print(json.dumps(run_node(sys.argv[2], sys.argv[3])), flush=True)
        os._exit(0)
    main()
