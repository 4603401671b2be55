"""How a federation ends: real processes of which some are late, slow, dead or without memory.

Measured is where everybody ends on the built-in quadratic (excess over the known optimum), who trained while no
neighbor had a session with it, and how long the last one waits.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from real_field import P2PFL, Bell, Field, Json, Process, WaitedInVainError, change, processes, wait_all

SAMPLES = (50, 100, 200, 400)
SIZE = 64
LEAST_EXCESS = 0.01
TIMES_TWIN = 2.0
LATE_ROUND = 15
RINGS = 7
"""so often a node dials in 6 to 13 s: time enough to lose patience with its neighbors, if it can."""
LAUNCH_ALONE = 5
"""exit code of a launch with a node that had nobody to learn with."""
SAME = 1e-3
"""two models are the same that are not farther apart, over their norm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """`step_s` is how long a round of the fastest node takes."""

    nodes: int = 8
    topology: str = "ring"
    rule: str = "mean"
    rounds: int = 100
    step_s: float = 0.04
    linger_s: float = 8.0
    compressor: str = "q4"
    seed: int = 0
    deadline_s: float = 150.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEnd:
    """`alone` are rounds seen trained without a session; `told_alone` is what the node itself says of that, if it does.

    `steps` are local ones of its last process. `waited_s` is from its last own round to its end, `ended_s` since the
    federation was started.
    """

    code: int | None
    rounds: int
    steps: int
    excess: float
    alone: int
    told_alone: int | None
    waited_s: float
    ended_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """`wrong` says in words what should not be so."""

    scenario: str
    setting: Setting
    nodes: dict[str, NodeEnd]
    wrong: tuple[str, ...] = ()
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def worst(self) -> float:
        return max((node.excess for node in self.nodes.values()), default=float("nan"))

    @property
    def mean(self) -> float:
        return fmean(node.excess for node in self.nodes.values()) if self.nodes else float("nan")

    @property
    def longest_wait_s(self) -> float:
        return max((node.waited_s for node in self.nodes.values()), default=float("nan"))

    def in_json(self) -> Json:
        return asdict(self) | {"worst": self.worst, "mean": self.mean, "longest_wait_s": self.longest_wait_s}


# -- federations --------------------------------------------------------------------------------------------------


def make(folder: Path, setting: Setting, **values: Any) -> Field:
    samples = [SAMPLES[index % len(SAMPLES)] for index in range(setting.nodes)]
    task = f'name = "quadratic"\nsize = {SIZE}\nsamples = {samples}\ncondition = 10.0\nstep_s = {setting.step_s}'
    options = {
        "rounds": setting.rounds,
        "local_steps": 4,
        "learning_rate": 0.1,
        "linger_s": setting.linger_s,
        "start_wait_s": 30.0,
        "compressor": setting.compressor,
    }
    named = {"topology": setting.topology, "rule": setting.rule, "seed": setting.seed}
    return Field(folder, setting.nodes, task=task, **{**named, **options, **values})


class Party:
    """The nodes of one federation while they run. `lives`: every process of a node, the first first."""

    def __init__(self, made: Field, setting: Setting, run: Callable[..., Process]) -> None:
        self.made = made
        self.setting = setting
        self.began = time.monotonic()
        self._run = run
        self.lives: dict[str, list[Process]] = {name: [] for name in made.names}

    def start(self, *names: str) -> None:
        for name in names or self.made.names:
            self.lives[name].append(self._run(name))

    def now(self, name: str) -> Process:
        return self.lives[name][-1]

    def others(self, *without: str) -> dict[str, Process]:
        return {name: lives[-1] for name, lives in self.lives.items() if lives and name not in without}

    def neighbors(self, name: str) -> list[str]:
        """By the federation file."""
        from p2pfl.config.load import load_config  # noqa: PLC0415 - what costs is loaded where it is used

        described = load_config(self.made.folder)
        return [described.members[index].name for index in described.neighbors(described.member(name).index)]

    def worst_excess(self, *without: str) -> float:
        return max(self.made.excess(name) for name in self.others(*without))

    def end(self, *without: str, deadline_s: float | None = None) -> dict[str, NodeEnd]:
        """Wait for all but the dead; what they and the disks say."""
        running = self.others(*without)
        codes = wait_all(running, deadline_s or self.setting.deadline_s)
        return {name: self._end_of(name, codes[name]) for name in running}

    def _end_of(self, name: str, code: int | None) -> NodeEnd:
        result, process = self.made.result(name), self.now(name)
        return NodeEnd(
            code=code,
            rounds=result.get("rounds", 0),
            steps=result.get("steps", 0),
            excess=self.made.excess(name),
            alone=sum(alone_in(life.lines) for life in self.lives[name]),
            told_alone=result.get("rounds_without_neighbor"),
            waited_s=waited_s(process.lines),
            ended_s=round((process.ended_at or time.monotonic()) - self.began, 2),
        )


