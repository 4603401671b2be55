"""From `[task]` to a learner: find the object that the name means, give it its options, hand it the node.

Torch is imported only for a task that needs it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from p2pfl.config.model import TaskConfig, TrainingConfig
from p2pfl.config.plugins import FAILURES, describe_failure, find_object
from p2pfl.errors import UserError
from p2pfl.learn.interface import Learner
from p2pfl.learn.options import bind_options
from p2pfl.learn.sharing import KEY, WHOLE
from p2pfl.learn.task import LearnerFactory, NodeContext, Task

BUILT_IN = {
    "digits": ("p2pfl.learn.digits", "digits"),
    "mnist-idx": ("p2pfl.learn.mnist_idx", "mnist_idx"),
    "csv": ("p2pfl.learn.csv_table", "csv_table"),
    "quadratic": ("p2pfl.learn.quadratic", "QuadraticTask"),
}
ALLOWED = f"{', '.join(BUILT_IN)}, file.py:object or package.module:object"


def load_task(config: TaskConfig, base_dir: Path, *, file: Path | None = None) -> Task | LearnerFactory:
    """The task that `config` names. `file` is the federation file, to be named in errors.

    Raises:
        UserError: there is none, it cannot be imported, or its options are wrong.
    """
    try:
        found = _find(config.name, base_dir) if config.given is None else config.given
        task = _with_options(found, config)
    except UserError as error:
        if error.file is None:
            error.file = None if file is None else str(file)
        raise
    return replace(task, name=task.name or config.name) if isinstance(task, Task) else task


def make_learner(
    config: TaskConfig,
    training: TrainingConfig,
    *,
    seed: int,
    node_index: int,
    node_count: int,
    node_name: str,
    base_dir: Path,
    local: Mapping[str, Any],
    local_dir: Path,
    share: Sequence[str] = WHOLE,
    file: Path | None = None,
) -> Learner:
    """One node's learner. `local` is its `[data]` table, whose paths are relative to `local_dir`.

    Raises:
        UserError: the task, its options or the node's data are wrong, or `share` does not fit the model.
    """
    task = load_task(config, base_dir, file=file)
    context = NodeContext(
        node=node_index,
        nodes=node_count,
        name=node_name,
        seed=seed,
        base_dir=base_dir,
        options=config.options,
        local={key: _resolved(key, value, local_dir) for key, value in local.items()},
    )
    try:
        return learner_for(task, context, training, share)
    except UserError as error:
        if error.file is None:
            in_node_file = (error.key or "").startswith("data.")
            error.file = str(local_dir / "node.toml") if in_node_file else None if file is None else str(file)
        raise


def learner_for(
    task: Task | LearnerFactory, context: NodeContext, training: TrainingConfig, share: Sequence[str] = WHOLE
) -> Learner:
    """The learner of one node, from a task that is already loaded.

    Raises:
        UserError: the node's data are wrong, or `share` does not fit the model.
    """
    if isinstance(task, Task):
        from p2pfl.learn.trainer import TorchLearner  # noqa: PLC0415 - a task without torch must not import it

        return TorchLearner(task, context, training, share)
    if tuple(share) != WHOLE:
        text = "this task has a learner of its own, whose tensors have no names to choose by"
        raise UserError(text, key=KEY, value=", ".join(share), allowed="*")
    try:
        return task.learner(context, training)
    except UserError:
        raise
    except FAILURES as error:
        raise UserError(f"the task's learner failed: {describe_failure(error)}", key="task.name") from error


def _resolved(key: str, value: Any, folder: Path) -> Any:
    if isinstance(value, str) and (key == "path" or key.endswith("_path")):
        return (folder / Path(value).expanduser()).absolute()
    return value


def _find(name: str, base_dir: Path) -> Any:
    if name in BUILT_IN:
        module_name, attribute = BUILT_IN[name]
        return getattr(importlib.import_module(module_name), attribute)
    return find_object(name, base_dir, what="task", key="task.name", allowed=ALLOWED)


def _with_options(found: Any, config: TaskConfig) -> Task | LearnerFactory:
    made = not isinstance(found, type) and isinstance(found, Task | LearnerFactory)
    if made and config.options:
        key, value = next(iter(config.options.items()))
        raise UserError(
            "this task takes no options",
            key=f"task.{key}",
            value=value,
            allowed="none; a function with keyword parameters that returns a Task takes some",
        )
    task = found if made else _call(found, config)
    if not isinstance(task, Task | LearnerFactory):
        raise UserError(
            f"{config.name} is no task",
            key="task.name",
            value=type(task).__name__,
            allowed="a p2pfl.Task, or a function that returns one",
        )
    return task


def _call(function: Any, config: TaskConfig) -> Any:
    if not callable(function):
        return function
    arguments = bind_options(function, config.options)
    try:
        return function(**arguments)
    except UserError:
        raise
    except FAILURES as error:
        raise UserError(f"{config.name} failed: {describe_failure(error)}", key="task.name") from error
