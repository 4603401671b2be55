"""The cost and the effect of privacy: accuracy, bytes and CPU of peers and of a trusted center; how far attacks get.

    python benchmarks/privacy.py --out FOLDER
    P2PFL_DATA=/data python benchmarks/privacy.py --task mnist --out FOLDER

The first takes the built-in digits and three CPU-minutes, the second MNIST's files in /data/mnist and four. Audits take
more time.

Sixteen nodes with equal speeds, data at random, one seed, everything simulated. The trusted center has the rows of all
nodes (record) or sees all their rounds (member), takes as many steps at the same sampling rate, and adds noise once. A
cell that is in FOLDER is not computed again. Prints two tables in Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from p2pfl.config.model import FederationConfig, TaskConfig
from p2pfl.config.privacy import MEMBER
from p2pfl.learn.interface import RoundStart
from p2pfl.learn.load import load_task
from p2pfl.learn.privacy.draws import Seeded
from p2pfl.learn.privacy.gaussian import UNIT
from p2pfl.learn.privacy.plan import plan_of
from p2pfl.learn.privacy.protection import protection_of
from p2pfl.learn.samples import DataSets, read_samples
from p2pfl.learn.task import NodeContext, Task
from p2pfl.learn.trainer import TorchLearner
from sim import simulate
from sim.audits.audit import Auditor, Effort
from sim.audits.scene import Scene
from sim.federations import describe
from sim.privacy import with_privacy

NODES = 16
CENTER = "trusted center"
GRAPHS = {"complete": "complete", "6-regular": "random-regular:degree=6", "ring": "ring"}
NO_PRIVACY = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A task and its training. `layers` are lines of `[privacy]` by name; clips are near the median lengths before
    clipping.
    """

    task: TaskConfig
    rounds: int
    batch_size: int
    learning_rate: float
    layers: dict[str, str]


def _layers(delta: float, clip: float, member: str) -> dict[str, str]:
    records = {f"record, epsilon {e}": f"epsilon={e},delta={delta:g},clip={clip:g}" for e in (8, 3, 1)}
    return {NO_PRIVACY: NO_PRIVACY, **records, "member, epsilon 8": f"unit=member,epsilon=8,delta=1e-2,{member}"}


def settings() -> dict[str, Setting]:
    digits = TaskConfig(name="digits", options={"partition": "iid"})
    mnist = TaskConfig(name="mnist-idx", options={"partition": "iid", "path": _mnist(), "hidden": 32})
    return {
        "digits": Setting(
            task=digits, rounds=20, batch_size=16, learning_rate=0.2, layers=_layers(1e-4, 1.0, "clip=0.5")
        ),
        "mnist": Setting(
            task=mnist, rounds=20, batch_size=64, learning_rate=0.2, layers=_layers(1e-5, 1.0, "clip=0.5")
        ),
    }


