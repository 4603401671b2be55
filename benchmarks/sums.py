"""Messages and bytes of secure sums: how many a set-up and a sum take, for how many members, entries and deaths.

The protocol's own state machines, in the network in memory of its tests (tests/sums/sum_world.py): a graph of members
with `--degree` neighbors, messages that take 5 to 50 ms, none lost. Dying members are gone when the wave of the second
sum goes out; the first sum is undisturbed, and in it everybody spreads keys for the next set-up. Bytes are those of the
encoded messages, without the sessions' own. Seconds are the network's: nothing takes a processor any time in it.
Usage: python benchmarks/sums.py [--members 3,16] [--entries 10,1000,100000] [--dying none,one,tenth] [--sums 64]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

import msgspec
import networkx as nx

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "sums"))
from sum_world import SumWorld

from p2pfl.features.sums.sum_messages import BranchPart, Post, Total, Wave, decode_statement

ENCODE = msgspec.msgpack.Encoder().encode


def edges_of(members: int, degree: int) -> list[tuple[int, int]]:
    """A random regular graph, or the complete one."""
    if members <= degree + 1:
        return [(a, b) for b in range(members) for a in range(b)]
    return sorted(tuple(sorted(edge)) for edge in nx.random_regular_graph(degree, members, seed=1).edges)


class Counted:
    """Counts all messages of a world, by stage: the set-up, the first sum, the second."""

    def __init__(self, world: SumWorld, dying: int) -> None:
        self.world, self.dying = world, dying
        self.messages: Counter[int] = Counter()
        self.size: Counter[int] = Counter()
        self.vectors: Counter[int] = Counter()
        self._sizes: dict[int, tuple[object, int]] = {}
        self.stage, self.began_s, self.took_s = 0, 0.0, {}

    def look(self, _: int, message: object) -> None:
        statement = decode_statement(message.body) if isinstance(message, Post) else None
        if isinstance(statement, Wave) and self.stage == 2 and self.dying:
            doomed, self.dying = range(1, 1 + self.dying), 0
            for member in doomed:
                self.world.later(lambda member=member: self.world.crash(member))
        if id(message) not in self._sizes:
            self._sizes[id(message)] = message, len(ENCODE(message))
        self.messages[self.stage] += 1
        self.size[self.stage] += self._sizes[id(message)][1]
        self.vectors[self.stage] += isinstance(message, BranchPart | Total)

    def begin(self, stage: int) -> None:
        self.stage, self.began_s = stage, self.world.now
        self._sizes.clear()

    def end(self) -> None:
        self.took_s[self.stage] = self.world.now - self.began_s


def run(members: int, entries: int, dying: int, options: argparse.Namespace) -> None:
    world = SumWorld(members, edges_of(members, options.degree), size=entries, sums=options.sums)
    world.messages = Nothing()
    counted = Counted(world, dying)
    world.on_message = counted.look
    for stage, label in enumerate(("", "first", "second")):
        counted.begin(stage)
        if label:
            for index in range(members):
                world.schedule(world.now, lambda index=index, label=label: world.ask(index, label))
            world.run()
        else:
            while not all(node.setup for node in world.nodes.values()):
                world.run_once()
        counted.end()
    world.check()
    done = Counter(done.label for _, done in world.done)
    sizes = sorted({len(done.members) for _, done in world.done if done.label == "second"})
    for stage, name in enumerate(("set-up", "sum", f"{dying} dying")):
        print(
            f"{members:4} {entries:7} {name:9} {counted.messages[stage]:9,} messages {counted.size[stage]:14,} bytes "
            f"{counted.size[stage] / members / 1000:10.1f} kB a member {counted.vectors[stage]:6} vectors "
            f"{counted.took_s[stage]:6.2f} s  {done['second' if stage == 2 else 'first'] if stage else '':>4} done "
            f"{sizes if stage == 2 else ''}",
            flush=True,
        )


class Nothing(list):
    """Keeps no messages: they would fill the memory."""

    def append(self, _: object) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", default="3,16")
    parser.add_argument("--entries", default="10,1000,100000")
    parser.add_argument("--dying", default="none,one,tenth")
    parser.add_argument("--degree", type=int, default=4)
    parser.add_argument("--sums", type=int, default=64)
    options = parser.parse_args()
    for members in map(int, options.members.split(",")):
        for entries in map(int, options.entries.split(",")):
            for word in options.dying.split(","):
                dying = {"none": 0, "one": 1, "tenth": max(2, members // 10)}[word]
                started = time.process_time()
                run(members, entries, dying, options)
                print(f"     {time.process_time() - started:.1f} s of processor", flush=True)


if __name__ == "__main__":
    main()
