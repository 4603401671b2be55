"""The winner as files: a federation that runs, the evidence, and the commands that repeat every figure."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from p2pfl.config.tables import parse_document, read_document
from p2pfl.config.writing import toml_value
from p2pfl.errors import UserError
from sim.federations import describe
from sim.plans.search import HONEST, SystemPlan, SystemStanding
from sim.plans.systems import PlanWishes
from sim.sweeps.run import replace

WINNER, GRAPH, EVIDENCE = "winner", "graph.json", "plan.json"
FEDERATION = "federation.toml"
_HEADER = re.compile(r"\s*\[+\s*([\w.]+)\s*\]+")

Values = Mapping[tuple[str, str], Any]
"""New values by table and key of a federation file."""


def write_plan(plan: SystemPlan, out: Path) -> Path:
    """Write the evidence into `out`, and the winner's federation into a folder of its own there, which is returned.

    Raises StorageError if the disk refused.
    """
    winner = out / WINNER
    text = _federation(plan, winner)
    shutil.copyfile(plan.winner.system.graph.file, winner / GRAPH)
    replace(winner / FEDERATION, with_values(text, _values(plan)).encode())
    replace(out / EVIDENCE, (json.dumps(evidence(plan), indent=1) + "\n").encode())
    return winner


def evidence(plan: SystemPlan) -> dict[str, Any]:
    """Return the plan as plain values."""
    wishes = asdict(plan.wishes)
    return {
        "wishes": {key: value for key, value in wishes.items() if value not in (None, 0, 0.0, ())},
        "refused": list(plan.refused),
        "measure": plan.measure.name,
        **{name: getattr(plan, name) for name in ("interrupted", "hurried", "runs", "by_arrays")},
        "systems": {"tried": plan.tried, "of": plan.of},
        "failures": list(plan.failures),
        "ranking": [_row(plan, one) for one in plan.ranking],
    }


def command_of(plan: SystemPlan, found: SystemStanding, attack: str, seed: int) -> str:
    """Return the command that repeats one trial."""
    wishes, system = plan.wishes, found.system
    words: list[str] = ["p2pfl", "sim", "run"]
    if wishes.base is not None:
        words.append(str(wishes.base.path))
    else:
        words += ["--nodes", str(wishes.count)]
    words += ["--topology", str(system.graph.file), "--rule", system.rule, "--compressor", system.compressor]
    words += ["--method", system.method, "--seed", str(seed)]
    for name, value in (("rounds", found.rounds), ("partition", wishes.partition)):
        if value is not None:
            words += [f"--{name}", str(value)]
    words += ["--world", str(plan.world), *(["--arrays", "--clock", wishes.clock] if found.arrays else [])]
    if attack != HONEST:
        words += ["--byzantine", str(wishes.liars), "--attack", attack]
    return shlex.join(words)


def with_values(text: str, values: Values) -> str:
    """Return a federation file with other values, and everything else as it was, comments included.

    A line with the key is replaced, or else a comment that shows its default, or else a line is added to its table. A
    value None takes the key out.
    Raises UserError if the result would not say exactly that.
    """
    lines = text.split("\n")
    for (table, key), value in values.items():
        _set(lines, table, key, value)
    changed = "\n".join(lines)
    wanted = parse_document(text, Path(FEDERATION))
    for (table, key), value in values.items():
        if value is None:
            wanted.get(table, {}).pop(key, None)
        else:
            wanted.setdefault(table, {})[key] = value
    try:
        right = parse_document(changed, Path(FEDERATION)) == wanted
    except UserError:
        right = False
    if not right:
        given = [(*place, toml_value(value)) for place, value in values.items() if value is not None]
        said = "; ".join(f"[{table}] {key} = {value}" for table, key, value in given)
        text = "cannot be changed line by line, as it is written in another way"
        raise UserError(text, file=FEDERATION, allowed=f"these values, by hand: {said}")
    return changed


def _set(lines: list[str], table: str, key: str, value: Any) -> None:
    heads = [index for index, line in enumerate(lines) if _HEADER.match(line)]
    head = next((index for index in heads if (found := _HEADER.match(lines[index])) and found[1] == table), None)
    end = next((index for index in heads if head is not None and index > head), len(lines))
    inside = range(len(lines) if head is None else head + 1, end)
    active = [index for index in inside if re.match(rf"\s*{key}\s*=", lines[index])]
    shown = [index for index in inside if re.match(rf"#\s*{key}\s*=", lines[index])]
    new = f"{key} = {toml_value(value)}"
    if value is None:
        for place in active:
            lines[place] = f"# {lines[place]}"
    elif active:
        lines[active[0]] = new
    elif shown:
        comment = re.search(r"\s{2,}# .*$", lines[shown[0]])
        lines[shown[0]] = new + (comment[0] if comment else "")
    elif head is not None:
        lines.insert(head + 1, new)
    else:
        lines[len(lines) :] = [f"[{table}]", new, ""]


def _values(plan: SystemPlan) -> Values:
    wishes, system = plan.wishes, plan.winner.system
    values: dict[tuple[str, str], Any] = {
        ("federation", "topology"): GRAPH,
        ("gossip", "rule"): system.rule,
        ("gossip", "compressor"): system.compressor,
        ("training", "method"): system.method,
    }
    if wishes.base is None:
        # also where the folder is that of an earlier plan with other wishes
        values |= {("federation", "name"): "plan", ("federation", "seed"): wishes.seed}
        values |= {("training", "rounds"): wishes.full}
        usual = describe(nodes=wishes.count).task.options["partition"]  # what was simulated: `p2pfl new` takes another
        values["task", "partition"] = wishes.partition or usual
    else:
        if wishes.rounds is not None:
            values |= {("training", "time_s"): None, ("training", "rounds"): wishes.rounds}
        if wishes.partition is not None:
            values["task", "partition"] = wishes.partition
    return values


def _federation(plan: SystemPlan, winner: Path) -> str:
    """Return the federation file to change: that of the task, or a new one, whose folder is made."""
    base = plan.wishes.base
    if base is not None:
        winner.mkdir(exist_ok=True)
        return base.path.read_text(encoding="utf-8")
    file = winner / FEDERATION
    if not file.is_file() or len(read_document(file).get("node", [])) != plan.wishes.count:
        shutil.rmtree(winner, ignore_errors=True)
        _new(plan.wishes, winner, plan.winner.system.graph.file)
    return file.read_text(encoding="utf-8")


def _new(wishes: PlanWishes, winner: Path, graph: Path) -> None:
    """Make a federation of the built-in digits with `p2pfl new`. Raises UserError with what it says if it refuses."""
    words = [str(winner), "--nodes", str(wishes.count), "--task", "digits", "--topology", str(graph)]
    made = subprocess.run([sys.executable, "-m", "p2pfl", "new", *words], capture_output=True, text=True, check=False)  # noqa: S603 - our own command
    if made.returncode:
        raise UserError(made.stderr.strip(), key="--out", value=str(winner))


def _row(plan: SystemPlan, found: SystemStanding) -> dict[str, Any]:
    system = found.system
    attack = None if found.lied_to is None else found.lied_to[0]
    seed = plan.wishes.seed
    return {
        "graph": system.graph.topology.spec,
        "file": str(system.graph.file),
        "degree": system.graph.degree,
        **{name: getattr(system, name) for name in ("rule", "compressor", "method")},
        **{name: getattr(found, name) for name in ("worst", "honest_worst", "honest_mean", "bytes_per_day")},
        "worst_attack": attack,
        "virtual_time_s": found.time_s,
        "liars_guaranteed": list(system.guaranteed),
        **{name: getattr(found, name) for name in ("seeds", "rounds", "attacks", "arrays")},
        "commands": [command_of(plan, found, one, seed) for one in dict.fromkeys((HONEST, attack or HONEST))],
    }
