"""Steps of code that shows no gradient, with a learning method all the same.

A step maps the model w to another one. (w - step(w)) / rate stands for its gradient, and the method corrects that. So
what a method removes is a bias of federated learning between such steps. A bias inside a step remains, as in SCAFFOLD
with one local step (Karimireddy et al., arXiv 1910.06378).
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from p2pfl.config.model import TrainingConfig
from p2pfl.errors import UserError
from p2pfl.learn.interface import RoundStart, Vector
from p2pfl.methods import overrides


def corrected(start: RoundStart, before: Vector, after: Vector, rate: float) -> Vector:
    """Return the model (d,) after a step from `before` to `after` (d,), as the round's method has it."""
    method = start.method
    if method is None or not overrides(method, "gradient"):
        return after
    gradient = (before - after) / np.float32(rate)
    steered = method.gradient(gradient, before, {"anchor": start.model, **start.given})
    return np.asarray(before - np.float32(rate) * steered, dtype=before.dtype)


def refuse_optimizer(training: TrainingConfig, whose: str) -> None:
    """Refuse settings of an optimizer, because the code has its own. Raises UserError."""
    usual = TrainingConfig()
    for key in ("optimizer", "momentum", "weight_decay", "schedule", "keep_optimizer"):
        if (value := getattr(training, key)) != getattr(usual, key):
            text = f"{whose} has its own optimizer, and this would change nothing"
            raise UserError(text, key=f"training.{key}", value=value, allowed=f"{getattr(usual, key)}")


@contextmanager
def common_chance(seed: int) -> Iterator[None]:
    """Seed the global generators of Python, numpy and, if it is loaded, torch; restore them afterwards."""
    torch = sys.modules.get("torch")
    python, arrays = random.getstate(), np.random.get_state()  # noqa: NPY002 - users' code draws from it
    tensors = None if torch is None else torch.get_rng_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - as above
    if torch is not None:
        torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)  # noqa: NPY002 - as above
        if torch is not None:
            torch.set_rng_state(tensors)
