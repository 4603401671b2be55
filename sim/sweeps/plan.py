"""From the file to runs: the product of the axes, each run built once before anything is computed.

What a combination means as a whole is checked when it is built.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from p2pfl.config.tables import Mistakes, read_document, read_table, unknown_keys
from p2pfl.errors import P2PFLError, UserError
from sim.attacks import with_absolute_path
from sim.sweeps.fingerprint import make_job
from sim.sweeps.model import (
    EXCLUSIVE,
    FILES,
    HEAD,
    NONE,
    OPTIONS,
    Combination,
    Job,
    SweepFile,
    SweepPlan,
    name_of,
    report_once,
)
from topologies.errors import TopologyError
from topologies.families import parse
from topologies.files.content import is_file

TABLES = ("sweep", "axes")
SEEDS = (0, 1, 2)
MOST_COMBINATIONS = 100_000

SHOWN = 5


def load_sweep(path: Path) -> SweepFile:
    """Read the sweep described by a file. Raises UserError for a single mistake, ExceptionGroup for several."""
    return sweep_from(read_document(path), path)


def sweep_from(document: Mapping[str, Any], path: Path) -> SweepFile:
    """Read the sweep that `document` describes; `path` names it in errors and locates its files. Raises as above."""
    mistakes = Mistakes(path)
    unknown_keys(document, "", TABLES, mistakes)
    head = read_table(document.get("sweep", {}), "sweep.", HEAD, mistakes)
    axes = _read_axes(document.get("axes", {}), mistakes)
    for first, second in EXCLUSIVE:
        if {first, second} <= head.keys() | axes.keys():
            mistakes.add(f"stands beside {first}", second, None, "one of the two")
    folder = path.absolute().parent
    fixed = {name: head[name] for name in OPTIONS if name in head}
    for name, value in fixed.items():
        _check_place(name, value, folder, f"sweep.{name}", mistakes)
    for name, values in axes.items():
        for index, value in enumerate(values):
            _check_place(name, value, folder, f"axes.{name}[{index}]", mistakes)
    count = math.prod(max(1, len(values)) for values in axes.values())
    if count > MOST_COMBINATIONS:
        mistakes.add("too many combinations", "axes", count, f"up to {MOST_COMBINATIONS:,}")
    if len(mistakes.found) > 1:
        raise ExceptionGroup(f"mistakes in {path}", mistakes.found)
    if mistakes.found:
        raise mistakes.found[0]
    return SweepFile(
        path=path.absolute(),
        fixed=fixed,
        axes=axes,
        seeds=head.get("seeds", SEEDS),
        skip_impossible=head.get("skip_impossible", False),
    )


def located(name: str, value: Any, folder: Path) -> Any:
    """Make every path in an option's value absolute; a relative path starts beside the file."""
    if name in FILES:
        return value if value == NONE else str((folder / value).absolute())
    if name == "attack":
        return with_absolute_path(value, folder)
    return _located_spec(value, folder) if name == "topology" else value


def make_plan(file: SweepFile) -> SweepPlan:
    return SweepPlan(file=file, combinations=tuple(_combinations(file)))


def check_plan(plan: SweepPlan, check: Callable[[Job], object], known: Collection[str]) -> SweepPlan:
    """Build every run that is not `known` to be possible, and mark or refuse those that are not.

    Raises UserError if some are impossible and the file does not say `skip_impossible`, or if nothing is left.
    """
    reasons: dict[str, str] = {}
    for key, job in plan.jobs.items():
        if key in known:
            continue
        try:
            check(job)
        except (P2PFLError, TopologyError) as error:
            reasons[key] = str(error)
    impossible = [{job.key: reasons[job.key] for job in one.jobs if job.key in reasons} for one in plan.combinations]
    pairs = zip(plan.combinations, impossible, strict=True)
    marked = replace(plan, combinations=tuple(replace(one, impossible=own) for one, own in pairs))
    if reasons and (not plan.file.skip_impossible or not marked.jobs):
        raise _refusal(marked)
    return marked


