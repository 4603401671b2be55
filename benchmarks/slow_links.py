"""How long until an accuracy where some nodes have slow links: fragments, compressors, whole models, and pairs.

The setting is that of DivShare (arXiv 2410.12918): a part of the nodes (`--slow`) have links so slow that a whole model
takes many rounds. The contenders, each with every method that is named:

    pairs      whole models between two nodes at a time, four random matchings in turn, as in AD-PSGD (arXiv 1710.06952)
    others     a random 4-regular graph, every edge for itself, with the compressor of that name

    python benchmarks/slow_links.py --out FILE

Figures are means over seeds, in virtual seconds, from when on the mean (and the worst) node's accuracy is at least
`--accuracy`; a dash where a seed does not get there. Simulations are deterministic: the same command gives the same
table.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from p2pfl.reporting.history import Point, Statistic
from sim import simulate
from sim.federations import describe
from sim.worlds.model import LinkSpec, SlowNodes, Spread, WorldSpec

PAIRS = "pairs"
CONTENDERS = (PAIRS, "none", "q4", "rotate+sign", "fragment:4", "fragment:8", "fragment:8+bf16", "fragment:16+bf16")
COLUMNS = "{:18} {:18} {:>10} {:>10} {:>9} {:>9} {:>10}"


def run_one(contender: str, method: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    federation = describe(
        nodes=given.nodes,
        topology="random-matchings:rounds=4" if contender == PAIRS else "random-regular:degree=4",
        compressor="none" if contender == PAIRS else contender,
        partition=given.partition,
        method=method,
        seed=seed,
    )
    federation = replace(federation, training=replace(federation.training, rounds=None, time_s=given.time_s))
    world = WorldSpec(
        links=LinkSpec(latency_s=Spread(low=0.005, high=0.005), bandwidth=given.bandwidth),
        slow=(SlowNodes(count=given.slow, bandwidth=given.bandwidth / given.times),),
        evaluate_every_s=given.time_s / 100,
    )
    report = simulate(federation, world=world, references=False)
    return {
        "contender": contender,
        "method": method,
        "seed": seed,
        "mean_s": _from_when(report.history, given.accuracy, lambda one: one.mean),
        "worst_s": _from_when(report.history, given.accuracy, lambda one: one.min),
        "mean": report.accuracy.mean,
        "worst": report.accuracy.min,
        "bytes": sum(node.bytes_sent for node in report.nodes) / given.nodes,
    }


def _from_when(history: list[Point], least: float, figure: Callable[[Statistic], float]) -> float | None:
    """Return the time of the first test in which the figure is at least `least`."""
    times = [one.time_s for one in history if one.accuracy is not None and figure(one.accuracy) >= least]
    return times[0] if times else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--slow", type=int, default=8, help="nodes with slow links")
    parser.add_argument("--times", type=float, default=10.0, help="how many times slower")
    parser.add_argument("--bandwidth", type=float, default=100e3, help="bytes a second of the other links")
    parser.add_argument("--time-s", type=float, default=20.0, help="virtual seconds of training")
    parser.add_argument("--accuracy", type=float, default=0.9)
    parser.add_argument("--partition", default="shards:2")
    parser.add_argument("--methods", default="plain,variate:beta=0.1", help="separated by commas")
    parser.add_argument("--contenders", default=",".join(CONTENDERS), help="separated by commas")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="also write one line of JSON for each run")
    given = parser.parse_args()
    print(COLUMNS.format("contender", "method", "mean at s", "worst at s", "mean", "worst", "MB a node"))
    for method in given.methods.split(","):
        for contender in given.contenders.split(","):
            rows = [run_one(contender, method, seed, given) for seed in range(given.seeds)]
            if given.out is not None:
                with given.out.open("a", encoding="utf-8") as file:
                    file.writelines(json.dumps(row) + "\n" for row in rows)
            print(COLUMNS.format(contender, method, *_cells(rows)), flush=True)


def _cells(rows: list[dict[str, Any]]) -> list[str]:
    def mean(name: str) -> float | None:
        found = [row[name] for row in rows]
        return None if None in found else sum(found) / len(found)

    times = [mean("mean_s"), mean("worst_s")]
    return [
        *("-" if value is None else f"{value:.2f}" for value in times),
        f"{mean('mean'):.3f}",
        f"{mean('worst'):.3f}",
        f"{(mean('bytes') or 0.0) / 1e6:.2f}",
    ]


if __name__ == "__main__":
    main()
