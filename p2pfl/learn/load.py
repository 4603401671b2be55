"""Make a learner from `[task]`: find the object it names, and call it with its options and the node.

Torch is imported only for a task that needs it.

A model's tensors as a file are plain safetensors, with the names and dtypes of torch's `state_dict`; a learner without
torch is written without torch. `p2pfl export` adds metadata; reading that needs neither the federation nor torch.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from p2pfl.config.model import NOT_FROZEN, Compute, TaskConfig, TrainingConfig
from p2pfl.errors import UserError
from p2pfl.foreign import UNREADABLE, refuse_special
from p2pfl.learn.interface import KEY, WHOLE, Learner, Vector
from p2pfl.learn.linear import CountedLearner, LinearLearner
from p2pfl.learn.privacy.plan import Protection
from p2pfl.learn.privacy.rounds import HiddenRounds
from p2pfl.learn.task import LearnerFactory, NodeContext, Task
from p2pfl.methods import METHODS
from p2pfl.plugins import FAILURES, describe_failure, find_object

if TYPE_CHECKING:
    from p2pfl.learn.trainer import TorchLearner


LENGTH_BYTES = 8


def to_safetensors(learner: Learner, vector: Vector, metadata: Mapping[str, str]) -> bytes:
    """Return the content of the file for `vector` (d,) and the learner's local tensors. Tied tensors appear under each
    of their names.
    """
    state = learner.state_dict(vector)
    torch_learner = of_torch(learner)
    if torch_learner is None:
        return bytes(safetensors.numpy.save(dict(state), dict(metadata)))
    from safetensors.torch import save  # noqa: PLC0415 - only for a learner that has imported torch
    from torch import Tensor  # noqa: PLC0415 - as above

    # The module contains `vector` now, in dtypes that numpy may lack.
    whole = torch_learner.model.module.state_dict()
    tensors = {name: t.detach().cpu().clone() for name, t in whole.items() if isinstance(t, Tensor)}
    plain = {name: tensor.contiguous() for name, tensor in tensors.items()}
    return bytes(save(plain, {"format": "pt", **metadata}))


def from_safetensors(learner: Learner, content: bytes) -> Vector:
    """Return the vector (d,) from a file written by `to_safetensors`, and load the tensors that are not shared into the
    learner.

    Raises UserError: it is not such a file, or it holds another model.
    """
    try:
        if (torch_learner := of_torch(learner)) is not None:
            return _load_through_torch(torch_learner, content)
        state = safetensors.numpy.load(content)
    except safetensors.SafetensorError as error:
        raise UserError(f"this is not a safetensors file: {error}") from None
    except KeyError as dtype:
        raise UserError(f"numpy has no numbers of the type {dtype}", allowed="F32, F16 and their kin") from None
    load = getattr(learner, "load_tensors", None)
    return _concatenated(learner, state) if load is None else load(state)


def metadata_of(content: bytes) -> dict[str, str]:
    """Return the file's metadata, empty if it has none or is not a safetensors file."""
    length = int.from_bytes(content[:LENGTH_BYTES], "little")
    try:
        head = json.loads(content[LENGTH_BYTES : LENGTH_BYTES + length])
        return {str(key): str(value) for key, value in head.get("__metadata__", {}).items()}
    except (AttributeError, *UNREADABLE):
        return {}


def of_torch(learner: Learner) -> TorchLearner | None:
    if "torch" not in sys.modules:
        return None
    from p2pfl.learn.privacy.rounds import WrappedLearner  # noqa: PLC0415 - few learners are wrapped
    from p2pfl.learn.trainer import TorchLearner  # noqa: PLC0415 - imports torch

    while isinstance(learner, WrappedLearner):
        learner = learner.learner
    return learner if isinstance(learner, TorchLearner) else None


def with_torch(learner: Learner) -> Learner:
    """Return the learner, or torch's of the same task and data in place of a `LinearLearner`."""
    if not isinstance(learner, LinearLearner):
        return learner
    from p2pfl.learn.trainer import TorchLearner  # noqa: PLC0415 - imports torch

    return TorchLearner(learner.task, learner.context, learner.training)


def _load_through_torch(learner: TorchLearner, content: bytes) -> Vector:
    from safetensors.torch import load  # noqa: PLC0415 - only for a learner that has imported torch

    state = load(content)
    try:
        return learner.model.load_state_dict(state)
    except RuntimeError as error:
        raise _other_model(" ".join(str(error).split())) from None


