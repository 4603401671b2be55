"""What `p2pfl topology design` finds, and in how many CPU seconds: a row for each number of nodes and degree.

Each case runs in a process of its own. Rows are also stored in --out, so that an interrupted run continues where it
stopped; --beside compares with the rows of another version, run with its `topologies` first on PYTHONPATH.

Usage: python benchmarks/designs.py [--nodes 8-30] [--degrees 3-6] [--out FILE] [--beside FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from topologies.design.designing import design
from topologies.design.goal import Goal

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
SAME = 1e-9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="8-30", help="a range, or sizes joined by commas")
    parser.add_argument("--degrees", default="3-6")
    parser.add_argument("--out", type=Path, help="JSON, written after every case and read at the start")
    parser.add_argument("--beside", type=Path, help="rows of another version, from its --out")
    parser.add_argument("--case", nargs=2, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measured(*options.case)))
        return
    rows = json.loads(options.out.read_text()) if options.out and options.out.exists() else []
    others = json.loads(options.beside.read_text()) if options.beside else []
    print(f"{'n':>3} {'degree':>6} {'CPU s':>7} {'rounds':>6} {'rate':>9} {'lambda_2':>9} {'edges':>6}  before")
    for nodes in numbers(options.nodes):
        for degree in numbers(options.degrees):
            if degree >= nodes:
                continue
            row = found_in(rows, nodes, degree)
            if row is None:
                row = case(nodes, degree)
                rows.append(row)
                if options.out:
                    options.out.write_text(json.dumps(rows, indent=1))
            print(text(row, found_in(others, nodes, degree)), flush=True)
    summary([(row, other) for row in rows if (other := found_in(others, row["nodes"], row["degree"]))])


def numbers(text: str) -> list[int]:
    low, dash, high = text.partition("-")
    return list(range(int(low), int(high) + 1)) if dash else [int(part) for part in text.split(",")]


def found_in(rows: list[dict[str, Any]], nodes: int, degree: int) -> dict[str, Any] | None:
    return next((row for row in rows if (row["nodes"], row["degree"]) == (nodes, degree)), None)


def case(nodes: int, degree: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--case", str(nodes), str(degree)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | ONE_THREAD)
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def measured(nodes: int, degree: int) -> dict[str, Any]:
    """Design in this process; `cpu_s` counts all of it, with the imports."""
    best = design(Goal(nodes=nodes, max_degree=degree)).winner
    return {
        "nodes": nodes,
        "degree": degree,
        "rounds": best.rounds,
        "rate": best.rate,
        "lambda_2": best.lambda_2,
        "edges": best.topology.edge_count,
        "spec": best.spec,
        "cpu_s": time.process_time(),
    }


def text(row: dict[str, Any], other: dict[str, Any] | None) -> str:
    line = f"{row['nodes']:>3} {row['degree']:>6} {row['cpu_s']:>7.2f} {row['rounds']:>6} {row['rate']:>9.6f}"
    line += f" {row['lambda_2']:>9.5f} {row['edges']:>6}  "
    if other is None:
        return line
    word = {1: "better", 0: "same", -1: "WORSE"}[verdict(row, other)]
    return line + f"{other['cpu_s']:>7.2f} s {other['rounds']:>4} rounds, rate {other['rate']:.6f}: {word}"


def verdict(row: dict[str, Any], other: dict[str, Any]) -> int:
    """Return 1 if the graph mixes faster than the other one, or as fast with fewer edges; -1 if it is worse."""
    gain = other["rate"] - row["rate"] if abs(other["rate"] - row["rate"]) > SAME else other["edges"] - row["edges"]
    return (gain > 0) - (gain < 0)


def summary(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    if pairs:
        verdicts = [verdict(row, other) for row, other in pairs]
        now, before = (sum(pair[k]["cpu_s"] for pair in pairs) for k in (0, 1))
        print(f"better {verdicts.count(1)}, same {verdicts.count(0)}, worse {verdicts.count(-1)} of {len(pairs)}")
        print(f"{now:.0f} CPU-s instead of {before:.0f}")


if __name__ == "__main__":
    main()
