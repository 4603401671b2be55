"""The winner as files: a federation that runs, the evidence, and the commands that repeat every figure."""

from __future__ import annotations

import dataclasses
import json
import shlex
import shutil
from pathlib import Path
from typing import Any

from p2pfl.config.sections import HideConfig
from p2pfl.config.writing import toml_value
from p2pfl.errors import UserError
from p2pfl.node.folders import save
from sim.federations import describe
from sim.plans.search import HONEST, SystemPlan, SystemStanding, clock_of, closing_of
from sim.plans.systems import PlanWishes
from sim.sweeps.run import replace

WINNER, GRAPH, CHANGES, EVIDENCE = "winner", "graph.json", "changes.toml", "plan.json"


def check_place(out: Path) -> None:
    """Raise UserError if the winner of an earlier plan has been run there: its nodes' states would be lost."""
    state = next(out.glob(f"{WINNER}/*/state"), None)
    if state is not None:
        allowed = f"another folder, or move {out / WINNER} away"
        raise UserError(
            "the winner of an earlier plan has been run there", key="--out", value=str(out), allowed=allowed
        )


def write_plan(plan: SystemPlan, out: Path) -> Path:
    """Write the evidence into `out`, and the winner into a folder of its own there, which is returned: a federation, or
    for one that exists what to change in its file.

    Raises StorageError if the disk refused.
    """
    winner, wishes, system = out.absolute() / WINNER, plan.wishes, plan.winner.system
    shutil.rmtree(winner, ignore_errors=True)
    choices = {"rule": system.rule, "compressor": system.compressor, "method": system.method}
    if wishes.base is None:
        asked = {"seed": wishes.seed, "rounds": wishes.full, "partition": wishes.partition}
        made = describe(nodes=wishes.count, topology=str(system.graph.file), **choices, **asked)  # type: ignore[arg-type]
        training = dataclasses.replace(made.training, closing=closing_of(wishes, system) or made.training.closing)
        save(dataclasses.replace(made, name="plan", training=training), winner)
    else:
        winner.mkdir()
        replace(winner / CHANGES, _changes(wishes, choices, system.hides).encode())
        shutil.copyfile(system.graph.file, winner / GRAPH)
    replace(out / EVIDENCE, (json.dumps(evidence(plan), indent=1) + "\n").encode())
    return winner


def _changes(wishes: PlanWishes, choices: dict[str, str], hides: HideConfig | None) -> str:
    """Return the tables that a federation's file is to have, where they differ from its own."""
    tables: dict[str, dict[str, Any]] = {
        "federation": {"topology": GRAPH},
        "task": {} if wishes.partition is None else {"partition": wishes.partition},
        "training": {"method": choices["method"]} | ({} if wishes.rounds is None else {"rounds": wishes.rounds}),
        "gossip": {name: choices[name] for name in ("rule", "compressor")},
        "privacy": {} if hides is None else {k: v for k, v in dataclasses.asdict(hides).items() if v is not None},
    }
    lines = {name: [f"{key} = {toml_value(value)}" for key, value in keys.items()] for name, keys in tables.items()}
    return "\n".join("\n".join([f"[{name}]", *keys, ""]) for name, keys in lines.items() if keys)


def evidence(plan: SystemPlan) -> dict[str, Any]:
    """Return the plan as plain values."""
    wishes = dataclasses.asdict(plan.wishes) | {"world": None if plan.wishes.world is None else str(plan.wishes.world)}
    return {
        "wishes": {key: value for key, value in wishes.items() if value not in (None, 0)},
        "refused": list(plan.refused),
        "measure": plan.measure.name,
        **{name: getattr(plan, name) for name in ("interrupted", "hurried", "runs", "by_arrays")},
        "systems": {"tried": plan.tried, "of": plan.of},
        "failures": list(plan.failures),
        "ranking": [_row(plan, standing) for standing in plan.ranking],
    }


def command_of(plan: SystemPlan, standing: SystemStanding, attack: str, seed: int) -> str:
    """Return the command that repeats one trial."""
    wishes, system = plan.wishes, standing.system
    words: list[str] = ["p2pfl", "sim", "run"]
    if wishes.base is not None:
        words.append(str(wishes.base.path))
    else:
        words += ["--nodes", str(wishes.count)]
    words += ["--topology", str(system.graph.file), "--rule", system.rule, "--compressor", system.compressor]
    words += ["--method", system.method, "--seed", str(seed)]
    more: dict[str, Any] = {
        "privacy": system.privacy,
        "rounds": wishes.full,
        "partition": wishes.partition,
        "world": wishes.world,
    }
    for name, value in (more | {"closing": closing_of(wishes, system)}).items():
        if value is not None:
            words += [f"--{name}", str(value)]
    words += ["--arrays", "--clock", clock_of(wishes)] if standing.arrays else []
    if attack != HONEST:
        words += ["--byzantine", str(wishes.liars), "--attack", attack]
    return shlex.join(words)


def _row(plan: SystemPlan, standing: SystemStanding) -> dict[str, Any]:
    system = standing.system
    attack = None if standing.lied_to is None else standing.lied_to[0]
    seed = plan.wishes.seed
    return {
        "graph": system.graph.topology.spec,
        "file": str(system.graph.file),
        "degree": system.graph.degree,
        **{name: getattr(system, name) for name in ("rule", "compressor", "method", "privacy")},
        **{name: getattr(standing, name) for name in ("worst", "honest_worst", "honest_mean", "bytes_per_day")},
        "worst_attack": attack,
        "virtual_time_s": standing.time_s,
        "liars_guaranteed": list(system.guaranteed),
        **{name: getattr(standing, name) for name in ("seeds", "attacks", "arrays")},
        "commands": [
            command_of(plan, standing, condition, seed) for condition in dict.fromkeys((HONEST, attack or HONEST))
        ],
    }
