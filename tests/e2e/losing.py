"""What a loss leaves behind: federations of real processes that lose something, each beside its undisturbed twin.

On the built-in quadratic the optimum is known, and what is measured is the excess over it, F(x) - F(optimum), of each
model that is on disk in the end. `digits` measures the loss on the common test set instead; its twin is as long without
the node, and loses nothing.
"""

from __future__ import annotations

import random
import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from real_field import PACED, Field, Process, copy_of, processes, wait_all

SAMPLES = (50, 100, 400)
SIZE = 256
LEAST_EXCESS = 0.01
"""below it nobody asks whose fault it is."""
TIMES_TWIN = 2.0
DIGITS_TIMES_TWIN = 1.25
"""simulated pairs differ by up to a fifth, in either direction; one C per node left ten times as much."""
CLAIM = "one key speaks from two places"
LOUD = re.compile(rf"(?m) (WARNING|ERROR|CRITICAL) .*{CLAIM}")
ORDINARY = {"resync", "resync-storm", "joined"}
"""alarms that any loss may raise."""
DIGITS_NODES = 5
COPY = "node1-copy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """`step_s` is how long a local round takes; `kills` is for `snapshot-chaos` alone."""

    rounds: int = 240
    step_s: float = 0.03
    seed: int = 0
    kills: int = 6
    deadline_s: float = 150.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """One federation after its end. `losses` are excesses over the optimum, or losses on the test set, by node.

    `codes` are exit codes, None for who had to be stopped; `resyncs` are summed over a node's edges.
    """

    losses: dict[str, float]
    rounds: dict[str, int]
    codes: dict[str, int | None]
    alarms: dict[str, dict[str, int]]
    resyncs: dict[str, int]
    seconds: float
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def worst(self) -> float:
        return max(self.losses.values())

    @property
    def mean(self) -> float:
        return fmean(self.losses.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    scenario: str
    disturbed: Ended
    twin: Ended

    @property
    def limit(self) -> float:
        """What the worst node may have in the end."""
        if self.scenario == "digits":
            return DIGITS_TIMES_TWIN * self.twin.worst
        return max(TIMES_TWIN * self.twin.worst, LEAST_EXCESS)

    @property
    def is_within(self) -> bool:
        return self.disturbed.worst <= self.limit

    @property
    def wrong(self) -> list[str]:
        """What should not be so, in words."""
        found = [f"{name} ends with {code}" for name, code in self.disturbed.codes.items() if self._is_bad(name, code)]
        if not self.is_within:
            found.append(f"{self.disturbed.worst:.4g} is above {self.limit:.4g}")
        if self.scenario == "two-copies":
            notes = self.disturbed.notes
            if len(notes["ended"]) != 1:
                found.append("not exactly one of two copies has stopped")
            found += [
                f'nobody {what} "{CLAIM}"' for what, who in (("logs", "spoke"), ("alarms", "alarmed")) if not notes[who]
            ]
        return found

    def _is_bad(self, name: str, code: int | None) -> bool:
        return code != 0 and name not in self.disturbed.notes.get("ended", ())

    def in_json(self) -> dict[str, Any]:
        sides = {"disturbed": self.disturbed, "twin": self.twin}
        told = {name: asdict(side) | {"worst": side.worst, "mean": side.mean} for name, side in sides.items()}
        return {"scenario": self.scenario, **told, "limit": self.limit, "wrong": self.wrong}


# -- federations --------------------------------------------------------------------------------------------------


def quadratic(folder: Path, setting: Setting, *, samples: Iterable[int] = SAMPLES, **values: Any) -> Field:
    """On a ring: nodes with unequal samples and curvatures, whose own optima are far from the common one."""
    counts = list(samples)
    return Field(
        folder,
        len(counts),
        task=quadratic_task(counts, setting.step_s),
        seed=setting.seed,
        **{"rounds": setting.rounds, "local_steps": 4, "learning_rate": 0.1, "linger_s": 10.0, **values},
    )


def quadratic_task(samples: list[int], step_s: float) -> str:
    return f'name = "quadratic"\nsize = {SIZE}\nsamples = {samples}\ncondition = 10.0\nstep_s = {step_s}'


def digits_field(folder: Path, setting: Setting) -> Field:
    """About two digits each, in rounds of a given length."""
    made = Field(
        folder,
        DIGITS_NODES,
        task='name = "task.py:task"\npartition = "shards:2"',
        seed=setting.seed,
        rounds=setting.rounds,
        linger_s=10.0,
    )
    shutil.copyfile(PACED, folder / "task.py")
    for name in made.names:
        made.set_data(name, pace_s=setting.step_s, stalls_path="stalls.txt")
    return made


def conclude(
    made: Field,
    running: Mapping[str, Process],
    setting: Setting,
    *,
    began: float,
    measure: Callable[[str], float] | None = None,
    **notes: Any,
) -> Ended:
    """Wait for the end of all, and measure what the disks hold. Keys of `running` are folders."""
    codes = wait_all(running, setting.deadline_s)
    seconds = time.monotonic() - began
    results = {name: made.result(name) for name in running}
    return Ended(
        losses={name: (measure or made.excess)(name) for name in running},
        rounds={name: result.get("rounds", 0) for name, result in results.items()},
        codes=codes,
        alarms={name: result.get("alarms", {}) for name, result in results.items()},
        resyncs={name: sum(row["resyncs"] for row in result.get("neighbors", ())) for name, result in results.items()},
        seconds=round(seconds, 2),
        notes=notes,
    )


def undisturbed(folder: Path, setting: Setting, *, samples: Iterable[int] = SAMPLES) -> Ended:
    made = quadratic(folder, setting, samples=samples)
    with processes(made) as run:
        began = time.monotonic()
        return conclude(made, {name: run(name) for name in made.names}, setting, began=began)


# -- losses -------------------------------------------------------------------------------------------------------


def wipe(folder: Path, setting: Setting) -> Ended:
    """The node with most samples is killed, loses its state, and is started again."""
    made = quadratic(folder, setting)
    return _away(made, setting, made.names[-1], made.excess, wiped=True)


def _away(made: Field, setting: Setting, victim: str, measure: Callable[[str], float], *, wiped: bool) -> Ended:
    with processes(made) as run:
        began = time.monotonic()
        running = {name: run(name) for name in made.names}
        running[victim].until_round(setting.rounds // 5)
        running[victim].kill()
        if wiped:
            shutil.rmtree(made.state(victim))
        running[victim] = run(victim)
        return conclude(made, running, setting, began=began, measure=measure, away=victim, wiped=wiped)


def snapshot_chaos(folder: Path, setting: Setting) -> Ended:
    """Whoever comes back from a snapshot has lost what it exchanged since; most of the run passes in peace.

    Everybody is killed equally often: an edge with more than five resyncs in a minute would rest.
    """
    made = quadratic(folder, setting)
    for name in made.names:
        made.set_node(name, durability="snapshot", snapshot_s=2.0)
    chance = random.Random(setting.seed)
    victims = [*made.names * (setting.kills // len(made.names) + 1)][: setting.kills]
    kills = sorted((chance.uniform(0.03, 0.25) * setting.rounds, victim) for victim in victims)
    with processes(made) as run:
        began = time.monotonic()
        running = {name: run(name) for name in made.names}
        for at, victim in kills:
            running[victim].until_round(int(at))
            running[victim].kill()
            running[victim] = run(victim)
        return conclude(made, running, setting, began=began, kills=[victim for _, victim in kills])


def two_copies(folder: Path, setting: Setting) -> Ended:
    """A copy of a node's folder is started beside it. `spoke`: whose log says so; `ended`: who of the two gave up."""
    made = quadratic(folder, setting)
    with processes(made) as run:
        began = time.monotonic()
        running = {name: run(name) for name in made.names}
        running["node1"].until_round(setting.rounds // 5)
        running[COPY] = run("node1", config=copy_of(made, "node1"))
        everybody = dict(running)
        codes = wait_all(everybody, setting.deadline_s)
        ended = [name for name in ("node1", COPY) if codes[name] not in (0, None)]
        if len(ended) == 1:  # who gave up has no result
            del running[ended[0]]
        spoke = [name for name, process in everybody.items() if LOUD.search(process.log)]
        alarmed = [name for name in everybody if _is_alarmed(made.result(name))]
        over = conclude(made, running, setting, began=began, ended=ended, spoke=spoke, alarmed=alarmed)
        return replace(over, codes=codes)


def _is_alarmed(result: Mapping[str, Any]) -> bool:
    return not result.get("alarms", {}).keys() <= ORDINARY


def taken_out(folder: Path, setting: Setting) -> Ended:
    """A member dies for good and a person takes it out of the file: the others' optimum is theirs alone."""
    made = quadratic(folder, replace(setting, rounds=100_000), samples=FOUR_SAMPLES)
    gone = made.names[-1]
    with processes(made) as run:
        began = time.monotonic()
        running = {name: run(name) for name in made.names}
        running[gone].until_round(setting.rounds // 4)
        running.pop(gone).kill()
        for process in running.values():
            process.until_round(setting.rounds // 4 + 10)
        for process in running.values():
            process.interrupt()
        stopped = max(made.result(name)["rounds"] for name in running)
        made.remove(gone)
        made.set_task(quadratic_task(list(FOUR_SAMPLES[:-1]), setting.step_s))
        made.set(rounds=stopped + setting.rounds)
        again = {name: run(name) for name in made.names}
        return conclude(made, again, setting, began=began, gone=gone, stopped=stopped)


FOUR_SAMPLES = (50, 100, 200, 400)


def _remaining(folder: Path, setting: Setting) -> Ended:
    """Those whom `taken_out` leaves, on their own from the beginning."""
    return undisturbed(folder, setting, samples=FOUR_SAMPLES[:-1])


def digits(folder: Path, setting: Setting) -> Ended:
    """Nobody else has seen the digits of the node that is wiped."""
    made = digits_field(folder, setting)
    return _away(made, setting, "node1", made.test_loss, wiped=True)


def _unwiped_digits(folder: Path, setting: Setting) -> Ended:
    """It is killed as well, and keeps its folder: without its digits for as long, the others learn other things."""
    made = digits_field(folder, setting)
    return _away(made, setting, "node1", made.test_loss, wiped=False)


Scenario = Callable[[Path, Setting], Ended]

SCENARIOS: Mapping[str, tuple[Scenario, Scenario]] = {
    "wipe": (wipe, undisturbed),
    "snapshot-chaos": (snapshot_chaos, undisturbed),
    "two-copies": (two_copies, undisturbed),
    "taken-out": (taken_out, _remaining),
    "digits": (digits, _unwiped_digits),
}
"""with its twin."""

DIGITS = Setting(rounds=440, step_s=0.05)
"""by then the loss has reached its end: it falls for about 200 rounds, and creeps up afterwards."""


def play(scenario: str, folder: Path, setting: Setting) -> Outcome:
    """In two new folders below `folder`."""
    disturbed, twin = SCENARIOS[scenario]
    folder.mkdir(parents=True, exist_ok=True)
    return Outcome(
        scenario=scenario,
        twin=twin(folder / "twin", setting),
        disturbed=disturbed(folder / "disturbed", setting),
    )
