"""Real processes that are disturbed, on the built-in quadratic, whose optimum is known: next to an undisturbed run.

    python benchmarks/disturbed.py losses --scenario wipe --rounds 160

`losses`: processes lose a folder, a snapshot's worth of data or a member, or run twice (scenario `digits`: the loss on
the common test set). A worst node may end at twice the twin's excess or .01, whichever is more (digits: 1.25 times the
twin's loss); of two copies exactly one gives up with an error.

Exits with 1 if anything is wrong; the lines below a row explain it. To test another tree, run it there: `cd TREE &&
PYTHONPATH=TREE python .../benchmarks/disturbed.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "e2e"))
import faces  # noqa: F401 - its kits import names from packages
import losing
from real_field import WaitedInVainError

Row = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    command = kinds.add_parser("losses")
    command.add_argument("--scenario", action="append", choices=list(losing.SCENARIOS), help="default: all")
    command.add_argument("--rounds", type=int, help="of each node; in place of the scenario's own")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--keep", type=Path, metavar="DIR", help="leave the federations and their logs there")
    command.add_argument("--json", type=Path, metavar="FILE")
    command.add_argument("--kills", type=int, default=losing.Setting().kills, help="in snapshot-chaos")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        rows = list(losses(options, folder))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return int(any(row["wrong"] for row in rows))


def losses(options: argparse.Namespace, folder: Path) -> Iterator[Row]:
    print(f"{'scenario':16}{'':11}{'worst':>10}{'mean':>10}{'limit':>10}{'seconds':>9}  rounds; exit codes; what else")
    for scenario in options.scenario or losing.SCENARIOS:
        setting = losing.DIGITS if scenario == "digits" else losing.Setting()
        setting = replace(setting, seed=options.seed, kills=options.kills, rounds=options.rounds or setting.rounds)
        try:
            outcome = losing.play(scenario, folder / scenario, setting)
        except WaitedInVainError as error:
            print(f"{scenario:16}{error}", flush=True)
            yield {"scenario": scenario, "wrong": [str(error)]}
            continue
        sides = ((scenario, "twin", outcome.twin, ""), ("", "disturbed", outcome.disturbed, f"{outcome.limit:.5f}"))
        for name, side, ended, limit in sides:
            alarms = {node: kinds for node, kinds in ended.alarms.items() if kinds}
            more = [*ended.rounds.values()], [*ended.codes.values()], {"alarms": alarms} if alarms else {}, ended.notes
            print(f"{name:16}{side:11}{ended.worst:10.5f}{ended.mean:10.5f}{limit:>10}{ended.seconds:9.1f}", end="  ")
            print("; ".join(str(part) for part in more if part))
        for each in outcome.wrong:
            print(f"    wrong: {each}", flush=True)
        yield outcome.in_json()


if __name__ == "__main__":
    raise SystemExit(main())
