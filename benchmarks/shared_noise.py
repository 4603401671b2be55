"""How well nodes learn under a privacy budget: with noise of their own, with shared noise, and at a trusted center.

    python benchmarks/shared_noise.py tune --out FOLDER
    python benchmarks/shared_noise.py run --out FOLDER
    P2PFL_DATA=/data python benchmarks/shared_noise.py tune --task mnist --out FOLDER

Sixteen nodes with equal shares of the rows, on a 6-regular graph. `tune` chooses each cell's learning rate on rows held
out of the nodes' own, a fifth of them, in this process (simulated where nodes gossip). `run` then trains with that rate
in sixteen real processes (`p2pfl launch`), and tests once on the test set; the trusted center is computed in this
process. Cells already in FOLDER are not computed again. Prints a table in Markdown.

The trusted center takes the same steps with the same sampling rate, and its noise is added once. With shared noise the
same sums carry that noise, and as much more as the members add that may be missing, or leave theirs out.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from p2pfl import Federation
from p2pfl.config.model import FederationConfig, TaskConfig
from p2pfl.learn.interface import RoundStart
from p2pfl.learn.load import load_task
from p2pfl.learn.privacy.draws import Secret
from p2pfl.learn.privacy.plan import Plan, plan_of
from p2pfl.learn.privacy.protection import Protection
from p2pfl.learn.privacy.shared import shared_by
from p2pfl.learn.samples import DataSets, Samples, read_samples
from p2pfl.learn.task import NodeContext, Task
from p2pfl.learn.trainer import TorchLearner
from sim import simulate

NODES, GRAPH = 16, "random-regular:degree=6"
HELD_OUT = 5
NONE, LOCAL, CENTER, ONE, TWO = "none", "own noise", "trusted center", "shared, 1 colluder", "shared, 2 colluders"
WAYS = (NONE, LOCAL, CENTER, ONE, TWO)
EPSILONS = (8, 3, 1)
DELTA = {"record": 1e-5, "member": 1e-2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """`rounds` and `sampled` are of sums; gossip has as many rounds as there, of `local_steps` steps."""

    options: dict[str, Any]
    rounds: int
    sampled: float
    gossip_rounds: int
    batch_size: int


SETTINGS = {
    "digits": Setting(options={"partition": "iid"}, rounds=100, sampled=0.2, gossip_rounds=20, batch_size=16),
    "mnist-idx": Setting(
        options={"partition": "iid", "hidden": 32}, rounds=100, sampled=0.05, gossip_rounds=20, batch_size=64
    ),
}
RATES: dict[tuple[str, str], tuple[float, ...]] = {
    (NONE, "record"): (0.1, 0.3, 1.0),
    (LOCAL, "record"): (0.02, 0.1, 0.4),
    (CENTER, "record"): (0.5, 1.0, 2.0, 4.0),
    (LOCAL, "member"): (0.05, 0.2, 0.5),
    (CENTER, "member"): (0.05, 0.2, 0.5),
}
"""The learning rates tried; shared noise has those of the center."""
DRAWS = 2
"""The draws of noise over which a cell of the center, or of shared noise, is averaged."""
MEMBER_CLIP = 0.5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("tune", "run"))
    parser.add_argument("--task", choices=("digits", "mnist"), default="digits")
    parser.add_argument("--unit", choices=("record", "member"), default="record")
    parser.add_argument("--out", type=Path, required=True, help="the folder of results")
    parser.add_argument("--smallest", action="store_true", help="two rounds, one rate, epsilon 8: does it run?")
    given = parser.parse_args()
    name = "mnist-idx" if given.task == "mnist" else given.task
    if name == "mnist-idx" and not (Path(os.environ.get("P2PFL_DATA", "")) / "mnist").is_dir():
        print("P2PFL_DATA names no folder with mnist in it", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    folder = given.out / given.task / given.unit
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for epsilon in EPSILONS[:1] if given.smallest else EPSILONS:
        for way in WAYS:
            if way == NONE and epsilon != EPSILONS[0]:
                continue
            cell = Cell(name=name, unit=given.unit, way=way, epsilon=epsilon, smallest=given.smallest)
            file = folder / f"{way}, {'no privacy' if way == NONE else f'epsilon {epsilon}'}.json"
            found = _known(file.with_suffix(".tuned.json"), cell.tuned)
            if given.mode == "run":
                found |= _known(file, lambda: cell.measured(found["learning_rate"]))  # noqa: B023
            rows.append({"privacy": way, "epsilon": "" if way == NONE else epsilon, **found})
    print("\n".join(_markdown(rows)))
    return 0


def _known(file: Path, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    if not file.exists():
        began = time.perf_counter()
        found = compute() | {"took_s": round(time.perf_counter() - began, 1)}
        file.write_text(json.dumps(found, indent=1), encoding="utf-8")
        print(f"{file.stem}: {found}", file=sys.stderr, flush=True)
    loaded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    name: str
    unit: str
    way: str
    epsilon: int
    smallest: bool = False

    @property
    def setting(self) -> Setting:
        setting = SETTINGS[self.name]
        return replace(setting, rounds=2, gossip_rounds=2) if self.smallest else setting

    @property
    def draws(self) -> int:
        return 1 if self.smallest else DRAWS

    @property
    def in_step(self) -> bool:
        return self.way not in (NONE, LOCAL)

    def federation(self, learning_rate: float) -> Federation:
        setting, privacy = self.setting, None
        is_member = self.unit == "member"
        if self.way != NONE:
            privacy = {"epsilon": self.epsilon, "delta": DELTA[self.unit], "unit": self.unit, "test_set": "public"}
            privacy |= {"clip": MEMBER_CLIP} if is_member else {}
        if privacy is not None and self.in_step:
            privacy |= {"noise": "shared", "colluders": 2 if self.way == TWO else 1}
            privacy |= {} if is_member else {"rate": setting.sampled}
            # The center refuses no sum: it needs no rounds to spare.
            privacy |= {"rounds": setting.gossip_rounds if is_member else setting.rounds} if self.way == CENTER else {}
        rounds = setting.rounds if self.in_step and not is_member else setting.gossip_rounds
        options = dict(setting.options)
        if self.name == "mnist-idx":
            options["path"] = str(Path(os.environ["P2PFL_DATA"]).absolute() / "mnist")
        method = {} if self.in_step else {"method": "variate:beta=0.1"}
        return Federation(
            task=self.name,
            options=options,
            nodes=NODES,
            topology=GRAPH,
            rounds=rounds,
            batch_size=setting.batch_size,
            learning_rate=learning_rate,
            evaluate_every=0,
            privacy=privacy,
            **method,  # type: ignore[arg-type]
        )

    def tuned(self) -> dict[str, Any]:
        """Choose the learning rate on rows held out of the nodes' own."""
        kind = CENTER if self.in_step else self.way
        scores = {}
        rates = RATES[kind, "record" if kind == NONE else self.unit]
        for learning_rate in rates[:1] if self.smallest else rates:
            federation = self.federation(learning_rate).config
            data = _held_out(federation)
            if self.in_step:
                scores[learning_rate] = round(
                    float(np.mean([self._in_step(federation, data) for _ in range(self.draws)])), 4
                )
            else:
                scores[learning_rate] = round(_gossiped(federation, data), 4)
        best = max(scores, key=lambda rate: scores[rate])
        return {"learning_rate": best, "held_out": scores}

    def measured(self, learning_rate: float) -> dict[str, Any]:
        federation = self.federation(learning_rate)
        if self.way == CENTER:
            data = _data(federation.config)
            scores = [self._in_step(federation.config, data) for _ in range(self.draws)]
            return {"accuracy": round(float(np.mean(scores)), 4), "worst": round(min(scores), 4)}
        return _launched(federation, private=self.way != NONE)

    def _in_step(self, federation: FederationConfig, data: list[DataSets]) -> float:
        """Take the steps of all nodes in this process; the trusted center's noise is the plan's, without more."""
        learners = [_learner(federation, data, node, whole=self.way == CENTER) for node in range(NODES)]
        total_rows = sum(learner.samples for learner in learners)
        vector = learners[0].initial()
        for index in range(federation.training.rounds or 0):
            total = np.zeros(0, np.int64)
            for learner in learners:
                learner.train(RoundStart(vector), index)
                part = shared_by(learner).part  # type: ignore[union-attr]
                total = part if total.size == 0 else total + part
            shared = shared_by(learners[0])
            assert shared is not None  # noqa: S101 - as [privacy] says
            shared.rows = total_rows
            vector = shared.next_model(vector, total.view(np.uint64), NODES, index)
        score = learners[0].evaluate(vector, "test")
        return float(score.accuracy or 0.0) if score is not None else 0.0


