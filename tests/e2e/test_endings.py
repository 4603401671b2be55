"""A federation ends together: who is late, slow or without memory never learns alone and calls it success.

Real processes, sockets, files and kills, on the built-in quadratic: measured is where everybody ends (excess over the
known optimum), who trained while no neighbor had a session with it, and how long the last one waits.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from real_field import P2PFL, Bell, Field, Json, Process, change, processes, wait_all

from p2pfl.config import load_config
from p2pfl.node import read_learned

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(400)]

SAMPLES = (50, 100, 200, 400)
LATE = "node1"
LATE_ROUND = 15
RINGS = 7
"""so often a node dials in 6 to 13 s: time enough to lose patience with its neighbors, if it can."""
APART = 1e-4
"""of two models that are the same, over their norm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """`step_s` is how long a round of the fastest node takes."""

    nodes: int = 3
    rounds: int = 80
    step_s: float = 0.04
    deadline_s: float = 150.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEnd:
    """`alone` are rounds seen trained without a session; `told_alone` is what the node itself says of that.

    `steps` are local ones of its last process. `ended_s` is since the federation was started.
    """

    code: int | None
    steps: int
    excess: float
    alone: int
    told_alone: int | None
    ended_s: float


def make(folder: Path, setting: Setting, **values: Any) -> Field:
    samples = [SAMPLES[index % len(SAMPLES)] for index in range(setting.nodes)]
    task = f'name = "quadratic"\nsize = 64\nsamples = {samples}\ncondition = 10.0\nstep_s = {setting.step_s}'
    options = {"local_steps": 4, "learning_rate": 0.1, "linger_s": 2.0, "start_wait_s": 30.0, "compressor": "none"}
    return Field(folder, setting.nodes, task=task, rounds=setting.rounds, **{**options, **values})


class Party:
    """The nodes of one federation while they run. `lives`: every process of a node, the first first."""

    def __init__(self, made: Field, setting: Setting, run: Callable[..., Process]) -> None:
        self.made, self.setting, self._run = made, setting, run
        self.began = time.monotonic()
        self.lives: dict[str, list[Process]] = {name: [] for name in made.names}

    def start(self, *names: str) -> None:
        for name in names or self.made.names:
            self.lives[name].append(self._run(name))

    def now(self, name: str) -> Process:
        return self.lives[name][-1]

    def others(self, *without: str) -> dict[str, Process]:
        return {name: lives[-1] for name, lives in self.lives.items() if lives and name not in without}

    def lose(self, name: str, at: int) -> None:
        """Start all, and kill that one in its round `at`."""
        self.start()
        self.now(name).until_round(at)
        self.now(name).kill()

    def end(self, deadline_s: float = 0.0) -> dict[str, NodeEnd]:
        """Wait for all; what they and the disks say."""
        running = self.others()
        codes = wait_all(running, deadline_s or self.setting.deadline_s)
        return {name: self._end_of(name, codes[name]) for name in running}

    def _end_of(self, name: str, code: int | None) -> NodeEnd:
        result, process = self.made.result(name), self.now(name)
        return NodeEnd(
            code=code,
            steps=result.get("steps", 0),
            excess=self.made.excess(name),
            alone=sum(alone_in(life.lines) for life in self.lives[name]),
            told_alone=result.get("rounds_without_neighbor"),
            ended_s=(process.ended_at or time.monotonic()) - self.began,
        )


def alone_in(lines: list[Json]) -> int:
    """Rounds that a node has trained between two looks that both found it without a neighbor."""
    alone = [line["phase"] == "training" and not line["peers"] for line in lines]
    pairs = zip(pairwise(lines), pairwise(alone), strict=True)
    return sum(b["rounds"] - a["rounds"] for (a, b), both in pairs if all(both))


@contextmanager
def party(folder: Path, setting: Setting, **values: Any) -> Iterator[Party]:
    made = make(folder, setting, **values)
    with processes(made) as run:
        yield Party(made, setting, run)


