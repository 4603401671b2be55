"""What processes of their own give a simulation of a convolutional network, whose rounds are not batched.

Sixteen nodes with a network of 37,456 parameters, ten rounds of 20 steps asked of each; one process and `--workers`
take turns, so that both meet the same load. Prints seconds of wall and CPU time, and stops if the models differ.

    python benchmarks/workers.py --pairs 6
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from dataclasses import replace

import torch
from torch import nn

from p2pfl import Task
from p2pfl.config.model import TaskConfig
from p2pfl.learn.digits import load_digits
from p2pfl.learn.task import NodeContext
from sim import simulate
from sim.federations import describe


def make_net() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(1024, 18), nn.ReLU(), nn.Linear(18, 10)),
    )


def make_data(node: NodeContext) -> tuple[object, object]:
    own, common = ([torch.as_tensor(part) for part in rows] for rows in load_digits())
    rows = node.partition(own[1], "iid")
    return (own[0][rows], own[1][rows]), tuple(common)


task = Task(model=make_net, data=make_data)


def run(nodes: int, rounds: int, workers: int) -> tuple[float, float, str]:
    federation = describe(nodes=nodes, rounds=rounds)
    training = replace(federation.training, closing_rounds=0)
    federation = replace(federation, task=TaskConfig(name=f"{__file__}:task"), training=training)
    began, cpu_s = time.monotonic(), _cpu_s()
    report = simulate(federation, references=False, workers=workers)
    return time.monotonic() - began, _cpu_s() - cpu_s, report.value_digest


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=3)
    given = parser.parse_args()
    ratios = []
    run(3, 1, 1)  # what is loaded once is in no pair
    for _ in range(given.pairs):
        one, several = (run(given.nodes, given.rounds, workers) for workers in (1, given.workers))
        if one[2] != several[2]:
            raise SystemExit("the models differ")
        ratios.append((several[0] / one[0], several[1] / one[1]))
        print(f"wall {one[0]:.1f} and {several[0]:.1f} s, CPU {one[1]:.1f} and {several[1]:.1f} s", flush=True)
    wall, cpu = (statistics.median(column) for column in zip(*ratios, strict=True))
    print(f"{given.workers} workers over one: wall {wall:.2f}, CPU {cpu:.2f} (medians)")


if __name__ == "__main__":
    main()