def _mnist() -> str:
    return str(Path(os.environ.get("P2PFL_DATA", "")) / "mnist")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=("digits", "mnist"), default="digits")
    parser.add_argument("--out", type=Path, required=True, help="the folder of results")
    parser.add_argument("--rounds", type=int, help="in place of 20")
    parser.add_argument("--no-audits", action="store_true", help="accuracy and cost alone")
    given = parser.parse_args()
    if given.task == "mnist" and not Path(_mnist()).is_dir():
        print("P2PFL_DATA names no folder with mnist in it", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    setting, folder = settings()[given.task], given.out / given.task
    setting = replace(setting, rounds=given.rounds or setting.rounds)
    folder.mkdir(parents=True, exist_ok=True)
    costs = {
        (place, layer): _cell(folder / f"{place}, {layer}.json", lambda: _cost(setting, place, layer))  # noqa: B023
        for layer in setting.layers
        for place in (CENTER, *GRAPHS)
    }
    print("\n".join(_cost_table(setting, costs)))
    if not given.no_audits:
        found = {
            layer: _cell(folder / f"audit, {layer}.json", lambda: _audited(setting, layer))  # noqa: B023
            for layer in setting.layers
        }
        print("\n".join(["", *_audit_table(found)]))
    return 0


def _cell(file: Path, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    if not file.exists():
        found = compute()
        file.write_text(json.dumps(found, indent=1), encoding="utf-8")
        print(f"{file.stem}: {found}", file=sys.stderr, flush=True)
    loaded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return loaded


def federation_of(setting: Setting, graph: str, layer: str) -> FederationConfig:
    plain = describe(nodes=NODES, topology=graph, method="variate:beta=0.1")
    training = replace(
        plain.training,
        rounds=setting.rounds,
        batch_size=setting.batch_size,
        learning_rate=setting.learning_rate,
        when_through="mix",
    )
    return with_privacy(replace(plain, task=setting.task, training=training), setting.layers[layer])


def _cost(setting: Setting, place: str, layer: str) -> dict[str, Any]:
    if place == CENTER:
        return _center(setting, layer)
    report = simulate(federation_of(setting, GRAPHS[place], layer), references=False)
    if report.accuracy is None or report.cost is None:
        raise AssertionError("a simulation of a task with a test set has an accuracy and a cost")
    return {
        "mean": report.accuracy.mean,
        "worst": report.accuracy.min,
        "bytes": (report.bytes_sent or 0) / NODES,
        "cpu_s": report.cost.run_cpu_s,
    }


# -- the center -------------------------------------------------------------------------------------------------------


def _center(setting: Setting, layer: str) -> dict[str, Any]:
    federation = federation_of(setting, "complete", layer)
    began = time.process_time()
    by_member = federation.privacy is not None and federation.privacy.unit == MEMBER
    accuracy = _averaging(federation) if by_member else _pooled(federation)
    size = _learner(federation, 0, NODES).size
    sent = 2 * 4 * size * setting.rounds if by_member else 0
    return {"mean": accuracy, "worst": accuracy, "bytes": sent, "cpu_s": time.process_time() - began}


def _pooled(federation: FederationConfig) -> float:
    """Train on all rows in one place: the batches of all nodes together are one, so that the sampling
    rate is theirs.
    """
    training = replace(federation.training, batch_size=NODES * federation.training.batch_size)
    learner = _learner(replace(federation, training=training), 0, 1)
    vector = learner.initial()
    for index in range(federation.training.rounds or 0):
        vector = learner.train(RoundStart(vector), index).vector
    return _accuracy(learner, vector)


def _averaging(federation: FederationConfig) -> float:
    """Train by DP-FedAvg: the center clips each node's change, averages them, and adds the noise once."""
    learners = [_learner(replace(federation, privacy=None), node, NODES) for node in range(NODES)]
    plan = plan_of(federation, learners[0].samples)
    if plan is None:
        raise AssertionError("a federation with [privacy] has a plan")
    vector, chance = learners[0].initial(), Seeded(federation.seed)
    for index in range(federation.training.rounds or 0):
        changes = [one.train(RoundStart(vector), index).vector - vector for one in learners]
        cut = [change * min(1.0, plan.clip / max(float(np.linalg.norm(change)), 1e-12)) for change in changes]
        noise = plan.noise * plan.clip / UNIT * chance.of_round(NODES, index).noise(vector.size)
        vector = (vector + (np.sum(cut, axis=0) + noise) / NODES).astype(vector.dtype)
    return _accuracy(learners[0], vector)


def _learner(federation: FederationConfig, node: int, nodes: int) -> TorchLearner:
    protection = protection_of(federation, Seeded(federation.seed))
    task = _task(federation)
    return TorchLearner(task, _context(federation, node, nodes), federation.training, protection=protection)


def _task(federation: FederationConfig) -> Task:
    task = load_task(federation.task, Path())
    if not isinstance(task, Task):
        raise TypeError("these tasks are torch tasks")
    return task


def _context(federation: FederationConfig, node: int, nodes: int) -> NodeContext:
    options = federation.task.options
    return NodeContext(
        node=node, nodes=nodes, name=f"node{node}", seed=federation.seed, base_dir=Path(), options=options
    )


def _accuracy(learner: TorchLearner, vector: Any) -> float:
    score = learner.evaluate(vector, "test")
    if score is None or score.accuracy is None:
        raise AssertionError("these tasks have a test set")
    return score.accuracy


# -- the attacks ------------------------------------------------------------------------------------------------------


def _audited(setting: Setting, layer: str) -> dict[str, Any]:
    """Attack one of two nodes of the complete graph in the simulator; they have the data of two of the sixteen."""
    federation = federation_of(setting, "complete", layer)
    task = _task(federation)
    data = []
    for node in range(2):
        train, test = read_samples(task, _context(federation, node, NODES))
        data.append(DataSets(train=train, test=test))
    pair = replace(
        federation,
        task=TaskConfig(name=setting.task.name, given=_held(task, data)),
        members=federation.members[:2],
        edges=((0, 1),),
        privacy=None,
    )
    scene = Scene(federation=pair, task=_held(task, data), data=data, victim=0, privacy=federation.privacy)
    effort = Effort(budget_s=600.0, rounds=6, iterations=200, shadows=16)
    auditor = Auditor(scene, attacks=("rank-one", "inversion", "membership"), effort=effort)
    wanted = federation.privacy.unit if federation.privacy is not None else NO_PRIVACY
    auditor.layers = [one for one in auditor.layers if _is(one.federation, wanted)][:1]
    found = auditor.run()
    name = auditor.layers[0].name
    return {f"{row.attack} [{row.unit}]": row.values[name] for row in found.rows}


def _is(federation: FederationConfig, layer: str) -> bool:
    return (NO_PRIVACY if federation.privacy is None else federation.privacy.unit) == layer


def _held(task: Task, data: list[DataSets]) -> Task:
    def pairs(context: NodeContext) -> tuple[Any, Any]:
        both = data[context.node].train, data[context.node].test
        return tuple(None if one is None else one.rows(torch.arange(len(one))) for one in both)  # type: ignore[return-value]

    return replace(task, data=pairs, files=lambda _: ())


# -- the tables -------------------------------------------------------------------------------------------------------


def _cost_table(setting: Setting, costs: dict[tuple[str, str], dict[str, Any]]) -> list[str]:
    places = (CENTER, *GRAPHS)
    rows = [["privacy", *places, "sent by a node, 6-regular", "CPU, 6-regular"]]
    for layer in setting.layers:
        one = costs["6-regular", layer]
        cells = [_pair(costs[place, layer]) for place in places]
        rows.append([layer, *cells, f"{one['bytes'] / 1e3:,.0f} kB", f"{one['cpu_s']:.0f} s"])
    return _markdown(rows)


def _pair(cell: dict[str, Any]) -> str:
    mean, worst = (f"{cell[key]:.3f}".removeprefix("0") for key in ("mean", "worst"))
    return mean if mean == worst else f"{mean} / {worst}"


def _audit_table(findings: dict[str, dict[str, Any]]) -> list[str]:
    names = list(dict.fromkeys(name for one in findings.values() for name in one))
    return _markdown(
        [["attack", *findings], *([name, *(_value(one.get(name)) for one in findings.values())] for name in names)]
    )


def _value(value: Any) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def _markdown(rows: list[list[str]]) -> list[str]:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return [lines[0], f"|{' --- |' * len(rows[0])}", *lines[1:]]


if __name__ == "__main__":
    raise SystemExit(main())
