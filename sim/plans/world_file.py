"""The world of a plan as a file, so that every run of the plan can be repeated by a command."""

from __future__ import annotations

import json
from pathlib import Path

from sim.plans.wishes import PlanWishes
from sim.sweeps.run import replace
from topologies.timing import read_far

WORLD = "world.toml"
SELDOM_S = 1e9


def world_text(wishes: PlanWishes) -> str:
    """Return the text of the world file. Nodes are tested at the end alone: a third of a run would go into curves."""
    parts = [f"[run]\nevaluate_every_s = {SELDOM_S!r}\n"]
    if wishes.loss:
        parts.append(f"[links]\nloss = {wishes.loss!r}\n")
    if wishes.slow is not None:
        parts.append(f"[[slow]]\ncount = {wishes.slow.count}\nspeed = {1.0 / wishes.slow.times!r}\n")
    told = map(read_far, wishes.far)
    parts += [f"[[slow]]\nnodes = {json.dumps(one.named)}\nfar_s = {one.time_s!r}\n" for one in told]
    return "\n".join(parts)


def write_world(wishes: PlanWishes, folder: Path) -> Path:
    """Write the world file into the folder. Raises StorageError if the disk refused."""
    path = (folder / WORLD).absolute()
    replace(path, world_text(wishes).encode())
    return path
