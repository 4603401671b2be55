"""Tasks, which users write: a model, this node's data, a loss and metrics.

    def data(node):
        table = np.load(node.path() / "mine.npz")
        return (table["x"], table["y"]), None          # training pair, test pair or None

    task = Task(model=lambda: torch.nn.Linear(8, 3), data=data)

In `federation.toml`: `[task] name = "task.py:task"`. A function with keyword parameters that returns a Task receives
the other keys of `[task]` as arguments, and the folder of that file if it has a parameter `base_dir`. Nothing here
imports torch, because a task need not use it (see `LearnerFactory`).

A partition divides a common data set among nodes, as indices, for demos and simulations: docs/how-to/simulate.md has
each. With `classes` every class is on at least one node.

Every node gets at least one row, no row is assigned twice, none is left over, and the same seed gives the same parts.
Only `draw` differs: nodes may share rows and some rows may belong to no node, so that a simulation can have more nodes
than the set has rows. With `draw`, a node's rows do not depend on the number of nodes.

The built-in task `quadratic`: node k minimizes F_k(w) = 1/2 (w - t_k)^T A_k (w - t_k), A_k diagonal. No torch.

The federation's optimum, the minimum of sum_k n_k F_k / sum_k n_k, is known exactly, so tests, network checks and
simulations can compare against it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from p2pfl import chance
from p2pfl.chance import generator
from p2pfl.config.model import TrainingConfig
from p2pfl.errors import UserError
from p2pfl.learn.interface import Learner, LocalRound, RoundStart, Score, Vector, shape_digest
from p2pfl.learn.intervals import wilson
from p2pfl.learn.metrics import ACCURACY, LOSS, Measure, Metric, measured_by, named

if TYPE_CHECKING:
    import torch


Rows = NDArray[np.int64]
Labels = NDArray[Any]

ALLOWED = "iid, dirichlet:ALPHA or ALPHA,LEAST, shards:K, classes:K, sizes:A,B,... (one per node), draw:K"
_OWN_TABLES = "give each node a table of its own"
GONE = {
    "natural": _OWN_TABLES,
    "natural-id": _OWN_TABLES,
    "shard": "use shards:K",
    "pathological": "use classes:K",
    "size": "use sizes:A,B,...",
}
"""Partitions of the version before, and what to do in their place."""
_DIRICHLET_DRAWS = 10


@dataclass(frozen=True, slots=True)
class Partition:
    """A parsed spec. `numbers` are the ones after its colon."""

    spec: str
    name: str
    numbers: tuple[float, ...] = ()

    def split(self, labels: Labels, nodes: int, *, seed: int) -> list[Rows]:
        """Return each node's row numbers in ascending order, for `labels` (n,). Raises UserError: the set cannot be
        split in this way.
        """
        if labels.ndim != 1:
            raise UserError("labels must have one dimension", key="labels", value=labels.shape)
        if self.name == "draw":
            return [self._draw(len(labels), node, seed) for node in range(nodes)]
        if len(labels) < nodes:
            raise self.refusal(f"{len(labels)} samples cannot be split among {nodes} nodes")
        if self.name in {"dirichlet", "classes"} and not np.issubdtype(labels.dtype, np.integer):
            raise self.refusal("this needs integer class labels", "iid, shards:K or sizes:A,B,...")
        parts = _SPLITTERS[self.name](self, labels, nodes, generator(seed, "partition"))
        if any(len(part) == 0 for part in parts):
            raise self.refusal(f"a node would be left without samples (nodes: {nodes}, samples: {len(labels)})")
        return [np.sort(part) for part in parts]

    def part(self, labels: Labels, node: int, nodes: int, *, seed: int) -> Rows:
        """Return one node's rows. The latest splits are cached, because a simulation calls this for every node of the
        same set.
        """
        if self.name == "draw":
            return self._draw(len(labels), node, seed)
        if labels.dtype.kind not in "iuf" or labels.ndim != 1:
            return self.split(labels, nodes, seed=seed)[node]
        return _remembered(self, labels.tobytes(), labels.dtype.str, nodes, seed)[node].copy()

    def _draw(self, samples: int, node: int, seed: int) -> Rows:
        k = int(self.numbers[0])
        if k > samples:
            raise self.refusal(f"{k} rows cannot be drawn from {samples}", f"draw:1 to draw:{samples}")
        return np.sort(generator(seed, "partition", node).choice(samples, k, replace=False))

    def refusal(self, message: str, allowed: str | None = None) -> UserError:
        return UserError(message, key="task.partition", value=self.spec, allowed=allowed)


def _iid(_: Partition, labels: Labels, nodes: int, rng: np.random.Generator) -> list[Rows]:
    return np.array_split(rng.permutation(len(labels)), nodes)


def _sizes(split: Partition, labels: Labels, nodes: int, rng: np.random.Generator) -> list[Rows]:
    if len(split.numbers) != nodes:
        raise split.refusal(f"{len(split.numbers)} sizes for {nodes} nodes", "one size per node")
    ends = np.cumsum(split.numbers) / sum(split.numbers) * len(labels)
    return np.split(rng.permutation(len(labels)), np.rint(ends[:-1]).astype(np.int64))


def _dirichlet(split: Partition, labels: Labels, nodes: int, rng: np.random.Generator) -> list[Rows]:
    """Redraw while a node has too few rows; after several draws, move rows to it from the largest part."""
    least = int(split.numbers[1]) if len(split.numbers) > 1 else 1
    if least * nodes > len(labels):
        raise split.refusal(f"{nodes} nodes cannot have {least} of {len(labels)} samples each")
    classes = [rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    parts: list[Rows] = []
    for _ in range(_DIRICHLET_DRAWS):
        parts = _draw_shares(classes, nodes, split.numbers[0], rng)
        if all(len(part) >= least for part in parts):
            return parts
    return _fill_up(parts, least)


def _shards(split: Partition, labels: Labels, nodes: int, rng: np.random.Generator) -> list[Rows]:
    shards = nodes * int(split.numbers[0])
    if shards > len(labels):
        raise split.refusal(f"{shards} shards of {len(labels)} samples would leave some empty")
    shuffled = rng.permutation(len(labels))
    ordered = shuffled[np.argsort(labels[shuffled], kind="stable")]
    pieces = np.array_split(ordered, shards)
    hands = rng.permutation(shards).reshape(nodes, -1)
    return [np.concatenate([pieces[shard] for shard in hand]) for hand in hands]


def _classes(split: Partition, labels: Labels, nodes: int, rng: np.random.Generator) -> list[Rows]:
    values = rng.permutation(np.unique(labels))
    k = int(split.numbers[0])
    if k > len(values) or k * nodes < len(values):
        least = -(-len(values) // nodes)
        raise split.refusal(f"{nodes} nodes, {len(values)} classes", f"classes:{least} to classes:{len(values)}")
    parts: list[list[Rows]] = [[] for _ in range(nodes)]
    for place, value in enumerate(values):
        holders = [slot // k for slot in range(place, nodes * k, len(values))]
        rows = rng.permutation(np.flatnonzero(labels == value))
        if len(rows) < len(holders):
            raise split.refusal(f"class {value} has {len(rows)} samples for {len(holders)} nodes")
        for holder, share in zip(holders, np.array_split(rows, len(holders)), strict=True):
            parts[holder].append(share)
    return [np.concatenate(part) for part in parts]


_SPLITTERS: dict[str, Callable[[Partition, Labels, int, np.random.Generator], list[Rows]]] = {
    "iid": _iid,
    "dirichlet": _dirichlet,
    "shards": _shards,
    "classes": _classes,
    "sizes": _sizes,
}


@lru_cache(maxsize=4)
def _remembered(split: Partition, labels: bytes, dtype: str, nodes: int, seed: int) -> list[Rows]:
    return split.split(np.frombuffer(labels, dtype=dtype), nodes, seed=seed)


def _draw_shares(classes: list[Rows], nodes: int, alpha: float, rng: np.random.Generator) -> list[Rows]:
    pieces = []
    for rows in classes:
        ends = np.cumsum(rng.dirichlet(np.full(nodes, alpha)))[:-1] * len(rows)
        pieces.append(np.split(rows, np.minimum(ends, len(rows)).astype(np.int64)))
    return [np.concatenate(shares) for shares in zip(*pieces, strict=True)]


def _fill_up(parts: list[Rows], least: int) -> list[Rows]:
    for node in range(len(parts)):
        while len(parts[node]) < least:
            largest = max(range(len(parts)), key=lambda other: len(parts[other]))
            parts[node], parts[largest] = np.append(parts[node], parts[largest][-1:]), parts[largest][:-1]
    return parts


def leaves_few_classes(spec: str) -> bool:
    """Return True for a partition that gives each node a few classes."""
    return spec.partition(":")[0] in {"shards", "classes"}


def parse_partition(spec: str) -> Partition:
    """Read `name` or `name:numbers`. Raises UserError: there is no such partition, or its numbers are impossible."""
    name, _, text = spec.partition(":")
    try:
        numbers = tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        numbers = (np.nan,)
    fits = {
        "iid": not numbers,
        "dirichlet": len(numbers) == 1 or (len(numbers) == 2 and numbers[1].is_integer()),
        "shards": len(numbers) == 1 and numbers[0].is_integer(),
        "classes": len(numbers) == 1 and numbers[0].is_integer(),
        "sizes": len(numbers) >= 1,
        "draw": len(numbers) == 1 and numbers[0].is_integer(),
    }
    if name in GONE:
        raise UserError(f"{name} is gone: {GONE[name]}", key="task.partition")
    if not fits.get(name, False) or not all(0 < number < np.inf for number in numbers):
        raise UserError("no such partition", key="task.partition", value=spec, allowed=ALLOWED)
    return Partition(spec, name, numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContext:
    """The node for which a task provides data."""

    node: int
    """The node's index in the federation, from 0."""
    nodes: int
    """The number of members, removed ones included, so that removing one does not change the others' data."""
    name: str
    seed: int
    """The federation's seed, equal on every node."""
    base_dir: Path
    """The folder of the federation file."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The keys of `[task]` except `name`."""
    local: Mapping[str, Any] = field(default_factory=dict)
    """This node's `[data]` table; `path` and every `..._path` are absolute `Path`s."""
    secret: Callable[[str], bytes] | None = field(default=None, compare=False, repr=False)
    """A function that computes 32 bytes for a purpose; only this node can compute them. None in a simulation."""

    def key_for(self, purpose: str) -> bytes:
        """Return 32 bytes for this node's random draws, always the same, derived from the node's secret or else from
        the federation's seed.

        Raises UserError: the node's key file cannot be read.
        """
        named = f"{purpose} {self.seed}"
        return self.secret(named) if self.secret else chance.key(self.seed, purpose, self.node)

    def has(self, key: str) -> bool:
        """Return True if `path(key)` would find a path."""
        return key in self.local or key in self.options

    def path(self, key: str = "path") -> Path:
        """Return the path from the node's own `[data]`, or else from `[task]`, where it is relative to the federation
        file.

        Raises UserError: it is in neither, or not a text.
        """
        allowed = f'{key} = "..." in the [data] table of the node, or in [task] for all nodes'
        for table, values in (("data", self.local), ("task", self.options)):
            if key in values and not isinstance(values[key], str | Path):
                raise UserError("not a path", key=f"{table}.{key}", value=values[key], allowed=allowed)
        if key in self.local:
            return Path(self.local[key])
        if key in self.options:
            return self.base_dir / str(self.options[key])
        raise UserError(
            f"the task needs a path and node {self.name!r} has none",
            key=f"data.{key}",
            allowed=allowed,
        )

    def partition(self, labels: ArrayLike, spec: str) -> NDArray[np.int64]:
        """Return this node's rows of a common set with `labels` (n,), in ascending order, for demos and simulations.

        `spec` is as in `p2pfl.learn.task`. Each row belongs to exactly one node, except with `draw`.
        """
        return parse_partition(spec).part(np.asarray(labels), self.node, self.nodes, seed=self.seed)

    def own_rows(self, labels: ArrayLike, spec: str | None) -> NDArray[np.int64]:
        """Return this node's rows of the table at `path()`.

        Without a `spec` these are all rows of a table named in `[data]`, or an equal random share of a table common to
        all nodes.
        """
        if spec is None and "path" in self.local:
            return np.arange(len(np.asarray(labels)), dtype=np.int64)
        return self.partition(labels, spec or "iid")

    def check_local(self, *allowed: str) -> None:
        """Refuse keys of `[data]` that the task does not know."""
        for key, value in self.local.items():
            if key not in allowed:
                raise UserError(
                    "the task does not use this key",
                    key=f"data.{key}",
                    value=value,
                    allowed=", ".join(allowed) or "none",
                )


