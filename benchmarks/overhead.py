"""What gossip costs a node: CPU-seconds of a real run against the bare torch loop that takes the same steps.

Three processes on a ring (degree 2), rounds of at least a second of training, default compressor and durability. Bare
loops and federations alternate, so that a machine whose speed drifts is fair to both. Prints a table, and JSON with
--json FILE. Usage: python benchmarks/overhead.py [--hidden 128] [--rounds 5] [--repeats 3]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

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

BARE = """
import json, sys, time
import torch
torch.set_num_threads(1)
sys.path.insert(0, {folder!r})
from types import SimpleNamespace
import task
(inputs, targets), _ = task.data(SimpleNamespace(node=0))
model, loss_of = task.model(), torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
rows = torch.randperm(len(inputs))
def steps(count):
    for step in range(count):
        batch = rows[step * {batch} % len(rows) :][:{batch}]
        optimizer.zero_grad()
        loss_of(model(inputs[batch]), targets[batch]).backward()
        optimizer.step()
steps(20)
began = time.process_time()
steps({steps})
print(json.dumps(dict(cpu_s=time.process_time() - began, parameters=sum(p.numel() for p in model.parameters()))))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=128, help="width; 128 makes 101,770 parameters")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--round-s", type=float, default=1.5, help="least seconds of bare training in a round")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "task.py").write_text(TASK.format(hidden=options.hidden))
        probe = bare(folder, options.batch, 500)
        steps = max(20, int(500 * options.round_s / probe["cpu_s"]))
        runs = []
        for _ in range(options.repeats):
            alone = bare(folder, options.batch, steps * options.rounds)
            runs += [compare(alone, result) for result in federation(folder, options, steps)]
    figures = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    report = {"parameters": probe["parameters"], "local_steps": steps, "rounds": options.rounds, **figures}
    for key, value in report.items():
        print(f"{key:32} {value:.4g}" if isinstance(value, float) else f"{key:32} {value}")
    if options.json:
        options.json.write_text(json.dumps({"median": report, "runs": runs}, indent=1))


def bare(folder: str, batch: int, steps: int) -> dict[str, float]:
    code = BARE.format(folder=folder, batch=batch, steps=steps)
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def federation(folder: str, options: argparse.Namespace, steps: int) -> list[dict[str, float]]:
    """A fresh federation of three with this task; returns the results of its nodes."""
    with tempfile.TemporaryDirectory() as place:
        ward = Path(place) / "ward"
        command = [sys.executable, "-m", "p2pfl.cli.main"]
        subprocess.run([*command, "new", str(ward), "--base-port", "18470"], check=True, capture_output=True)
        (ward / "task.py").write_text((Path(folder) / "task.py").read_text())
        file = ward / "federation.toml"
        text = file.read_text()
        for key, value in (("rounds", options.rounds), ("local_steps", steps), ("batch_size", options.batch)):
            line = next(line for line in text.splitlines() if line.startswith(f"{key} ="))
            text = text.replace(line, f"{key} = {value}", 1)
        text = text.replace("learning_rate = 0.2", "learning_rate = 0.01\nevaluate_every = 0", 1)
        file.write_text(text)
        subprocess.run([*command, "launch", str(ward), "--quiet"], check=True, capture_output=True)
        return [json.loads(path.read_text()) for path in sorted(ward.glob("node*/state/result.json"))]


def compare(alone: dict[str, float], result: dict[str, float]) -> dict[str, float]:
    """One node against the bare loop; what is not training is gossip: exchanges, disk, sockets, the loop."""
    running, training = result["cpu_time_running_s"], result["cpu_time_training_s"]
    gossip, exchanges = running - training, result["exchanges"]
    return {
        "bare_cpu_s": alone["cpu_s"],
        "node_cpu_s": running,
        "node_over_bare": running / alone["cpu_s"],
        "training_over_bare": training / alone["cpu_s"],
        "gossip_cpu_s": gossip,
        "gossip_over_training": gossip / training,
        "exchanges": exchanges,
        "cpu_ms_per_exchange": 1e3 * gossip / exchanges,
        "cpu_ms_per_mb_sent": 1e3 * gossip / (result["bytes_sent"] / 1e6),
    }


if __name__ == "__main__":
    main()
