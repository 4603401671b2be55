"""A virtual year of nine boards that come and go: what grows in their core and engine? A line a month, and a verdict.

About weekly something happens to a board: killed, off for days, wiped, removed and added again in a new row of the
charter, or given a new key (a new row, too). The process of board0 and the disk of board1 last all year; of these each
month says bytes of snapshot and log, alarms a day, and the sizes of all containers by place. At the end all invariants
must hold, in float64, and nothing may have grown since the second month: else it ends with 1. (The simulator knows
the charter's rows from the beginning: that a real one grows by a row for each of them is not seen.)

Usage: nice python benchmarks/year.py [--days 365] [--minutes 60 (of a round)] > year.jsonl
"""

import argparse
import gc
import json
import os
import sys
import time
from collections import Counter, deque
from pathlib import Path
from random import Random
from types import FunctionType
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import faces  # noqa: F401 - tests import names from packages
import msgspec
from oracle import Invariants

from p2pfl.config import FederationConfig, GossipConfig, Member, TaskConfig, TrainingConfig, federation_graph
from p2pfl.storage import size_bytes
from p2pfl.system import return_free_memory
from sim import NS, AmendSpec, ComputeSpec, CrashSpec, PreparedRun, WorldSpec, make_learners, script, settle, steps_of

DAY_S, BOARDS, LIVED, GRAPH = 86_400.0, 9, (0, 1), "random-regular:degree=4"
DAYS = {"kill": 0.001, "off": 2.5, "wipe": 0.1, "remove": 2.5, "key": 0.0}  # what happens, and its mean duration
LIMITS = {"mb": (1.0, 6), "objects": (1.02, 600), "held": (1.25, 8), "snapshot_bytes": (1.1, 1000)}
"""How much more a month may have than another: times that one's, plus; what is under way differs."""


def drawn(days: float, minutes: float, every_days: float) -> tuple[int, WorldSpec]:
    """Return how many rows the charter ends with, and what happens to each board about every `every_days`."""
    chance, rows, crashes, amends = Random(0), BOARDS, list[CrashSpec](), list[AmendSpec]()
    for board in range(1, BOARDS):
        row, at = board, chance.uniform(0.1, every_days)
        while at < days:
            what = chance.choices([*DAYS], (9, 2, 0, 0, 0) if board in LIVED else (9, 2, 1, 1, 1))[0]
            lasts = min(every_days / 4, DAYS[what] * chance.uniform(0.3, 1.7))
            begin_s, end_s = at * DAY_S, (at + lasts) * DAY_S
            if what in ("remove", "key"):
                amends.append(AmendSpec(at_s=begin_s, leave=(row,), join=(rows,) if what == "key" else ()))
                amends += [AmendSpec(at_s=end_s, join=(rows,))] if what == "remove" else []
                row, rows = rows, rows + 1
            else:
                crashes.append(CrashSpec(nodes=(row,), at_s=begin_s, down_s=end_s - begin_s, amnesia=what == "wipe"))
            at += lasts + chance.uniform(0.01, 2 * every_days)
    compute, faults = ComputeSpec(round_s=60 * minutes, jitter=0.2), {"crashes": (*crashes,), "amendments": (*amends,)}
    return rows, WorldSpec(compute=compute, limit_s=2 * days * DAY_S, **faults)


def described(rows: int) -> FederationConfig:
    names = [f"board{index}" for index in range(rows)]
    members = (Member(index=i, name=name, key=i.to_bytes(32, "big"), address=None) for i, name in enumerate(names))
    training = TrainingConfig(rounds=10**7, local_steps=1, learning_rate=0.1, method="variate:beta=0.1")
    parts = {"training": training, "gossip": GossipConfig(compressor="q8"), "members": (*members,), "topology": GRAPH}
    parts |= {"edges": federation_graph(GRAPH, names[:BOARDS], 0, Path())[0].edges, "path": Path("year.toml")}
    return FederationConfig(name="year", seed=0, task=TaskConfig(name="quadratic", options={"size": 100}), **parts)