def _concatenated(learner: Learner, state: Mapping[str, NDArray[np.generic]]) -> Vector:
    """Concatenate the tensors, and check that the learner splits them in the same way, because it may arrange them
    differently.
    """
    names = [name for name in learner.state_dict(learner.initial()) if name in state]
    parts = [np.asarray(state[name], dtype=np.float32).reshape(-1) for name in names]
    vector = np.concatenate(parts) if parts else np.zeros(0, dtype=np.float32)
    if len(names) != len(state) or vector.size != learner.size:
        raise _other_model(f"it has the tensors {sorted(state)}")
    again = learner.state_dict(vector)
    if any(not np.array_equal(again[name], state[name]) for name in names):
        raise _other_model("this learner arranges its tensors differently")
    return vector


def _other_model(reason: str) -> UserError:
    return UserError(f"this file contains a different model: {reason}", allowed="the model of the federation's task")


PREPROCESSING = "preprocessing"
"""The key in the file's metadata for the preprocessing: how raw data become inputs, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """An exported model. `preprocessing` is empty if the file has none."""

    preprocessing: str
    state: Mapping[str, NDArray[Any]]


def read_exported(path: Path) -> Exported | None:
    """Read a model; return None if it has no preprocessing, which its federation must then supply. Raises UserError: it
    cannot be read.
    """
    refuse_special(path)
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            said = (file.metadata() or {}).get(PREPROCESSING, "")
            state = {name: file.get_tensor(name) for name in file.keys()} if said else {}  # noqa: SIM118 - no mapping
    except (safetensors.SafetensorError, OSError, TypeError, AttributeError) as error:  # numpy lacks some dtypes
        raise UserError(f"this is not a safetensors file: {error}", file=path) from None
    return Exported(preprocessing=said, state=state) if said else None


BUILT_IN = {
    "digits": ("p2pfl.learn.digits", "digits"),
    "mnist-idx": ("p2pfl.learn.digits", "mnist_idx"),
    "csv": ("p2pfl.learn.table.csv_task", "csv_table"),
    "quadratic": ("p2pfl.learn.task", "QuadraticTask"),
    "lora": ("p2pfl.adapt.transformers", "lora"),
}
WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    list[str]: "a list of texts",
    list[str] | None: "a list of texts",
}
"""The values that a user may write for an annotation."""
FOLDER = "base_dir"
"""A parameter of this name is not an option: it receives the folder of the federation file."""
ALLOWED = f"{', '.join(BUILT_IN)}, file.py:object or package.module:object"


def load_task(config: TaskConfig, base_dir: Path, *, file: Path | None = None) -> Task | LearnerFactory:
    """Load the task that `config` names. `file` is the federation file, named in errors.

    Raises UserError: there is none, it cannot be imported, or its options are wrong.
    """
    try:
        loaded = _find(config.name, base_dir) if config.given is None else config.given
        task = _with_options(loaded, config, base_dir)
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
    compute: Compute | None = None,
    protection: Protection | None = None,
    secret: Callable[[str], bytes] | None = None,
    counted: bool = False,
) -> Learner:
    """Make a node's learner, on the CPU unless `compute` selects another device. `local` is its `[data]` table, with
    paths relative to `local_dir`.

    With a `protection`, its rounds are private. `secret` is `NodeContext.secret`. Raises UserError: the task, its
    options or the node's data are wrong, or `share` does not fit the model.
    """
    task = load_task(config, base_dir, file=file)
    context = NodeContext(
        node=node_index,
        nodes=node_count,
        name=node_name,
        seed=seed,
        base_dir=base_dir,
        options=config.options,
        local={key: resolved(key, value, local_dir) for key, value in local.items()},
        secret=secret,
    )
    try:
        counted = counted and config.name in BUILT_IN
        learner = learner_for(task, context, training, share, compute, protection=protection, counted=counted)
    except UserError as error:
        if error.file is None:
            in_node_file = (error.key or "").startswith("data.")
            error.file = str(local_dir / "node.toml") if in_node_file else None if file is None else str(file)
        raise
    return learner


def learner_for(
    task: Task | LearnerFactory,
    context: NodeContext,
    training: TrainingConfig,
    share: Sequence[str] = WHOLE,
    compute: Compute | None = None,
    *,
    protection: Protection | None = None,
    counted: bool = False,
) -> Learner:
    """Make a node's learner from a task that is already loaded, without torch if it can be, and a `CountedLearner` if
    it is to be `counted` and all is usual. With a `protection`, its rounds are private.

    Raises UserError: the node's data are wrong, `share` does not fit the model, there is no such device, or a privacy
    promise cannot be kept.
    """
    compute = compute or Compute()
    named = tuple(pattern for pattern in share if pattern != NOT_FROZEN)
    if isinstance(task, Task):
        if (named, compute, protection) == (WHOLE, Compute(), None):
            with suppress(ValueError):  # torch's says what is wrong
                steps = (training.optimizer, training.keep_optimizer, METHODS.own(training.method or ""))
                if task.gradient is not None and steps == ("sgd", False, None):  # a user's method takes tensors
                    return LinearLearner(task, context, training)
                if counted:
                    return cast("Learner", CountedLearner(task, context, training))
        from p2pfl.learn.trainer import TorchLearner  # noqa: PLC0415 - a task without torch must not import it

        return TorchLearner(task, context, training, share, compute, protection=protection)
    _refuse_device(compute)
    if training.logit_adjust:
        text = "this task has its own learner, and this would change nothing"
        raise UserError(text, key="training.logit_adjust", value=training.logit_adjust, allowed="0")
    if named != WHOLE:
        text = "this task has its own learner, whose tensors have no names to select"
        raise UserError(text, key=KEY, value=", ".join(named), allowed="*")
    try:
        learner = task.learner(context, training)
    except UserError:
        raise
    except FAILURES as error:
        raise UserError(f"the task's learner failed: {describe_failure(error)}", key="task.name") from error
    return learner if protection is None else HiddenRounds(learner, protection, context.node)


def _refuse_device(compute: Compute) -> None:
    """Refuse what only torch does for a task that makes its own learner, which chooses its device itself."""
    usual = {"device": "cpu", "precision": "float32", "micro_batch_size": None, "compile": False}
    for key, value in usual.items():
        chosen = getattr(compute, key)
        if chosen != value and (key, chosen) != ("device", "auto"):
            text = "this task has its own learner, which does not use torch"
            allowed = {"device": "cpu or auto", "precision": "float32"}.get(key, f"no {key}")
            raise UserError(text, file=compute.file, key=f"node.{key}", value=chosen, allowed=allowed)


def resolved(key: str, value: Any, folder: Path) -> Any:
    """Resolve a value of `[data]`; a relative path is relative to `folder`."""
    if isinstance(value, str) and (key == "path" or key.endswith("_path")):
        return (folder / Path(value).expanduser()).absolute()
    return value


def _find(name: str, base_dir: Path) -> Any:
    if name in BUILT_IN:
        module_name, attribute = BUILT_IN[name]
        return getattr(importlib.import_module(module_name), attribute)
    return find_object(name, base_dir, what="task", key="task.name", allowed=ALLOWED)


def _with_options(named_object: Any, config: TaskConfig, base_dir: Path) -> Task | LearnerFactory:
    made = not isinstance(named_object, type) and isinstance(named_object, Task | LearnerFactory)
    if made and config.options:
        key, value = next(iter(config.options.items()))
        raise UserError(
            "this task takes no options",
            key=f"task.{key}",
            value=value,
            allowed="none; a function with keyword parameters that returns a Task takes some",
        )
    task = named_object if made else _call(named_object, config, base_dir)
    if not isinstance(task, Task | LearnerFactory):
        raise UserError(
            f"{config.name} is not a task",
            key="task.name",
            value=type(task).__name__,
            allowed="a p2pfl.Task, or a function that returns one",
        )
    return task


def _call(function: Any, config: TaskConfig, base_dir: Path) -> Any:
    if not callable(function):
        return function
    arguments = bind_options(function, config.options)
    if FOLDER in inspect.signature(function).parameters:
        arguments[FOLDER] = base_dir
    try:
        return function(**arguments)
    except UserError:
        raise
    except FAILURES as error:
        raise UserError(f"{config.name} failed: {describe_failure(error)}", key="task.name") from error


def bind_options(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert options to the parameters' annotated types.

    Raises UserError: an unknown key, a wrong type, or a required option is missing.
    """
    parameters = inspect.signature(function).parameters
    _check_names(parameters, options)
    hints = _hints(function)
    return {key: _convert(key, value, hints.get(key, Any)) for key, value in options.items()}


