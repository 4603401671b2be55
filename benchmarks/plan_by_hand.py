"""Does a search by hand find a better system than `p2pfl plan`, with ten times the budget?

The hand begins at the plan's winner and changes one choice at a time: every degree, drawn graphs, more rules,
compressors and methods than the plan looks at, over the seeds, attacks and rounds of the plan's last look. It keeps
what ranks higher, until no change does or ten times the plan's time is up. Both are then judged for all rounds on seeds
that neither has seen.

    python benchmarks/plan_by_hand.py --nodes 5 --rounds 20 --within 30
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from p2pfl.errors import P2PFLError
from p2pfl.learn.metrics import Measure
from sim.plans.search import ATTACKS, HONEST, Bench, SystemStanding, TrialLook, make_plan, ranked
from sim.plans.systems import PlannedGraph, PlannedSystem, PlanWishes, SlowWish, keep_graph
from sim.sweeps.run import Folder
from topologies.errors import TopologyError
from topologies.families import build
from topologies.graph import components

DEGREES = (2, 3, 4, 5, 6, 7, 8, 10, 12)
SPECS = ("base:k=1", "complete", "ring")
DRAWS = 3
RULES = ("mean", "hampel", "cs+", "scc", "geometric-median", "median", "trimmed-mean")
FIRST = ("", "nnm+")
COMPRESSORS = (
    "none",
    "bf16",
    "q8",
    "q4",
    "q2",
    "rotate+q4",
    "rotate+q2",
    "rotate+sign",
    "sign",
    "top-k:0.1+q8",
    "top-k:0.05+q8",
    "fragment:4",
)
METHODS = ("plain", "variate", "momentum", "tracking", "normalized", "outer")
FRESH = (100, 101, 102, 103, 104)
TIMES = 10


def graphs(wishes: PlanWishes, folder: Path, begun: list[PlannedGraph]) -> Iterator[PlannedGraph]:
    """Yield the plan's graphs, then others within the wished degree."""
    yield from begun
    drawn = [(f"random-regular:degree={degree}", seed) for degree in DEGREES for seed in range(DRAWS)]
    for number, (spec, seed) in enumerate([*((spec, 0) for spec in SPECS), *drawn]):
        try:
            topology = build(spec, wishes.count, seed)
        except TopologyError:
            continue
        if int(topology.degrees.max()) > wishes.highest or len(components(topology)) > 1:
            continue
        own = folder / f"hand-{number}"
        own.mkdir(exist_ok=True)
        yield keep_graph(topology, own)


def neighbors(best: PlannedSystem, wishes: PlanWishes, found: list[PlannedGraph]) -> Iterator[PlannedSystem]:
    """Yield every system that differs from `best` in one choice."""
    lies = f":b={wishes.liars}" if wishes.liars else ":b=1"
    rules = [f"{first}{rule}{lies}" if rule != "mean" else rule for rule in RULES for first in FIRST]
    yield from (replace(best, compressor=one) for one in COMPRESSORS if one != best.compressor)
    yield from (replace(best, method=one) for one in METHODS if one != best.method)
    yield from (replace(best, graph=one) for one in found if one is not best.graph)
    if wishes.liars:
        yield from (replace(best, rule=one) for one in dict.fromkeys(rules) if one != best.rule)


def climb(
    bench: Bench,
    begun: SystemStanding,
    look: TrialLook,
    found: list[PlannedGraph],
    *,
    measure: Measure,
    until: float,
) -> list[SystemStanding]:
    """Change one choice at a time; returns the standings of all that were tried, best first."""
    wishes = bench.wishes
    tried = {begun.system.choices: begun}
    best = begun
    while time.monotonic() < until:
        for system in neighbors(best.system, wishes, found):
            if system.choices in tried or time.monotonic() >= until:
                continue
            try:
                whole = bench.perform(bench.trials(look, [system]), until) and bench.complete([system], look)
            except (P2PFLError, TopologyError):
                continue
            if whole:
                tried[system.choices] = bench.standing(system, look)
        ranking = ranked(wishes, list(tried.values()), measure)
        if ranking[0].system.choices == best.system.choices:
            break
        best = ranking[0]
    return list(ranked(wishes, list(tried.values()), measure))


def judged(bench: Bench, system: PlannedSystem) -> SystemStanding | None:
    """Return the figures for all rounds on fresh seeds; None if a run failed."""
    attacks = (HONEST, *(ATTACKS if bench.wishes.liars else ()))
    look = TrialLook(attacks=attacks, seeds=FRESH, rounds=bench.wishes.full)
    bench.perform(bench.trials(look, [system]), time.monotonic() + 1e6)
    return bench.standing(system, look) if bench.complete([system], look) else None


def line(name: str, one: SystemStanding | None) -> str:
    if one is None:
        return f"{name:28} failed"
    choices = f"degree {one.system.graph.degree}, {one.system.rule}, {one.system.compressor}, {one.system.method}"
    return f"{name:28} {one.worst:.4f} {one.honest_worst:.4f} {one.bytes_per_day:>12,}  {choices}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--max-degree", type=int)
    parser.add_argument("--liars", type=int, default=0)
    parser.add_argument("--loss", type=float, default=0.0)
    parser.add_argument("--slow", type=lambda text: SlowWish(*map(int, text.split("x"))), help="as 5x10")
    parser.add_argument("--bytes-per-day", type=int)
    parser.add_argument("--within", type=float, required=True, help="seconds for the plan")
    parser.add_argument("--hand", type=float, help="seconds for the hand, in place of ten times the plan's")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    given = vars(parser.parse_args())
    within, hand, jobs, out = given.pop("within"), given.pop("hand"), given.pop("jobs"), given.pop("out").absolute()
    wishes = PlanWishes(**given)

    begun = time.monotonic()
    plan = make_plan(wishes, out, within_s=within, jobs=jobs, tell=lambda _: None)
    took, won = time.monotonic() - begun, plan.winner
    attacks = (HONEST, *ATTACKS[: won.attacks]) if wishes.liars else (HONEST,)
    look = TrialLook(attacks=attacks, seeds=tuple(range(won.seeds)), rounds=won.rounds)
    print(f"plan: {took:.0f} s, {plan.tried} of {plan.of} systems, {plan.runs} runs", flush=True)

    bench = Bench(wishes=wishes, folder=Folder(out), world=plan.world, count=jobs, tell=lambda _: None)
    with closing(bench):
        bench.perform(bench.trials(look, [won.system]), time.monotonic() + 1e6)  # known: read from the folder
        known = list({id(one.system.graph): one.system.graph for one in plan.ranking}.values())
        found = list(graphs(wishes, out / "graphs", known))
        begun = time.monotonic()
        ranking = climb(bench, won, look, found, measure=plan.measure, until=begun + (hand or TIMES * took))
        print(f"hand: {time.monotonic() - begun:.0f} s, {len(ranking)} systems", flush=True)
        print(f"{'':28} {'worst':>6} {'honest':>6} {'bytes a day':>12}")
        print(line("plan, as it saw it", won))
        print(line("hand, as it saw it", ranking[0]))
        print(line("plan, fresh seeds", judged(bench, won.system)))
        print(line("hand, fresh seeds", judged(bench, ranking[0].system)), flush=True)


if __name__ == "__main__":
    main()