class Year:
    def __init__(self, days: float, minutes: float, every_days: float = 7.0) -> None:
        rows, world = drawn(days, minutes, every_days)
        federation = steps_of(described(rows), world)[0].federation
        run = PreparedRun(script(federation, settle(world, rows, 0), make_learners(federation), is_watched=True))
        self.world, self.hosts, self.watch = run.world, run.world.hosts, Invariants(run, 1e-9)
        self._start, self.world.start = self.world.start, self.start
        run.watch_by(self.watch)
        for host in self.hosts:  # a real engine says what an operation cost
            host.engine.run = lambda operation, run=host.engine.run: costly(run(operation))

    def start(self, index: int) -> None:
        """Start a node; halves of exchanges on edges that went while it was off are lost, as promised."""
        state, plan = self.hosts[index].engine.state, self.hosts[index].plan
        self.watch.drops(index, [peer for peer in state.edges if peer not in plan.neighbors])
        self.watch.book(lambda: self._start(index))

    def until(self, day: float) -> dict[str, Any]:
        """Run to the end of that day; return the figures since the last call."""
        days, lived = day - self.world.kernel.now / DAY_S, [self.hosts[board] for board in LIVED]
        self.world.run(until_ns=round(day * DAY_S * NS), finish=False)
        alarms = [round(len(host.alarms) / days, 2) for host in lived]
        for host in self.hosts:  # what only the simulator keeps: all alarms, and what is left of removed members
            host.alarms.clear()
            if host.process and host.index in host.plan.settings.retired:
                host.process = host.core = None
                self.watch.book(host.engine.forget)
        gc.collect()
        return_free_memory()
        starts, pages = [host.starts for host in self.hosts], int(Path("/proc/self/statm").read_text().split()[1])
        figures = {"day": round(day, 1), "cpu_s": round(time.process_time(), 1), "starts": sum(starts)}
        figures |= {"rows": sum(map(bool, starts)), "members": sum(host.alive for host in self.hosts)}
        logs = [host.engine.store._flushed for host in lived]  # noqa: SLF001
        return figures | {
            "rounds": [host.core.facts.rounds for host in lived],
            "alarms_a_day": alarms,
            "log_bytes": [sum(len(msgspec.msgpack.encode(entry)) for entry in log) for log in logs],
            "snapshot_bytes": {f"board{host.index}": size_bytes(host.engine.store._image) for host in lived},  # noqa: SLF001
            "mb": {"memory": round(pages * os.sysconf("SC_PAGESIZE") / 1e6, 1)},
            "objects": dict(Counter(type(each).__name__ for each in gc.get_objects()).most_common()),
            "held": {f"board{host.index} {place}": size for host in lived for place, size in held(host).items()},
        }


def costly(event: Any) -> Any:
    return msgspec.structs.replace(event, cost_s=0.001) if hasattr(event, "cost_s") else event


def held(host: Any) -> Counter[str]:
    """Return the sizes of all containers that core and engine hold, summed by place (`core.edges[].line.inbox`)."""
    sizes, seen = Counter[str](), set[int]()
    todo = deque([("core", host.core), ("engine", host.engine._engine)])  # noqa: SLF001
    while todo:
        place, value = todo.popleft()
        if id(value) in seen or isinstance(value, type | FunctionType | str | int | float | Random):
            continue
        seen.add(id(value))
        parts = [(f"{place}[]", part) for part in gc.get_referents(value)]
        if isinstance(value, list | tuple | set | frozenset | deque | dict):
            sizes[place] += len(value)
        else:
            state = object.__getstate__(value)  # attributes, slots, or both
            named = state if isinstance(state, tuple) else (state,)
            parts = [(f"{place}.{name}", each[name]) for each in named if each for name in each] or parts
        todo += parts
    return sizes


def growth(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Say what has grown from one month to another."""
    return [
        f"grew: {kind} {name} from {before[kind].get(name, 0)} to {size}"
        for kind, (share, more) in LIMITS.items()
        for name, size in sorted(after[kind].items())
        if size > share * before[kind].get(name, 0) + more
    ]


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--days", type=float, default=365.0)
    parser.add_argument("--minutes", type=float, default=60.0)
    options = parser.parse_args()
    year, months = Year(options.days, options.minutes), []
    for month in range(1, 13):
        months.append(year.until(options.days * month / 12))
        print(json.dumps(months[-1]), flush=True)
    year.watch.look()  # raises AssertionError
    if grew := growth(months[1], months[-1]):
        sys.exit("\n".join(grew))
    print("flat", file=sys.stderr)


if __name__ == "__main__":
    main()
