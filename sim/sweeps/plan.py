"""A sweep from its file to its runs: the product of the axes, each run built once before anything is computed.

What a combination means as a whole is checked when it is built.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from p2pfl.config.schemas import Table
from p2pfl.config.tables import Kinds, Mistakes, list_of, read_document, read_table, unknown_keys
from p2pfl.errors import P2PFLError, UserError
from p2pfl.specs import Kind, whole
from sim.attacks import with_absolute_path
from sim.sweeps.job import EXCLUSIVE, FILES, NONE, OPTIONS, Job, Options, make_job
from topologies.errors import TopologyError
from topologies.families import parse
from topologies.files.content import is_file

SEEDS = (0, 1, 2)
MOST_COMBINATIONS = 100_000
SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """One value for each axis, as in the file, with a job for each seed."""

    values: Mapping[str, Any]
    jobs: tuple[Job, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepFile:
    """A sweep file, with paths as written. `fixed` applies to every run, unless an axis has the same name."""

    path: Path
    fixed: Options
    axes: Mapping[str, tuple[Any, ...]]
    seeds: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    file: SweepFile
    combinations: tuple[Combination, ...]

    @property
    def jobs(self) -> dict[str, Job]:
        """Return every run once, by its key; combinations that mean the same share their runs."""
        return {job.key: job for combination in self.combinations for job in combination.jobs}


def name_of(values: Mapping[str, Any]) -> str:
    """Name a combination for people: `topology=ring, nodes=10`."""
    return ", ".join(f"{name}={value}" for name, value in values.items()) or "the only combination"


def report_once(reason: str, names: Sequence[str]) -> str:
    """Report one complaint shared by many combinations: the first names, and how many more there are."""
    others = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return f"{names[0]}{others}: {reason}"


# -- the file --------------------------------------------------------------------------------------------------------


def _read_seeds(value: object) -> tuple[int, ...]:
    if isinstance(value, int):
        return tuple(range(whole(1, 100_000).read(value)))
    if not isinstance(value, list) or not value:
        raise ValueError
    listed = tuple(whole(0).read(seed) for seed in value)
    if len(set(listed)) < len(listed):
        raise ValueError
    return listed


HEAD: Kinds = {
    "seeds": Kind(
        "how many, as 5 for 0 to 4, or a list of different whole numbers from 0",
        _read_seeds,
        {"anyOf": [whole(1).schema, list_of(whole(0), 1)]},
    ),
    **OPTIONS,
}


def tables() -> tuple[Table, ...]:
    """Return the tables of a sweep file, for editors."""
    axes = {name: replace(kind, schema=list_of(kind, 1)) for name, kind in OPTIONS.items()}
    return Table(name="sweep", kinds=HEAD, defaults={"seeds": [*SEEDS]}), Table(name="axes", kinds=axes)


def load_sweep(path: Path) -> SweepFile:
    """Read the sweep described by a file. Raises UserError for a single mistake, ExceptionGroup for several."""
    return sweep_from(read_document(path), path)


def sweep_from(document: Mapping[str, Any], path: Path) -> SweepFile:
    """Read the sweep that `document` describes; `path` names it in errors and locates its files. Raises as above."""
    mistakes = Mistakes(path)
    unknown_keys(document, "", ("sweep", "axes"), mistakes)
    given = document.get("sweep", {})
    if isinstance(given, Mapping) and "skip_impossible" in given:
        text = "is gone: every combination must be possible; write two files if need be"
        raise UserError(text, file=path, key="sweep.skip_impossible")
    head = read_table(given, "sweep.", HEAD, mistakes)
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
    if len(mistakes.errors) > 1:
        raise ExceptionGroup(f"mistakes in {path}", mistakes.errors)
    if mistakes.errors:
        raise mistakes.errors[0]
    return SweepFile(
        path=path.absolute(),
        fixed=fixed,
        axes=axes,
        seeds=head.get("seeds", SEEDS),
    )


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


def _check_place(name: str, value: Any, folder: Path, key: str, mistakes: Mistakes) -> None:
    try:
        place = located(name, value, folder)
    except TopologyError as error:
        text = error.message if error.key == "topology" else f"{value}: {error.message}"
        mistakes.add(text, key, error.value, error.allowed)
        return
    if name in FILES and value != NONE and not Path(place).exists():
        mistakes.add("no such file", key, value, 'an existing file, relative to this one, or "none"')


def located(name: str, value: Any, folder: Path) -> Any:
    """Make every path in an option's value absolute; a relative path starts beside the file."""
    if name in FILES:
        return value if value == NONE else str((folder / value).absolute())
    if name == "attack":
        return with_absolute_path(value, folder)
    if name != "topology":
        return value
    if is_file(value):
        return str((folder / value).absolute())
    labels = parse(value).parameters.get("labels")
    return value.replace(str(labels), str((folder / labels).absolute())) if labels else value


# -- its runs --------------------------------------------------------------------------------------------------------


def make_plan(file: SweepFile) -> SweepPlan:
    combinations, folder = [], file.path.parent
    for values in itertools.product(*file.axes.values()):
        chosen = dict(zip(file.axes, values, strict=True))
        options = {name: located(name, value, folder) for name, value in {**file.fixed, **chosen}.items()}
        combinations.append(Combination(values=chosen, jobs=tuple(make_job(options, seed) for seed in file.seeds)))
    return SweepPlan(file=file, combinations=tuple(combinations))


def check_plan(plan: SweepPlan, check: Callable[[Job], object], known: Collection[str]) -> None:
    """Build all runs but `known` ones. Raises UserError: the first few impossible ones, each shared complaint once."""
    reasons: dict[str, str] = {}
    for key, job in plan.jobs.items():
        if key not in known:
            try:
                check(job)
            except (P2PFLError, TopologyError) as error:
                reasons[key] = str(error)
    by_reason: dict[str, list[str]] = {}
    for combination in plan.combinations:
        for reason in dict.fromkeys(reasons[job.key] for job in combination.jobs if job.key in reasons):
            seeds = [job.seed for job in combination.jobs if reasons.get(job.key) == reason]
            name = name_of(combination.values)
            by_reason.setdefault(reason, []).append(
                name if len(seeds) == len(combination.jobs) else f"{name}, seed={seeds[0]}"
            )
    if not by_reason:
        return
    lines = [report_once(reason, who) for reason, who in list(by_reason.items())[:SHOWN]]
    if len(by_reason) > SHOWN:
        lines.append(f"and {len(by_reason) - SHOWN} more")
    count = sum(any(job.key in reasons for job in combination.jobs) for combination in plan.combinations)
    text = f"{count} of {len(plan.combinations)} combinations are impossible:\n  " + "\n  ".join(lines)
    raise UserError(text, file=plan.file.path, key="axes", allowed="axes whose combinations are all possible")