Gradient = Callable[[Any, Any], tuple[float, NDArray[np.float32]]]
"""A function of outputs (n, k) and targets: a loss, and its gradient (n, k) by the outputs."""
Pair = tuple[Any, Any]
"""(inputs, targets): arrays or tensors whose first dimension counts samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A model and how it is trained.

    `model` must draw random numbers only from torch's generator, so that every node builds the same model; its tensors
    stay on the CPU. `data` returns (training set, common test set or None); a set is a pair (inputs (n, ...), targets
    (n, ...)) or a torch Dataset of such pairs. `loss` maps (outputs, targets) to a scalar tensor, the mean over the
    batch; None is cross entropy on integer class labels or class probabilities. Each of `metrics` maps all (outputs,
    targets) of a set to a number; a `p2pfl.learn.metrics.Metric` says whether higher or lower is better; for a plain
    function, higher is better. A list names built-in ones. Accuracy is included by default if targets are integer
    labels. `metric` names the main one, which tables and pictures show first. By default it is accuracy if there is
    one, else the first of `metrics`, else the loss.
    """

    model: Callable[[], torch.nn.Module]
    data: Callable[[NodeContext], tuple[Any, Any]]
    loss: Callable[[Any, Any], torch.Tensor] | None = None
    gradient: Gradient | Any = None
    """The loss of arrays, for a model of one of the `layers`, which then trains without torch."""
    metrics: Mapping[str, Metric | Callable[[Any, Any], Any]] | Any = field(default_factory=dict)
    """Any stands for a list of names, which is replaced by the metrics."""

    metric: str | None = None
    name: str = ""
    layers: tuple[int, ...] = ()
    """The widths in a model that is `p2pfl.learn.digits.mlp` of them, which is known without torch."""
    digest: bytes = b""
    """A digest of what nodes must have in common besides the model's shapes and `[task]`, such as a schema in a
    separate file.
    """

    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    """The preprocessing from raw data to inputs, as JSON values; exported files contain it."""

    folders: Mapping[str, Callable[[torch.nn.Module, Path], None]] = field(default_factory=dict)
    """Functions that write a learned model into a new folder, by the format's name: `p2pfl export --format NAME`."""

    def __post_init__(self) -> None:
        if not isinstance(self.metrics, Mapping):
            object.__setattr__(self, "metrics", named(self.metrics, key="metrics"))
        functions = (("model", self.model), ("data", self.data), ("loss", self.loss))
        for key, value in functions:
            if not callable(value) and not (key == "loss" and value is None):
                raise UserError("this must be a function", file=self.name or "Task", key=key, value=value)
        for key, metric in self.metrics.items():
            if not callable(metric):
                raise UserError("this must be a function", file=self.name or "Task", key=f"metrics.{key}", value=metric)
        known = [*self.metrics, *(measure.name for measure in (ACCURACY, LOSS) if measure.name not in self.metrics)]
        if self.metric is not None and self.metric not in known:
            text, file = "the task has no such metric", self.name or "Task"
            raise UserError(text, file=file, key="metric", value=self.metric, allowed=", ".join(known))


