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
from p2pfl.learn.interface import Learner, Vector

if TYPE_CHECKING:
    from p2pfl.learn.trainer import TorchLearner

LENGTH_BYTES = 8


def to_safetensors(learner: Learner, vector: Vector, metadata: Mapping[str, str]) -> bytes:
    """The file for `vector` (d,) and the learner's local tensors. Tied tensors appear under each name."""
    state = learner.state_dict(vector)
    torch_learner = of_torch(learner)
    if torch_learner is None:
        return bytes(safetensors.numpy.save(dict(state), dict(metadata)))
    from safetensors.torch import save  # noqa: PLC0415 - only for a learner that has imported torch
    from torch import Tensor  # noqa: PLC0415 - as above

    # The module holds `vector` now, in dtypes that numpy may lack.
    whole = torch_learner.model.module.state_dict()
    tensors = {name: t.detach().cpu().clone() for name, t in whole.items() if isinstance(t, Tensor)}
    plain = {name: tensor.contiguous() for name, tensor in tensors.items()}
    return bytes(save(plain, {"format": "pt", **metadata}))


def from_safetensors(learner: Learner, content: bytes) -> Vector:
    """Read the vector (d,) of a file that `to_safetensors` wrote; the learner takes the tensors that are not shared.

    Raises UserError: it is no such file, or of another model.
    """
    try:
        state = safetensors.numpy.load(content) if of_torch(learner) is None else _load_torch(content)
    except safetensors.SafetensorError as error:
        raise UserError(f"this is not a safetensors file: {error}") from None
    torch_learner = of_torch(learner)
    return _concatenated(learner, state) if torch_learner is None else _load_through_torch(torch_learner, state)


def metadata_of(content: bytes) -> dict[str, str]:
    """The file's metadata; empty if it has none or is no safetensors file."""
    length = int.from_bytes(content[:LENGTH_BYTES], "little")
    try:
        head = json.loads(content[LENGTH_BYTES : LENGTH_BYTES + length])
        return {str(key): str(value) for key, value in head.get("__metadata__", {}).items()}
    except (ValueError, AttributeError):
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
    """Join the tensors, if that gives the same tensors back: a learner may arrange them otherwise."""
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
    return UserError(f"this file holds another model: {reason}", allowed="the model of the federation's task")
