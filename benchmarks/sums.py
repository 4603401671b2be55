"""Secure sums for many members, with deaths at each step: is a sum right or refused, and what does it take?

The protocol's own state machines, in the network in memory of its tests (tests/sums/sum_world.py): a graph of members
with `--degree` neighbors, messages that take 5 to 50 ms, none lost, virtual time. A set-up is made once for each number
of members; all rows in which nobody dies before it is done go on from there, each in a process of its own. `one` that
dies is not the root of the sum; of a tenth (two of sixteen at least) the root is one. Who dies is gone

    before the keys       and never came
    before the roster     when the set-up is opened: all have its keys
    before the wave       before it has said that it has its vector
    in the wave           when the first part of the tree is told
    after the list        when the list is proposed
    at the reveal         when the first secret is revealed

Each sum is compared with the true one of the members it names, and what is said is watched for what no honest member
does. Bytes are those of the encoded messages, without the sessions' own. Seconds are the network's: nothing takes a
processor any time in it. A signature that one simulated member has verified the others do not verify again.
Usage: python benchmarks/sums.py [--members 3,16,200] [--entries 10,1000,100000] [--sums 64] [--out sums.md]
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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import networkx as nx
import numpy as np
from nacl.signing import VerifyKey

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "sums"))
from sum_world import SumWorld

from p2pfl.features.sums import board
from p2pfl.features.sums.messages import (
    BranchPart,
    MemberList,
    Message,
    Post,
    Reveal,
    SetupOpening,
    Total,
    decode_statement,
)

ENCODE = msgspec.msgpack.Encoder().encode
LABEL = "sum"
BEFORE_KEYS, BEFORE_ROSTER, BEFORE_WAVE = "before the keys", "before the roster", "before the wave"
IN_WAVE, AFTER_LIST, AT_REVEAL = "in the wave", "after the list", "at the reveal"
STEPS = (BEFORE_KEYS, BEFORE_ROSTER, BEFORE_WAVE, IN_WAVE, AFTER_LIST, AT_REVEAL)
TRIGGERS = {BEFORE_ROSTER: SetupOpening, IN_WAVE: BranchPart, AFTER_LIST: MemberList, AT_REVEAL: Reveal}
MOST_WATCHED = 1000
"""Entries up to which masks are compared with each other: they are kept for that."""
HEAD = """| members | entries | dying | when | sum | messages | bytes | a member | seconds | processor |
|---|---|---|---|---|---|---|---|---|---|"""


class Once(VerifyKey):
    """Verifies each signature for all members of this process."""

    known: ClassVar[set[tuple[bytes, int]]] = set()

    def verify(self, text: bytes, signature: bytes) -> bytes:
        name = signature, hash(text)
        if name not in self.known:
            super().verify(text, signature)
            self.known.add(name)
        return text


@dataclass(frozen=True)
class Dying:
    """Who dies at which step."""

    word: str = "none"
    step: str = ""

    def __str__(self) -> str:
        return f"{self.word} | {self.step}"

    def members(self, count: int) -> tuple[int, ...]:
        """A tenth has the root, which is member 0."""
        if self.word == "none":
            return ()
        dead = max(2, count // 10)
        return (1,) if self.word == "one" else tuple(range(0, count, count // dead))[:dead]


NOBODY = Dying()


@dataclass
class Spent:
    """Messages and bytes, from a moment on."""

    began_s: float
    messages: int = 0
    size: int = 0


class CountedWorld(SumWorld):
    """Counts all messages, and lets `doomed` members die at a step."""

    def __init__(self, count: int, edges: list[tuple[int, int]], **changes: Any) -> None:
        self.spent, self.doomed, self.step = Spent(0.0), (), ""
        self._sizes, self.deadlines = {}, {}
        super().__init__(count, edges, **changes)

    def begin(self) -> None:
        self.spent, self._sizes = Spent(self.now), {}

    def _send(self, index: int, peer: int, message: Message) -> None:
        edge = min(index, peer), max(index, peer)
        if edge not in self.open:
            return
        if id(message) not in self._sizes:
            self._sizes[id(message)] = message, len(ENCODE(message))
            self._look(message)
        self.spent.messages += 1
        self.spent.size += self._sizes[id(message)][1]
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

    def _look(self, message: Message) -> None:
        if not isinstance(message, BranchPart | Total) or self.size <= MOST_WATCHED:
            self.watch.see(message)
        trigger = TRIGGERS.get(self.step)
        if not self.doomed or trigger is None:
            return
        statement = decode_statement(message.body) if isinstance(message, Post) else message
        if isinstance(statement, trigger) and getattr(statement, "number", 0) >= 0:
            self.kill()

    def doom(self, dying: Dying) -> None:
        self.step, self.doomed = dying.step, dying.members(self.count)
        if self.step in {BEFORE_KEYS, BEFORE_WAVE}:
            for member in self.doomed:
                self.crash(member)
            self.doomed = ()

    def kill(self) -> None:
        for member in self.doomed:
            self.later(lambda member=member: self.crash(member))
        self.doomed = ()

    def set_up(self) -> None:
        """Run until all who are there have a set-up, and for as long as there is nothing more to say."""
        while not all(node.setup for node in self.nodes.values() if node is not None):
            self.run_once()
        until_s = self.now + 1.0
        while self._queue and self._queue[0][0] < until_s:
            self.run_once()

    def sum(self) -> None:
        for index in range(self.count):
            self.schedule(self.now, lambda index=index: self.ask(index, LABEL))
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


class Table:
    def __init__(self, path: Path | None) -> None:
        self._file = path.open("w") if path else None
        self._write(HEAD)

    def add(self, world: CountedWorld, first: str, outcome: str, started: float) -> None:
        """`first`: the entries, and who dies when."""
        spent, members = world.spent, world.count
        took_s, processor_s = world.now - spent.began_s, time.process_time() - started
        self._write(
            f"| {members} | {first} | {outcome} | {spent.messages:,} | {short(spent.size)} | "
            f"{short(spent.size / members)} | {took_s:.1f} | {processor_s:.1f} |"
        )

    def _write(self, text: str) -> None:
        print(text, flush=True)
        if self._file:
            print(text, file=self._file, flush=True)


def short(size: float) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


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


def one_sum(world: CountedWorld, table: Table, entries: int, dying: Dying) -> None:
    """A sum in a world with a set-up, and a row about it."""
    started = time.process_time()
    world.size = entries
    world.begin()
    if dying.step not in {BEFORE_KEYS, BEFORE_ROSTER}:
        world.doom(dying)
    world.sum()
    table.add(world, f"{entries} | {dying}", world.result(), started)


def early_death(options: argparse.Namespace, table: Table, members: int, dying: Dying) -> None:
    """A set-up during which members die, and a sum after it."""
    world, started = new_world(options, members), time.process_time()
    world.doom(dying)
    if members - len(dying.members(members)) >= world.nodes[members - 1].settings.quorum:
        world.set_up()
        table.add(world, f" | {dying}", "set-up", started)
    one_sum(world, table, 10, dying)


def new_world(options: argparse.Namespace, members: int) -> CountedWorld:
    return CountedWorld(members, edges_of(members, options.degree), sums=options.sums, size=10)


def rows_of(options: argparse.Namespace, table: Table, members: int) -> None:
    words = ("one",) if members == 3 else ("one", "tenth")
    world, started = new_world(options, members), time.process_time()
    world.set_up()
    table.add(world, f" | {NOBODY}", "set-up", started)
    for entries in options.entries:
        in_child(partial(one_sum, world, table, entries, NOBODY))
    for word in words:
        for step in STEPS[2:]:
            in_child(partial(one_sum, world, table, 10, Dying(word, step)))
    for word in words:
        for step in STEPS[:2]:
            in_child(partial(early_death, options, table, members, Dying(word, step)))


def numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=numbers, default="3,16,200")
    parser.add_argument("--entries", type=numbers, default="10,1000,100000")
    parser.add_argument("--degree", type=int, default=4)
    parser.add_argument("--sums", type=int, default=64)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    board.VerifyKey = Once
    gc.disable()  # it would look through all members again and again, and finds nothing
    table = Table(options.out)
    for members in options.members:
        rows_of(options, table, members)


if __name__ == "__main__":
    main()