def measures_for(task: Task, *, labels: bool) -> tuple[Measure, ...]:
    """Return the task's measures. Raises UserError: accuracy is to be the main one, but there is none."""
    if task.metric == ACCURACY.name and not labels and task.metric not in task.metrics:
        text, others = "targets are not class labels, so there is no accuracy", (*task.metrics, LOSS.name)
        raise UserError(text, file=task.name, key="metric", value=task.metric, allowed=", ".join(others))
    return measured_by(task.metrics, task.metric, labels=labels)


def scored(task: Task, whole: tuple[Any, ...], loss: float, samples: int, *, hits: int, judged: int) -> Score:
    """Return the score of outputs and targets, the `whole` set or nothing where no metric needs them, of which `hits`
    labels of `judged` are right. Intervals: of accuracy, if each row has one label, and of metrics that have one.
    """
    metrics = {name: float(metric(*whole)) for name, metric in task.metrics.items()} if whole else {}
    known = {name: metric.interval for name, metric in task.metrics.items() if isinstance(metric, Metric)}
    ends_of = {ACCURACY.name: wilson(hits / judged, samples) if judged == samples else None}
    ends_of |= {name: interval(*whole) for name, interval in known.items() if interval and whole}
    intervals = {name: ends for name, ends in ends_of.items() if ends is not None and all(map(math.isfinite, ends))}
    accuracy = hits / judged if judged else metrics.get(ACCURACY.name)
    return Score(accuracy=accuracy, loss=loss, samples=samples, metrics=metrics, intervals=intervals)


