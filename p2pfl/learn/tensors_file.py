"""A model's tensors as a file: plain safetensors, with the names and dtypes of torch's `state_dict`.

A learner without torch is written without torch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from p2pfl.errors import UserError
from p2pfl.foreign import UNREADABLE
from p2pfl.learn.interface import Learner, Vector

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
        state = safetensors.numpy.load(content) if of_torch(learner) is None else _load_torch(content)
    except safetensors.SafetensorError as error:
        raise UserError(f"this is not a safetensors file: {error}") from None
    torch_learner = of_torch(learner)
    if torch_learner is not None:
        return _load_through_torch(torch_learner, state)
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


def _load_torch(content: bytes) -> dict[str, Any]:
    from safetensors.torch import load  # noqa: PLC0415 - only for a learner that has imported torch

    return load(content)


def of_torch(learner: Learner) -> TorchLearner | None:
    if "torch" not in sys.modules:
        return None
    from p2pfl.learn.trainer import TorchLearner  # noqa: PLC0415 - imports torch

    return learner if isinstance(learner, TorchLearner) else None


def _load_through_torch(learner: TorchLearner, state: Mapping[str, Any]) -> Vector:
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
