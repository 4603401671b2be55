"""The effect of a loss: real processes lose a folder, a snapshot's worth, a member, or run twice, against the known
optimum of the built-in quadratic (digits: the loss on the common test set), each beside its undisturbed twin.

    python benchmarks/losses.py --scenario wipe --rounds 160
    python benchmarks/losses.py --json bench-out/losses.json --keep kept

Exits with 1 if any worst node ends above its limit: twice the twin's excess or .01, whichever is more (digits: 1.25
times the twin's loss), or if of two copies not exactly one gives up with an error. To judge another tree run it there:
`cd TREE && PYTHONPATH=TREE python .../benchmarks/losses.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "e2e"))
from losing import DIGITS, SCENARIOS, Ended, Outcome, Setting, play
from real_field import WaitedInVainError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", action="append", choices=list(SCENARIOS), help="default: all")
    parser.add_argument("--rounds", type=int, help="of each node; default 240, digits 440")
    parser.add_argument("--kills", type=int, default=Setting().kills, help="in snapshot-chaos")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the federations and their logs there")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    rows = []
    print(f"{'scenario':16}{'':11}{'worst':>10}{'mean':>10}{'limit':>10}{'seconds':>9}  rounds; exit codes; what else")
    with ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for scenario in options.scenario or SCENARIOS:
            setting = replace(DIGITS if scenario == "digits" else Setting(), seed=options.seed, kills=options.kills)
            setting = replace(setting, rounds=options.rounds or setting.rounds)
            try:
                outcome = play(scenario, folder / scenario, setting)
            except WaitedInVainError as error:
                print(f"{scenario:16}{error}", flush=True)
                rows.append({"scenario": scenario, "wrong": [str(error)]})
                continue
            show(outcome)
            rows.append(outcome.in_json())
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return 0 if not any(row["wrong"] for row in rows) else 1


def show(outcome: Outcome) -> None:
    print(line(outcome.scenario, "twin", outcome.twin, ""))
    print(line("", "disturbed", outcome.disturbed, f"{outcome.limit:.5f}"), flush=True)
    for each in outcome.wrong:
        print(f"    wrong: {each}", flush=True)


def line(scenario: str, side: str, ended: Ended, limit: str) -> str:
    figures = f"{ended.worst:10.5f}{ended.mean:10.5f}{limit:>10}{ended.seconds:9.1f}"
    alarms = {name: told for name, told in ended.alarms.items() if told}
    more = [*ended.rounds.values()], [*ended.codes.values()], {"alarms": alarms} if alarms else {}, ended.notes
    return f"{scenario:16}{side:11}{figures}  " + "; ".join(str(part) for part in more if part)


if __name__ == "__main__":
    raise SystemExit(main())
