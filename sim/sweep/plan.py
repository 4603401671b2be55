"""From the file to runs: the product of the axes, each run built once before anything is computed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from p2pfl.errors import P2PFLError, UserError
from sim.sweep.identity import make_job
from sim.sweep.load import located
from sim.sweep.model import Combination, Job, Plan, SweepFile, named
from topologies.errors import TopologyError

SHOWN = 5


def make_plan(file: SweepFile) -> Plan:
    return Plan(file=file, combinations=tuple(_combinations(file)))


def _combinations(file: SweepFile) -> list[Combination]:
    found = []
    folder = file.path.parent
    for values in itertools.product(*file.axes.values()):
        chosen = dict(zip(file.axes, values, strict=True))
        options = {name: located(name, value, folder) for name, value in {**file.fixed, **chosen}.items()}
        found.append(Combination(values=chosen, jobs=tuple(make_job(options, seed) for seed in file.seeds)))
    return found


def check_plan(plan: Plan, check: Callable[[Job], object], known: Collection[str]) -> Plan:
    """Build every run that is not `known` to be possible, and mark or refuse those that cannot be.

    Raises:
        UserError: there are some, and the file does not say `skip_impossible`; or nothing is left.
    """
    reasons: dict[str, str] = {}
    for key, job in plan.jobs.items():
        if key in known:
            continue
        try:
            check(job)
        except (P2PFLError, TopologyError) as error:
            reasons[key] = str(error)
    marked = replace(plan, combinations=tuple(_marked(one, reasons) for one in plan.combinations))
    if reasons and (not plan.file.skip_impossible or not marked.jobs):
        raise _refusal(marked)
    return marked


def _marked(combination: Combination, reasons: Mapping[str, str]) -> Combination:
    own = {job.key: reasons[job.key] for job in combination.jobs if job.key in reasons}
    return replace(combination, impossible=own)


def _refusal(plan: Plan) -> UserError:
    """Names the first few combinations; the same complaint of many is told once."""
    by_reason: dict[str, list[str]] = {}
    for combination in plan.combinations:
        for reason in dict.fromkeys(combination.impossible.values()):
            by_reason.setdefault(reason, []).append(_told(combination, reason))
    lines = [_line(reason, who) for reason, who in list(by_reason.items())[:SHOWN]]
    if len(by_reason) > SHOWN:
        lines.append(f"and {len(by_reason) - SHOWN} more")
    count = sum(bool(combination.impossible) for combination in plan.combinations)
    text = f"{count} of {len(plan.combinations)} combinations cannot be:\n  " + "\n  ".join(lines)
    hint = "axes whose combinations all can be, or skip_impossible = true in [sweep]"
    if not plan.jobs:
        hint = "axes of which some combination can be"
    return UserError(text, file=plan.file.path, key="axes", allowed=hint)


def _told(combination: Combination, reason: str) -> str:
    seeds = [job.seed for job in combination.jobs if combination.impossible.get(job.key) == reason]
    name = named(combination.values)
    return name if len(seeds) == len(combination.jobs) else f"{name}, seed={seeds[0]}"


def _line(reason: str, who: list[str]) -> str:
    others = f" (and {len(who) - 1} more)" if len(who) > 1 else ""
    return f"{who[0]}{others}: {reason}"
