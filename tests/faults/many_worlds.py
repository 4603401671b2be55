"""Thousands of random federations in random bad worlds, every invariant checked after every event of each.

    python tests/faults/many_worlds.py --count 1000 --first 0 --jobs 2 --out worlds.jsonl

writes one line of JSON for each seed as it comes, and ends with exit code 1 if one of them went wrong. With `--chaos`
the same happens to them as to the processes of `tests/chaos`, as far as virtual time has it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from p2pfl import Report

sys.path.extend(str(Path(__file__).parents[1] / folder) for folder in ("", "chaos"))
import faces  # noqa: F401
import oracle
from drawn_worlds import draw
from trouble import disturbed

Json = dict[str, Any]
SELDOM_S = 5.0


def replay(seed: int, *, chaos: bool = False) -> str:
    return f"python tests/faults/many_worlds.py --count 1 --first {seed}{' --chaos' * chaos}"


def checked(seed: int) -> Report:
    """The report of that world, each invariant checked after each of its events; scores are not what is looked at."""
    federation, world = draw(seed)
    return innocent(oracle.checked(federation, world=replace(world, evaluate_every_s=SELDOM_S)))


def innocent(report: Report) -> Report:
    """Require that nobody is in quarantine, since nobody lies."""
    accused = [row.name for row in report.nodes if "quarantine" in row.alarms]
    if accused:
        raise AssertionError(f"nobody lies, and {accused} put a neighbor into quarantine")
    return report


def line(seed: int, *, chaos: bool = False) -> Json:
    """What became of one world; `violation` is None where all is well."""
    began = time.process_time()
    said: Json = {"seed": seed, "violation": None}
    try:
        report = innocent(disturbed(seed)) if chaos else checked(seed)
        said |= {"events": report.cost.events, "nodes": len(report.nodes)}
    except Exception as error:  # noqa: BLE001 - whatever it is, the seed is told and the others go on
        said["violation"] = f"{type(error).__name__}: {error}"
    return said | {"cpu_s": round(time.process_time() - began, 3)}


def lines(seeds: range, line: Callable[[int], Json], *, jobs: int) -> Iterator[Json]:
    if jobs == 1:
        yield from map(line, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(line, seeds)


def main() -> int:
    parser = argparse.ArgumentParser(description="random federations in random bad worlds, every invariant checked")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--chaos", action="store_true", help="what happens to the processes of tests/chaos")
    parser.add_argument("--out", type=Path, help="a file for the lines, instead of stdout")
    given = parser.parse_args()
    wrong, cpu_s, events, began = [], 0.0, 0, time.monotonic()
    with given.out.open("w") if given.out else sys.stdout as out:
        seeds, one = range(given.first, given.first + given.count), partial(line, chaos=given.chaos)
        for said in lines(seeds, one, jobs=given.jobs):
            print(json.dumps(said), file=out, flush=True)
            cpu_s, events = cpu_s + said["cpu_s"], events + said.get("events", 0)
            if said["violation"]:
                wrong.append(said)
        for said in wrong:
            print(f"{said['violation']}\n    {replay(said['seed'], chaos=given.chaos)}", file=sys.stderr)  # noqa: T201 - it is a script
    told = f"{given.count} worlds, {events} checked events, {cpu_s:.0f} s of CPU, {time.monotonic() - began:.0f} s"
    print(f"{told}, {len(wrong)} violations", file=sys.stderr)  # noqa: T201 - it is a script
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
