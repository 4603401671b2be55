"""Real processes, and whatever a seed makes happen to them: `make chaos MINUTES=10 SEED=7`.

Two federations on loopback, each link through relays. *Sums*: four nodes whose rounds move their models by known
amounts. They are killed, stopped, cut off, flooded, and their disks are full at times; at the end the weighted sum of
all models must be exact. *Optimum*: five nodes on the built-in quadratic, and a hostile member whose models the mean
refuses. These nodes are wiped, and bits in their files change, too; at the end each must be near the known optimum. The
first node of each is never killed, so that growth shows. The last third of the time is calm; all nodes must answer, end
with 0, hold the same bits at both ends of each edge, and have logged no traceback.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import pytest

sys.path.extend(
    str(Path(__file__).parents[2] / folder) for folder in ("", "tests", "tests/e2e", "tests/net", "benchmarks")
)
import faces  # noqa: F401 - tests import names from packages
from disks import fill, tiny_disk
from floods import UPGRADE, Flood
from losing import LEAST_EXCESS
from nodes import Relay
from pushes_kit import pushes
from real_field import Field, Process
from settled import require_edges_to_agree, settled_states
from trouble import VERSION, Event, schedule, seed_of

from p2pfl.config import load_config
from p2pfl.errors import UserError

HERE = "127.0.0.1"
SUMS, HONEST, LIAR, SMALL = range(4), range(9), 9, (2, 3, 7)
"""Nodes by number: those of *sums*, all honest ones, the hostile one, and those on small disks."""
ATTACKS = ("nan", "wrong-shape", "flood:nan", "sleeper:nan@5")
PUSH_S, STEP_S = 0.2, 0.15  # a round in *sums*, and in *optimum*
EVERY_S, CALM_S, LOOK_S, LIMIT_S, USUAL_S = 1.6, 25.0, 2.0, 300.0, 20.0
"""On a machine that takes longer than USUAL_S to start all nodes, all takes as many times longer."""
GROWTH = {"MB": 4.0, "threads": 2.0, "open files": 4.0}  # at most, from the second third of a life to the last
SUM_ERROR = 0.05  # of rounding; a round that is lost or done twice is 10


def flipped(data: bytes, share: float) -> bytes:
    """Change the bit there."""
    place, bit = divmod(int(share * 8 * len(data)), 8)
    return data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]


class LinkRelay(Relay):
    """One direction of dialing on a link: it does what the kind of trouble says that is its `mode`."""

    mode, count = "", 0

    def passed(self, data: bytes) -> bytes:
        self.count += 1
        if self.mode == "cut":
            raise ConnectionResetError
        if self.mode == "flip" and self.count % 20 == 0:
            return flipped(data, self.count * 0.618 % 1)
        return b"" if self.mode == "hold" else data


class Ward(Field):
    """A federation in which each node has a federation file of its own, whose addresses are those of relays."""

    def __init__(self, folder: Path, nodes: int, loop: asyncio.AbstractEventLoop, **values: Any) -> None:
        super().__init__(folder, nodes, linger_s=10.0, start_wait_s=120.0, **values)
        texts, self.links = [self.file.read_text(encoding="utf-8")] * nodes, list[list[LinkRelay]]()
        for edge in load_config(folder).edges:
            self.links.append([LinkRelay(f"{HERE}:{self.ports[end]}") for end in edge])
            for relay, dialer in zip(self.links[-1], reversed(edge), strict=True):
                asyncio.run_coroutine_threadsafe(relay.__aenter__(), loop).result()
                texts[dialer] = texts[dialer].replace(f'"{HERE}:{relay.port}"', f'"{relay.address}"')
        for name, text in zip(self.names, texts, strict=True):
            self.set_node(name, state_dir="disk/state")
            (folder / name / "disk").mkdir()
            (folder / name / "federation.toml").write_text(text, encoding="utf-8")

    def state(self, name: str) -> Path:
        return self.folder / name / "disk" / "state"


class Node:
    """A member of a ward over all its lives; `figures` has rows of GROWTH and the hour for each life."""

    def __init__(self, ward: Ward, index: int) -> None:
        self.ward, self.name, self.port = ward, ward.names[index], ward.ports[index]
        self.folder, self.state = ward.folder / self.name, ward.state(self.name)
        self.figures = list[list[tuple[float, ...]]]()

    def start(self, attack: str = "") -> None:
        if self.figures:
            self.process.kill()  # of a damaged node that was started anew while it should be down
        lying = {"program": [sys.executable, "-m", "sim.attackers", "--attack", attack]} if attack else {}
        place = SimpleNamespace(folder=self.folder)
        self.process = Process(place, self.name, len(self.figures), self.folder / "node.toml", **lying)
        self.figures.append([])

    def damage(self, share: float) -> None:
        files = [path for path in sorted(self.state.glob("*")) if path.stat().st_size]
        for file in files[int(share * 7919) % max(1, len(files)) :][:1]:
            file.write_bytes(flipped(file.read_bytes(), share))

    def look(self) -> None:
        with suppress(OSError, TypeError):  # it has just ended
            proc = Path(f"/proc/{self.process.popen.pid}")
            text = (proc / "status").read_text(encoding="utf-8")
            kb, threads = (int(re.search(rf"{key}:\s+(\d+)", text)[1]) for key in ("VmRSS", "Threads"))
            self.figures[-1].append((kb / 1000, threads, len([*(proc / "fd").iterdir()]), time.monotonic() / 3600))


def flood(port: int, event: Event) -> None:
    kind = ("pings", "junk", "quiet")[int(event.share * 3)]
    attack = Flood(kind, [HERE], {kind: port}, event.ends_at_s - event.at_s)
    attack.rate = min(attack.rate, 300)
    attack.run()


def crowd(port: int, event: Event) -> None:
    rng = Random(event.share)
    with ExitStack() as stack:
        for _ in range(80):
            begun = UPGRADE[: rng.choice([0, rng.randrange(len(UPGRADE)), None])]
            with suppress(OSError):
                opened = stack.enter_context(socket.create_connection((HERE, port), 1.0))
                opened.sendall(begun + rng.randbytes(rng.choice([0, 2000])))
        time.sleep(event.ends_at_s - event.at_s)


class Chaos:
    """Both federations. `wrong` says what should not have happened, `counts` what was made to happen."""

    def __init__(self, folder: Path, minutes: float, seed: int, stack: ExitStack) -> None:
        self.wrong, self.counts, loop = list[str](), Counter[str](), asyncio.new_event_loop()
        self.limit_s, length_s = LIMIT_S + 60 * minutes, min(0.66 * 60 * minutes, 60 * minutes - CALM_S)
        threading.Thread(target=loop.run_forever, daemon=True).start()
        self.pushes, rounds = (int(0.8 * 60 * minutes / round_s) for round_s in (PUSH_S, STEP_S))
        quadratic = f'name = "quadratic"\nsize = 256\nsamples = [50, 100, 200, 400, 100, 1]\nstep_s = {STEP_S}'
        plain = {"topology": "complete", "method": "plain", "task": 'name = "pushes.py:task"', "rounds": self.pushes}
        flows = {"topology": "random-regular:degree=3", "task": f"{quadratic}\ncondition = 10.0", "rounds": rounds}
        sums = Ward(folder / "sums", len(SUMS), loop, **plain)
        optimum = Ward(folder / "optimum", 6, loop, **flows, local_steps=4, learning_rate=0.1)
        for place in (sums.folder, *(sums.folder / name for name in sums.names)):
            (place / "pushes.py").write_text(pushes(self.pushes, PUSH_S), encoding="utf-8")
            (place / "go").touch()
        self.wards, self.links, kinds = (sums, optimum), sums.links + optimum.links, ("cut", "hold", "delay", "flip")
        self.nodes = [Node(ward, index) for ward in self.wards for index in range(len(ward.names))]
        self.honest, left_out = [self.nodes[place] for place in HONEST], ""
        try:
            for place in SMALL:
                stack.enter_context(tiny_disk(self.nodes[place].state.parent, "2m,mode=700"))
        except (pytest.skip.Exception, OSError) as why:
            left_out = "full disk"
            click.echo(f"no disk is full in this run: {why}", err=True)
        stack.callback(lambda: [node.process.kill() for node in self.nodes if node.figures])
        targets = dict.fromkeys(("stop", "crowd", "flood"), HONEST) | dict.fromkeys(kinds, range(len(self.links)))
        targets |= {"kill": (1, 2, 3, 5, 6, 7, 8), "wipe": (5, 6, 7, 8), "damage": (5, 6, 7, 8), "full disk": SMALL}
        drawn = schedule(seed, length_s, targets | {"lie": (LIAR,)}, every_s=EVERY_S)
        self.events = [event for event in drawn if event.kind != left_out]

    def happen(self, event: Event) -> Iterator[None]:
        """Let an event begin, and end at the second step."""
        self.counts[event.kind] += 1
        node = self.nodes[event.target % len(self.nodes)]
        match event.kind:
            case "kill" | "wipe" | "damage" | "lie":
                node.process.kill()
                if event.kind == "wipe":
                    shutil.rmtree(node.state, ignore_errors=True)
                if event.kind == "damage":
                    node.damage(event.share)
                yield
                node.start(ATTACKS[int(event.share * len(ATTACKS))] if event.kind == "lie" else "")
            case "stop":
                node.process.popen.send_signal(signal.SIGSTOP)
                yield
                node.process.popen.send_signal(signal.SIGCONT)
            case "full disk":
                with suppress(OSError):  # it is full before all is written
                    fill(node.state.parent)
                yield
                (node.state.parent / "ballast").unlink()
            case "crowd" | "flood":
                client = threading.Thread(target=crowd if event.kind == "crowd" else flood, args=(node.port, event))
                client.start()
                yield
                client.join()
            case _:
                for mode in (event.kind, ""):
                    for relay in self.links[event.target]:
                        relay.mode, relay.delay_s = mode, 0.3 * (mode == "delay")
                    yield

    def run(self) -> None:
        starts = time.monotonic()
        for place, node in enumerate(self.nodes):
            node.start(ATTACKS[0] if place == LIAR else "")
        self.wait(lambda: all(node.process.rounds >= 3 for node in self.honest), "three rounds of all")
        began, courses = time.monotonic(), [self.happen(event) for event in self.events]
        slower = max(1.0, (began - starts) / USUAL_S)
        self.limit_s *= slower
        steps = [(at_s, place) for place, event in enumerate(self.events) for at_s in (event.at_s, event.ends_at_s)]
        for at_s, place in sorted(steps):
            self.wait(lambda at_s=at_s: time.monotonic() >= began + at_s * slower, "its time")
            next(courses[place], None)
        self.wait(lambda: all("rounds" in node.process.status() for node in self.honest), "answers of all")
        self.wait(lambda: None not in {node.process.code for node in self.honest}, "the end of all")

    def wait(self, over: Callable[[], bool], what: str) -> None:
        """Wait, looking at all nodes; one that ends by itself is wrong, unless its damaged files cannot be used."""
        ends_at, look_at = time.monotonic() + self.limit_s, 0.0
        while not over():
            if time.monotonic() > ends_at:
                raise AssertionError(f"waited in vain for {what}: {[node.process.last for node in self.honest]}")
            for node in self.honest if time.monotonic() > look_at else ():
                look_at = time.monotonic() + LOOK_S
                node.look()
                if node.process.code in (None, 0, -signal.SIGKILL):
                    continue
                if "move the folder away" in node.process.log:
                    self.counts["refused state"] += 1
                    shutil.rmtree(node.state)
                else:
                    self.wrong.append(f"{node.folder} ended with {node.process.code}: {node.process.log[-500:]}")
                node.start()
            time.sleep(0.05)

    def judge(self) -> str:
        """Add to what is wrong, and return the figures in words."""
        for log in (log for ward in self.wards for log in ward.folder.glob("*.err")):
            if "Traceback" in (text := log.read_text(errors="replace")):
                self.wrong.append(f"{log}: {text[text.index('Traceback') :][:2000]}")
        grown = []
        for node in (self.nodes[0], self.nodes[len(SUMS)]):
            _, second, third = (np.median(part, axis=0) for part in np.array_split(np.array(node.figures[0]), 3))
            grown.append(third - second)
            found = {what: more for what, more in zip(GROWTH, grown[-1], strict=False) if more > GROWTH[what]}
            self.wrong += [f"{node.folder} has grown by {found}"] if found else []
        ended = sum(node.process.code == 0 for node in self.honest)
        excess, error = max(node.ward.excess(node.name) for node in self.honest[len(SUMS) :]), self.sum_error()
        if not (ended == len(HONEST) and excess <= LEAST_EXCESS and error <= SUM_ERROR):
            self.wrong.append(f"wanted: all end, {LEAST_EXCESS} above the optimum, sums within {SUM_ERROR}")
        counts = ", ".join(f"{count} {kind}{'s' * (count > 1)}" for kind, count in self.counts.most_common())
        mb_h = max(more[0] / more[-1] for more in grown)
        told = f"{len(self.events)} events ({counts}), {ended} of {len(HONEST)} nodes ended well, "
        return told + f"optimum within {excess:.2g}, sums within {error:.1g}, memory {mb_h:+.1f} MB/h"

    def sum_error(self) -> float:
        """Compare the weighted sum of all models with what their rounds have added, and both ends of each edge."""
        for ward in reversed(self.wards):
            federation = load_config(ward.folder)
            states = settled_states(federation, {name: ward.state(name) for name in ward.names})
            honest = tuple(edge for edge in federation.edges if LIAR - len(SUMS) not in edge)
            try:
                require_edges_to_agree(replace(federation, edges=honest), states)
            except AssertionError as error:
                self.wrong.append(f"{ward.folder.name}: the ends of an edge differ: {error}")
        total = np.zeros(24)
        for index, state in enumerate(states):
            begun = np.random.default_rng([7, index]).standard_normal(24).astype(np.float32)
            total += state.samples * (state.model.astype(np.float64) - begun)
            for number in range(min(state.rounds, self.pushes)):
                total -= (-1) ** index * 10 * np.random.default_rng([8, number]).standard_normal(24)
        return float(np.abs(total).max())


@click.command()
@click.option("--minutes", type=click.FloatRange(min=1.0), default=10.0)
@click.option("--seed", default="0")
def main(minutes: float, seed: str) -> None:
    try:
        number = seed_of(seed)
    except UserError as error:
        raise click.ClickException(str(error)) from None
    if sys.platform != "linux":
        raise click.ClickException("chaos needs Linux: it reads /proc")
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    with ExitStack() as stack:
        made, told = Chaos(folder, minutes, number, stack), "not all is known"
        try:
            made.run()
            told = f"{minutes:.1f} min, seed {number}: {made.judge()}"
        except AssertionError as error:
            made.wrong.append(str(error))
    click.echo("\n".join([told, *made.wrong]))
    if made.wrong:
        raise click.ClickException(f"logs: {folder}; again: make chaos MINUTES={minutes:g} SEED={number}@{VERSION}")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
