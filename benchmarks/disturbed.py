"""Real processes that are disturbed, on the built-in quadratic, whose optimum is known: next to an undisturbed run.

    python benchmarks/disturbed.py losses --scenario wipe --rounds 160
    python benchmarks/disturbed.py endings --scenario late-exited --nodes 4 --rounds 60 --topology ring --rule mean

`losses`: processes lose a folder, a snapshot's worth of data or a member, or run twice (scenario `digits`: the loss on
the common test set). A worst node may end at twice the twin's excess or .01, whichever is more (digits: 1.25 times the
twin's loss); of two copies exactly one gives up with an error.

`endings`: processes are late, slow, dead or without memory at the end; with the final error of all, rounds trained
alone, and the longest wait. By default every scenario runs on a ring, on a random graph of degree 4 and on a schedule
with `mean`, and on the random graph also with a robust rule. The same limit holds, unless a node is gone for good or
until the others are done.

Exits with 1 if anything is wrong; the lines below a row explain it. To test another tree, run it there: `cd TREE &&
PYTHONPATH=TREE python .../benchmarks/disturbed.py`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "e2e"))
import ending
import losing
from real_field import WaitedInVainError

REGULAR = "random-regular:degree=4"
CASES = (("ring", "mean"), (REGULAR, "mean"), (REGULAR, "hampel:b=1"), ("one-peer-hypercube", "mean"))
UNBOUNDED = ("late-lingering", "late-exited", "one-dead", "launch-apart")
"""Scenarios whose data cannot all be represented as without the fault: the excess is only shown, or compared with the
other nodes'.
"""
TWIN = "undisturbed"
Row = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    for kind, scenarios in (("losses", losing.SCENARIOS), ("endings", ending.SCENARIOS)):
        one = kinds.add_parser(kind)
        one.add_argument("--scenario", action="append", choices=list(scenarios), help="default: all")
        one.add_argument("--rounds", type=int, help="of each node; in place of the scenario's own")
        one.add_argument("--seed", type=int, default=0)
        one.add_argument("--keep", type=Path, metavar="DIR", help="leave the federations and their logs there")
        one.add_argument("--json", type=Path, metavar="FILE")
        if kind == "losses":
            one.add_argument("--kills", type=int, default=losing.Setting().kills, help="in snapshot-chaos")
        else:
            one.add_argument("--topology", help="with --rule one case in place of the four")
            one.add_argument("--rule", default="mean")
            one.add_argument("--nodes", type=int, default=ending.Setting().nodes)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        rows = list((losses if options.kind == "losses" else endings)(options, folder))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return int(any(row["wrong"] for row in rows))


def in_vain(scenario: str, error: WaitedInVainError) -> Row:
    print(f"{scenario:16}{error}", flush=True)
    return {"scenario": scenario, "wrong": [str(error)]}


def losses(options: argparse.Namespace, folder: Path) -> Iterator[Row]:
    print(f"{'scenario':16}{'':11}{'worst':>10}{'mean':>10}{'limit':>10}{'seconds':>9}  rounds; exit codes; what else")
    for scenario in options.scenario or losing.SCENARIOS:
        setting = losing.DIGITS if scenario == "digits" else losing.Setting()
        setting = replace(setting, seed=options.seed, kills=options.kills, rounds=options.rounds or setting.rounds)
        try:
            outcome = losing.play(scenario, folder / scenario, setting)
        except WaitedInVainError as error:
            yield in_vain(scenario, error)
            continue
        sides = ((scenario, "twin", outcome.twin, ""), ("", "disturbed", outcome.disturbed, f"{outcome.limit:.5f}"))
        for name, side, ended, limit in sides:
            alarms = {node: told for node, told in ended.alarms.items() if told}
            more = [*ended.rounds.values()], [*ended.codes.values()], {"alarms": alarms} if alarms else {}, ended.notes
            print(f"{name:16}{side:11}{ended.worst:10.5f}{ended.mean:10.5f}{limit:>10}{ended.seconds:9.1f}", end="  ")
            print("; ".join(str(part) for part in more if part))
        complain(outcome.wrong)
        yield outcome.in_json()


def endings(options: argparse.Namespace, folder: Path) -> Iterator[Row]:
    usual = ending.Setting()
    base = replace(usual, nodes=options.nodes, rounds=options.rounds or usual.rounds, seed=options.seed)
    for number, (topology, rule) in enumerate([(options.topology, options.rule)] if options.topology else CASES):
        place, setting = folder / f"case{number}", replace(base, topology=topology, rule=rule)
        place.mkdir(parents=True, exist_ok=True)
        print(f"\n{setting.nodes} nodes, {topology}, {rule}, {setting.rounds} rounds")
        print(
            f"{'':16}{'worst':>10}{'mean':>10}{'limit':>10}{'waits':>7}{'alone':>6}{'seconds':>9}  rounds; exit codes"
        )
        limit = math.nan
        for scenario in dict.fromkeys([TWIN, *(options.scenario or ending.SCENARIOS)]):
            try:
                ended = ending.SCENARIOS[scenario](place / scenario, setting)
            except WaitedInVainError as error:
                yield in_vain(scenario, error)
                continue
            if scenario == TWIN and rule == "mean":
                limit = max(ending.TIMES_TWIN * ended.worst, ending.LEAST_EXCESS)
            bound = math.nan if scenario in UNBOUNDED else limit
            wrong = list(ended.wrong)
            wrong += [f"excess {ended.worst:.4g} is above {bound:.4g}"] if ended.worst > bound else []
            show(ended, bound)
            complain(wrong)
            yield ended.in_json() | {"limit": None if math.isnan(bound) else bound, "wrong": wrong}


def show(ended: ending.Ended, limit: float) -> None:
    nodes = ended.nodes.values()
    text = "-" if math.isnan(limit) else f"{limit:.4f}"
    line = f"{ended.scenario:16}{ended.worst:10.4f}{ended.mean:10.4f}{text:>10}{ended.longest_wait_s:7.1f}"
    line += f"{sum(node.alone for node in nodes):6}{max(node.ended_s for node in nodes):9.1f}"
    print(f"{line}  {[node.rounds for node in nodes]}; {[node.code for node in nodes]}")
    if ended.notes:
        print(f"    {ended.notes}")


def complain(wrong: list[str]) -> None:
    for each in wrong:
        print(f"    wrong: {each}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
