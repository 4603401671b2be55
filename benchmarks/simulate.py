"""The speed and memory of the simulator: node-rounds per CPU-second as the number of nodes grows.

The work: the digits MLP (2,410 parameters), 14 samples per node, batches of 16, one local step per round.

    one    float32 models, four random matchings in turn (together 4-regular): each node exchanges once a
           round. What gossipy does in the same setting, with half of an exchange: one push per node and round.
    every  the default compressor and control variate, a random 4-regular graph: every round on every edge.

In short runs most events are words about who has begun and who is through, so sizes with different numbers of rounds
are compared by the time per event.

Every case is a separate process with one thread. `node-rounds/s` divides by the CPU time of the run itself, without
evaluation, start and report. Run it on an idle machine: two cases never run at once.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

CASES = {
    "one": {"topology": "random-matchings:rounds=4", "compressor": "none", "method": "plain"},
    "every": {"topology": "random-regular:degree=4", "compressor": "q4", "method": "variate:beta=0.1"},
}
COLUMNS = "{:>6} {:>7} {:>7} {:>14} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>10}"
HEADS = (
    "case",
    "nodes",
    "rounds",
    "node-rounds/s",
    "us each",
    "exchanges",
    "events",
    "us/event",
    "start s",
    "scores s",
    "memory MB",
)


def run_one(case: str, nodes: int, rounds: int) -> dict[str, Any]:
    import torch  # noqa: PLC0415 - in the process that is measured alone

    from sim import simulate  # noqa: PLC0415 - as above
    from sim.federations import describe  # noqa: PLC0415 - as above
    from sim.worlds.model import ComputeSpec, WorldSpec  # noqa: PLC0415 - as above

    torch.set_num_threads(1)
    given = CASES[case]
    federation = describe(
        nodes=nodes,
        rounds=rounds,
        topology=str(given["topology"]),
        compressor=str(given["compressor"]),
        partition="draw:14",
    )
    training = replace(federation.training, local_steps=1, closing_rounds=0, method=str(given["method"]))
    # Few evaluations: they are counted separately.
    report = simulate(
        replace(federation, training=training),
        world=WorldSpec(compute=ComputeSpec(jitter=0.0), evaluate_every_s=3600.0),
        references=False,
    )
    cost, exchanges = report.cost, sum(node.exchanges for node in report.nodes) / 2
    return {
        "case": case,
        "nodes": nodes,
        "rounds": rounds,
        "node_rounds_per_cpu_s": cost.node_rounds_per_cpu_s,
        "microseconds": 1e6 * cost.run_cpu_s / cost.node_rounds,
        "exchanges_per_node_round": exchanges / cost.node_rounds,
        "events_per_node_round": cost.events / cost.node_rounds,
        "set_up_cpu_s": cost.set_up_cpu_s,
        "evaluation_cpu_s": cost.evaluation_cpu_s,
        "peak_memory_mb": report.peak_memory_bytes / 1e6,
        "accuracy": report.accuracy.mean,
        "batching": msgspec.to_builtins(report.batching),
        "digest": report.digest,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="100,1000,10000", help="comma-separated")
    parser.add_argument("--cases", default="one,every", help="comma-separated")
    parser.add_argument("--node-rounds", type=int, default=50_000, help="of each case, about")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--json", type=Path, help="also write the figures there")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        case, nodes, rounds = arguments.one
        print(json.dumps(run_one(case, int(nodes), int(rounds))))
        return
    print(COLUMNS.format(*HEADS))
    rows = []
    for _ in range(arguments.repeats):
        for case in arguments.cases.split(","):
            for nodes in map(int, arguments.nodes.split(",")):
                rounds = max(10, min(200, arguments.node_rounds // nodes))
                rows.append(_in_a_process(case, nodes, rounds))
                print(COLUMNS.format(*_cells(rows[-1])), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


def _in_a_process(case: str, nodes: int, rounds: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", case, str(nodes), str(rounds)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        row["case"],
        str(row["nodes"]),
        str(row["rounds"]),
        f"{row['node_rounds_per_cpu_s']:.0f}",
        f"{row['microseconds']:.0f}",
        f"{row['exchanges_per_node_round']:.2f}",
        f"{row['events_per_node_round']:.1f}",
        f"{row['microseconds'] / row['events_per_node_round']:.1f}",
        f"{row['set_up_cpu_s']:.1f}",
        f"{row['evaluation_cpu_s']:.1f}",
        f"{row['peak_memory_mb']:.0f}",
    ]


if __name__ == "__main__":
    main()
