"""The contenders of the study, in one order everywhere: all data in one place, a server, every graph,
each node alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cells import Curve, Over, Results, Run, final, worst
from served import COMPRESSOR

PARTITIONS = {
    "iid": "IID",
    "dirichlet:0.5": "Dirichlet .5",
    "dirichlet:0.1": "Dirichlet .1",
    "shards:2": "two classes",
    "classes:2": "two digits",
}
GRAPHS = {
    "complete": "complete",
    "exponential": "exponential",
    "random-regular:degree=6": "6-regular",
    "torus": "torus",
    "ring": "ring",
    "base:k=1": "Base-2",
}
POOLED, POOLED_LONG, ALONE = "all data, one node's steps", "all data, all steps", "alone"
SERVER, SQUEEZED = "server (FedAvg)", f"server, {COMPRESSOR}"
REFERENCES = "references"


@dataclass(frozen=True, slots=True)
class Setting:
    """The parts of the study that form one comparison. `world` is None where there is only one."""

    graphs: str
    references: str
    target: float
    world: str | None = None
    title: str = ""


DIGITS = Setting("graphs", REFERENCES, 0.9, "tenfold", "digits, 16 nodes")
MNIST = Setting("mnist", "mnist-references", 0.9, None, "MNIST, 5 clients")
MNIST_GRAPHS = Setting("mnist-graphs", "mnist-graphs-references", 0.8, None, "MNIST, 16 nodes")
SETTINGS = {"digits": DIGITS, "mnist": MNIST, "mnist-graphs": MNIST_GRAPHS}


@dataclass(frozen=True, slots=True)
class Contender:
    """A contender on one data split: a figure for each seed is over `runs`. `curve` is None where no messages are
    counted.
    """

    name: str
    runs: list[Run]
    accuracy: Callable[[Run], float | None]
    least: Callable[[Run], float | None]
    curve: Callable[[Run, str], Curve] | None

    @property
    def mean(self) -> Over | None:
        return Over.of(map(self.accuracy, self.runs))

    @property
    def worst(self) -> Over | None:
        return Over.of(map(self.least, self.runs))

    def until(self, target: float, over: str) -> Over | None:
        """Return the cost of reaching the accuracy; None where a seed never does."""
        if self.curve is None:
            return None
        return Over.of(self.curve(run, over).first(target) for run in self.runs)


def partitions(results: Results, setting: Setting) -> list[str]:
    found = results.values(setting.graphs, "partition") or results.values(setting.references, "partition")
    return [one for one in PARTITIONS if one in found]


def has_graphs(results: Results, setting: Setting) -> bool:
    """Return True if any graph was run in this world; references alone are no comparison."""
    return bool(results.where(setting.graphs, **_world(setting)))


def contenders(results: Results, setting: Setting, partition: str) -> list[Contender]:
    """Return the contenders of which there are runs."""
    references = results.where(setting.references, partition=partition)
    found = [
        Contender(POOLED_LONG, references, _pooled("all_nodes"), _pooled("all_nodes"), None),
        Contender(POOLED, references, _pooled("one_node"), _pooled("one_node"), None),
        Contender(SERVER, references, _server, _server, lambda run, over: run.server(over)),
    ]
    if references and all(run.served for run in references):
        found.append(
            Contender(SQUEEZED, references, _served, _served, lambda run, over: run.server(over, compressed=True))
        )
    where: dict[str, Any] = {"partition": partition, **_world(setting)}
    for topology, name in GRAPHS.items():
        runs = results.where(setting.graphs, topology=topology, **where)
        if not runs:
            runs = [run for run in references if run.report.topology == topology]
        found.append(Contender(name, runs, final, worst, lambda run, over: run.curve(over)))
    found.append(Contender(ALONE, references, _alone("mean"), _alone("min"), None))
    return [one for one in found if one.runs]


def _world(setting: Setting) -> dict[str, str]:
    return {} if setting.world is None else {"world": setting.world}


def _pooled(which: str) -> Callable[[Run], float | None]:
    def accuracy(run: Run) -> float | None:
        reference = run.report.reference
        found = reference.centralized if reference else None
        score = getattr(found, which) if found else None
        return None if score is None else float(score.accuracy)

    return accuracy


def _server(run: Run) -> float | None:
    return run.fedavg.accuracy if run.fedavg else None


def _served(run: Run) -> float | None:
    return run.served.accuracy if run.served else None


def _alone(which: str) -> Callable[[Run], float | None]:
    def accuracy(run: Run) -> float | None:
        found = run.report.reference.alone if run.report.reference else None
        return float(getattr(found.accuracy, which)) if found and found.accuracy else None

    return accuracy