@runtime_checkable
class LearnerFactory(Protocol):
    """A task that makes its own learner, without torch."""

    def learner(self, context: NodeContext, training: TrainingConfig) -> Learner:
        """Make the learner of one node. `context` leads to its data, `training` has the keys of `[training]`."""
        ...


def at_least(key: str, value: float, least: float) -> None:
    """Raise an error if an option is below its bound."""
    if not value >= least:
        raise UserError("too small", key=f"task.{key}", value=value, allowed=f"at least {least}")


EQUAL_SAMPLES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class QuadraticTask:
    """Options of `[task]`. `condition` is the ratio of the largest to the smallest curvature at each node.

    Each node has the curvatures in a different order. `noise` is the standard deviation of the noise in each gradient
    entry; `samples` are the n_k. Each round sleeps for `step_s` to imitate slow training (a node's own `[data]` may
    override it).
    """

    size: int = 16
    condition: float = 1.0
    noise: float = 0.0
    samples: list[int] | Literal["equal"] = "equal"
    step_s: float = 0.0

    def __post_init__(self) -> None:
        at_least("size", self.size, 1)
        at_least("condition", self.condition, 1)
        at_least("noise", self.noise, 0)
        at_least("step_s", self.step_s, 0)
        if self.samples != "equal":
            at_least("samples", min(self.samples, default=0), 1)

    def learner(self, context: NodeContext, training: TrainingConfig) -> Learner:
        return QuadraticLearner(self, context, training)