# -- in this process --------------------------------------------------------------------------------------------------


def _task(federation: FederationConfig) -> Task:
    task = load_task(federation.task, Path())
    if not isinstance(task, Task):
        raise TypeError("these tasks are torch tasks")
    return task


def _context(federation: FederationConfig, node: int) -> NodeContext:
    options = federation.task.options
    return NodeContext(
        node=node, nodes=NODES, name=f"node{node}", seed=federation.seed, base_dir=Path(), options=options
    )


def _data(federation: FederationConfig) -> list[DataSets]:
    task = _task(federation)
    pairs = [read_samples(task, _context(federation, node)) for node in range(NODES)]
    return [DataSets(train=train, test=test) for train, test in pairs]


def _held_out(federation: FederationConfig) -> list[DataSets]:
    """The nodes' own rows, but for every fifth; those of all nodes together are the test set."""
    task, train, test = _task(federation), [], []
    for node in range(NODES):
        samples, _ = read_samples(task, _context(federation, node))
        at = torch.arange(len(samples))
        train.append(samples.rows(at[at % HELD_OUT != 0]))
        test.append(samples.rows(at[at % HELD_OUT == 0]))
    whole = tuple(torch.cat([pair[side] for pair in test]) for side in (0, 1))
    held = replace(task, data=lambda context: (train[context.node], whole), files=lambda _: ())
    pairs = [read_samples(held, _context(federation, node)) for node in range(NODES)]
    return [DataSets(train=own, test=common) for own, common in pairs]


