"""Tasks, which users write: a model, this node's data, a loss and metrics.

    def data(node):
        table = np.load(node.path() / "mine.npz")
        return (table["x"], table["y"]), None          # training pair, test pair or None

task = Task(model=lambda: torch.nn.Linear(8, 3), data=data)

In `federation.toml`: `[task] name = "task.py:task"`. A function with keyword parameters that returns a Task receives
the other keys of `[task]` as arguments, and the folder of that file if it has a parameter `base_dir`. Nothing here
imports torch, because a task need not use it (see `LearnerFactory`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from p2pfl import chance
from p2pfl.config.model import TrainingConfig
from p2pfl.errors import UserError
from p2pfl.learn.interface import Learner
from p2pfl.learn.metrics import ACCURACY, LOSS, Metric, named
from p2pfl.learn.partition import parse_partition

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContext:
    """The node for which a task provides data."""

    node: int
    """The node's index in the federation, from 0."""
    nodes: int
    """The number of members, including removed ones, so that removing a member does not change the other nodes'
    data.
    """
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

    def partition(self, labels: ArrayLike, spec: str, ids: ArrayLike | None = None) -> NDArray[np.int64]:
        """Return this node's rows of a common set with `labels` (n,), in ascending order, for demos and simulations.

        `spec` is as in `p2pfl.learn.partition`. Each row belongs to exactly one node, except with `draw`.
        """
        partition, values = parse_partition(spec), np.asarray(labels)
        if ids is None and values.ndim == 1:
            return partition.part(values, self.node, self.nodes, seed=self.seed)
        return partition.split(values, self.nodes, seed=self.seed, ids=ids)[self.node]

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
    metrics: Mapping[str, Metric | Callable[[Any, Any], Any]] = field(default_factory=dict)
    metric: str | None = None
    name: str = ""
    digest: bytes = b""
    """A digest of what nodes must have in common besides the model's shapes and `[task]`, such as a schema in a
    separate file.
    """

    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    """The preprocessing from raw data to inputs, as JSON values; exported files contain it."""

    files: Callable[[NodeContext], Iterable[Path]] | None = None
    """A function that lists the files that `data` reads for a node. With `reload_s`, the node reads them again when
    they have changed, and never if the list is empty. Without `files` it reads its data again each time.
    """

    folders: Mapping[str, Callable[[torch.nn.Module, Path], None]] = field(default_factory=dict)
    """Functions that write a learned model into a new folder, by the format's name: `p2pfl export --format NAME`."""

    def __post_init__(self) -> None:
        metrics: Any = self.metrics
        if not isinstance(metrics, Mapping):
            object.__setattr__(self, "metrics", named(metrics, key="metrics"))
        functions = (("model", self.model), ("data", self.data), ("loss", self.loss), ("files", self.files))
        for key, value in functions:
            if not callable(value) and not (key in ("loss", "files") and value is None):
                raise UserError("this must be a function", file=self.name or "Task", key=key, value=value)
        for key, metric in self.metrics.items():
            if not callable(metric):
                raise UserError("this must be a function", file=self.name or "Task", key=f"metrics.{key}", value=metric)
        known = [*self.metrics, *(one.name for one in (ACCURACY, LOSS) if one.name not in self.metrics)]
        if self.metric is not None and self.metric not in known:
            text, file = "the task has no such metric", self.name or "Task"
            raise UserError(text, file=file, key="metric", value=self.metric, allowed=", ".join(known))


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
