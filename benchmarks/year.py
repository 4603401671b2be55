"""A virtual year of boards that come and go: what grows? A line of JSON a month, and a verdict.

The simulator runs the core and engine of nine boards that learn without end, with control variates, on a graph of
degree 4. About weekly something happens to each: killed, cut off, switched off for days, wiped, removed and added again
in a new row of the charter, or given a new key (a new row, too). The process of board0 and the disk of board1 last all
year. Each month says memory, rounds, Python objects by type, and of these two bytes of state (snapshot and log), alarms
a day, and the size of all that core and engine hold, by place (`core.edges[].line.inbox`).

At the end the invariants of tests/invariants.py and tests/oracle.py must hold (in float64), and nothing but KNOWN may
have grown from the second month to the last. Else it ends with 1.

Usage: nice python benchmarks/year.py [--days 365] [--minutes 60] [--out year.jsonl]
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
from types import FunctionType, MappingProxyType
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "tests")]

import faces  # noqa: F401 - tests import names from packages
import msgspec
import numpy as np
from oracle import Invariants

from p2pfl.config import FederationConfig, GossipConfig, Member, TaskConfig, TrainingConfig, federation_graph
from p2pfl.storage import State, size_bytes
from sim import NS, AmendSpec, ComputeSpec, CrashSpec, LinkSpec, PartitionSpec, PreparedRun, WorldSpec
from sim import make_learners, script, settle, steps_of
from sim.simulation import _return_free_memory

DAY_S = 86_400.0
BOARDS, GRAPH, LIVED = 9, "random-regular:degree=4", (0, 1)
HOURS = {"kill": 0.02, "cut": 6.0, "off": 60.0, "wipe": 2.0, "remove": 60.0, "key": 0.0}
"""How long it lasts on average."""
WEIGHTS = (8, 2, 1, 1, 1, 1)
KNOWN = ("core.settings.retired",)
"""One entry for each removed row of the charter, of which there are 10,000 at most."""
SLACK, RSS_MB = 8, 4.0
"""How many entries more (and a quarter; of objects 2%) may be there in one month than in another; memory."""


def drawn(days: float, minutes: float, every_days: float) -> tuple[int, WorldSpec]:
    """Return how many rows the charter ends with, and what happens to each board about every `every_days`."""
    chance, rows = Random(0), BOARDS
    crashes, amends, cuts = list[CrashSpec](), list[AmendSpec](), list[PartitionSpec]()
    for board in range(1, BOARDS):
        row, at = board, chance.uniform(0.1, every_days)
        while at < days:
            what = chance.choices([*HOURS], WEIGHTS)[0]
            if board in LIVED:
                what = {"wipe": "off", "remove": "cut", "key": "kill"}.get(what, what)
            lasts = min(every_days / 4, HOURS[what] / 24 * chance.uniform(0.3, 1.7))
            begin_s, end_s = at * DAY_S, (at + lasts) * DAY_S
            if what == "cut" and all(end_s < cut.at_s or cut.until_s < begin_s for cut in cuts):
                cuts.append(PartitionSpec(groups=((row,),), at_s=begin_s, until_s=end_s))
            elif what in ("remove", "key"):
                amends.append(AmendSpec(at_s=begin_s, leave=(row,), join=(rows,) if what == "key" else ()))
                amends += [AmendSpec(at_s=end_s, join=(rows,))] if what == "remove" else []
                row, rows = rows, rows + 1
            elif what != "cut":
                crashes.append(CrashSpec(nodes=(row,), at_s=begin_s, down_s=end_s - begin_s, amnesia=what == "wipe"))
            at += lasts + chance.uniform(0.01, 2 * every_days)
    compute, links = ComputeSpec(round_s=60 * minutes, jitter=0.2), LinkSpec(redial_s=5.0)
    faults: dict[str, Any] = {"partitions": tuple(cuts), "crashes": tuple(crashes), "amendments": tuple(amends)}
    return rows, WorldSpec(compute=compute, links=links, limit_s=2 * days * DAY_S, **faults)


class Year:
    def __init__(self, days: float, minutes: float, every_days: float = 7.0) -> None:
        rows, world = drawn(days, minutes, every_days)
        members = tuple(Member(index=i, name=f"board{i}", key=i.to_bytes(32, "big"), address=None) for i in range(rows))
        federation = FederationConfig(
            path=Path("year.toml"),
            name="year",
            seed=0,
            topology=GRAPH,
            task=TaskConfig(name="quadratic", options={"size": 100}),
            training=TrainingConfig(rounds=10**7, local_steps=1, learning_rate=0.1, method="variate:beta=0.1"),
            gossip=GossipConfig(compressor="q8"),
            members=members,
            edges=federation_graph(GRAPH, [member.name for member in members[:BOARDS]], 0, Path())[0].edges,
        )
        federation = steps_of(federation, world)[0].federation
        run = PreparedRun(script(federation, settle(world, rows, 0), make_learners(federation), is_watched=True))
        self.world, self.hosts, self.watch = run.world, run.world.hosts, Invariants(run, 1e-9)
        self._start, self.world.start = self.world.start, self.start
        run.watch_by(self.watch)
        for host in self.hosts:  # as a real engine says what an operation cost
            host.engine.run = lambda operation, run=host.engine.run: costly(run(operation))

    def start(self, index: int) -> None:
        """Start a node; halves of exchanges on edges that went while it was off are lost, as promised."""
        state, plan = self.hosts[index].engine.state, self.hosts[index].plan
        self.watch.drops(index, [peer for peer in state.edges if peer not in plan.neighbors])
        self.watch.book(lambda: self._start(index))

    def until(self, day: float) -> dict[str, Any]:
        """Run to the end of that day; return the figures since the last call."""
        days = day - self.world.kernel.now / DAY_S
        self.world.run(until_ns=round(day * DAY_S * NS), finish=False)
        alarms = [round(len(self.hosts[board].alarms) / days, 3) for board in LIVED]
        for host in self.hosts:  # what only the simulator keeps: all alarms, and what is left of removed members
            host.alarms.clear()
            if host.process and host.index in host.plan.settings.retired:
                host.process = host.core = None
                self.watch.book(host.engine.forget)
        gc.collect()
        _return_free_memory()
        rss = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
        return {
            "day": round(day, 1),
            "rss_mb": rss / 1e6,
            "rounds": [self.hosts[board].core.facts.rounds for board in LIVED],
            "members": sum(host.alive for host in self.hosts),
            "rows": sum(host.starts > 0 for host in self.hosts),
            "starts": sum(host.starts for host in self.hosts),
            "state_bytes": [state_bytes(self.hosts[board].engine.store) for board in LIVED],
            "alarms_a_day": alarms,
            "cpu_s": round(time.process_time(), 1),
            "objects": dict(Counter(type(each).__name__ for each in gc.get_objects()).most_common()),
            "held": [dict(held(self.hosts[board])) for board in LIVED],
        }


def costly(event: Any) -> Any:
    return msgspec.structs.replace(event, cost_s=0.001) if hasattr(event, "cost_s") else event


def state_bytes(store: Any) -> int:
    """Return the bytes of the snapshot, and of the log after it."""
    log = sum(len(msgspec.msgpack.encode([head, *map(bytes, bodies)])) for _, head, bodies in store._flushed)
    return log + size_bytes(State(header=store._image.header, arrays=store._image.arrays, blobs=store._image.blobs))


def held(host: Any) -> Counter[str]:
    """Return the sizes of all containers, bytes and arrays that core and engine hold, summed by place."""
    sizes, seen = Counter[str](), set[int]()
    todo = deque([("core", host.core), ("engine", host.engine._engine)])
    while todo:
        place, value = todo.popleft()
        if id(value) in seen or isinstance(value, type | FunctionType | str | int | float | Random):
            continue
        seen.add(id(value))
        if hasattr(value, "__len__"):
            sizes[place] += value.nbytes if isinstance(value, np.ndarray) else len(value)
        parts = [(f"{place}[]", part) for part in gc.get_referents(value)]
        if not isinstance(value, list | tuple | set | frozenset | deque | dict | MappingProxyType):
            state = object.__getstate__(value)  # attributes, slots, or both
            named = [each for each in (state if isinstance(state, tuple) else (state,)) if each]
            parts = [(f"{place}.{name}", part) for each in named for name, part in each.items()] or parts
        todo += parts
    return sizes


def growth(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Name what has grown from one month to another."""
    found = [f"memory by {mb:.1f} MB"] if (mb := after["rss_mb"] - before["rss_mb"]) > RSS_MB else []
    pairs: list[Any] = [("objects: ", 1.02, before["objects"], after["objects"])]
    for place, board in enumerate(LIVED):
        pairs.append((f"board{board}: ", 1.25, *(month["held"][place] for month in (before, after))))
        pairs.append((f"board{board}: ", 1.25, *({"bytes": m["state_bytes"][place]} for m in (before, after))))
    return found + [
        f"{what}{name} from {old.get(name, 0)} to {size}"
        for what, share, old, new in pairs
        for name, size in sorted(new.items())
        if size > share * old.get(name, 0) + SLACK and name not in KNOWN
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=float, default=365.0)
    parser.add_argument("--minutes", type=float, default=60.0, help="a round takes so long, and up to a fifth more")
    parser.add_argument("--out", type=Path, default=Path("year.jsonl"))
    options = parser.parse_args()
    year, months = Year(options.days, options.minutes), []
    with options.out.open("w", encoding="utf-8") as file:
        for month in range(1, 13):
            months.append(year.until(options.days * month / 12))
            print(json.dumps(months[-1]), file=file, flush=True)
            print({key: value for key, value in months[-1].items() if key not in ("objects", "held")}, flush=True)
    year.watch.look()  # raises AssertionError
    grew = growth(months[1], months[-1])
    print("grew: " + "; ".join(grew) if grew else "flat")
    return int(bool(grew))


if __name__ == "__main__":
    sys.exit(main())