def _held(task: Task, data: list[DataSets]) -> Task:
    def rows(samples: Samples | None) -> Any:
        return None if samples is None else samples.rows(torch.arange(len(samples)))

    return replace(task, data=lambda at: (rows(data[at.node].train), rows(data[at.node].test)), files=lambda _: ())


def _learner(federation: FederationConfig, data: list[DataSets], node: int, *, whole: bool) -> TorchLearner:
    def plan_for(samples: int) -> Plan:
        plan = plan_of(federation, samples)
        assert plan is not None  # noqa: S101 - it has [privacy]
        return replace(plan, share=NODES**-0.5) if whole else plan

    protection = Protection(plan_for=plan_for, chance=Secret(), public_test=True)
    task = _held(_task(federation), data)
    return TorchLearner(task, _context(federation, node), federation.training, protection=protection)


def _gossiped(federation: FederationConfig, data: list[DataSets]) -> float:
    given = replace(federation, task=TaskConfig(name=federation.task.name, given=_held(_task(federation), data)))
    report = simulate(given, references=False)
    return report.accuracy.mean if report.accuracy is not None else 0.0


# -- real processes ---------------------------------------------------------------------------------------------------


def _launched(federation: Federation, *, private: bool) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="shared-noise-"))
    try:
        federation.save(folder / "nodes")
        program = [sys.executable, "-m", "p2pfl"]
        if private:
            subprocess.run([*program, "privacy", "begin", str(folder / "nodes")], check=True, capture_output=True)
        done = subprocess.run([*program, "launch", str(folder / "nodes")], capture_output=True, text=True, check=False)
        if done.returncode:
            return {"accuracy": None, "error": done.stdout[-400:] + done.stderr[-400:]}
        report = json.loads((folder / "nodes" / "report.json").read_text(encoding="utf-8"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    nodes = report["nodes"]
    return {
        "accuracy": round(report["accuracy"]["mean"], 4),
        "worst": round(report["accuracy"]["min"], 4),
        "epsilon_spent": max((node["privacy"] or {"epsilon": 0})["epsilon"] for node in nodes) if private else None,
        "seconds": round(report["wall_time_s"], 1) if "wall_time_s" in report else None,
        "MB_a_node": round(sum(node["bytes_sent"] for node in nodes) / len(nodes) / 1e6, 2),
    }


def _markdown(rows: list[dict[str, Any]]) -> list[str]:
    names = ["privacy", "epsilon", "learning_rate", "accuracy", "worst", "epsilon_spent", "seconds", "MB_a_node"]
    lines = [f"| {' | '.join(str(row.get(name, '')) for name in names)} |" for row in rows]
    return [f"| {' | '.join(names)} |", f"|{' --- |' * len(names)}", *lines]


if __name__ == "__main__":
    raise SystemExit(main())