def dial_in_vain(here: Party) -> tuple[Json, int]:
    """Start the late one when all others have ended, and watch it dial; its status, and its rounds before."""
    described = load_config(here.made.folder)
    neighbors = [described.members[one].name for one in described.neighbors(described.member(LATE).index)]
    bells = [Bell(here.made.ports[here.made.names.index(name)]) for name in neighbors]
    try:
        before = read_learned(here.made.state(LATE), federation=here.made.folder).rounds or 0
        here.start(LATE)
        here.now(LATE).until(lambda: bells[0].rings >= RINGS, "calls", deadline_s=here.setting.deadline_s)
        return here.now(LATE).status(), before
    finally:
        for bell in bells:
            bell.close()


def test_a_late_node_waits_untrained_until_a_finished_one_tells_it_what_was_learned(tmp_path):
    """It dials again and again; then one of its neighbors, which had finished and left, is started again."""
    with party(tmp_path / "field", Setting()) as here:
        here.lose(LATE, LATE_ROUND)
        assert [process.end() for process in here.others(LATE).values()] == [0, 0]
        learned = here.made.model("node0")
        status, before = dial_in_vain(here)
        assert (status["phase"], status["rounds"]) == ("waiting", before)
        here.start("node0")
        nodes = here.end()
        assert [node.code for node in nodes.values()] == [0] * 3, nodes
        for name in ("node0", LATE):
            apart = np.linalg.norm(here.made.model(name) - learned) / np.linalg.norm(learned)
            assert apart <= APART, f"{name} is {apart:.2g} from what had been learned; {nodes}"
        assert (nodes[LATE].alone, nodes[LATE].told_alone) == (0, 0), nodes


def test_a_wiped_node_joins_at_the_round_of_the_others_and_ends_with_them(tmp_path):
    setting = replace(Setting(), rounds=200)
    with party(tmp_path / "field", setting) as here:
        here.lose(LATE, setting.rounds // 4)
        shutil.rmtree(here.made.state(LATE))
        here.start(LATE)
        nodes = here.end()
        lines = here.now(LATE).lines
    assert [node.code for node in nodes.values()] == [0] * 3, nodes
    first = min(line["rounds"] for line in lines if line["phase"] in ("training", "closing"))
    assert first >= setting.rounds // 4, nodes
    assert nodes[LATE].steps <= 4 * (setting.rounds - setting.rounds // 4), nodes
    others = max(node.ended_s for name, node in nodes.items() if name != LATE)
    assert nodes[LATE].ended_s - others <= 5.0, nodes
    assert max(node.excess for node in nodes.values()) <= 0.01, nodes


def test_at_tenfold_speeds_nobody_trains_alone(tmp_path):
    """The slowest node takes ten times as long for a round as the fastest; the other is in between."""
    setting = Setting()
    steps = setting.step_s * np.geomspace(1.0, 10.0, setting.nodes)
    random.Random(0).shuffle(order := list(range(setting.nodes)))
    with party(tmp_path / "field", setting) as here:
        for index, step_s in zip(order, steps, strict=True):
            here.made.set_data(here.made.names[index], step_s=round(float(step_s), 4))
        here.start()
        nodes = here.end(setting.deadline_s + 10.0 * setting.step_s * setting.rounds)
    assert [node.code for node in nodes.values()] == [0] * 3, nodes
    assert sum(node.alone for node in nodes.values()) == 0, nodes
    assert [node.told_alone for node in nodes.values()] == [0] * 3, nodes
    assert max(node.excess for node in nodes.values()) <= 0.1, nodes


def test_a_launch_in_which_a_node_had_nobody_says_so_and_exits_with_1(tmp_path):
    """The last node on a path and its neighbor do not listen where the file says: all but it have each other."""
    made = make(tmp_path / "field", Setting(), start_wait_s=2.0, topology="path")
    for name in made.names[-2:]:
        port = made.ports[made.names.index(name)]
        nowhere = f'listen = "127.0.0.1:0"\nforwarded_port = {port}'  # without the second, launch refuses the first
        change(made.folder / name / "node.toml", rf'(?m)^listen = "127.0.0.1:{port}"', nowhere)
    done = subprocess.run(
        [*P2PFL, "launch", str(made.folder)], capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "node2: waited in vain for a neighbor" in done.stderr
    assert made.result("node2").get("rounds", 0) == 0, done.stderr