def alone_in(lines: list[Json]) -> int:
    """Rounds that a node has trained between two looks that both found it without a neighbor."""
    alone = [line["phase"] == "training" and not line["peers"] for line in lines]
    pairs = zip(pairwise(lines), pairwise(alone), strict=True)
    return sum(b["rounds"] - a["rounds"] for (a, b), both in pairs if all(both))


def waited_s(lines: list[Json]) -> float:
    """From the line with its last round to its last line."""
    if not lines:
        return 0.0
    last = lines[-1]
    done = next(line for line in lines if line["rounds"] == last["rounds"])
    return round(last["uptime_s"] - done["uptime_s"], 2)


@contextmanager
def party(folder: Path, setting: Setting, **values: Any) -> Iterator[Party]:
    made = make(folder, setting, **values)
    with processes(made) as run:
        yield Party(made, setting, run)


def judged(scenario: str, here: Party, nodes: dict[str, NodeEnd], *wrong: str | None, **notes: Any) -> Ended:
    """With what holds of every federation that ends: all of them well, and nobody trained alone without saying so."""
    found = [text for text in wrong if text]
    for name, node in nodes.items():
        if node.code != 0:
            found.append(f"{name} had to be stopped" if node.code is None else f"{name} exited with {node.code}")
        if node.alone:
            said = "without a word" if node.told_alone is None else f"and says {node.told_alone}"
            found.append(f"{name} trained {node.alone} rounds alone, {said}")
    if any(node.told_alone is None for node in nodes.values()):
        found.append("results do not say how many rounds a node had no neighbor")
    return Ended(scenario=scenario, setting=here.setting, nodes=nodes, wrong=tuple(found), notes=notes)


# -- scenarios ----------------------------------------------------------------------------------------------------


def undisturbed(folder: Path, setting: Setting) -> Ended:
    with party(folder, setting) as here:
        here.start()
        return judged("undisturbed", here, here.end())


def late_lingering(folder: Path, setting: Setting) -> Ended:
    """Killed early and started again when the others are through and still answer."""
    late = "node1"
    with party(folder, setting) as here:
        lose(here, late)
        for process in here.others(late).values():
            process.until(
                lambda process=process: process.phase in ("lingering", "finished"),
                "its end",
                deadline_s=setting.deadline_s,
            )
        best = here.worst_excess(late)
        here.start(late)
        nodes = here.end()
        return judged("late-lingering", here, nodes, *_dragged(nodes, best), best=best, **_gap(nodes, late))


def _dragged(nodes: Mapping[str, NodeEnd], best: float) -> list[str]:
    """Who ends worse than the others already were without the late one, whose data they could not have."""
    limit = max(TIMES_TWIN * best, LEAST_EXCESS)
    worse = {name: node.excess for name, node in nodes.items() if node.excess > limit}
    return [f"{name} ends with excess {excess:.4g}; before it was {best:.4g}" for name, excess in worse.items()]


def lose(here: Party, name: str, at: int = LATE_ROUND) -> None:
    here.start()
    here.now(name).until_round(at)
    here.now(name).kill()


