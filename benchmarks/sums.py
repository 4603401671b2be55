"""Secure sums for many members: is a sum right, also when one dies, and what does it take?

The protocol's own state machines, in the network in memory of its tests (tests/sums/sum_world.py): a graph of members
with `--degree` neighbors, messages that take 5 to 50 ms, none lost, virtual time. A set-up is made once for each number
of members, and one sum, whose wave makes the tree along which statements go from then on; all rows go on from there,
each in a process of its own. The one that dies is not the root of the sum, and
is gone before it has said that it has its vector.

Each sum is compared with the true one of the members it names, and what is said is watched for what no honest member
does. Bytes are those of the encoded messages, without the sessions' own. Seconds are the network's: nothing takes a
processor any time in it. A signature that one simulated member has verified the others do not verify again.
Usage: python benchmarks/sums.py [--members 3,16,200] [--entries 10,1000,100000] [--sums 64]
"""

from __future__ import annotations

import argparse
import gc
import heapq
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import networkx as nx
import numpy as np
from nacl.signing import VerifyKey

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "sums"))
import faces  # noqa: F401 - its kits import names from packages
from sum_world import SumWorld

from p2pfl.features.sums import statement_log
from p2pfl.features.sums.messages import BranchPart, Message, Total

ENCODE = msgspec.msgpack.Encoder().encode
FIRST, LABEL = "first sum", "sum"
MOST_WATCHED = 1000
"""Entries up to which masks are compared with each other: they are kept for that."""
HEAD = """| members | entries | dying | sum | messages | bytes | a member | seconds | processor |
|---|---|---|---|---|---|---|---|---|"""


class Once(VerifyKey):
    """Verifies each signature for all members of this process."""

    known: ClassVar[set[tuple[bytes, int]]] = set()

    def verify(self, text: bytes, signature: bytes) -> bytes:
        name = signature, hash(text)
        if name not in self.known:
            super().verify(text, signature)
            self.known.add(name)
        return text


class CountedWorld(SumWorld):
    """Counts all messages from `begin` on."""

    def __init__(self, count: int, edges: list[tuple[int, int]], **changes: Any) -> None:
        self._sizes, self.deadlines = {}, {}
        self.began_s, self.counted, self.counted_bytes = 0.0, 0, 0
        super().__init__(count, edges, **changes)

    def begin(self) -> None:
        self._sizes = {}
        self.began_s, self.counted, self.counted_bytes = self.now, 0, 0

    def _send(self, index: int, peer: int, message: Message) -> None:
        edge = min(index, peer), max(index, peer)
        if edge not in self.open:
            return
        if id(message) not in self._sizes:
            self._sizes[id(message)] = message, len(ENCODE(message))
            if not isinstance(message, BranchPart | Total) or self.size <= MOST_WATCHED:
                self.watch.see(message)
        self.counted += 1
        self.counted_bytes += self._sizes[id(message)][1]
        least_s, most_s = self.link.delay_s
        self._count += 1
        at = self.now + least_s + (most_s - least_s) * self.random.random()
        heapq.heappush(self._queue, (at, self._count, partial(self._come, edge, index, peer, message)))

    def _come(self, edge: tuple[int, int], index: int, peer: int, message: Message) -> None:
        """Nobody starts again here, so who has an edge is who had it when this was sent."""
        if edge in self.open:
            node = self.nodes[peer]
            effects, deadline = node.hear(index, message, self.now), node.deadline
            if effects or deadline != self.deadlines.get(peer):
                self.deadlines[peer] = deadline
                self.carry_out(peer, effects)

    def set_up(self) -> None:
        """Run until all have a set-up, and for as long as there is nothing more to say."""
        while not all(node.setup for node in self.nodes.values() if node is not None):
            self.run_once()
        until_s = self.now + 1.0
        while self._queue and self._queue[0][0] < until_s:
            self.run_once()

    def sum(self, label: str = LABEL) -> None:
        for index in range(self.count):
            self.schedule(self.now, lambda index=index: self.ask(index, label))
        self.run(until_s=1e5, most=10**8)

    def result(self) -> str:
        """Whether each sum is that of the members it names, and who has one. Raises AssertionError."""
        named = {done.members for _, done in self.done}
        wrong = list(self.watch.found) + ["two sums of one number"] * (len(named) > 1)
        for members in named:
            true = sum((self.vector(member, LABEL) for member in members), np.zeros(self.size, "<u8"))
            wrong += [f"a wrong sum at {at}" for at, done in self.done if not np.array_equal(done.total, true)]
        if wrong:
            raise AssertionError(wrong)
        there = sum(node is not None for node in self.nodes.values())
        done = len({index for index, _ in self.done if self.nodes[index] is not None})
        text = f"of {len(next(iter(named)))}, at {done} of {there}" if named else ""
        refused = Counter(refused.reason for index, refused in self.refused if self.nodes[index] is not None)
        reasons = [f"{count} refused: {reason}" for reason, count in refused.most_common(1)]
        return "; ".join([text] * bool(text) + reasons)


def edges_of(members: int, degree: int) -> list[tuple[int, int]]:
    """A random regular graph, or the complete one."""
    if members <= degree + 1:
        return [(a, b) for b in range(members) for a in range(b)]
    return sorted(tuple(sorted(edge)) for edge in nx.random_regular_graph(degree, members, seed=1).edges)


def row(world: CountedWorld, entries: int | str, dying: str, outcome: str, started: float) -> None:
    took_s, processor_s = world.now - world.began_s, time.process_time() - started
    sizes = [
        f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
        for size in (world.counted_bytes, world.counted_bytes / world.count)
    ]
    figures = (
        world.count,
        entries,
        dying,
        outcome,
        f"{world.counted:,}",
        *sizes,
        f"{took_s:.1f}",
        f"{processor_s:.1f}",
    )
    print(f"| {' | '.join(map(str, figures))} |", flush=True)


def in_child(act: Callable[[], None]) -> None:
    """Run in a process of its own, so that this one's world stays as it is. Raises ChildProcessError."""
    child = os.fork()
    if child == 0:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - the parent says that it failed
            print(f"    failed: {error!r}", flush=True)
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        raise ChildProcessError("a row failed")


def one_sum(world: CountedWorld, entries: int, dying: str) -> None:
    started = time.process_time()
    world.size = entries
    world.begin()
    if dying == "one":
        world.crash(1)
    world.sum()
    row(world, entries, dying, world.result(), started)


def rows_of(options: argparse.Namespace, members: int) -> None:
    world = CountedWorld(members, edges_of(members, options.degree), sums=options.sums, size=10)
    started = time.process_time()
    world.set_up()
    row(world, "", "none", "set-up", started)
    world.begin()
    world.sum(FIRST)
    row(world, 10, "none", FIRST, started)  # the processor's time is that since the set-up began
    world.done.clear()
    for entries in options.entries:
        in_child(partial(one_sum, world, entries, "none"))
    in_child(partial(one_sum, world, 10, "one"))


def numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=numbers, default="3,16,200")
    parser.add_argument("--entries", type=numbers, default="10,1000,100000")
    parser.add_argument("--degree", type=int, default=4)
    parser.add_argument("--sums", type=int, default=64)
    options = parser.parse_args()
    statement_log.VerifyKey = Once
    gc.disable()  # it would look through all members again and again, and finds nothing
    print(HEAD)
    for members in options.members:
        rows_of(options, members)


if __name__ == "__main__":
    main()
