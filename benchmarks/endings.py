"""How a federation ends: real processes of which some are late, slow, dead or without memory, on the built-in
quadratic: the final error of all, rounds trained alone, the longest wait at the end.

    python benchmarks/endings.py --scenario late-exited --nodes 4 --rounds 60 --topology ring --rule mean
    python benchmarks/endings.py --json bench-out/endings.json --keep kept

By default every scenario on a ring, on a random graph of degree 4 and on a schedule, with `mean`, and with a robust
rule on the second. An undisturbed run comes first: with `mean` nobody may end above twice its excess or .01, except
where a node is gone for good or until the others are done. Exits with 1 if anything is wrong; the lines below a row
explain it. To judge another tree run it there: `cd TREE && PYTHONPATH=TREE python .../benchmarks/endings.py`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "e2e"))
from ending import LEAST_EXCESS, SCENARIOS, TIMES_TWIN, Ended, Setting
from real_field import WaitedInVainError

REGULAR = "random-regular:degree=4"
CASES = (("ring", "mean"), (REGULAR, "mean"), (REGULAR, "hampel:b=1"), ("one-peer-hypercube", "mean"))
UNBOUNDED = ("late-lingering", "late-exited", "one-dead", "launch-apart")
"""Scenarios whose data cannot be represented as without the fault: excess is shown, or compared with that of the
others.
"""
TWIN = "undisturbed"


def main() -> int:
    usual = Setting()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", action="append", choices=list(SCENARIOS), help="default: all")
    parser.add_argument("--topology", help="with --rule one case in place of the four")
    parser.add_argument("--rule", default="mean")
    parser.add_argument("--nodes", type=int, default=usual.nodes)
    parser.add_argument("--rounds", type=int, default=usual.rounds)
    parser.add_argument("--linger-s", type=float, default=usual.linger_s)
    parser.add_argument("--seed", type=int, default=usual.seed)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the federations and their logs there")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    scenarios = [name for name in options.scenario or SCENARIOS if name != TWIN]
    base = replace(usual, nodes=options.nodes, rounds=options.rounds, linger_s=options.linger_s, seed=options.seed)
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for number, (topology, rule) in enumerate([(options.topology, options.rule)] if options.topology else CASES):
            setting = replace(base, topology=topology, rule=rule)
            rows += case(folder / f"case{number}", setting, scenarios)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return 1 if any(row["wrong"] for row in rows) else 0


def case(folder: Path, setting: Setting, scenarios: list[str]) -> list[dict[str, Any]]:
    print(f"\n{setting.nodes} nodes, {setting.topology}, {setting.rule}, {setting.rounds} rounds")
    print(f"{'':16}{'worst':>10}{'mean':>10}{'limit':>10}{'waits':>7}{'alone':>6}{'seconds':>9}  rounds; exit codes")
    folder.mkdir(parents=True, exist_ok=True)
    rows, limit = [], math.nan
    for scenario in [TWIN, *scenarios]:
        try:
            ended = SCENARIOS[scenario](folder / scenario, setting)
        except WaitedInVainError as error:
            print(f"{scenario:16}{error}", flush=True)
            rows.append({"scenario": scenario, "setting": None, "wrong": [str(error)]})
            continue
        if scenario == TWIN and setting.rule == "mean":
            limit = max(TIMES_TWIN * ended.worst, LEAST_EXCESS)
        bound = math.nan if scenario in UNBOUNDED else limit
        row = ended.in_json() | {"limit": None if math.isnan(bound) else bound, "wrong": list(ended.wrong)}
        if ended.worst > bound:
            row["wrong"].append(f"excess {ended.worst:.4g} is above {bound:.4g}")
        show(ended, bound, row["wrong"])
        rows.append(row)
    return rows


def show(ended: Ended, limit: float, wrong: list[str]) -> None:
    nodes = ended.nodes.values()
    text = "-" if math.isnan(limit) else f"{limit:.4f}"
    line = f"{ended.scenario:16}{ended.worst:10.4f}{ended.mean:10.4f}{text:>10}{ended.longest_wait_s:7.1f}"
    line += f"{sum(node.alone for node in nodes):6}{max(node.ended_s for node in nodes):9.1f}"
    print(f"{line}  {[node.rounds for node in nodes]}; {[node.code for node in nodes]}")
    if ended.notes:
        print(f"    {ended.notes}")
    for each in wrong:
        print(f"    wrong: {each}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