def _gap(nodes: Mapping[str, NodeEnd], name: str) -> dict[str, Any]:
    """How long after all others that node ends."""
    others = max(node.ended_s for other, node in nodes.items() if other != name)
    return {"late": name, "gap_s": round(nodes[name].ended_s - others, 2)}


@dataclass(slots=True)
class Alone:
    """What a late node did while its neighbors were gone. `rings`: how often it dialed one of them."""

    phase: str
    rounds_before: int
    rounds_after: int
    rings: int
    code: int | None
    best: float
    """the worst excess of the others, who had ended."""


def come_late(here: Party, late: str) -> Alone:
    """Start `late` when all others have ended, watch it dial in vain, then start one finished neighbor again.

    With a robust rule all of them: no node takes the word of one neighbor there.
    """
    others = here.others(late)
    wait_all(others, here.setting.deadline_s)
    best = here.worst_excess(late)
    neighbors = here.neighbors(late)
    bells = [Bell(here.made.ports[here.made.names.index(name)]) for name in neighbors]
    try:
        before = _rounds_on_disk(here.made, late)
        here.start(late)
        process = here.now(late)
        end = time.monotonic() + here.setting.deadline_s
        while process.code is None and bells[0].rings < RINGS and time.monotonic() < end:
            time.sleep(0.02)
        status = process.status() if process.code is None else process.last
        seen = Alone(
            phase=status.get("phase", "not to be asked"),
            rounds_before=before,
            rounds_after=status.get("rounds", 0),
            rings=bells[0].rings,
            code=process.code,
            best=best,
        )
    finally:
        for bell in bells:
            bell.close()
    here.start(*(neighbors[:1] if here.setting.rule == "mean" else neighbors))
    return seen


def _rounds_on_disk(made: Field, name: str) -> int:
    from p2pfl.node.outcomes import read_learned  # noqa: PLC0415 - what costs is loaded where it is used

    return read_learned(made.state(name), federation=made.folder).rounds or 0


def late_exited(folder: Path, setting: Setting) -> Ended:
    """Killed early and started again when nobody is left; then one finished neighbor is started again.

    The models of several, with a robust rule, differ: there the late one may be anywhere among them.
    """
    late = "node1"
    with party(folder, setting) as here:
        lose(here, late)
        seen = come_late(here, late)
        nodes = here.end()
        again = here.neighbors(late)[0]
        models = [here.made.model(name) for name in (late, again)]
        apart = float(np.linalg.norm(models[0] - models[1]) / np.linalg.norm(models[1]))
        waited = seen.phase == "waiting" and seen.rounds_after == seen.rounds_before
        did = f"with nobody there, {late} was {seen.phase}, from round {seen.rounds_before} to {seen.rounds_after}"
        return judged(
            "late-exited",
            here,
            nodes,
            None if waited else did,
            None
            if apart <= SAME or setting.rule != "mean"
            else f"{late} ends with another model than {again}: {apart:.2g} apart",
            *_dragged(nodes, seen.best),
            **asdict(seen),
            apart=apart,
            again=again,
        )


def speeds(factor: float) -> Callable[[Path, Setting], Ended]:
    def speeds(folder: Path, setting: Setting) -> Ended:
        """The slowest node takes `factor` times as long for a round as the fastest; the others are in between."""
        steps = setting.step_s * np.geomspace(1.0, factor, setting.nodes)
        random.Random(setting.seed).shuffle(order := list(range(setting.nodes)))
        with party(folder, setting) as here:
            for index, step_s in zip(order, steps, strict=True):
                here.made.set_data(here.made.names[index], step_s=round(float(step_s), 4))
            here.start()
            nodes = here.end(deadline_s=setting.deadline_s + factor * setting.step_s * setting.rounds)
            slowest = here.made.names[order[-1]]
            return judged(f"speeds-{factor:g}", here, nodes, slowest=slowest)

    return speeds