def _located_spec(spec: str, folder: Path) -> str:
    if is_file(spec):
        return str((folder / spec).absolute())
    labels = parse(spec).parameters.get("labels")
    return spec.replace(str(labels), str((folder / labels).absolute())) if labels else spec


def _check_place(name: str, value: Any, folder: Path, key: str, mistakes: Mistakes) -> None:
    try:
        found = located(name, value, folder)
    except TopologyError as error:
        mistakes.add(f"{value}: {error.message}", key, error.value, error.allowed)
        return
    if name in FILES and value != NONE and not Path(found).exists():
        mistakes.add("no such file", key, value, 'an existing file, relative to this one, or "none"')


def _read_axes(table: Any, mistakes: Mistakes) -> dict[str, tuple[Any, ...]]:
    """Read every value as the option would, so that a mistake is reported with its position in the list."""
    if not isinstance(table, dict):
        mistakes.add("must be a table", "axes", None, "[axes]")
        return {}
    if "seed" in table or "seeds" in table:
        mistakes.add("seeds are not an axis", "axes.seeds", None, "sweep.seeds, over which the table has its intervals")
    known = {name: values for name, values in table.items() if name not in {"seed", "seeds"}}
    unknown_keys(known, "axes.", OPTIONS, mistakes)
    return {name: _read_axis(name, known[name], mistakes) for name in known if name in OPTIONS}


def _read_axis(name: str, values: Any, mistakes: Mistakes) -> tuple[Any, ...]:
    key, allowed = f"axes.{name}", f"a list, each {OPTIONS[name].allowed}"
    if not isinstance(values, list) or not values:
        mistakes.add("must be a list that is not empty", key, values, allowed)
        return ()
    read = []
    for index, value in enumerate(values):
        try:
            read.append(OPTIONS[name].read(value))
        except ValueError as reason:
            mistakes.add(str(reason) or "impossible value", f"{key}[{index}]", value, OPTIONS[name].allowed)
    repeated = next((value for index, value in enumerate(read) if value in read[:index]), None)
    if repeated is not None:
        mistakes.add("has a value twice", key, repeated, "different values")
    return tuple(read)


def _combinations(file: SweepFile) -> list[Combination]:
    found = []
    folder = file.path.parent
    for values in itertools.product(*file.axes.values()):
        chosen = dict(zip(file.axes, values, strict=True))
        options = {name: located(name, value, folder) for name, value in {**file.fixed, **chosen}.items()}
        found.append(Combination(values=chosen, jobs=tuple(make_job(options, seed) for seed in file.seeds)))
    return found


def _refusal(plan: SweepPlan) -> UserError:
    """Refuse the impossible combinations, naming the first few; a complaint shared by many is reported once."""
    by_reason: dict[str, list[str]] = {}
    for combination in plan.combinations:
        for reason in dict.fromkeys(combination.impossible.values()):
            by_reason.setdefault(reason, []).append(_complaint_of(combination, reason))
    lines = [report_once(reason, who) for reason, who in list(by_reason.items())[:SHOWN]]
    if len(by_reason) > SHOWN:
        lines.append(f"and {len(by_reason) - SHOWN} more")
    count = sum(bool(combination.impossible) for combination in plan.combinations)
    text = f"{count} of {len(plan.combinations)} combinations are impossible:\n  " + "\n  ".join(lines)
    hint = "axes whose combinations are all possible, or skip_impossible = true in [sweep]"
    if not plan.jobs:
        hint = "axes with at least one possible combination"
    return UserError(text, file=plan.file.path, key="axes", allowed=hint)


def _complaint_of(combination: Combination, reason: str) -> str:
    seeds = [job.seed for job in combination.jobs if combination.impossible.get(job.key) == reason]
    name = name_of(combination.values)
    return name if len(seeds) == len(combination.jobs) else f"{name}, seed={seeds[0]}"