class QuadraticLearner:
    """One node's F_k. It computes in float64 and returns the type of its input vector."""

    def __init__(self, task: QuadraticTask, context: NodeContext, training: TrainingConfig) -> None:
        _check(task, context, training)
        self._context = context
        self._noise = task.noise
        self._training = training
        self._counts = _counts(task, context.nodes)
        self._targets, self._curvatures = _problem(task.size, task.condition, context.nodes, context.seed)
        self._step_s = float(context.local.get("step_s", task.step_s))
        self.samples = int(self._counts[context.node])
        self._batch = min(training.batch_size, self.samples)
        passes = (training.local_epochs or 0) * -(-self.samples // training.batch_size)
        self._steps = passes if training.local_steps is None else training.local_steps
        self.size = task.size
        self.personal = 0
        self.measures = (LOSS,)
        self.shape_digest = shape_digest([("w", (task.size,), "float32")])

    def initial(self) -> Vector:
        return np.zeros(self.size, dtype=np.float32)

    def optimum(self) -> NDArray[np.float64]:
        """Return the minimum (d,) of the federation's objective: sum n_k A_k t_k / sum n_k A_k."""
        weights = self._counts[:, None] * self._curvatures
        return np.asarray((weights * self._targets).sum(axis=0) / weights.sum(axis=0), dtype=np.float64)

    def train(self, start: RoundStart, round_index: int) -> LocalRound:
        node = self._context.node
        rng = generator(self._context.seed, "gradient noise", node, round_index)
        rate = self._training.rate(round_index, start.elapsed_s, start.closing)
        method, w, losses = start.method, start.model.astype(np.float64), []
        given = {"anchor": w} | {name: vector.astype(np.float64) for name, vector in start.given.items()}
        for _ in range(self._steps):
            away = w - self._targets[node]
            losses.append(0.5 * float(away @ (self._curvatures[node] * away)))
            noise = self._noise * rng.standard_normal(self.size) if self._noise else 0.0
            gradient = self._curvatures[node] * away + noise
            w = w - rate * (gradient if method is None else method.gradient(gradient, w, given))
        if self._step_s:
            time.sleep(self._step_s)
        return LocalRound(
            vector=w.astype(start.model.dtype),
            steps=self._steps,
            learning_rate=rate,
            samples=self.samples,
            loss=float(np.mean(losses)),
        )

    def evaluate(self, vector: Vector, part: str) -> Score | None:
        """Evaluate F_k for "local", and the federation's objective for "test"."""
        nodes = {"local": [self._context.node], "test": list(range(self._context.nodes))}[part]
        away = vector.astype(np.float64) - self._targets[nodes]
        values = 0.5 * (self._curvatures[nodes] * away**2).sum(axis=1)
        counts = self._counts[nodes]
        return Score(accuracy=None, loss=float(counts @ values / counts.sum()), samples=int(counts.sum()))

    def local_state(self) -> dict[str, NDArray[np.generic]]:
        return {}

    def load_local_state(self, state: dict[str, NDArray[np.generic]]) -> None:
        del state

    def state_dict(self, vector: Vector) -> dict[str, NDArray[np.generic]]:
        return {"w": vector.astype(np.float32)}


def _check(task: QuadraticTask, context: NodeContext, training: TrainingConfig) -> None:
    context.check_local("step_s")
    own = context.local.get("step_s", 0.0)
    if isinstance(own, bool) or not isinstance(own, int | float) or not own >= 0:
        raise UserError("not a duration", key="data.step_s", value=own, allowed="seconds, at least 0")
    if training.optimizer != "sgd" or training.momentum or training.weight_decay:
        raise UserError(
            "the quadratic task supports only plain gradient descent",
            key="training.optimizer",
            value=training.optimizer,
            allowed="sgd without momentum and weight_decay",
        )
    if task.samples != "equal" and len(task.samples) != context.nodes:
        raise UserError(
            "there must be one count per node",
            key="task.samples",
            value=task.samples,
            allowed=f"{context.nodes} counts",
        )


def _counts(task: QuadraticTask, nodes: int) -> NDArray[np.int64]:
    return np.asarray([EQUAL_SAMPLES] * nodes if task.samples == "equal" else task.samples, dtype=np.int64)


@lru_cache(maxsize=2)
def _problem(size: int, condition: float, nodes: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the targets and curvatures of all nodes, (nodes, d) each; the largest curvature is 1. The result is
    cached, because all nodes of a simulation need the same.
    """
    targets, curvatures = [], []
    spread = np.geomspace(1 / condition, 1.0, size)
    for node in range(nodes):
        rng = generator(seed, "quadratic", node)
        targets.append(rng.standard_normal(size))
        curvatures.append(rng.permutation(spread))
    return np.stack(targets), np.stack(curvatures)