def _check_names(parameters: Mapping[str, inspect.Parameter], options: Mapping[str, Any]) -> None:
    kinds = {parameter.kind for parameter in parameters.values()}
    own = {name: parameter for name, parameter in parameters.items() if name != FOLDER}
    names = [name for name, parameter in own.items() if parameter.kind is not parameter.VAR_KEYWORD]
    for key, value in options.items():
        if key == FOLDER or (key not in names and inspect.Parameter.VAR_KEYWORD not in kinds):
            allowed = ", ".join(names) or "none"
            raise UserError("the task has no such option", key=f"task.{key}", value=value, allowed=allowed)
    for name in names:
        if parameters[name].default is inspect.Parameter.empty and name not in options:
            raise UserError("the task needs this option", key=f"task.{name}")


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except (NameError, TypeError):  # annotations that only a type checker can resolve
        return {}


def _convert(key: str, value: Any, hint: Any) -> Any:
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        plain = next((words for kind, words in WORDS.items() if kind == hint), None)
        text = "wrong type" if plain else str(error)
        raise UserError(text, key=f"task.{key}", value=value, allowed=plain or _in_words(hint)) from None
    except TypeError:  # msgspec does not know the type: the task has to check it
        return value


def _in_words(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return ", ".join(str(choice) for choice in get_args(hint))
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)