def half_late(folder: Path, setting: Setting) -> Ended:
    """The first half begins by itself; the second comes when a third of its rounds are done."""
    with party(folder, setting, start_wait_s=1.0) as here:
        half = here.made.names[: setting.nodes // 2]
        here.start(*half)
        for name in half:
            here.now(name).until_round(setting.rounds // 3)
        here.start(*here.made.names[len(half) :])
        return judged("half-late", here, here.end(), late=here.made.names[len(half) :])


def one_dead(folder: Path, setting: Setting) -> Ended:
    """It is killed in mid-run and never comes back. Its data go on being represented as far as they were."""
    dead = "node1"
    with party(folder, setting) as here:
        lose(here, dead, setting.rounds // 2)
        return judged("one-dead", here, here.end(dead), dead=dead)


def wiped(folder: Path, setting: Setting) -> Ended:
    """It comes back without memory, goes on where the others are, and ends with them."""
    victim = "node1"
    with party(folder, setting) as here:
        lose(here, victim, setting.rounds // 4)
        shutil.rmtree(here.made.state(victim))
        here.start(victim)
        nodes = here.end()
        first = first_round(here.now(victim).lines)
        joined = None if first >= setting.rounds // 4 else f"{victim} joins at round {first}, not where the others are"
        gap = _gap(nodes, victim)
        late = None if gap["gap_s"] <= 5.0 else f"{victim} ends {gap['gap_s']} s after the others"
        return judged("wiped", here, nodes, joined, late, first=first, **gap)


def first_round(lines: list[Json]) -> int:
    """The least number of rounds that it tells once it trains."""
    return min((line["rounds"] for line in lines if line["phase"] in ("training", "closing")), default=0)


# -- launch -------------------------------------------------------------------------------------------------------


def launch_together(folder: Path, setting: Setting) -> Ended:
    """All on one machine, nothing in their way."""
    made = make(folder, setting)
    return _launched("launch-together", made, setting, wanted=0)


def launch_apart(folder: Path, setting: Setting) -> Ended:
    """The last node on a path and its neighbor do not listen where the file says: all but it have each other."""
    made = make(folder, setting, start_wait_s=2.0, topology="path")
    for name in made.names[-2:]:
        port = made.ports[made.names.index(name)]
        nowhere = f'listen = "127.0.0.1:0"\nforwarded_port = {port}'  # without the second, launch refuses the first
        change(made.folder / name / "node.toml", rf'(?m)^listen = "127.0.0.1:{port}"', nowhere)
    return _launched("launch-apart", made, setting, wanted=LAUNCH_ALONE)


def _launched(scenario: str, made: Field, setting: Setting, *, wanted: int) -> Ended:
    code, seconds, said = launch(made, setting.deadline_s)
    nodes = {
        name: NodeEnd(
            code=0 if made.result(name).get("finished") else None,
            rounds=made.result(name).get("rounds", 0),
            steps=made.result(name).get("steps", 0),
            excess=made.excess(name),
            alone=0,
            told_alone=made.result(name).get("rounds_without_neighbor"),
            waited_s=0.0,
            ended_s=round(seconds, 2),
        )
        for name in made.names
    }
    wrong = () if code == wanted else (f"launch exits with {code}, not {wanted}",)
    notes = {"exit_code": code, "said": said[-500:]}
    return Ended(scenario=scenario, setting=setting, nodes=nodes, wrong=wrong, notes=notes)


def launch(made: Field, deadline_s: float) -> tuple[int | None, float, str]:
    """Exit code (None: it had to be stopped), seconds, and what it said on stderr."""
    began = time.monotonic()
    command = [*P2PFL, "launch", str(made.folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        _, said = process.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        try:
            _, said = process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            raise WaitedInVainError("launch does not stop") from None
        return None, time.monotonic() - began, said
    return process.returncode, time.monotonic() - began, said


Scenario = Callable[[Path, Setting], Ended]

SCENARIOS: Mapping[str, Scenario] = {
    "undisturbed": undisturbed,
    "late-lingering": late_lingering,
    "late-exited": late_exited,
    "speeds-10": speeds(10.0),
    "speeds-50": speeds(50.0),
    "half-late": half_late,
    "one-dead": one_dead,
    "wiped": wiped,
    "launch-together": launch_together,
    "launch-apart": launch_apart,
}
