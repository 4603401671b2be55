"""What a member that floods the sums of others costs them, in this version and in another checkout, in turns.

Four honest members sum one vector after the other, each with its own `SumTalk`, over lines in memory in one process. A
fifth is their neighbor, too, and floods the first of them, as fast as a channel lets it, 4,000 messages a second:

    none       says nothing
    have       asks for what it lacks, with an id that nobody knows
    parcels    signs parcels of 30 kB to ever other receivers, for a set-up that nobody has opened
    setups     signs acknowledgements in ever other set-ups

Where a member finds a fault, the line is closed, and open again after a second. Memory is what the process has taken
since the first sum. Time is that of a core of its own: the loop's clock goes by the process's CPU time, and skips what
is idle, so that other work on the machine changes little. All five share that core.

Usage: python benchmarks/sum_floods.py [--beside CHECKOUT] [--floods none,have,parcels,setups] [--seconds 10]
       [--repeats 3]
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from statistics import median

import numpy as np

from p2pfl.crypto.identity import Identity
from p2pfl.errors import PeerFault
from p2pfl.features.sums.messages import (
    Ack,
    Have,
    Parcel,
    Poll,
    Post,
    SumDone,
    SumSettings,
    Working,
    encode_statement,
    id_of,
)
from p2pfl.features.sums.protocol import Sums
from p2pfl.features.sums.talk import SumTalk

HONEST, LIAR = 4, 4
IDENTITIES = [Identity(hashlib.blake2b(b"%d" % index, digest_size=32).digest()) for index in range(HONEST + 1)]
FIGURES = ("sums", "MB", "cpu_s", "heard", "faults")


def settings(index: int) -> SumSettings:
    return SumSettings(federation=b"floods", members=tuple(each.public for each in IDENTITIES), index=index, life=1)


def prepared(flood: str) -> list[object]:
    """The messages of the flood, signed beforehand; more than arrive in a second, and said again after the last."""
    domain, messages = settings(LIAR).domain(), []
    for number in range(4000):
        setup = number.to_bytes(16, "little")
        if flood == "have":
            messages.append(Have(digest=number, ids=number.to_bytes(8, "little")))
            continue
        parcel = Parcel(setup=bytes(16), to=number, sealed=bytes(30_000), spread=True)
        body = encode_statement(parcel if flood == "parcels" else Ack(setup=setup, holds=b"\x1f"))
        messages.append(Post(author=LIAR, body=body, signature=IDENTITIES[LIAR].sign(domain + body)))
    return messages


class OwnCore(asyncio.SelectorEventLoop):
    """A loop whose clock is this process's CPU time, and the time that it had nothing to do."""

    skipped_s = 0.0

    def time(self) -> float:
        return self.skipped_s + time.process_time()

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:
            self.skipped_s += max(0.0, self._scheduled[0]._when - self.time())  # noqa: SLF001 - asyncio has no other
        super()._run_once()


class World:
    def __init__(self) -> None:
        self.talks = [
            SumTalk(Sums(settings(n), IDENTITIES[n], draw=os.urandom), self._line(n), keep=self._keep)
            for n in range(HONEST)
        ]
        self.done, self.faults, self.heard = 0, 0, 0
        self.shut: dict[int, float] = {}
        self.begun = asyncio.Event()

    @staticmethod
    def _keep(*_: object) -> None:
        """Nothing is written down."""

    def _line(self, sender: int):  # noqa: ANN202 - what SumTalk says its messages with
        def say(peer: int, _: object, message: object) -> bool:
            loop = asyncio.get_running_loop()
            if peer != LIAR:
                loop.call_soon(self.talks[peer].hear, sender, message)
            elif isinstance(message, Poll):
                answer = Working(wave=id_of(message.wave.author, message.wave.body), is_child=False)
                loop.call_soon(self.say, sender, self.talks[sender], answer)
            return True

        return say

    async def sum_on(self, index: int) -> None:
        for number in count():
            vector = np.random.default_rng([index, number]).integers(0, 1000, 100).astype("<u8")
            ended = await self.talks[index].sum(f"sum {self.done // HONEST}", vector, bytes(32))
            self.done += isinstance(ended, SumDone)
            if self.done >= HONEST:
                self.begun.set()

    async def flood(self, messages: list[object]) -> None:
        at, began = 0, asyncio.get_running_loop().time()
        while messages:
            due = int((asyncio.get_running_loop().time() - began) * 4000)
            for number in range(at, min(due, at + 40)):
                self.say(0, self.talks[0], messages[number % len(messages)])
            at = max(at, due)
            await asyncio.sleep(0.005)

    def say(self, index: int, talk: SumTalk, message: object) -> None:
        now = asyncio.get_running_loop().time()
        if index in self.shut:
            if now < self.shut[index]:
                return
            del self.shut[index]
            talk.opened(LIAR)
        try:
            self.heard += 1
            talk.hear(LIAR, message)
        except PeerFault:
            self.faults += 1
            talk.closed(LIAR)
            self.shut[index] = now + 1.0


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


async def run(flood: str, seconds: float) -> dict[str, float]:
    messages = [] if flood == "none" else prepared(flood)
    world = World()
    for index, talk in enumerate(world.talks):
        for peer in [*range(HONEST), LIAR]:
            if peer != index:
                talk.opened(peer)
    tasks = [asyncio.create_task(world.sum_on(index)) for index in range(HONEST)]
    await world.begun.wait()
    before, done, cpu_s = resident_mb(), world.done, time.process_time()
    tasks.append(asyncio.create_task(world.flood(messages)))
    await asyncio.sleep(seconds)
    found = {"sums": (world.done - done) / HONEST / seconds, "MB": resident_mb() - before}
    found |= {"cpu_s": (time.process_time() - cpu_s) / seconds, "heard": world.heard / seconds, "faults": world.faults}
    for task in tasks:
        task.cancel()
    if failed := [each for each in await asyncio.gather(*tasks, return_exceptions=True) if isinstance(each, Exception)]:
        raise failed[0]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", type=Path)
    parser.add_argument("--floods", default="none,have,parcels,setups")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--run", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        print(json.dumps(OwnCore().run_until_complete(run(options.run, options.seconds))))
        return
    here = {"here": Path(__file__).parents[1]}
    checkouts = here if options.beside is None else {"beside": options.beside} | here
    print("| flood | version | sums a second | MB more | CPU | messages heard a second | faults |")
    print("|---|---|---|---|---|---|---|")
    for flood in options.floods.split(","):
        found: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
        for _ in range(options.repeats):
            for name, folder in checkouts.items():
                command = [sys.executable, str(Path(__file__).resolve()), "--run", flood]
                command += ["--seconds", str(options.seconds)]
                text = subprocess.run(
                    command, env=os.environ | {"PYTHONPATH": str(folder)}, cwd=folder, check=True, capture_output=True
                ).stdout
                found[name].append(json.loads(text))
        for name, rows in found.items():
            cells = [f"{median(row[figure] for row in rows):.2f}" for figure in FIGURES]
            print(f"| {flood} | {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
