"""From what an attack makes up to what an engine can send."""

from __future__ import annotations

import numpy as np

from p2pfl.compress import Compressor
from p2pfl.engine.showing import Forgery
from p2pfl.learn.interface import Vector
from sim.attacks.attack import BOAST


def passable(shown: Vector, size: int, codec: Compressor) -> Vector | Forgery:
    """What is `shown`, where it can pass for a model: finite, and of that `size`. Else bytes that say it anyway."""
    if shown.size != size:
        return Forgery(codec.encode(shown, chance=0))
    return shown if np.isfinite(shown).all() else Forgery(_not_finite(shown, codec.size_bytes(size)))


def boast(weight: float) -> float:
    """More weight than anybody has."""
    return max(weight, BOAST)


def _not_finite(shown: Vector, size_bytes: int) -> bytes:
    """No encoder makes a payload of it: bytes that are NaN, or the infinity shown, in whatever floats they are read."""
    if np.isnan(shown).any():
        return b"\xff" * size_bytes
    return np.resize(np.frombuffer(shown.astype("<f4").tobytes(), np.uint8), size_bytes).tobytes()
